// A backend carries plans out. It is always asynchronous: submit, then an event on the Timeline.
#ifndef SERVELAB_SERVE_BACKEND_H_
#define SERVELAB_SERVE_BACKEND_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/core/ids.h"
#include "engine/core/units.h"
#include "engine/serve/cost.h"
#include "engine/serve/kv_pool.h"
#include "engine/serve/plan.h"
#include "engine/serve/timeline.h"

namespace servelab {

class ReplicaView;

// What a replica asks of its device when it starts.
struct ReplicaLayout {
  std::int64_t kv_blocks = 0;
  int block_tokens = 0;
  int max_batch = 0;
  int max_batch_tokens = 0;
  bool whole_models = false;     // an adapter is a full copy of the weights
  bool padded_adapters = false;  // every adapter has a slot as wide as the largest rank
  std::int64_t adapters = 0;     // held at once, at most
  Bytes pool_bytes = 0;          // of KV blocks, which unified adapters share
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
  Exec exec = Exec::kUnmerged;
  LoraKernel kernel = LoraKernel::kMbgmv;
  double device_share = 1.0;
  HostCopy host_copy = HostCopy::kFused;
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
  virtual const char* unsupported(const StepPlan& plan) const = 0;
  virtual int max_steps_in_flight() const = 0;
  virtual const CostModel& cost() const = 0;

  // Once per replica, before anything else. Throws SpecError when the device cannot be set up so.
  virtual void attach(ReplicaId /*replica*/, const ReplicaLayout& /*layout*/) {}

  // Makes an adapter resident before the run starts; returns when it is.
  virtual void preload(ReplicaId /*replica*/, AdapterId /*adapter*/) {}

  // A resident adapter that no step in flight uses leaves the device.
  virtual void evict(ReplicaId /*replica*/, AdapterId /*adapter*/) {}

  // The request has left the replica while its KV was in host memory there: that can go.
  virtual void drop_swapped(ReplicaId /*replica*/, RequestId /*request*/) {}

  // The request has finished or was rejected: nothing of it is needed any more.
  virtual void forget(RequestId /*request*/) {}

  // Begins a copy of an adapter (or a whole model) of `bytes` to the device; kLoadDone follows,
  // with subject replica << 32 | adapter.
  virtual void load(ReplicaId replica, AdapterId adapter, Bytes bytes) = 0;

  // Begins a step, which waits for its adapters' loads; kStepDone follows, with subject
  // replica << 32 | slot. Spans in `work` are valid during the call only.
  virtual void submit(const StepWork& work) = 0;

  // The timing of a step whose kStepDone has been delivered.
  virtual StepTiming collect(ReplicaId replica, std::uint32_t slot) = 0;
};

constexpr std::uint64_t pack_subject(ReplicaId replica, std::uint32_t low) {
  return static_cast<std::uint64_t>(replica) << 32 | low;
}

// The digital twin: durations from the cost model, on a virtual timeline. `timeline` and `cost`
// outlive it. Loads and swaps of one replica share its host link and queue on it.
std::unique_ptr<Backend> make_twin_backend(Timeline* timeline, const CostModel* cost,
                                           std::size_t replicas);

// The harness's own measure: computes nothing. Every step, load, merge and swap takes `each` >= 1
// ns of virtual time; no plan is refused. `timeline` outlives it.
std::unique_ptr<Backend> make_null_backend(Timeline* timeline, TimeNs each, std::size_t replicas);

// Repeats a recorded run: on a ReplayTimeline steps and loads end when they ended then, with the
// recorded timings, by order of completion. Everything passed in outlives it.
std::unique_ptr<Backend> make_replay_backend(Timeline* timeline, const CostModel* cost,
                                             const std::vector<StepTiming>& timings);

}  // namespace servelab

#endif  // SERVELAB_SERVE_BACKEND_H_
