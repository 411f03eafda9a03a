// Replica::apply refuses every kind of wrong plan, by the number of the invariant it breaks; and
// what it charges for loads, switches and preemptions is what the cost model says.
#include "engine/serve/replica.h"

#include <gtest/gtest.h>

#include "engine/core/rng.h"
#include "tests/support/scripted.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

using test::Planner;
using test::ScriptedPolicy;
using test::ToReplica0;

struct Fixture {
  Workload workload;
  ClusterSettings settings;
  Fixture() {
    for (int i = 0; i < 4; ++i) {
      workload.adapters.push_back(Adapter{"a" + std::to_string(i), ModelId{}, 8, Bytes{16} * kKiB});
    }
    for (int i = 0; i < 4; ++i) {
      Request r;
      r.adapter = static_cast<AdapterId>(static_cast<std::uint32_t>(i % 2));
      r.prompt_tokens = 20;
      r.output_tokens = 3;
      r.output_limit_tokens = 10;
      workload.requests.push_back(r);
    }
    settings.engine = test::small_engine();
    settings.engine.adapter_slots = 2;
    settings.models[0].memory[1].kv_per_token = kKiB;
    settings.device_memory = 2 * 16 * kKiB + 8 * 16 * kKiB;  // two slots, 8 blocks
  }
  RunRecord run(Planner planner) {
    RunRecord record;
    record.options.decision_text = true;
    VirtualTimeline timeline;
    const test::LinearCost cost;
    const auto backend = make_twin_backend(&timeline, &cost);
    const auto policy = [&] { return std::make_unique<ScriptedPolicy>(planner); };
    Cluster cluster(settings, workload, policy, std::make_unique<ToReplica0>(), backend.get(),
                    &timeline, &record);
    cluster.run();
    return record;
  }
  void expect_refused(const std::string& invariant, Planner planner) {
    try {
      run(std::move(planner));
      FAIL() << "a plan that breaks " << invariant << " was applied";
    } catch (const InvariantError& error) {
      EXPECT_EQ(std::string(error.what()).substr(0, invariant.size()), invariant) << error.what();
    }
  }
};

constexpr RequestId kFirst{0}, kSecond{1}, kThird{2}, kFourth{3};
constexpr AdapterId kA{0}, kB{1}, kC{2};

TEST(Invariants, I1AdapterMustBeHeld) {
  Fixture().expect_refused("I1", [](const ReplicaView&, StepPlan* out) {
    out->slices = {{kFirst, 20}};
    return true;
  });
}

TEST(Invariants, I2OncePerStepAndUnfinished) {
  Fixture().expect_refused("I2", [](const ReplicaView&, StepPlan* out) {
    out->load = {kA};
    out->slices = {{kFirst, 5}, {kFirst, 5}};
    return true;
  });
  Fixture().expect_refused("I2", [](const ReplicaView&, StepPlan* out) {
    out->slices = {{RequestId{99}, 5}};
    return true;
  });
  Fixture().expect_refused("I2", [](const ReplicaView& view, StepPlan* out) {
    if (view.request(kFirst).phase() == Phase::kDone) {
      out->slices = {{kFirst, 1}};
      return true;
    }
    if (!view.adapters().resident(kA)) out->load = {kA};
    out->slices = {{kFirst, view.request(kFirst).pending()}};
    return true;
  });
}

TEST(Invariants, I3MergedStepRunsOnlyItsAdapter) {
  Fixture().expect_refused("I3", [](const ReplicaView&, StepPlan* out) {
    out->load = {kA, kB};
    out->exec = Exec::kMerged;
    out->merged = kA;
    out->slices = {{kFirst, 20}, {kSecond, 20}};
    return true;
  });
}

TEST(Invariants, I4MoreBlocksThanFree) {
  Fixture fixture;
  for (Request& r : fixture.workload.requests) r.prompt_tokens = 60;  // 4 blocks each, 8 in all
  fixture.expect_refused("I4", [](const ReplicaView&, StepPlan* out) {
    out->load = {kA, kB};
    out->slices = {{kFirst, 60}, {kSecond, 60}, {kThird, 60}};
    return true;
  });
}

