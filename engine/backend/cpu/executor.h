// The CPU engine's device: a model's packed weights, its paged KV cache, adapters packed for the
// LoRA kernels, and the forward pass over a mixed batch, on a team of pinned threads. It knows
// nothing of time, policies or requests; CpuBackend drives it, and so does the calibration.
#ifndef SERVELAB_BACKEND_CPU_EXECUTOR_H_
#define SERVELAB_BACKEND_CPU_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/units.h"
#include "engine/model/lora_weights.h"
#include "engine/model/model_config.h"
#include "engine/model/weights.h"
#include "engine/serve/kv_pool.h"
#include "engine/serve/plan.h"
#include "kernels/ops.h"

namespace servelab {

struct CpuExecutorOptions {
  int threads = 1;
  std::vector<int> cores;  // thread i is pinned to cores[i % size]; empty: not pinned
  kernels::Isa isa = kernels::Isa::kReference;
  kernels::GemmLibrary gemm = kernels::GemmLibrary::kNative;
  kernels::DType type =
      kernels::DType::kBf16;  // of packed weights, activations and KV: kF32, kBf16
  std::int64_t kv_blocks = 0;
  int block_tokens = 16;
  int max_batch = 256;
  int max_batch_tokens = 2048;
};

struct SamplingOptions {
  double temperature = 0;  // 0: greedy
  double top_p = 1;
  std::uint64_t seed = 0;
};

class DeviceAdapter;  // one adapter's A and B, packed

// One sequence's share of a step.
struct SequenceSlice {
  std::int32_t context = 0;                // positions whose keys and values exist
  std::span<const std::int32_t> tokens;    // ids of the new positions, at least one
  std::span<const BlockIndex> blocks;      // block table that covers context + tokens
  const DeviceAdapter* adapter = nullptr;  // null: base model
  bool samples = false;                    // compute logits of the last position
  std::uint64_t draw = 0;                  // names this draw's random number; unused when greedy
};

// Wall time of a step on the leading thread, by part.
struct StepParts {
  TimeNs dense = 0;
  TimeNs attention = 0;
  TimeNs lora = 0;
  TimeNs total = 0;
};

class CpuExecutor {
 public:
  // Packs `weights`. Throws SpecError when the machine's memory cannot hold the plan.
  CpuExecutor(const ModelConfig& model, const ModelWeights& weights,
              const CpuExecutorOptions& options);
  ~CpuExecutor();

  const ModelConfig& model() const;
  const CpuExecutorOptions& options() const;
  // Pins the calling thread, which is to be the one that calls run(), to the first core.
  void pin_caller() const;

  // Packs an adapter for the kernels, padded to `width` ranks (0: its own). Any thread.
  std::unique_ptr<DeviceAdapter> pack_adapter(const LoraWeights& weights, int width) const;

  // A private copy of every layer with the adapter folded in: a whole model (vllm-uniform).
  // Embedding and LM head, which no adapter changes, stay shared. Any thread.
  std::unique_ptr<DeviceAdapter> pack_whole_model(const LoraWeights& weights) const;

  // One forward pass; a call at a time. With kMerged no LoRA is computed beside the weights, which
  // are those of the slices' whole model when they name one, else the merged ones. Sampled token
  // ids in order of the slices that sample.
  StepParts run(std::span<const SequenceSlice> slices, Exec exec, LoraKernel kernel,
                const SamplingOptions& sampling, std::vector<std::int32_t>* sampled);

  // Logits of the latest run: one row of model().vocab per sampling slice.
  std::span<const float> logits() const;

  // Folds an adapter into a copy of the layers that it touches; unmerge() returns to the base
  // weights, which merging never writes, so they are restored bit for bit.
  void merge(const DeviceAdapter& adapter);
  void unmerge();
  // Allocates that copy now, for the layers that `targets` name, so that no step pays for it.
  void reserve_merge(std::span<const LinearLayer> targets);

  // Bytes of keys and values of one token over all layers; copies of whole contexts to and from
  // host memory (swapping). `host` holds tokens * kv_bytes_per_token().
  Bytes kv_bytes_per_token() const;
  void copy_out(std::span<const BlockIndex> blocks, int tokens, std::byte* host) const;
  void copy_in(std::span<const BlockIndex> blocks, int tokens, const std::byte* host);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The matrices of every layer as they are multiplied, with something folded in.
struct FoldedLayers;
class AdapterStorage;

class DeviceAdapter {
 public:
  DeviceAdapter();
  ~DeviceAdapter();
  int rank() const { return rank_; }
  Bytes bytes() const;
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
