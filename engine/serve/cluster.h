// A cluster of replicas under one cluster policy, run from the first arrival to the last event.
#ifndef SERVELAB_SERVE_CLUSTER_H_
#define SERVELAB_SERVE_CLUSTER_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/serve/backend.h"
#include "engine/serve/policy.h"
#include "engine/serve/recorder.h"
#include "engine/serve/request.h"
#include "engine/serve/timeline.h"
#include "engine/serve/view.h"

namespace servelab {

// What becomes of an arrival that finds its replica full.
enum class WhenFull : std::uint8_t { kWait, kReject };
inline constexpr std::array kWhenFull = {"wait", "reject"};

struct ClusterSettings {
  int replicas = 1;
  int tensor_parallel = 1;  // devices of each
  EngineSettings engine;
  Bytes device_memory = 0;  // of one device, that the engine may use: memory x memory_fraction
  std::vector<ServedModel> models = std::vector<ServedModel>(1);  // indexed by ModelId
  Repositories repositories;          // by replica; empty: each has every adapter
  CostModels costs;                   // that a deployment is decided by; none where nobody asks
  bool reveal_output_length = false;  // the technique declares the oracle
  TimeNs stop_at = kNever;            // requests unfinished then stay kUnfinished
  TimeNs max_arrival_lag = from_seconds(0.1);  // a request that enters later makes a run INVALID
  double max_unfinished = 1;  // share of the requests; a larger one at the end: INVALID
  // Arrivals enter a replica only while fewer requests than this wait there; 0: always. Others stay
  // at their client, in order, until there is room, or are rejected. Requests that are preempted or
  // migrate are in already: they wait beyond it.
  std::int64_t max_waiting = 0;
  WhenFull when_full = WhenFull::kWait;
  // Policies are asked for every step, also where their plans repeat. Nothing that is recorded
  // differs.
  bool step_by_step = false;
  // A migrated request travels as tokens and is prefilled again where it arrives (dLoRA 5.2).
  TimeNs migration_delay = from_seconds(0.001);
};

// Runs `workload` and fills `record` (options are taken from it). Throws SpecError when the models
// or the adapters cannot fit the devices, or the cluster policy refuses them, InvariantError when a
// policy breaks an invariant. A policy that stops scheduling with requests left makes the run
// INVALID, with the reason.
class Cluster {
 public:
  using MakeReplicaPolicy = std::function<std::unique_ptr<ReplicaPolicy>()>;

  // `workload`, `backend` and `timeline` outlive the cluster.
  Cluster(const ClusterSettings& settings, const Workload& workload,
          const MakeReplicaPolicy& make_replica_policy,
          std::unique_ptr<ClusterPolicy> cluster_policy, Backend* backend, Timeline* timeline,
          RunRecord* record);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  void run();
  const ClusterView& view() const { return view_; }

 private:
  void post_next_arrival();
  void arrive(RequestId id);
  bool route_next();
  void route(RequestId id);
  bool any_step_runs() const;
  bool is_full(ReplicaId replica) const;
  void enter(RequestId id, ReplicaId replica);
  void keep_out(RequestId id, ReplicaId replica);
  bool let_in();
  void report_finished(ReplicaId replica);
  void post_next_look();
  bool stalled() const;
  bool only_looks_left() const;
  void look_at_balance();
  void check_decision(const Rebalance& decision) const;
  void carry_out(const Rebalance& decision);
  void start_migration(const Migration& migration);
  void retry_migrations();
  void log_decision(const Rebalance& decision);
  void handle(const Event& event);
  void plan_dirty();
  void finish_record();
  void judge();
  void deploy(const MakeReplicaPolicy& make_replica_policy);
  void list_candidates();
  void fill_table();
  void sort_tokens();
  void mark_dirty(ReplicaId replica);

  ClusterSettings settings_;
  const Workload& workload_;
  std::unique_ptr<ClusterPolicy> policy_;
  Backend* backend_;
  Timeline* timeline_;
  RunRecord* record_;
  std::vector<RequestView> table_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::vector<std::uint32_t> dirty_;  // replicas to ask for a plan
  std::vector<bool> is_dirty_;
  Rebalance decision_;  // made, and to be carried out when its time has passed
  bool deciding_ = false;
  TimeNs period_ = 0;  // between looks at the balance; 0: never
  bool look_posted_ = false;
  int looks_without_progress_ = 0;
  std::deque<RequestId> unrouted_;   // arrivals that wait for steps to end (routes_between_steps)
  std::vector<Migration> deferred_;  // their requests are in a step
  // By replica, with max_waiting: arrivals that are held back, in order.
  std::vector<std::deque<RequestId>> outside_;
  std::size_t held_back_ = 0;  // of all replicas
  std::vector<std::pair<RequestId, TimeNs>> token_log_;
  ClusterView view_;
  std::optional<LoadIndex> loads_;
  std::size_t next_arrival_ = 0;
  std::size_t arrived_ = 0;
  std::size_t done_ = 0;
  bool stopped_ = false;  // at stop_at, with work left
};

}  // namespace servelab

#endif  // SERVELAB_SERVE_CLUSTER_H_
