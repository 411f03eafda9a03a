// A backend carries plans out. It is always asynchronous: submit, then an event on the Timeline.
#ifndef SERVELAB_SERVE_BACKEND_H_
#define SERVELAB_SERVE_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/ids.h"
#include "engine/core/params.h"
#include "engine/core/registry.h"
#include "engine/core/units.h"
#include "engine/serve/cost.h"
#include "engine/serve/deployment.h"
#include "engine/serve/kv_pool.h"
#include "engine/serve/plan.h"
#include "engine/serve/timeline.h"

namespace servelab {

class ReplicaView;

// What a replica asks of its device when it starts.
struct ReplicaLayout {
  std::span<const int> devices;       // valid while the replica is set up
  std::span<const UnitModel> models;  // likewise
  std::int64_t kv_blocks = 0;
  int block_tokens = 0;
  int max_batch = 0;
  int max_batch_tokens = 0;
  int model_slots = 0;                     // places for the weights of models that take turns
  bool padded_adapters = false;            // every adapter has a slot as wide as `widest_rank`
  int widest_rank = 0;                     // of the adapters that it may hold (S_max)
  std::int64_t adapters = 0;               // held at once, at most
  Bytes pool_bytes = 0;                    // of KV blocks, which unified adapters share
  LoadPath load_path = LoadPath::kPinned;  // of adapters
  LoadPath model_load_path = LoadPath::kPinned;  // of models that take turns; or pageable
};

// A request's KV cache on its way between device and host memory.
struct KvMove {
  RequestId request{};
  bool to_host = false;
  std::int32_t tokens = 0;
  std::vector<BlockIndex> blocks;  // on the device
};

// A verified step, ready to run.
struct StepWork {
  ReplicaId replica{};
  std::uint32_t slot = 0;             // subject of the completion event, with the replica
  const ReplicaView* view = nullptr;  // of the slices' requests: contexts, adapters, block tables
  std::span<const Slice> slices;
  std::span<const AdapterId> adapters;       // on the device: distinct, in order of first use
  std::span<const AdapterId> host_adapters;  // likewise, of the slices with LoraSite::kHost
  BatchShape shape;
  ModelId model{};
  StepMode mode;
  AdapterId unmerge = kBaseModel;  // fold this out of the weights first
  AdapterId merge = kBaseModel;    // then fold this in
  int unmerge_rank = 0;
  int merge_rank = 0;
  Bytes swap_in = 0;              // KV to bring back from host memory before the step
  Bytes swap_out = 0;             // KV to move out before the step
  std::span<const KvMove> moves;  // the same, one by one and in the order to carry them out
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Why this plan cannot be carried out here, or null. Asked before anything is changed.
  virtual const char* unsupported(ReplicaId replica, const StepPlan& plan) const = 0;
  virtual int max_steps_in_flight() const = 0;
  // Whether block tables and the tokens of requests are read. Where they are not, blocks have no
  // ids, and plans that repeat are submitted without looking at their requests.
  virtual bool reads_requests() const { return true; }
  // Of a model at a replica that is attached and serves it. Lives as long as the backend.
  virtual const CostModel& cost(ReplicaId replica, ModelId model) const = 0;

  // Once per replica, in order, before anything else of it. Throws SpecError when its devices
  // cannot be set up so.
  virtual void attach(ReplicaId replica, const ReplicaLayout& layout) = 0;

  // Makes an adapter resident before the run starts; returns when it is.
  virtual void preload(ReplicaId /*replica*/, AdapterId /*adapter*/) {}

  // A resident adapter, or model that takes turns, leaves the device; no step in flight uses it.
  virtual void evict(ReplicaId /*replica*/, AdapterId /*adapter*/) {}
  virtual void evict(ReplicaId /*replica*/, ModelId /*model*/) {}

  // The request has left the replica while its KV was in host memory there: that can go.
  virtual void drop_swapped(ReplicaId /*replica*/, RequestId /*request*/) {}

  // The request has finished or was rejected: nothing of it is needed any more.
  virtual void forget(RequestId /*request*/) {}

  // Begins a copy of an adapter, or of a model that takes turns, of `bytes` to the device;
  // kLoadDone follows, with subject replica << 32 | load_subject().
  virtual void load(ReplicaId replica, AdapterId adapter, Bytes bytes) = 0;
  virtual void load(ReplicaId replica, ModelId model, Bytes bytes) = 0;

  // Asked at a kLoadDone, with what it names: whether the load is done; false: steps have taken
  // some of its link since the event was posted, and another will follow.
  virtual bool load_is_done(ReplicaId /*replica*/, std::uint32_t /*what*/) { return true; }

  // Begins a step, which waits for the loads of its model and adapters; kStepDone follows, with
  // subject replica << 32 | slot. Spans in `work` are valid during the call only.
  virtual void submit(const StepWork& work) = 0;

