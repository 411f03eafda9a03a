// One replica: a unit of the deployment, its models and memory, and the only place that changes
// serving state. apply() verifies the numbered invariants of every plan, whatever the technique or
// the backend, and throws InvariantError with the number of the first that is broken:
//
//   I1  every adapter that a step uses on the device is resident, or loading (the step then waits
//       for it); one of slices with LoraSite::kHost may be absent, and nothing waits for it
//   I2  a request is in at most one step at a time, at this replica, and unfinished
//   I3  a merged step runs only its adapter's requests, and nothing on the host
//   I4  blocks, slots and bytes are conserved: nothing is used twice, nothing is lost
//   I5  loads start from absent with room; evictions end resident adapters that neither a step in
//       flight nor the merged weights use
//   I6  a slice computes between one and all of a request's pending tokens
//   I7  a step keeps the engine's limits on requests and tokens; its share of the device is (0, 1]
//   I8  every request ends exactly once, with exactly its output length
//   I9  only running requests outside a step are preempted, and not run by the same plan; only
//       unfinished ones are rejected
//   I10 a policy sees the requests of its replica only: none that has not arrived
//   I11 a deployment uses each device once and serves every model, and requests go where theirs is
//   I12 a step runs requests of one model, whose weights are on the device or loading
//   I13 requests go, and adapters load, only where the adapter is in the repository; every adapter
//       is in one
#ifndef SERVELAB_SERVE_REPLICA_H_
#define SERVELAB_SERVE_REPLICA_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/serve/backend.h"
#include "engine/serve/cluster.h"
#include "engine/serve/policy.h"
#include "engine/serve/recorder.h"
#include "engine/serve/repeats.h"
#include "engine/serve/view.h"

namespace servelab {

// State that the replicas of one cluster share.
struct SharedState {
  const Workload* workload = nullptr;
  std::span<const ServedModel> models;
  Backend* backend = nullptr;
  Timeline* timeline = nullptr;
  RunRecord* record = nullptr;
  std::vector<RequestView>* table = nullptr;
  std::vector<std::pair<RequestId, TimeNs>>* token_log = nullptr;  // null: not kept
  std::size_t* done = nullptr;                                     // requests finished or rejected
  LoadIndex* loads = nullptr;  // by replica: requests that have not ended
};

class Replica {
 public:
  // `unit` outlives it; `memory` is how that is divided, with at least one KV block.
  Replica(ReplicaId id, const ClusterSettings& settings, const Unit& unit, const UnitMemory& memory,
          const SharedState& shared, std::unique_ptr<ReplicaPolicy> policy);

  const ReplicaView& view() const { return view_; }

  // Takes a request in: an arrival or the end of a migration. One that can never be served here is
  // rejected with its reason.
  void admit(RequestId id);
  // Rejects an arrival for which there is no room among those that wait.
  void turn_away(RequestId id);
  // Gives an unfinished request outside any step away, without its KV cache.
  void release(RequestId id);
  // Makes the unit's adapters resident, before the run starts.
  void preload();
  // Begins to load an adapter that is absent, beside whatever runs; unused adapters that no request
  // here wants give way, least recently used first. False when there is no room: the policy makes
  // it when it plans.
  bool load_ahead(AdapterId id);

  std::span<const RequestId> just_finished() const { return finished_; }  // by the latest step

  // Asks the policy for plans and applies them until it has none, or the backend is full.
  void plan();
  void apply(StepPlan* plan);

  // A step ended. With `may_repeat` nothing else happens at this instant, and the replica may begin
  // the next one itself where the plan repeats; true when it did, and has to be asked for no plan.
  bool on_step_done(std::uint32_t slot, bool may_repeat);
  void on_load_done(std::uint32_t what);  // low half of the event's subject

  // Tells requests of the steps that they have made and were not told of.
  void settle();
  // ReplicaView::blocks_to_decode_all(); the batch then stands.
  std::int64_t blocks_to_decode_all();

  // Ends the run's record and checks that memory is conserved.
  void finish();

 private:
  struct Step {
    bool active = false;
    bool decodes_all = false;  // the batch, before the slices
    std::vector<Slice> slices;
    std::int64_t requests = 0;  // of both
    std::vector<AdapterId> adapters;
    std::vector<AdapterId> host_adapters;  // in host memory, where nothing need pin them
    std::vector<AdapterId> taken_over;     // those of them that the device may take over: pinned
    BatchShape shape;
    ModelId model{};
    int blocks_per_page = 1;  // of that model
    StepMode mode;
    AdapterId merged = kBaseModel;
  };
  struct Loading {
    std::uint32_t what;  // as in the event that ends it
    TimeNs since;
  };
  class SchedulingWatch;

  RequestView& request(RequestId id) { return (*shared_.table)[index(id)]; }
  RequestRecord& record_of(RequestId id) { return shared_.record->requests[index(id)]; }
  RejectReason why_never(const RequestView& r, int limit) const;  // limit: output tokens