TEST(Invariants, I5LoadsAndEvictions) {
  Fixture().expect_refused("I5", [](const ReplicaView&, StepPlan* out) {
    out->load = {kA, kA};
    return true;
  });
  Fixture().expect_refused("I5", [](const ReplicaView&, StepPlan* out) {
    out->load = {kA, kB, kC};  // two slots
    return true;
  });
  Fixture().expect_refused("I5", [](const ReplicaView&, StepPlan* out) {
    out->evict = {kA};
    return true;
  });
  // Merged into the weights: needed again to unmerge.
  Fixture().expect_refused("I5", [](const ReplicaView& view, StepPlan* out) {
    if (view.merged() == kA) {
      out->evict = {kA};
      return true;
    }
    out->load = {kA};
    out->exec = Exec::kMerged;
    out->merged = kA;
    out->slices = {{kFirst, 20}};
    return true;
  });
}

TEST(Invariants, I6TokensBetweenOneAndPending) {
  for (const int tokens : {0, 21, -1}) {
    Fixture().expect_refused("I6", [tokens](const ReplicaView&, StepPlan* out) {
      out->load = {kA};
      out->slices = {{kFirst, tokens}};
      return true;
    });
  }
}

TEST(Invariants, I7EngineLimits) {
  Fixture few;
  few.settings.engine.limits.max_batch = 1;
  few.expect_refused("I7", [](const ReplicaView&, StepPlan* out) {
    out->load = {kA, kB};
    out->slices = {{kFirst, 20}, {kSecond, 20}};
    return true;
  });
  Fixture small;
  small.settings.engine.limits.max_batch_tokens = 30;
  small.expect_refused("I7", [](const ReplicaView&, StepPlan* out) {
    out->load = {kA, kB};
    out->slices = {{kFirst, 20}, {kSecond, 20}};
    return true;
  });
}

TEST(Invariants, I9PreemptRunningRejectUnfinished) {
  Fixture().expect_refused("I9", [](const ReplicaView&, StepPlan* out) {
    out->preempt = {{kFirst}};  // still waiting
    return true;
  });
  Fixture().expect_refused("I9", [](const ReplicaView&, StepPlan* out) {
    out->reject = {kFirst, kFirst};
    return true;
  });
}

TEST(Invariants, I9NothingThatAPlanPreemptsRunsInIt) {
  Fixture().expect_refused("I9", [](const ReplicaView& view, StepPlan* out) {
    if (view.adapters().residency(kA) == Residency::kAbsent) out->load = {kA};
    if (view.request(kFirst).generated() == 1) out->preempt = {{kFirst}};
    out->slices = {{kFirst, view.request(kFirst).pending()}};
    return true;
  });
}

// A plan may say that all decode only where all do, and preempts none of them.
TEST(Invariants, I6AndI9OfPlansThatDecodeAll) {
  const auto plan = [](bool preempts, const ReplicaView& view, StepPlan* out) {
    if (view.adapters().residency(kA) == Residency::kAbsent) out->load = {kA};
    const RequestView& r = view.request(kFirst);
    if (r.context() > 0) {
      out->decode_all = true;
      if (preempts) out->preempt = {{kFirst}};
    } else {
      out->slices = {{kFirst, preempts ? r.pending() : r.pending() - 1}};
    }
    return true;
  };
  Fixture().expect_refused("I6",
                           [&](const auto& view, auto* out) { return plan(false, view, out); });
  Fixture().expect_refused("I9",
                           [&](const auto& view, auto* out) { return plan(true, view, out); });
}

