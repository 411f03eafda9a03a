#include "engine/backend/cuda/tp_executor.h"

#include <utility>

#include "engine/core/check.h"
#include "engine/model/shard.h"

namespace servelab::cuda {
namespace {

// One adapter on every rank: its parts, and their weights until the copies have ended.
class TpAdapter final : public DeviceAdapter {
 public:
  int rank() const override { return parts.front()->rank(); }
  Bytes bytes() const override {
    Bytes total = 0;
    for (const auto& part : parts) total += part->bytes();
    return total;
  }
  void wait() const override {
    for (const auto& part : parts) part->wait();
  }

  std::vector<std::shared_ptr<const LoraWeights>> weights;
  std::vector<std::unique_ptr<DeviceAdapter>> parts;
};

const DeviceAdapter* part_of(const DeviceAdapter* adapter, int rank) {
  if (adapter == nullptr) return nullptr;
  const auto& parts = static_cast<const TpAdapter*>(adapter)->parts;
  SL_CHECK(static_cast<std::size_t>(rank) < parts.size() &&
               parts[static_cast<std::size_t>(rank)] != nullptr,
           "every rank has the adapters of the batch");
  return parts[static_cast<std::size_t>(rank)].get();
}

}  // namespace

TpExecutor::TpExecutor(const ModelConfig& model, const ModelWeights& weights,
                       const DevicePlan& plan)
    : model_(model),
      collectives_(make_collectives(plan.ranks, plan.device)),
      team_(plan.ranks),
      ranks_(static_cast<std::size_t>(plan.ranks)),
      steps_(static_cast<std::size_t>(plan.ranks)) {
  team_.run([&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    DevicePlan own = plan;
    own.device = plan.device + rank;
    if (!plan.partitions.empty()) own.partitions = {plan.partitions[r]};
    ranks_[r] = std::make_unique<CudaExecutor>(model, weights, own,
                                               RankSeat{{rank, plan.ranks}, collectives_[r].get()});
  });
}

const char* TpExecutor::unsupported(const StepPlan& plan) const {
  return ranks_.front()->unsupported(plan);
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
  auto adapter = std::make_unique<TpAdapter>();
  for (int rank = 0; rank < ranks(); ++rank) {
    adapter->weights.push_back(part(weights, rank));
    adapter->parts.push_back(
        pack_one(ranks_[static_cast<std::size_t>(rank)].get(), *adapter->weights.back()));
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
std::unique_ptr<DeviceAdapter> TpExecutor::host_adapter(
    std::shared_ptr<const LoraWeights> weights) {
  auto adapter = std::make_unique<TpAdapter>();
  for (int rank = 0; rank < ranks(); ++rank) {
    adapter->parts.push_back(
        ranks_[static_cast<std::size_t>(rank)]->host_adapter(part(*weights, rank)));
  }
  return adapter;
}

StepParts TpExecutor::run(std::span<const SequenceSlice> slices, const StepMode& mode,
                          const SamplingOptions& sampling, std::vector<std::int32_t>* sampled) {
  team_.run([&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    RankStep& step = steps_[r];
    step.slices.assign(slices.begin(), slices.end());
    for (SequenceSlice& slice : step.slices) slice.adapter = part_of(slice.adapter, rank);
    ranks_[r]->enter_thread();
    step.parts = ranks_[r]->run(step.slices, mode, sampling, &step.sampled);
  });
  for (const RankStep& step : steps_) {
    SL_CHECK(step.sampled == steps_.front().sampled, "all ranks choose the same tokens");
  }
  *sampled = steps_.front().sampled;
  return steps_.front().parts;
}

std::span<const float> TpExecutor::logits() { return ranks_.front()->logits(); }

void TpExecutor::measure_parts(bool on) {
  for (const auto& rank : ranks_) rank->measure_parts(on);
}

void TpExecutor::merge(const DeviceAdapter& adapter) {
  team_.run([&](int rank) {
    CudaExecutor& executor = *ranks_[static_cast<std::size_t>(rank)];
    executor.enter_thread();
    executor.merge(*part_of(&adapter, rank));
  });
}

void TpExecutor::unmerge() {
  for (const auto& rank : ranks_) rank->unmerge();
}

void TpExecutor::reserve_merge(std::span<const LinearLayer> targets) {
  for (const auto& rank : ranks_) rank->reserve_merge(targets);
}

Bytes TpExecutor::kv_bytes_per_token() const {
  return ranks() * ranks_.front()->kv_bytes_per_token();
}

std::size_t TpExecutor::context_bytes(int tokens) const {
  return ranks_.size() * ranks_.front()->context_bytes(tokens);
}

// One rank's part after the other's.
void TpExecutor::copy_out(std::span<const BlockIndex> blocks, int tokens, std::byte* host) {
  for (const auto& rank : ranks_) {
    rank->enter_thread();
    rank->copy_out(blocks, tokens, host);
    host += rank->context_bytes(tokens);
  }
}

void TpExecutor::copy_in(std::span<const BlockIndex> blocks, int tokens, const std::byte* host) {
  for (const auto& rank : ranks_) {
    rank->enter_thread();
    rank->copy_in(blocks, tokens, host);
    host += rank->context_bytes(tokens);
  }
}

void TpExecutor::finish_copies() {
  for (const auto& rank : ranks_) rank->finish_copies();
}

}  // namespace servelab::cuda
