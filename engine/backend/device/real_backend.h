// An engine that really computes as a backend: each replica has a device, a thread that leads it,
// and a loader thread that brings adapters in while steps run. Time is the wall clock.
#ifndef SERVELAB_BACKEND_DEVICE_REAL_BACKEND_H_
#define SERVELAB_BACKEND_DEVICE_REAL_BACKEND_H_

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/backend/device/device.h"
#include "engine/serve/backend.h"
#include "engine/serve/request.h"
#include "engine/serve/timeline.h"

namespace servelab {

// Where adapters' weights come from. load() is called from loader threads, one at a time per
// replica, and of those that are kept also from device threads; it may throw SpecError (a file that
// was deleted, replaced or damaged).
class AdapterSource {
 public:
  virtual ~AdapterSource() = default;
  virtual std::shared_ptr<const LoraWeights> load(AdapterId id) = 0;
  // Those that stay in host memory for the whole run, by adapter, or none: load() gives these very
  // objects.
  virtual std::span<const std::shared_ptr<const LoraWeights>> kept() const { return {}; }
};

// Why such plans are refused where kept() is empty.
inline constexpr const char* kHostLoraFromDisk =
    "LoRA on the host needs adapters that stay in host memory: runtime.adapter_store: host";

// A request's prompt: `tokens` ids below the model's vocabulary.
using PromptSource = std::function<std::vector<std::int32_t>(RequestId id, int tokens)>;

// Ids drawn uniformly from a stream of their own per request.
PromptSource random_prompts(std::uint64_t seed, int vocab);

// Sets up a replica's device. Throws SpecError when it cannot be set up so.
using DeviceFactory =
    std::function<std::unique_ptr<Device>(ReplicaId replica, const ReplicaLayout& layout)>;

struct RealBackendOptions {
  SamplingOptions sampling;
  bool measure_parts = false;
};

class RealBackend : public Backend {
 public:
  // The ids that a request got so far, after its prompt; empty once it is forgotten, unless
  // keep_outputs() was called.
  virtual std::vector<std::int32_t> output(RequestId id) const = 0;
  virtual void keep_outputs() = 0;
};

// Everything passed in outlives the backend. A failure on one of its threads is thrown by
// timeline->next().
std::unique_ptr<RealBackend> make_real_backend(RealTimeline* timeline, const CostModel* cost,
                                               const Workload& workload, AdapterSource* adapters,
                                               PromptSource prompts, DeviceFactory devices,
                                               const RealBackendOptions& options);

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_REAL_BACKEND_H_