TEST(Invariants, UnknownIdsAreRefusedBeforeTheyAreUsed) {
  Fixture().expect_refused("I5", [](const ReplicaView& view, StepPlan* out) {
    out->evict = {view.merged()};  // nothing is merged: no adapter's id
    return true;
  });
  Fixture().expect_refused("I9", [](const ReplicaView&, StepPlan* out) {
    out->preempt = {{RequestId{1000}}};
    return true;
  });
}

// Neither requests that have not arrived nor their arrival times can be seen.
TEST(Invariants, I10NoLookAtArrivalsToCome) {
  Fixture fixture;
  fixture.workload.requests[3].arrival = from_seconds(1);
  fixture.expect_refused("I10", [](const ReplicaView& view, StepPlan*) {
    return view.request(kFourth).adapter() == kB;
  });
  fixture.expect_refused(
      "I10", [](const ReplicaView& view, StepPlan*) { return view.waited(kFourth) > 0; });
}

TEST(Invariants, UnsupportedPlansAreRefusedWithTheReason) {
  Fixture fixture;
  try {
    fixture.run([](const ReplicaView&, StepPlan* out) {
      out->device_share = 0.5;
      out->slices = {{kFirst, 20}};
      return true;
    });
    FAIL() << "half a device was accepted";
  } catch (const SpecError& error) {
    EXPECT_NE(std::string(error.what()).find("SM shares"), std::string::npos);
  }
}

TEST(Replica, AStalledPolicyMakesTheRunInvalid) {
  const RunRecord record = Fixture().run([](const ReplicaView&, StepPlan*) { return false; });
  ASSERT_EQ(record.invalid_reasons.size(), 1u);
  EXPECT_NE(record.invalid_reasons[0].find("4 requests"), std::string::npos);
}

// stop_at ends a run with work left; a policy that stalls before it is still at fault.
TEST(Replica, AStallIsInvalidAlsoBeforeStopAt) {
  Fixture fixture;
  fixture.settings.stop_at = from_seconds(100);
  EXPECT_EQ(fixture.run([](const ReplicaView&, StepPlan*) { return false; }).invalid_reasons.size(),
            1u);
  fixture.settings.stop_at = 2;
  const RunRecord stopped = fixture.run([](const ReplicaView& view, StepPlan* out) {
    if (view.adapters().residency(kA) == Residency::kAbsent) out->load = {kA};
    out->slices = {{kFirst, view.request(kFirst).pending()}};
    return true;
  });
  EXPECT_EQ(stopped.invalid_reasons,
            std::vector<std::string>{"no request finished: 0 were rejected, 4 were unfinished"});
  EXPECT_EQ(stopped.requests[0].status, RequestStatus::kUnfinished);
}

// Nothing that ended leaves nothing to measure.
TEST(Replica, ARunThatRejectsEveryRequestIsInvalid) {
  const RunRecord record = Fixture().run([](const ReplicaView& view, StepPlan* out) {
    out->reject.assign(view.waiting().begin(), view.waiting().end());
    return true;
  });
  EXPECT_EQ(record.invalid_reasons,
            std::vector<std::string>{"no request finished: 4 were rejected, 0 were unfinished"});
}

TEST(Replica, TooManyUnfinishedRequestsMakeARunInvalidWhereThatIsAsked) {
  const auto reasons = [](double max_unfinished) {
    Fixture fixture;
    fixture.workload.requests.front().output_tokens = 1;
    for (Request& r : fixture.workload.requests) r.adapter = kA;
    fixture.settings.stop_at = from_seconds(0.0015);  // after the first step
    fixture.settings.max_unfinished = max_unfinished;
    return fixture
        .run([](const ReplicaView& view, StepPlan* out) {
          if (view.adapters().residency(kA) == Residency::kAbsent) out->load = {kA};
          const RequestId id =
              view.request(kFirst).phase() == Phase::kDone ? view.waiting().front() : kFirst;
          out->slices = {{id, view.request(id).pending()}};
          return true;
        })
        .invalid_reasons;
  };
  EXPECT_TRUE(reasons(1).empty());
  EXPECT_TRUE(reasons(0.75).empty());
  EXPECT_EQ(reasons(0.5),
            std::vector<std::string>{"3 of 4 requests were unfinished at the end (limit 50 %)"});
}

