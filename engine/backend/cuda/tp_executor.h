// A replica on several devices: one executor per rank, each led by a thread of its own here, that
// compute every step together (engine/model/shard.h). A rank is a CudaExecutor of this process, or
// one of another process (engine/backend/ranks); this class does not know which.
//
// All ranks see the same loads, evictions and merges in the same order and run a step in the same
// form, eagerly or as a recorded graph: NCCL asks for that of the sums in it.
#ifndef SERVELAB_BACKEND_CUDA_TP_EXECUTOR_H_
#define SERVELAB_BACKEND_CUDA_TP_EXECUTOR_H_

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/backend/cuda/rank_team.h"
#include "engine/backend/device/accelerator.h"

namespace servelab::cuda {

class TpExecutor final : public Executor {
 public:
  // Ranks that are threads: plan.ranks devices from plan.device on. Throws SpecError as
  // CudaExecutor does, and where the model cannot be split.
  TpExecutor(const ModelConfig& model, const ModelWeights& weights, const DevicePlan& plan);
  // Ranks made by these, all at once. `failed` is called where one fails in what the others wait
  // in; it may be null.
  TpExecutor(const ModelConfig& model, const std::vector<MakeRank>& ranks, RankFailed failed);
  ~TpExecutor() override;

  const ModelConfig& model() const override { return model_; }
  const ExecutorLimits& limits() const override { return ranks_.front()->limits(); }
  const char* unsupported(const StepPlan& plan) const override;
  void enter_thread() const override {}

  std::unique_ptr<DeviceAdapter> pack_adapter(const LoraWeights& weights, int width) override;
  std::unique_ptr<DeviceAdapter> pack_whole_model(const LoraWeights& weights) override;
  void hold_on_host(std::shared_ptr<const LoraWeights> weights, int width) override;
  std::unique_ptr<DeviceAdapter> host_adapter(std::shared_ptr<const LoraWeights> weights) override;

  // The times are the first rank's.
  StepParts run(std::span<const SequenceSlice> slices, const RunMode& mode,
                const SamplingOptions& sampling, std::vector<std::int32_t>* sampled) override;
  std::span<const float> logits() override;

  void merge(const DeviceAdapter& adapter) override;
  void unmerge() override;

  Bytes kv_bytes_per_token() const override;
  std::size_t context_bytes(int tokens) const override;
  // Each rank's own memory, and in what is returned where that lies.
  HostMemory host_memory(std::size_t bytes) override;
  void copy_out(std::span<const BlockIndex> blocks, int tokens, std::byte* host) override;
  void copy_in(std::span<const BlockIndex> blocks, int tokens, const std::byte* host) override;
  void finish_copies() override;

 private:
  class Adapter;
  using Parts = std::vector<std::shared_ptr<const LoraWeights>>;  // by rank
  struct Dropped;
  struct RankStep {
    std::vector<SequenceSlice> slices;
    std::vector<std::int32_t> sampled;
    StepParts parts;
  };
  // An adapter's parts by rank, and the adapter, so that its address stays its own.
  struct Held {
    std::shared_ptr<const LoraWeights> weights;
    Parts parts;
  };
  std::shared_ptr<const LoraWeights> part(const LoraWeights& weights, int rank) const;
  int ranks() const { return static_cast<int>(ranks_.size()); }
  const DeviceAdapter* part_of(const DeviceAdapter* adapter, int rank) const;
  // work(rank), which all ranks do together, on every rank's thread.
  void together(const std::function<void(int)>& work) const;
  void take_back_dropped();
  std::unique_ptr<DeviceAdapter> pack(
      const LoraWeights& weights,
      const std::function<std::unique_ptr<DeviceAdapter>(Executor*, const LoraWeights&)>& pack_one);

  const ModelConfig model_;
  const RankFailed failed_;
  mutable RankTeam team_;
  std::vector<std::unique_ptr<Executor>> ranks_;
  std::vector<RankStep> steps_;
  std::unordered_map<const LoraWeights*, Held> held_;  // as it was before the run
  std::mutex changing_;  // the ranks' adapters on their devices, one change at a time
  std::shared_ptr<Dropped> dropped_;
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_TP_EXECUTOR_H_
