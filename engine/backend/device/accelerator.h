// The seam to engines: backends that really compute. Each registers itself under the name that
// specs use; no caller asks which there are, or what was built.
#ifndef SERVELAB_BACKEND_DEVICE_ACCELERATOR_H_
#define SERVELAB_BACKEND_DEVICE_ACCELERATOR_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/device/device.h"
#include "engine/backend/device/host_lora_plan.h"
#include "engine/core/check.h"
#include "engine/model/shard.h"
#include "engine/model/weights.h"
#include "engine/serve/backend.h"
#include "kernels/dtype.h"

namespace servelab {

// What models that share a device have in common: who runs on which of its SMs (Accelerator::
// partition).
class DevicePartition {
 public:
  virtual ~DevicePartition() = default;
};

// All that a device must have room for, known before anything runs.
struct DevicePlan {
  DeviceLimits limits;
  kernels::DType type = kernels::DType::kBf16;  // of weights, activations, adapters and KV
  int device = 0;                               // the first of them; on the CPU the replica
  int ranks = 1;                                // devices that share the model (tensor parallelism)
  std::vector<LinearLayer> targets;             // the layers that adapters change
  int adapters = 0;                             // held at once, at most
  int widest_rank = 0;                          // of all adapters
  bool padded = true;       // each adapter has a slot as wide as the widest rank
  Bytes adapter_bytes = 0;  // not padded: of all that are held at once, at most
  bool folded = false;      // each is held folded into a copy of all layers (Load::folded)
  bool merges = false;      // one adapter at a time is merged into a copy
  bool graphs = true;       // decode steps as recorded graphs
  // Whether plans may ask for LoRA on the host: adapters held there are then also packed for its
  // kernels.
  bool host_lora = false;
  // What the host computes but for LoRA of its own, on an engine that is the host: threads (0: a
  // share of the cores), and their cores: thread i is pinned to core [i % size]; empty: not pinned.
  int host_threads = 0;
  std::vector<int> host_cores;
  // Who computes LoRA on the host, of each device; cores are of all devices, one after the other.
  HostLoraPlan lora;
  // By rank, of its device. None: each step has the whole device.
  std::vector<std::shared_ptr<DevicePartition>> partitions;
};

// What a device is, for the profile that a calibration writes.
struct DeviceFacts {
  std::string name;
  std::string generation;  // as in a hardware profile
  Bytes memory = 0;
  int multiprocessors = 0;
  Bytes l2 = 0;
};

// Types of weights, activations and KV that an engine computes in.
struct ElementTypes {
  std::vector<kernels::DType> known;
  kernels::DType otherwise = kernels::DType::kF32;  // for weights stored in another
};

// How a run's replicas share the host that they are on.
struct HostShares {
  int replicas = 1;  // of the run, on this machine
  int threads = 0;   // 0: as the engine is set, else the cores, shared out
  bool pin = true;
  bool host_lora = false;      // plans ask for it
  bool lora_by_engine = true;  // `lora.by` is the engine's to say
  HostLoraPlan lora = {};      // as asked; workers 0: the engine says how many
};

class Accelerator : public BackendKind {
 public:
  bool is_real() const final { return true; }

  // Whether a step can begin while the last layers of its adapters are still on their way.
  virtual bool loads_by_layer() const { return false; }
  const char* no_load_path(LoadPath path) const final;

  // How many devices there are. SpecError with the reason when there is none.
  virtual int devices() const = 0;
  // Throws SpecError where a run of so many replicas on so many devices each cannot be served here.
  virtual void check_devices(int replicas, int ranks) const = 0;

  virtual DeviceFacts facts(int device) const = 0;
  // For records: empty where the machine's context says it all.
  virtual std::string device_name() const { return facts(0).name; }
  // For records: what computes linear layers of `type`; empty where there is but one way.
  virtual std::string kernels_name(kernels::DType /*type*/) const { return ""; }
  // Begins the name of a profile that is measured here with so many threads.
  virtual std::string profile_stem(int threads) const = 0;
  virtual ElementTypes element_types() const = 0;
  // Fills in a replica's threads, workers and cores on the host. Throws SpecError where there are
  // fewer cores than are asked for, or the engine does not work so.
  virtual void share_host(int replica, const HostShares& shares, DevicePlan* plan) const = 0;

  // For all models on a device whose steps get shares of its SMs (StepPlan::device_share). Throws
  // SpecError where the device cannot be shared so.
  virtual std::shared_ptr<DevicePartition> partition(int device) const = 0;

  // The device of a replica, on plan.ranks devices from plan.device on. Throws SpecError when they
  // cannot hold the plan or compute the model. `weights` may be dropped afterwards.
  virtual std::unique_ptr<Device> make(const ModelConfig& model, const ModelWeights& weights,
                                       const DevicePlan& plan) const = 0;

  // Ranks that are processes (engine/backend/ranks): a new name under which those of a replica
  // meet, made by one of them, and one rank's device on plan.device, which returns when all ranks
  // have come and throws GroupError where they cannot meet.
  virtual std::string name_group() const = 0;
  virtual std::unique_ptr<Device> make_rank(const ModelConfig& model, const ModelWeights& weights,
                                            const DevicePlan& plan, const Shard& shard,
                                            const std::string& group) const = 0;
};

// For share_host(): throws SpecError for more threads and workers than cores that are not meant so.
void check_cores(const HostLoraPlan& lora, int wanted, int cores);

// SpecError where there is none of this name.
std::unique_ptr<Accelerator> find_accelerator(const std::string& name);
// Their names.
std::vector<std::string> accelerator_names();

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_ACCELERATOR_H_