TEST(Replica, AStepWaitsForAnAdapterThatIsStillLoading) {
  Fixture fixture;
  fixture.workload.requests.resize(1);
  const RunRecord record = fixture.run([](const ReplicaView& view, StepPlan* out) {
    if (view.request(kFirst).phase() == Phase::kDone) return false;
    if (view.adapters().residency(kA) == Residency::kAbsent) out->load = {kA};
    out->slices = {{kFirst, view.request(kFirst).pending()}};
    return true;
  });
  const test::LinearCost cost;
  const TimeNs load = cost.host_to_device(16 * kKiB);
  EXPECT_EQ(record.requests[0].prefill_start, load);
  EXPECT_EQ(record.requests[0].load_start, 0);
  EXPECT_EQ(record.requests[0].load_end, load);
  EXPECT_EQ(record.replicas[0].load_wait, load);
  EXPECT_EQ(record.replicas[0].steps, 3);
}

// Merge before the first step, unmerge before the second: each charged once.
TEST(Replica, SwitchesAreChargedWhenTheWeightsChange) {
  Fixture fixture;
  fixture.workload.requests.resize(1);
  fixture.workload.requests[0].output_tokens = 4;
  const RunRecord record = fixture.run([](const ReplicaView& view, StepPlan* out) {
    const RequestView& r = view.request(kFirst);
    if (r.phase() == Phase::kDone) return false;
    if (view.adapters().residency(kA) == Residency::kAbsent) out->load = {kA};
    if (r.generated() < 2) {
      out->exec = Exec::kMerged;
      out->merged = kA;
    }
    out->slices = {{kFirst, r.pending()}};
    return true;
  });
  const test::LinearCost cost;
  EXPECT_EQ(record.replicas[0].switches, 2);
  EXPECT_EQ(record.replicas[0].merged_steps, 2);
  EXPECT_EQ(record.replicas[0].switching, cost.merge(8) + cost.unmerge(8));
}

// Recomputation and swapping lose no token and charge what they should.
TEST(Replica, PreemptedRequestsFinishWithTheirLength) {
  for (const PreemptMode mode : {PreemptMode::kRecompute, PreemptMode::kSwap}) {
    Fixture fixture;
    fixture.workload.requests.resize(1);
    fixture.workload.requests[0].output_tokens = 5;
    int preempted = 0;
    const RunRecord record = fixture.run([&](const ReplicaView& view, StepPlan* out) {
      const RequestView& r = view.request(kFirst);
      if (r.phase() == Phase::kDone) return false;
      if (view.adapters().residency(kA) == Residency::kAbsent) out->load = {kA};
      if (r.phase() == Phase::kRunning && r.generated() == 2 && preempted == 0) {
        ++preempted;
        out->preempt = {{kFirst, mode}};
        return true;
      }
      if (preempted == 1 && r.phase() == Phase::kWaiting) {
        EXPECT_EQ(r.pending(), 22);  // prompt and both tokens again
      }
      if (r.phase() == Phase::kSwapped) {
        EXPECT_EQ(r.pending(), 1);
        EXPECT_EQ(view.swapped().size(), 1u);
      }
      out->slices = {{kFirst, r.pending()}};
      return true;
    });
    EXPECT_EQ(record.requests[0].generated, 5);
    EXPECT_EQ(record.requests[0].preemptions, 1);
    EXPECT_EQ(record.requests[0].status, RequestStatus::kFinished);
    const test::LinearCost cost;
    const Bytes moved = 21 * kKiB;  // the context when it was preempted
    EXPECT_EQ(record.replicas[0].swap,
              mode == PreemptMode::kRecompute
                  ? 0
                  : cost.device_to_host(moved) + cost.host_to_device(moved));
  }
}