  // The timing of a step whose kStepDone has been delivered.
  virtual StepTiming collect(ReplicaId replica, std::uint32_t slot) = 0;
};

constexpr std::uint64_t pack_subject(ReplicaId replica, std::uint32_t low) {
  return static_cast<std::uint64_t>(replica) << 32 | low;
}

// Passes everything on: for those who look at some of it, or change it.
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(Backend* backend) : backend_(backend) {}  // outlives it
  const char* unsupported(ReplicaId replica, const StepPlan& plan) const override {
    return backend_->unsupported(replica, plan);
  }
  int max_steps_in_flight() const override { return backend_->max_steps_in_flight(); }
  bool reads_requests() const override { return backend_->reads_requests(); }
  const CostModel& cost(ReplicaId replica, ModelId model) const override {
    return backend_->cost(replica, model);
  }
  void attach(ReplicaId replica, const ReplicaLayout& layout) override {
    backend_->attach(replica, layout);
  }
  void preload(ReplicaId replica, AdapterId adapter) override {
    backend_->preload(replica, adapter);
  }
  void evict(ReplicaId replica, AdapterId adapter) override { backend_->evict(replica, adapter); }
  void evict(ReplicaId replica, ModelId model) override { backend_->evict(replica, model); }
  void drop_swapped(ReplicaId replica, RequestId request) override {
    backend_->drop_swapped(replica, request);
  }
  void forget(RequestId request) override { backend_->forget(request); }
  void load(ReplicaId replica, AdapterId adapter, Bytes bytes) override {
    backend_->load(replica, adapter, bytes);
  }
  void load(ReplicaId replica, ModelId model, Bytes bytes) override {
    backend_->load(replica, model, bytes);
  }
  bool load_is_done(ReplicaId replica, std::uint32_t what) override {
    return backend_->load_is_done(replica, what);
  }
  void submit(const StepWork& work) override { backend_->submit(work); }
  StepTiming collect(ReplicaId replica, std::uint32_t slot) override {
    return backend_->collect(replica, slot);
  }

 private:
  Backend* const backend_;
};

// What is loaded, in the low half of a kLoadDone's subject: an adapter, or a model.
inline constexpr std::uint32_t kIsModel = std::uint32_t{1} << 31;
constexpr std::uint32_t load_subject(AdapterId id) { return static_cast<std::uint32_t>(id); }
constexpr std::uint32_t load_subject(ModelId id) {
  return kIsModel | static_cast<std::uint32_t>(id);
}
constexpr bool is_model(std::uint32_t what) { return (what & kIsModel) != 0; }
constexpr ModelId loaded_model(std::uint32_t what) {
  return static_cast<ModelId>(what & ~kIsModel);
}

// The digital twin: durations from cost models, on a virtual timeline, which outlives it. Loads and
// swaps of one replica share its host link and queue on it.
std::unique_ptr<Backend> make_twin_backend(Timeline* timeline, CostModels costs);
// One cost model for everything, which outlives it too.
std::unique_ptr<Backend> make_twin_backend(Timeline* timeline, const CostModel* cost);

// The harness's own measure: computes nothing. Every step, load, merge and swap takes `each` >= 1
// ns of virtual time; no plan is refused. `timeline` outlives it.
std::unique_ptr<Backend> make_null_backend(Timeline* timeline, TimeNs each);

// A backend as specs name it: a VirtualBackend, or an Accelerator (engine/backend/device). Each
// registers itself; nothing outside its folder knows its name.
class BackendKind {
 public:
  static constexpr const char* kRegistryName = "backend";
  virtual ~BackendKind() = default;
  virtual std::string summary() const = 0;  // one line
  // Whether it really computes, in wall-clock time: its points run one at a time.
  virtual bool is_real() const = 0;
  // Why its devices cannot load adapters so, or null.
  virtual const char* no_load_path(LoadPath /*path*/) const { return nullptr; }
  // Settings of its own, in the `runtime` section of specs, whose other names are taken.
  virtual void fields(ParamFields& /*f*/) {}
};

class VirtualBackend : public BackendKind {
 public:
  bool is_real() const final { return false; }
  virtual std::unique_ptr<Backend> make(Timeline* timeline, CostModels costs) const = 0;
  // Whether steps take what the cost models say, which must then know all that a technique plans.
  virtual bool uses_costs() const { return true; }
};

// Repeats a recorded run: on a ReplayTimeline steps and loads end when they ended then, with the
// recorded timings, by order of completion. The timeline and the timings outlive it.
std::unique_ptr<Backend> make_replay_backend(Timeline* timeline, CostModels costs,
                                             const std::vector<StepTiming>& timings);

}  // namespace servelab

// On the last line of a backend's file, outside any namespace.
#define SERVELAB_BACKEND(id, Class) SERVELAB_REGISTER(BackendKind, id, Class)

#endif  // SERVELAB_SERVE_BACKEND_H_
