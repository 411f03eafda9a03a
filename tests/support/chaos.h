// Policies that do anything the interfaces allow, at random, for tests of the serving core:
// whatever they decide, no invariant may break and no request may be lost.
#ifndef SERVELAB_TESTS_SUPPORT_CHAOS_H_
#define SERVELAB_TESTS_SUPPORT_CHAOS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/rng.h"
#include "engine/serve/policy.h"
#include "engine/serve/recorder.h"
#include "engine/serve/request.h"

namespace servelab::test {

// What a cluster policy saw, which a record does not hold. Outlives the run.
struct ClusterNotes {
  std::vector<FinishedRequest> finished;
  std::vector<RequestId> routed;
  std::vector<AdapterId> adapters;  // of `routed`
  std::string violation;            // the first, or empty: see `disagreement`
  int looks = 0;
};

// The first thing in which a cluster's queues, phases, blocks and counts disagree, or an empty
// string: every request is in one queue of one replica, every block in use has one owner.
std::string disagreement(const ClusterView& view);

// The first thing in which a run's record disagrees with itself or with `notes`, or an empty
// string: test::violation, and per request strictly ascending stamps of exactly its tokens, as many
// migrations and preemptions as events, a path from replica to replica without a gap, and one end
// at one replica. Wants RecorderOptions::token_times.
std::string history_violation(const Workload& workload, const RunRecord& record,
                              const ClusterNotes& notes);

// Routes, places, copies and migrates at random: requests in every phase, some of them finished, on
// their way or named twice; decisions that take from no time to three periods; some that fail.
class ChaosCluster final : public ClusterPolicy {
 public:
  ChaosCluster(std::uint64_t seed, ClusterNotes* notes);

  Deployment deploy(const DeploymentView& view) override;
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override;
  bool loads_on_dispatch() const override { return loads_on_dispatch_; }
  bool routes_between_steps() const override { return routes_between_steps_; }
  void on_finished(const FinishedRequest& request) override { notes_->finished.push_back(request); }
  TimeNs rebalance_every() const override { return period_; }
  Rebalance rebalance(const ClusterView& view) override;

 private:
  // Few enough that a run ends however often its requests start again.
  static constexpr int kMostDecisions = 60;

  RngStream rng_;
  ClusterNotes* notes_;
  bool loads_on_dispatch_;
  bool routes_between_steps_;
  TimeNs period_;
  std::uint64_t most_moves_;
  int decisions_ = 0;
};

// Plans at random: partial prefills, preemptions of both modes, rejections, loads and evictions
// that nobody asked for, merged and unmerged steps. When a plan comes out empty it serves the
// oldest.
class ChaosReplica final : public ReplicaPolicy {
 public:
  explicit ChaosReplica(std::uint64_t seed) : rng_(seed, "chaos replica") {}
  bool plan(const ReplicaView& view, StepPlan* out) override;

 private:
  bool chance(double p) { return rng_.uniform() < p; }
  PreemptMode mode() { return chance(0.5) ? PreemptMode::kSwap : PreemptMode::kRecompute; }
  void begin(const ReplicaView& view, StepPlan* out);
  void give_way(const ReplicaView& view, StepPlan* out);
  void free(const ReplicaView& view, RequestId id);
  void evict(const ReplicaView& view, AdapterId id, StepPlan* out);
  bool used(const ReplicaView& view, AdapterId id, const StepPlan& plan) const;
  bool acquire(const ReplicaView& view, AdapterId id, StepPlan* out);
  bool fits(const ReplicaView& view, AdapterId id) const;
  void add(const ReplicaView& view, RequestId id, int tokens, StepPlan* out);
  void serve_oldest(const ReplicaView& view, StepPlan* out);

  RngStream rng_;
  std::vector<RequestId> all_;  // that this plan may still run
  std::int64_t free_blocks_ = 0;
  std::int64_t free_slots_ = 0;
  int tokens_left_ = 0;
};

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_SUPPORT_CHAOS_H_
