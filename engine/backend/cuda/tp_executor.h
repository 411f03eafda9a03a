// A replica on several devices: one CudaExecutor per rank, each led by a thread of its own, that
// compute every step together (engine/model/shard.h).
#ifndef SERVELAB_BACKEND_CUDA_TP_EXECUTOR_H_
#define SERVELAB_BACKEND_CUDA_TP_EXECUTOR_H_

#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/backend/cuda/collective.h"
#include "engine/backend/cuda/cuda_executor.h"
#include "engine/backend/cuda/rank_team.h"

namespace servelab::cuda {

class TpExecutor final : public Executor {
 public:
  // plan.ranks devices from plan.device on. Throws SpecError as CudaExecutor does, and where the
  // model cannot be split.
  TpExecutor(const ModelConfig& model, const ModelWeights& weights, const DevicePlan& plan);

  const ModelConfig& model() const override { return model_; }
  const ExecutorLimits& limits() const override { return ranks_.front()->limits(); }
  const char* unsupported(const StepPlan& plan) const override;
  void enter_thread() const override {}

  std::unique_ptr<DeviceAdapter> pack_adapter(const LoraWeights& weights, int width) override;
  std::unique_ptr<DeviceAdapter> pack_whole_model(const LoraWeights& weights) override;
  void hold_on_host(std::shared_ptr<const LoraWeights> weights, int width) override;
  std::unique_ptr<DeviceAdapter> host_adapter(std::shared_ptr<const LoraWeights> weights) override;

  // The times are rank 0's.
  StepParts run(std::span<const SequenceSlice> slices, const StepMode& mode,
                const SamplingOptions& sampling, std::vector<std::int32_t>* sampled) override;
  std::span<const float> logits() override;
  void measure_parts(bool on) override;

  void merge(const DeviceAdapter& adapter) override;
  void unmerge() override;
  void reserve_merge(std::span<const LinearLayer> targets) override;

  Bytes kv_bytes_per_token() const override;
  std::size_t context_bytes(int tokens) const override;
  HostMemory host_memory(std::size_t bytes) override { return ranks_.front()->host_memory(bytes); }
  void copy_out(std::span<const BlockIndex> blocks, int tokens, std::byte* host) override;
  void copy_in(std::span<const BlockIndex> blocks, int tokens, const std::byte* host) override;
  void finish_copies() override;

 private:
  struct RankStep {
    std::vector<SequenceSlice> slices;
    std::vector<std::int32_t> sampled;
    StepParts parts;
  };
  // An adapter's parts by rank, and the adapter, so that its address stays its own.
  struct Held {
    std::shared_ptr<const LoraWeights> weights;
    std::vector<std::shared_ptr<const LoraWeights>> parts;
  };
  std::shared_ptr<const LoraWeights> part(const LoraWeights& weights, int rank) const;
  int ranks() const { return static_cast<int>(ranks_.size()); }
  std::unique_ptr<DeviceAdapter> pack(
      const LoraWeights& weights,
      const std::function<std::unique_ptr<DeviceAdapter>(Executor*, const LoraWeights&)>& pack_one);

  const ModelConfig model_;
  std::vector<std::unique_ptr<Collective>> collectives_;
  mutable RankTeam team_;
  std::vector<std::unique_ptr<CudaExecutor>> ranks_;
  std::vector<RankStep> steps_;
  std::unordered_map<const LoraWeights*, Held> held_;  // as it was before the run
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_TP_EXECUTOR_H_
