// What an engine's device is to everything above it: a model's weights, a paged KV cache, adapters
// and the forward pass over a mixed batch. It knows nothing of time, policies or requests;
// RealBackend drives it, and so do the calibration and `servelab generate`.
//
// It is a LocalDevice (local_device.h, of one engine each), one in another process
// (ranks/remote_device.h), or several that share the model (tensor_parallel.h).
#ifndef SERVELAB_BACKEND_DEVICE_DEVICE_H_
#define SERVELAB_BACKEND_DEVICE_DEVICE_H_

#include <cstdint>
#include <memory>

#include "engine/backend/device/device_job.h"
#include "engine/model/lora_weights.h"
#include "engine/model/model_config.h"

namespace servelab {

// What a device reserves when it is set up.
struct DeviceLimits {
  std::int64_t kv_blocks = 0;
  int block_tokens = 16;
  int max_batch = 256;
  int max_batch_tokens = 2048;
};

class Device {
 public:
  virtual ~Device() = default;

  const ModelConfig& model() const { return model_; }
  const DeviceLimits& limits() const { return limits_; }

  // Why this plan cannot be carried out here, or null.
  virtual const char* unsupported(const StepPlan& plan) const = 0;

  // Keeps an adapter in host memory, so that loading it later is nothing but a copy, and so that
  // the host can compute with it (LoraSite::kHost). Before the first job. Throws SpecError where
  // there is no room or the device cannot have it, as load() does.
  virtual void hold(const Load& load, std::shared_ptr<const LoraWeights> weights) = 0;

  // Begins to bring an adapter to the device. When it returns, jobs may use the adapter: they wait
  // for what they need of it. wait() returns when all of it has arrived. One load at a time, from
  // any thread.
  virtual void load(const Load& load, std::shared_ptr<const LoraWeights> weights) = 0;
  virtual void wait(AdapterId adapter) = 0;
  // No job uses it any more; load() and wait() for it have returned. Any thread.
  virtual void evict(AdapterId adapter) = 0;

  // A job at a time. `result` is reused: all of it is written.
  virtual void run(const DeviceJob& job, DeviceResult* result) = 0;

 protected:
  Device(const ModelConfig& model, const DeviceLimits& limits) : model_(model), limits_(limits) {}

 private:
  const ModelConfig model_;
  const DeviceLimits limits_;
};

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_DEVICE_H_