TEST(Replica, ViewQueuesFollowArrivalOrderByAdapter) {
  Fixture fixture;
  bool seen = false;
  fixture.run([&](const ReplicaView& view, StepPlan* out) {
    if (!seen) {
      seen = true;
      EXPECT_EQ(view.requests_of(kA).count, 2);
      EXPECT_EQ(view.requests_of(kA).head, kFirst);
      EXPECT_EQ(view.next_of(kFirst), kThird);
      EXPECT_EQ(view.next_of(kThird), kNoRequest);
      EXPECT_EQ(view.requests_of(kB).tail, kFourth);
      EXPECT_EQ(view.active_adapters().size(), 2u);
      EXPECT_EQ(view.request(kFirst).output_limit(), 10) << "the true length leaked";
    }
    for (const RequestId id : view.waiting()) out->reject.push_back(id);
    return !out->reject.empty();
  });
  EXPECT_TRUE(seen);
}

// A migrated request loses its KV, travels, and finishes elsewhere with every token.
class MigrateOnce final : public ClusterPolicy {
 public:
  ReplicaId route(const RoutedRequest&, const ClusterView&) override { return ReplicaId{}; }
  TimeNs rebalance_every() const override { return 2'000'000; }
  Rebalance rebalance(const ClusterView& view) override {
    if (done_ || view.replicas()[0]->running().empty()) return {};
    done_ = true;
    Rebalance decision;
    decision.outcome = Rebalance::Outcome::kDecided;
    for (const RequestId id : view.replicas()[0]->running()) {
      decision.migrations.push_back({id, ReplicaId{1}});
    }
    return decision;
  }

 private:
  bool done_ = false;
};

TEST(Cluster, MigrationLosesNothing) {
  test::WorkloadShape shape;
  shape.requests = 40;
  shape.burst = true;
  const Workload workload = test::make_workload(shape, 5);
  ClusterSettings settings;
  settings.replicas = 2;
  settings.engine = test::small_engine();
  settings.models[0].memory[1].kv_per_token = kKiB;
  settings.device_memory = 64 * kMiB;
  RunRecord record;
  VirtualTimeline timeline;
  const test::LinearCost cost;
  const auto backend = make_twin_backend(&timeline, &cost);
  const auto technique = Registry<Technique>::instance().make("template");
  Cluster cluster(
      settings, workload, [&] { return technique->replica_policy(); },
      std::make_unique<MigrateOnce>(), backend.get(), &timeline, &record);
  cluster.run();
  EXPECT_EQ(test::violation(workload, record), "");
  int moved = 0;
  for (const EventRecord& event : record.events) moved += event.code == EventCode::kMigrate;
  EXPECT_GT(moved, 0);
  int elsewhere = 0;
  for (const RequestRecord& r : record.requests) elsewhere += r.replica == ReplicaId{1};
  EXPECT_EQ(elsewhere, moved);
}

TEST(Cluster, TokenStampsAreKeptByRequest) {
  test::RunOptions options;
  options.engine = test::small_engine();
  options.record.token_times = true;
  const Workload workload = test::make_workload({}, 2);
  const RunRecord record = test::run(workload, options);
  ASSERT_EQ(record.token_offsets.size(), workload.requests.size() + 1);
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const auto first = static_cast<std::size_t>(record.token_offsets[i]);
    const auto last = static_cast<std::size_t>(record.token_offsets[i + 1]);
    ASSERT_EQ(last - first, static_cast<std::size_t>(workload.requests[i].output_tokens));
    EXPECT_EQ(record.token_times[first], record.requests[i].first_token);
    EXPECT_EQ(record.token_times[last - 1], record.requests[i].last_token);
    EXPECT_TRUE(std::is_sorted(record.token_times.begin() + static_cast<long>(first),
                               record.token_times.begin() + static_cast<long>(last)));
  }
  EXPECT_EQ(record.itl.count() + static_cast<std::int64_t>(workload.requests.size()),
            record.token_offsets.back());
}

}  // namespace
}  // namespace servelab
