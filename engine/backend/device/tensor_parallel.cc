#include "engine/backend/device/tensor_parallel.h"

#include <utility>

#include "engine/model/shard.h"

namespace servelab {

TensorParallelDevice::TensorParallelDevice(const ModelConfig& model, const DeviceLimits& limits,
                                           const std::vector<MakeRank>& ranks, RankFailed failed)
    : Device(model, limits),
      failed_(std::move(failed)),
      team_(static_cast<int>(ranks.size())),
      ranks_(ranks.size()),
      results_(ranks.size()) {
  try {
    team_.run([&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      try {
        ranks_[r] = ranks[r]();
      } catch (const GroupError& problem) {
        if (failed_) failed_(problem.what());
        throw;
      }
    });
  } catch (...) {
    team_.run([this](int rank) { ranks_[static_cast<std::size_t>(rank)].reset(); });
    throw;
  }
}

// At once, as they were made: NCCL's ranks wait for each other at the end too.
TensorParallelDevice::~TensorParallelDevice() {
  team_.run([this](int rank) { ranks_[static_cast<std::size_t>(rank)].reset(); });
}

const char* TensorParallelDevice::unsupported(const StepPlan& plan) const {
  return ranks_.front()->unsupported(plan);
}

// --- adapters ---

TensorParallelDevice::Parts TensorParallelDevice::parts_of(const LoraWeights& weights) const {
  Parts parts;
  const int ranks = static_cast<int>(ranks_.size());
  for (int rank = 0; rank < ranks; ++rank) {
    parts.push_back(shard_adapter(model(), weights, {rank, ranks}));
  }
  return parts;
}

void TensorParallelDevice::hold(const Load& load, std::shared_ptr<const LoraWeights> weights) {
  Parts parts = parts_of(*weights);
  for (std::size_t r = 0; r < ranks_.size(); ++r) ranks_[r]->hold(load, parts[r]);
  held_.insert_or_assign(load.adapter, std::move(parts));
}

void TensorParallelDevice::take_back_evicted() {
  std::vector<AdapterId> evicted;
  {
    const std::lock_guard lock(mutex_);
    evicted.swap(evicted_);
  }
  for (const AdapterId adapter : evicted) {
    for (const auto& rank : ranks_) rank->evict(adapter);
  }
}

void TensorParallelDevice::load(const Load& load, std::shared_ptr<const LoraWeights> weights) {
  const auto held = held_.find(load.adapter);
  const Parts parts = held != held_.end() ? held->second : parts_of(*weights);
  const std::lock_guard change(changing_);
  take_back_evicted();
  for (std::size_t r = 0; r < ranks_.size(); ++r) ranks_[r]->load(load, parts[r]);
  const std::lock_guard lock(mutex_);
  arrived_[load.adapter] = false;
}

void TensorParallelDevice::wait(AdapterId adapter) {
  for (const auto& rank : ranks_) rank->wait(adapter);
  const std::lock_guard lock(mutex_);
  arrived_[adapter] = true;
}

void TensorParallelDevice::evict(AdapterId adapter) {
  const std::lock_guard lock(mutex_);
  SL_CHECK(arrived_.erase(adapter) == 1, "an adapter that is evicted is on the device");
  evicted_.push_back(adapter);
}

// --- jobs ---

void TensorParallelDevice::run(const DeviceJob& job, DeviceResult* result) {
  DeviceJob waiting;  // the same job, where a rank's part of an adapter may still be on its way
  {
    const std::lock_guard lock(mutex_);
    for (const Sequence& sequence : job.sequences) {
      const auto found = arrived_.find(sequence.adapter);
      if (sequence.lora != LoraSite::kDevice || found == arrived_.end() || found->second) continue;
      waiting = job;
      waiting.may_replay = false;
      break;
    }
  }
  const DeviceJob& agreed = waiting.sequences.empty() ? job : waiting;
  team_.run([&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    try {
      ranks_[r]->run(agreed, &results_[r]);
    } catch (const std::exception& problem) {
      if (failed_) failed_("rank " + std::to_string(rank) + " of the replica: " + problem.what());
      throw;
    }
  });
  for (std::size_t r = 1; r < results_.size(); ++r) {
    const bool agree_on_tokens = results_[r].sampled == results_.front().sampled;
    if (agree_on_tokens && results_[r].host_layers == results_.front().host_layers) continue;
    const std::string text =
        "rank " + std::to_string(r) + " of the replica " +
        (agree_on_tokens ? "left its host's LoRA at another layer than the first"
                         : "chose other tokens than the first");
    if (failed_) failed_(text);
    SL_CHECK(false, text);
  }
  *result = results_.front();
  for (std::size_t r = 1; r < results_.size(); ++r) {
    result->host_work.lost += results_[r].host_work.lost;
    result->host_work.recomputed += results_[r].host_work.recomputed;
  }
}

}  // namespace servelab