  void take_in(RequestId id);
  void reject(RequestId id, RejectReason reason);
  void preempt(const Preemption& preemption);
  void note_move(RequestId id, const RequestView& r, bool to_host);
  void drop_swapped(RequestId id);
  void begin_load(AdapterId id);
  void begin_load(ModelId id);
  void end_load(std::uint32_t what, RequestId newest);
  void evict(AdapterId id);
  void evict(ModelId id);
  bool wanted(AdapterId id) const;
  void enter_running(RequestId id, RequestView* r);
  void leave(RequestId id, RequestView* r);  // frees memory and queues, whatever the phase
  void add_slice(const Slice& slice, Step* step);
  void add_host_rows(const Slice& slice, const RequestView& r, Step* step);
  void switch_weights(Step* step, StepWork* work);
  void finish_request(RequestId id, RequestView* r);
  void submit(std::uint32_t slot, StepWork* work);
  std::int64_t advance(const Step& step, TimeNs now, TimeNs started);
  std::uint32_t take_slot(StepPlan* plan);
  void begin_batch(const StepPlan& plan, Step* step);
  void add_decodes(Step* step);
  void end_decodes(TimeNs now);
  void end_member(RequestId id);
  void join_batch(RequestId id);
  bool stand_batch();
  void dissolve_batch();
  Decoding decoding(RequestId id, const RequestView& r) const;
  void expect_repeats(const StepPlan& plan, const Step& step);
  bool repeat(std::uint32_t slot, const StepTiming& timing);
  void start_again(std::uint32_t slot);
  void report(const Step& step, const StepTiming& timing);
  void settle(RequestView* r, std::int64_t steps);
  void end_repeats() { repeats_.left = 0; }
  void end_unless_full() {
    if (!repeats_.when_full) end_repeats();
  }
  void use_adapter(AdapterId id, Step* step);
  void use_model(ModelId id);
  void check_models(const Step& step) const;
  void count_user(const RequestView& r, int change) {
    if (r.adapter_ != kBaseModel) adapters_->add_user(r.adapter_, change);
    if (takes_turns(r.model_)) models_->add_user(r.model_, change);
  }
  bool takes_turns(ModelId id) const { return turns_[index(id)]; }

  void wait(RequestId id, const RequestView& r);
  void stop_waiting(RequestId id, const RequestView& r);
  void queue_insert(RequestId id, RequestView* r);
  void queue_erase(RequestId id, RequestView* r);
  void log_plan(const StepPlan& plan);
  void log_plan_again();
  bool logs_same(const StepPlan& plan) const;
  void log_plan_head(const StepPlan& plan);
  void hash_slice(const Slice& slice);
  void hash_slices(const std::vector<Slice>& slices);
  void hash_changes(const StepPlan& plan);
  std::vector<Slice> all_slices(const StepPlan& plan) const;
  bool is_as_logged(const StepPlan& plan) const;
  bool has_joined(const Slice& logged) const;
  void fold_logged(const StepPlan& plan);
  void unfold_logged();
  void close_logged();
  void log_plan_text(const StepPlan& plan, const std::vector<Slice>& slices);
  void note_step(const Step& step, const StepTiming& timing, std::int64_t sampled);
  void log_step(const Step& step, const StepTiming& timing, std::int64_t sampled);
  void close_bin();
  void note_event(EventCode code, std::int64_t subject, double value);

  ReplicaId id_;
  SharedState shared_;
  std::unique_ptr<ReplicaPolicy> policy_;
  ReplicaView view_;
  std::unique_ptr<KvPool> kv_;
  std::unique_ptr<AdapterPool> adapters_;
  std::unique_ptr<ModelPool> models_;
  std::vector<bool> turns_;          // by model: whether it takes turns
  int preloaded_models_ = 0;         // of those, the first ones
  std::vector<Bytes> kv_per_token_;  // by model
  bool can_repeat_;

  StepPlan plan_;
  std::vector<Step> steps_;  // by slot
  std::uint64_t step_count_ = 0;
  Repeats repeats_;
  DecodeBatch batch_;
  int plans_before_batch_ = 0;  // that are made before one is to stand again
  LoggedPlan logged_;
  StreamHash decision_hash_;         // of this replica's plans
  std::vector<RequestId> finished_;  // reused
  std::vector<Loading> loading_;
  std::vector<AdapterId> victims_;    // reused
  Bytes swap_in_ = 0, swap_out_ = 0;  // to be charged to the next step
  std::vector<KvMove> moves_;         // the same, request by request

  SeriesBin bin_;
  TimeNs bin_end_ = 0;
  ReplicaTotals totals_;
  std::vector<Gauge> gauges_;
  std::vector<double> gauge_values_;  // after the latest step of the open bin
  std::size_t first_gauge_ = 0;       // in RunRecord::gauges
};

}  // namespace servelab

#endif  // SERVELAB_SERVE_REPLICA_H_
