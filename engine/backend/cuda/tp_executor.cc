#include "engine/backend/cuda/tp_executor.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "engine/backend/cuda/collective.h"
#include "engine/backend/cuda/cuda_executor.h"
#include "engine/core/check.h"
#include "engine/model/shard.h"

namespace servelab::cuda {
namespace {

std::vector<MakeRank> threads(const ModelConfig& model, const ModelWeights& weights,
                              const DevicePlan& plan) {
  std::vector<MakeRank> makers;
  int rank = 0;
  for (std::unique_ptr<Collective>& each : make_collectives(plan.ranks, plan.device)) {
    DevicePlan own = plan;
    own.device = plan.device + rank;
    if (!plan.partitions.empty()) {
      own.partitions = {plan.partitions[static_cast<std::size_t>(rank)]};
    }
    const RankSeat seat{{rank, plan.ranks}, std::move(each)};
    makers.emplace_back([&model, &weights, own, seat] {
      return std::make_unique<CudaExecutor>(model, weights, own, seat);
    });
    ++rank;
  }
  return makers;
}

}  // namespace

// Adapters that are no longer used. They are given back when the next one comes, so that all ranks
// see both in the same order whichever threads the two happen on.
struct TpExecutor::Dropped {
  struct Entry {
    Parts weights;
    std::vector<std::unique_ptr<DeviceAdapter>> parts;
  };
  std::mutex mutex;
  std::vector<Entry> entries;  // guarded
};

// One adapter on every rank: its parts, and their weights until the copies have ended.
class TpExecutor::Adapter final : public DeviceAdapter {
 public:
  // Null: one on the hosts, which is given back at once.
  explicit Adapter(std::shared_ptr<Dropped> dropped) : dropped_(std::move(dropped)) {}
  ~Adapter() override {
    if (dropped_ == nullptr) return;
    const std::lock_guard lock(dropped_->mutex);
    dropped_->entries.push_back({std::move(weights), std::move(parts)});
  }
  int rank() const override { return parts.front()->rank(); }
  Bytes bytes() const override {
    Bytes total = 0;
    for (const auto& part : parts) total += part->bytes();
    return total;
  }
  void wait() const override {
    for (const auto& part : parts) part->wait();
    arrived_ = true;
  }
  bool arrived() const { return arrived_; }  // on all ranks, and somebody has seen it

  Parts weights;
  std::vector<std::unique_ptr<DeviceAdapter>> parts;

 private:
  const std::shared_ptr<Dropped> dropped_;
  mutable std::atomic<bool> arrived_{false};
};

TpExecutor::TpExecutor(const ModelConfig& model, const ModelWeights& weights,
                       const DevicePlan& plan)
    : TpExecutor(model, threads(model, weights, plan), nullptr) {}

TpExecutor::TpExecutor(const ModelConfig& model, const std::vector<MakeRank>& ranks,
                       RankFailed failed)
    : model_(model),
      failed_(std::move(failed)),
      team_(static_cast<int>(ranks.size())),
      ranks_(ranks.size()),
      steps_(ranks.size()),
      dropped_(std::make_shared<Dropped>()) {
  const auto end = [this](int rank) { ranks_[static_cast<std::size_t>(rank)].reset(); };
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
    team_.run(end);
    throw;
  }
}

// At once, as they were made: NCCL's ranks wait for each other at the end too.
TpExecutor::~TpExecutor() {
  take_back_dropped();
  team_.run([this](int rank) { ranks_[static_cast<std::size_t>(rank)].reset(); });
}

void TpExecutor::together(const std::function<void(int)>& work) const {
  team_.run([&](int rank) {
    try {
      ranks_[static_cast<std::size_t>(rank)]->enter_thread();
      work(rank);
    } catch (const std::exception& problem) {
      if (failed_) failed_("rank " + std::to_string(rank) + " of the replica: " + problem.what());
      throw;
    }
  });
}

const char* TpExecutor::unsupported(const StepPlan& plan) const {
  return ranks_.front()->unsupported(plan);
}

// --- adapters ---

const DeviceAdapter* TpExecutor::part_of(const DeviceAdapter* adapter, int rank) const {
  if (adapter == nullptr) return nullptr;
  const auto& parts = static_cast<const Adapter*>(adapter)->parts;
  SL_CHECK(static_cast<std::size_t>(rank) < parts.size() &&
               parts[static_cast<std::size_t>(rank)] != nullptr,
           "every rank has the adapters of the batch");
  return parts[static_cast<std::size_t>(rank)].get();
}

void TpExecutor::take_back_dropped() {
  std::vector<Dropped::Entry> entries;
  {
    const std::lock_guard lock(dropped_->mutex);
    entries.swap(dropped_->entries);
  }
  for (Dropped::Entry& entry : entries) entry.parts.clear();
}

std::shared_ptr<const LoraWeights> TpExecutor::part(const LoraWeights& weights, int rank) const {
  const auto found = held_.find(&weights);
  if (found == held_.end()) return shard_adapter(model_, weights, {rank, ranks()});
  return found->second.parts[static_cast<std::size_t>(rank)];
}

