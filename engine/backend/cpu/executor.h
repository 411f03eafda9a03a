// The CPU engine's device: a model's packed weights, its paged KV cache, adapters packed for the
// LoRA kernels, and the forward pass over a mixed batch, on a team of pinned threads.
#ifndef SERVELAB_BACKEND_CPU_EXECUTOR_H_
#define SERVELAB_BACKEND_CPU_EXECUTOR_H_

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/backend/device/executor.h"
#include "engine/model/weights.h"
#include "kernels/ops.h"

namespace servelab {

class CpuAdapter;

struct CpuExecutorOptions : ExecutorLimits {
  int threads = 1;
  std::vector<int> cores;  // thread i is pinned to cores[i % size]; empty: not pinned
  kernels::Isa isa = kernels::Isa::kReference;
  kernels::GemmLibrary gemm = kernels::GemmLibrary::kNative;
  kernels::DType type =
      kernels::DType::kBf16;      // of packed weights, activations and KV: kF32, kBf16
  std::size_t adapter_bytes = 0;  // taken for adapters at the start; more is taken when needed
  // Layers whose merged copies are made at the start, so that no step pays for them.
  std::vector<LinearLayer> merge_targets;
};

class CpuExecutor final : public Executor {
 public:
  // Packs `weights`. Throws SpecError when the machine's memory cannot hold the plan.
  CpuExecutor(const ModelConfig& model, const ModelWeights& weights,
              const CpuExecutorOptions& options);
  ~CpuExecutor() override;

  const ModelConfig& model() const override;
  const ExecutorLimits& limits() const override;
  const char* unsupported(const StepPlan& plan) const override;
  void enter_thread() const override;  // pins it to the first core

  std::unique_ptr<DeviceAdapter> pack_adapter(const LoraWeights& weights, int width) override;
  // The device is the host: packed at its own rank, in no slot, and computed as any other adapter.
  std::unique_ptr<DeviceAdapter> host_adapter(std::shared_ptr<const LoraWeights> weights) override;
  std::unique_ptr<DeviceAdapter> pack_whole_model(const LoraWeights& weights) override;
  // Packing needs nothing that could be prepared.
  void hold_on_host(std::shared_ptr<const LoraWeights> /*weights*/, int /*width*/) override {}

  // The parts' times are of the leading thread, and always taken.
  StepParts run(std::span<const SequenceSlice> slices, const RunMode& mode,
                const SamplingOptions& sampling, std::vector<std::int32_t>* sampled) override;
  std::span<const float> logits() override;

  void merge(const DeviceAdapter& adapter) override;
  void unmerge() override;

  Bytes kv_bytes_per_token() const override;
  std::size_t context_bytes(int tokens) const override;
  HostMemory host_memory(std::size_t bytes) override;
  void copy_out(std::span<const BlockIndex> blocks, int tokens, std::byte* host) override;
  void copy_in(std::span<const BlockIndex> blocks, int tokens, const std::byte* host) override;
  void finish_copies() override {}  // a copy has ended when it returns

 private:
  class Impl;
  std::unique_ptr<CpuAdapter> pack(const LoraWeights& weights, int width) const;
  std::unique_ptr<Impl> impl_;
};

// The matrices of every layer as they are multiplied, with something folded in.
struct FoldedLayers;
class AdapterStorage;

// One adapter's A and B, packed.
class CpuAdapter final : public DeviceAdapter {
 public:
  CpuAdapter();
  ~CpuAdapter() override;
  int rank() const override { return rank_; }
  Bytes bytes() const override;
  // Null when the adapter leaves that layer alone.
  const kernels::LoraPair* find(int layer, LinearLayer which) const {
    if (pairs_.empty()) return nullptr;
    const kernels::LoraPair& pair =
        pairs_[static_cast<std::size_t>(layer * kLinearLayers) + static_cast<std::size_t>(which)];
    return pair.rank == 0 ? nullptr : &pair;
  }

 private:
  friend class CpuExecutor;
  int rank_ = 0;
  std::size_t size_ = 0;
  std::byte* data_ = nullptr;
  std::shared_ptr<AdapterStorage> storage_;  // where data_ goes back to
  std::vector<kernels::LoraPair> pairs_;
  std::unique_ptr<FoldedLayers> whole_;  // pack_whole_model() only; pairs_ is then empty
};

}  // namespace servelab

#endif  // SERVELAB_BACKEND_CPU_EXECUTOR_H_
