// What an engine's device is to everything above it: a model's weights, a paged KV cache, adapters
// and the forward pass over a mixed batch. It knows nothing of time, policies or requests;
// RealBackend drives it, and so do the calibration and `servelab generate`.
#ifndef SERVELAB_BACKEND_DEVICE_EXECUTOR_H_
#define SERVELAB_BACKEND_DEVICE_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/core/units.h"
#include "engine/model/lora_weights.h"
#include "engine/model/model_config.h"
#include "engine/serve/kv_pool.h"
#include "engine/serve/plan.h"

namespace servelab {

// What a device reserves when it is set up.
struct ExecutorLimits {
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

// One adapter on the device that packed it. Given back to the device when destroyed, which must not
// happen while a step uses it.
class DeviceAdapter {
 public:
  virtual ~DeviceAdapter() = default;
  virtual int rank() const = 0;     // the largest of any layer
  virtual Bytes bytes() const = 0;  // on the device

  // Returns when all of it has arrived. Steps may use it before: they wait for what they need.
  virtual void wait() const {}
};

// One sequence's share of a step.
struct SequenceSlice {
  std::int32_t context = 0;                // positions whose keys and values exist
  std::span<const std::int32_t> tokens;    // ids of the new positions, at least one
  std::span<const BlockIndex> blocks;      // block table that covers context + tokens
  const DeviceAdapter* adapter = nullptr;  // of this device; null: base model
  bool samples = false;                    // compute logits of the last position
  std::uint64_t draw = 0;                  // names this draw's random number; unused when greedy
};

// How one forward pass is computed.
struct RunMode : StepMode {
  RunMode() = default;
  RunMode(const StepMode& mode) : StepMode(mode) {}
  RunMode(Exec exec, LoraKernel kernel) : StepMode{exec, kernel, 1, HostCopy::kFused} {}
  bool may_replay = true;  // false: not as a recorded graph. All ranks of a replica do the same.
  bool measure_parts = false;  // take the time apart even where that slows the step down
};

// Time of a step on the device, by part. `total` is always there; the others may be all in `dense`
// where taking them apart would disturb the step (RunMode::measure_parts).
struct StepParts {
  TimeNs dense = 0;
  TimeNs attention = 0;
  TimeNs lora = 0;
  TimeNs total = 0;
};

// Host memory that the device copies from and to at full speed.
using HostMemory = std::unique_ptr<std::byte[], std::function<void(std::byte*)>>;

class Executor {
 public:
  virtual ~Executor() = default;

  virtual const ModelConfig& model() const = 0;
  virtual const ExecutorLimits& limits() const = 0;

  // Why this plan cannot be carried out here, or null.
  virtual const char* unsupported(const StepPlan& plan) const = 0;

  // Makes the calling thread fit to call run(): a core, a current device.
  virtual void enter_thread() const = 0;

  // Brings an adapter to the device, padded to `width` ranks (0: its own). Any thread. `weights`
  // must live until DeviceAdapter::wait() has returned.
  virtual std::unique_ptr<DeviceAdapter> pack_adapter(const LoraWeights& weights, int width) = 0;

  // Keeps an adapter ready in host memory, so that packing it later is nothing but a copy. Before
  // the run.
  virtual void hold_on_host(std::shared_ptr<const LoraWeights> weights, int width) = 0;

  // An adapter that stays in host memory: for its slices the host computes LoRA beside the device's
  // step (CaraServe 4). Takes none of the device's memory. Asked for only where unsupported() does
  // not refuse LoraSite::kHost. Any thread.
  virtual std::unique_ptr<DeviceAdapter> host_adapter(
      std::shared_ptr<const LoraWeights> weights) = 0;

  // A private copy of every layer with the adapter folded in: a whole model (vllm-uniform).
  // Embedding and LM head, which no adapter changes, stay shared. Any thread.
  virtual std::unique_ptr<DeviceAdapter> pack_whole_model(const LoraWeights& weights) = 0;

  // One forward pass; a call at a time. With kMerged no LoRA is computed beside the weights, which
  // are those of the slices' whole model when they name one, else the merged ones. Sampled token
  // ids in order of the slices that sample; -1 where the logits are not numbers.
  virtual StepParts run(std::span<const SequenceSlice> slices, const RunMode& mode,
                        const SamplingOptions& sampling, std::vector<std::int32_t>* sampled) = 0;

  // Logits of the latest run: one row of model().vocab per sampling slice.
  virtual std::span<const float> logits() = 0;

  // Folds an adapter into a copy of the layers that it touches; unmerge() returns to the base
  // weights, which merging never writes, so they are restored bit for bit.
  virtual void merge(const DeviceAdapter& adapter) = 0;
  virtual void unmerge() = 0;

  // Copies of whole contexts to and from host memory (swapping), in order with run(). `host` is
  // context_bytes(tokens) of host_memory(); it may be read or written until finish_copies() or the
  // end of the next run().
  virtual Bytes kv_bytes_per_token() const = 0;  // of keys and values over all layers
  virtual std::size_t context_bytes(int tokens) const = 0;
  virtual HostMemory host_memory(std::size_t bytes) = 0;  // SpecError when there is no more
  virtual void copy_out(std::span<const BlockIndex> blocks, int tokens, std::byte* host) = 0;
  virtual void copy_in(std::span<const BlockIndex> blocks, int tokens, const std::byte* host) = 0;
  virtual void finish_copies() = 0;
};

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_EXECUTOR_H_