void TpExecutor::hold_on_host(std::shared_ptr<const LoraWeights> weights, int width) {
  Held held{weights, {}};
  for (int rank = 0; rank < ranks(); ++rank) {
    held.parts.push_back(shard_adapter(model_, *weights, {rank, ranks()}));
    ranks_[static_cast<std::size_t>(rank)]->hold_on_host(held.parts.back(), width);
  }
  held_.insert_or_assign(weights.get(), std::move(held));
}

std::unique_ptr<DeviceAdapter> TpExecutor::pack(
    const LoraWeights& weights,
    const std::function<std::unique_ptr<DeviceAdapter>(Executor*, const LoraWeights&)>& pack_one) {
  auto adapter = std::make_unique<Adapter>(dropped_);
  for (int rank = 0; rank < ranks(); ++rank) adapter->weights.push_back(part(weights, rank));
  const std::lock_guard lock(changing_);
  take_back_dropped();
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    adapter->parts.push_back(pack_one(ranks_[r].get(), *adapter->weights[r]));
  }
  return adapter;
}

std::unique_ptr<DeviceAdapter> TpExecutor::pack_adapter(const LoraWeights& weights, int width) {
  return pack(weights, [width](Executor* rank, const LoraWeights& part) {
    return rank->pack_adapter(part, width);
  });
}

std::unique_ptr<DeviceAdapter> TpExecutor::pack_whole_model(const LoraWeights& weights) {
  return pack(weights,
              [](Executor* rank, const LoraWeights& part) { return rank->pack_whole_model(part); });
}

// Each rank's host computes that rank's part (shard_adapter), and the sum over ranks carries it.
// Takes no turns with loads: it is for steps that do not wait for one.
std::unique_ptr<DeviceAdapter> TpExecutor::host_adapter(
    std::shared_ptr<const LoraWeights> weights) {
  auto adapter = std::make_unique<Adapter>(nullptr);
  for (int rank = 0; rank < ranks(); ++rank) {
    adapter->parts.push_back(
        ranks_[static_cast<std::size_t>(rank)]->host_adapter(part(*weights, rank)));
  }
  adapter->wait();
  return adapter;
}

// --- steps ---

StepParts TpExecutor::run(std::span<const SequenceSlice> slices, const RunMode& mode,
                          const SamplingOptions& sampling, std::vector<std::int32_t>* sampled) {
  RunMode agreed = mode;
  for (const SequenceSlice& slice : slices) {
    const auto* const adapter = static_cast<const Adapter*>(slice.adapter);
    if (adapter != nullptr && !adapter->arrived()) agreed.may_replay = false;
  }
  together([&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    RankStep& step = steps_[r];
    step.slices.assign(slices.begin(), slices.end());
    for (SequenceSlice& slice : step.slices) slice.adapter = part_of(slice.adapter, rank);
    step.parts = ranks_[r]->run(step.slices, agreed, sampling, &step.sampled);
  });
  for (std::size_t r = 1; r < steps_.size(); ++r) {
    if (steps_[r].sampled == steps_.front().sampled) continue;
    const std::string text =
        "rank " + std::to_string(r) + " of the replica chose other tokens than the first";
    if (failed_) failed_(text);
    SL_CHECK(false, text);
  }
  *sampled = steps_.front().sampled;
  return steps_.front().parts;
}

std::span<const float> TpExecutor::logits() { return ranks_.front()->logits(); }

void TpExecutor::merge(const DeviceAdapter& adapter) {
  together(
      [&](int rank) { ranks_[static_cast<std::size_t>(rank)]->merge(*part_of(&adapter, rank)); });
}

void TpExecutor::unmerge() {
  together([&](int rank) { ranks_[static_cast<std::size_t>(rank)]->unmerge(); });
}

// --- swapping ---

Bytes TpExecutor::kv_bytes_per_token() const {
  return ranks() * ranks_.front()->kv_bytes_per_token();
}

std::size_t TpExecutor::context_bytes(int tokens) const {
  return ranks_.size() * ranks_.front()->context_bytes(tokens);
}

HostMemory TpExecutor::host_memory(std::size_t bytes) {
  auto parts = std::make_shared<std::vector<HostMemory>>();
  std::vector<std::byte*> places;
  for (const auto& rank : ranks_) {
    places.push_back(parts->emplace_back(rank->host_memory(bytes / ranks_.size())).get());
  }
  auto* const memory = new std::byte[places.size() * sizeof(std::byte*)];
  std::memcpy(memory, places.data(), places.size() * sizeof(std::byte*));
  return {memory, [parts](std::byte* given) { delete[] given; }};
}

void TpExecutor::copy_out(std::span<const BlockIndex> blocks, int tokens, std::byte* host) {
  together([&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    std::byte* part = nullptr;
    std::memcpy(&part, host + r * sizeof part, sizeof part);
    ranks_[r]->copy_out(blocks, tokens, part);
  });
}

void TpExecutor::copy_in(std::span<const BlockIndex> blocks, int tokens, const std::byte* host) {
  together([&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    std::byte* part = nullptr;
    std::memcpy(&part, host + r * sizeof part, sizeof part);
    ranks_[r]->copy_in(blocks, tokens, part);
  });
}

void TpExecutor::finish_copies() {
  together([&](int rank) { ranks_[static_cast<std::size_t>(rank)]->finish_copies(); });
}

}  // namespace servelab::cuda
