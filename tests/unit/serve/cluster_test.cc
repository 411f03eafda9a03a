// What a cluster does with its policy's decisions: late ones, wrong ones, ones that name requests
// in any phase, and none at all from a policy that has stalled.
#include "engine/serve/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/support/scripted.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

using ::testing::HasSubstr;
using Outcome = Rebalance::Outcome;
using test::Planner;
using Placement = std::vector<std::vector<AdapterId>>;  // by replica
using Look = std::function<Rebalance(const ClusterView&)>;

constexpr TimeNs kMs = 1'000'000;
constexpr RequestId kFirst{0};
constexpr AdapterId kA{0}, kB{1}, kC{2};
constexpr ReplicaId kHere{0}, kThere{1};

// Routes everything to replica 0.
class ScriptedCluster final : public ClusterPolicy {
 public:
  ScriptedCluster(TimeNs period, Look look, Placement place)
      : period_(period), look_(std::move(look)), place_(std::move(place)) {}
  Deployment deploy(const DeploymentView& view) override {
    Deployment deployment = view.equal_replicas();
    for (std::size_t i = 0; i < place_.size(); ++i) deployment.units[i].adapters = place_[i];
    return deployment;
  }
  ReplicaId route(const RoutedRequest&, const ClusterView&) override { return kHere; }
  TimeNs rebalance_every() const override { return period_; }
  Rebalance rebalance(const ClusterView& view) override { return look_(view); }

 private:
  TimeNs period_;
  Look look_;
  Placement place_;
};

// The twin's, and what it was told of swapped KV.
class Witness final : public ForwardingBackend {
 public:
  explicit Witness(std::unique_ptr<Backend> backend)
      : ForwardingBackend(backend.get()), twin_(std::move(backend)) {}
  void submit(const StepWork& work) override {
    moves += work.moves.size();
    twin_->submit(work);
  }
  void drop_swapped(ReplicaId replica, RequestId request) override {
    dropped.emplace_back(replica, request);
  }

  std::size_t moves = 0;
  std::vector<std::pair<ReplicaId, RequestId>> dropped;

 private:
  std::unique_ptr<Backend> twin_;
};

// Two replicas, and `requests` requests at t = 0 whose adapters alternate between 0 and 1.
struct TwoReplicas {
  Workload workload;
  ClusterSettings settings;
  VirtualTimeline timeline;
  test::LinearCost cost;
  Witness backend{make_twin_backend(&timeline, &cost)};
  Placement placement{{}, {}};
  TimeNs period = kMs;

  explicit TwoReplicas(int requests) {
    for (int i = 0; i < 4; ++i) {
      workload.adapters.push_back(Adapter{"a" + std::to_string(i), ModelId{}, 8, Bytes{16} * kKiB});
    }
    for (int i = 0; i < requests; ++i) {
      workload.requests.push_back(
          {0, static_cast<AdapterId>(static_cast<std::uint32_t>(i % 2)), ModelId{}, 20, 3, 10});
    }
    settings.replicas = 2;
    settings.engine = test::small_engine();
    settings.engine.adapter_slots = 2;
    settings.models[0].memory[1].kv_per_token = kKiB;
    settings.device_memory = 2 * 16 * kKiB + 20 * 16 * kKiB;  // two slots, 20 blocks
  }

  RunRecord run(const Planner& here, const Planner& there, Look look) {
    RunRecord record;
    record.options.token_times = true;
    int made = 0;
    const auto policy = [&] {
      return std::make_unique<test::ScriptedPolicy>(made++ == 0 ? here : there);
    };
    Cluster cluster(settings, workload, policy,
                    std::make_unique<ScriptedCluster>(period, std::move(look), placement), &backend,
                    &timeline, &record);
    cluster.run();
    return record;
  }
};

// First come, first served, loading what it needs.
Planner serving() {
  return [](const ReplicaView& view, StepPlan* out) {
    const auto add = [&](RequestId id) {
      const RequestView& r = view.request(id);
      const auto asked = std::find(out->load.begin(), out->load.end(), r.adapter());
      if (view.adapters().residency(r.adapter()) == Residency::kAbsent &&
          asked == out->load.end()) {
        out->load.push_back(r.adapter());
      }
      out->slices.push_back({id, r.pending()});
    };
    for (const RequestId id : view.running()) add(id);
    for (const RequestId id : view.waiting()) add(id);
    return !out->slices.empty();
  };
}

bool plans_nothing(const ReplicaView&, StepPlan*) { return false; }

Rebalance decided(std::vector<Migration> migrations) {
  Rebalance decision;
  decision.outcome = Outcome::kDecided;
  decision.migrations = std::move(migrations);
  return decision;
}

TEST(ClusterDecision, AFailedOneMovesAndLoadsNothing) {
  TwoReplicas cluster(2);
  int looks = 0;
  const RunRecord record = cluster.run(serving(), serving(), [&](const ClusterView&) {
    ++looks;
    Rebalance decision = decided({{kFirst, kThere}});
    decision.loads = {{kC, kThere}};
    decision.outcome = Outcome::kFailed;
    return decision;
  });
  EXPECT_EQ(test::violation(cluster.workload, record), "");
  EXPECT_GT(looks, 1);
  EXPECT_EQ(record.cluster.failures, looks);
  EXPECT_EQ(record.cluster.rebalances, 0);
  EXPECT_EQ(record.cluster.migrations, 0);
  EXPECT_EQ(record.replicas[1].loads, 0);
}

TEST(ClusterDecision, ThatNamesWhatDoesNotExistIsRefused) {
  const auto error_of = [](const Rebalance& decision) {
    TwoReplicas cluster(1);
    try {
      cluster.run(serving(), serving(), [&](const ClusterView&) { return decision; });
    } catch (const InvariantError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_THAT(error_of(decided({{RequestId{7}, kThere}})), HasSubstr("an unknown request"));
  EXPECT_THAT(error_of(decided({{kNoRequest, kThere}})), HasSubstr("an unknown request"));
  EXPECT_THAT(error_of(decided({{kFirst, ReplicaId{2}}})), HasSubstr("an unknown replica"));
  Rebalance copy = decided({});
  copy.loads = {{AdapterId{4}, kThere}};
  EXPECT_THAT(error_of(copy), HasSubstr("an unknown adapter"));
  copy.loads = {{kA, kNoReplica}};
  EXPECT_THAT(error_of(copy), HasSubstr("an unknown replica"));
}

// Everything has ended when the decision has been made.
TEST(ClusterDecision, ThatComesTooLateChangesNothing) {
  TwoReplicas cluster(1);
  const RunRecord record = cluster.run(serving(), serving(), [&](const ClusterView&) {
    Rebalance decision = decided({{kFirst, kThere}});
    decision.loads = {{kC, kThere}};
    decision.decision_time = from_seconds(5);
    return decision;
  });
  EXPECT_EQ(record.cluster.rebalances, 1);
  EXPECT_EQ(record.replicas[1].loads, 0);
  EXPECT_EQ(record.end, record.requests[0].last_token);
}

// A decision that waits for a step's end: a later one about the same request takes its place.
TEST(ClusterDecision, OfTwoAboutARequestInAStepTheLaterCounts) {
  for (const ReplicaId second : {kThere, kHere}) {
    TwoReplicas cluster(1);
    cluster.period = 200'000;  // several looks in the first step
    int looks = 0;
    const RunRecord record = cluster.run(serving(), serving(), [&](const ClusterView&) {
      ++looks;
      if (looks == 1) return decided({{kFirst, kThere}});
      if (looks == 2) return decided({{kFirst, second}});
      return Rebalance{};
    });
    EXPECT_EQ(test::violation(cluster.workload, record), "");
    EXPECT_EQ(record.requests[0].migrations, second == kThere ? 1 : 0);
    EXPECT_EQ(record.requests[0].replica, second);
  }
}

// A request is preempted to host memory and leaves before a step has carried the copy out.
TEST(ClusterMoves, ACopyToTheHostIsDroppedWithItsRequest) {
  for (const bool migrates : {true, false}) {
    TwoReplicas cluster(2);
    bool preempted = false;
    const Planner serve = serving();
    const Planner here = [&](const ReplicaView& view, StepPlan* out) {
      if (!preempted && view.running().size() == 2) {
        preempted = true;
        out->preempt = {{kFirst, PreemptMode::kSwap}};
        return true;
      }
      if (view.swapped().empty()) return serve(view, out);
      if (!migrates) out->reject = {kFirst};
      return !migrates;
    };
    const RunRecord record = cluster.run(here, serve, [&](const ClusterView& view) {
      return migrates && !view.replica(kHere).swapped().empty() ? decided({{kFirst, kThere}})
                                                                : Rebalance{};
    });
    EXPECT_EQ(test::violation(cluster.workload, record), "");
    EXPECT_EQ(record.requests[0].preemptions, 1);
    EXPECT_EQ(record.requests[0].migrations, migrates ? 1 : 0);
    EXPECT_EQ(cluster.backend.moves, 0u);
    EXPECT_EQ(record.replicas[0].swap, 0);
    ASSERT_EQ(cluster.backend.dropped.size(), 1u);
    EXPECT_EQ(cluster.backend.dropped[0], std::make_pair(kHere, kFirst));
  }
}

// Adapter 3 is too large for what the idle ones hold: they stay.
TEST(ClusterMoves, NobodyGivesWayToAnAdapterThatDoesNotFit) {
  TwoReplicas cluster(1);
  cluster.settings.engine.adapter_memory = AdapterMemory::kUnified;
  cluster.settings.device_memory = 20 * 16 * kKiB;
  cluster.workload.adapters[1].bytes = 4 * 16 * kKiB;  // 4 blocks of 20, idle
  cluster.workload.adapters[0].bytes = 5 * 16 * kKiB;  // wanted by the request
  cluster.placement = {{kA, kB}, {}};
  const auto copy_to = [&](ReplicaId to, Bytes blocks) {
    TwoReplicas again(0);
    again.workload = cluster.workload;
    again.settings = cluster.settings;
    again.placement = cluster.placement;
    again.workload.adapters[3].bytes = blocks * 16 * kKiB;
    const RunRecord record = again.run(serving(), serving(), [&](const ClusterView&) {
      Rebalance decision = decided({});
      decision.loads = {{AdapterId{3}, to}};
      return decision;
    });
    EXPECT_EQ(test::violation(again.workload, record), "");
    EXPECT_GT(record.cluster.rebalances, 0);
    for (const EventRecord& event : record.events) EXPECT_NE(event.code, EventCode::kEvict);
    return record.replicas[index(to)].loads;
  };
  EXPECT_EQ(copy_to(kHere, 16), 0);
  EXPECT_EQ(copy_to(kHere, 400), 0);
  EXPECT_EQ(copy_to(kThere, 20), 0) << "it would leave no block for any request";
  EXPECT_EQ(copy_to(kThere, 19), 1);
}

// The second request came with a past from elsewhere: the first's wait for its adapter still
// counts.
TEST(ClusterMoves, ColdStartsAreStampedBesideMigratedRequests) {
  TwoReplicas cluster(4);  // 0 and 2 want adapter 0
  cluster.workload.adapters[0].bytes = Bytes{160} * kKiB;
  cluster.settings.device_memory += 2 * 144 * kKiB;  // the slots are as large
  cluster.placement = {{kA, kB}, {}};
  int looks = 0;
  cluster.workload.requests[2].output_tokens = cluster.workload.requests[2].output_limit_tokens = 9;
  const Planner here = [serve = serving()](const ReplicaView& view, StepPlan* out) {
    serve(view, out);
    std::erase_if(out->slices, [](const Slice& slice) { return slice.request == kFirst; });
    return !out->slices.empty();
  };
  const Planner there = [serve = serving()](const ReplicaView& view, StepPlan* out) {
    if (view.adapters().residency(kA) == Residency::kAbsent && view.waiting().size() == 2) {
      out->load = {kA};
      return true;
    }
    return view.adapters().resident(kA) && serve(view, out);
  };
  const RunRecord record = cluster.run(here, there, [&](const ClusterView&) {
    return ++looks == 3 ? decided({{kFirst, kThere}, {RequestId{2}, kThere}}) : Rebalance{};
  });
  EXPECT_EQ(test::violation(cluster.workload, record), "");
  EXPECT_NE(record.requests[2].prefill_start, kUnset);
  EXPECT_LT(record.requests[2].prefill_start, record.requests[0].prefill_start);
  EXPECT_EQ(record.requests[2].load_start, kUnset) << "it was not cold";
  EXPECT_NE(record.requests[0].load_start, kUnset);
}

// --- stalled policies ---

// Returns how often the policy looked.
int expect_stalled(TwoReplicas* cluster, Look look) {
  int looks = 0;
  const RunRecord record = cluster->run(plans_nothing, plans_nothing, [&](const ClusterView& view) {
    EXPECT_LT(++looks, 10'000) << "the run goes on for ever";
    if (looks == 10'000) throw std::runtime_error("for ever");
    return look(view);
  });
  EXPECT_EQ(record.invalid_reasons.size(), 1u);
  for (const std::string& reason : record.invalid_reasons) {
    EXPECT_THAT(reason, HasSubstr("the policy stalled"));
  }
  return looks;
}

TEST(ClusterStall, ATimerDoesNotHideIt) {
  for (const TimeNs period : {TimeNs{1000}, kMs, 3 * kMs}) {
    for (const TimeNs decision_time : {TimeNs{0}, kMs / 2, 10 * kMs}) {
      TwoReplicas cluster(2);
      cluster.period = period;
      const auto after = [&](Rebalance decision) {
        decision.decision_time = decision_time;
        return decision;
      };
      EXPECT_EQ(expect_stalled(&cluster, [](const ClusterView&) { return Rebalance{}; }), 1);
      TwoReplicas empty(2);
      empty.period = period;
      expect_stalled(&empty, [&](const ClusterView&) { return after(decided({})); });
      // To and fro, so that one is always on its way.
      TwoReplicas pendulum(2);
      pendulum.period = period;
      pendulum.workload.requests[1].arrival = kMs / 2;  // never both at once
      expect_stalled(&pendulum, [&](const ClusterView& view) {
        std::vector<Migration> moves;
        for (const RequestId id : view.replica(kHere).waiting()) moves.push_back({id, kThere});
        for (const RequestId id : view.replica(kThere).waiting()) moves.push_back({id, kHere});
        return after(decided(std::move(moves)));
      });
      // Adapters that take turns, so that one is always loading.
      TwoReplicas copies(2);
      copies.period = period;
      copies.workload.requests[1].arrival = kMs / 2;
      std::uint32_t next = 0;
      expect_stalled(&copies, [&](const ClusterView&) {
        Rebalance decision = decided({});
        decision.loads = {{AdapterId{next++ % 4}, kThere}};
        return after(std::move(decision));
      });
    }
  }
}

// Replica 0 serves nobody. The look that finds the run stalled moves one request; the looks go on
// when its first step ends, and move the other.
TEST(ClusterStall, LooksGoOnWhenADecisionEndsIt) {
  TwoReplicas cluster(2);
  const RunRecord record = cluster.run(plans_nothing, serving(), [](const ClusterView& view) {
    if (!view.replica(kThere).running().empty() || view.replica(kHere).waiting().empty()) {
      return Rebalance{};
    }
    return decided({{view.replica(kHere).waiting().front(), kThere}});
  });
  EXPECT_EQ(test::violation(cluster.workload, record), "");
  EXPECT_EQ(record.cluster.migrations, 2);
}

// Long silence between arrivals is no stall, however often the policy looks.
TEST(ClusterStall, SilenceBetweenArrivalsIsNone) {
  TwoReplicas cluster(2);
  cluster.period = kMs / 10;
  cluster.workload.requests[1].arrival = from_seconds(2);
  TimeNs looks = 0;
  const RunRecord record = cluster.run(serving(), serving(), [&](const ClusterView&) {
    ++looks;
    return decided({});
  });
  EXPECT_EQ(test::violation(cluster.workload, record), "");
  EXPECT_GE(looks, from_seconds(2) / cluster.period - 1);
}

// Sends requests to the replicas in turn, and notes how many found a step in flight.
class InTurn final : public ClusterPolicy {
 public:
  InTurn(bool between_steps, int* during_a_step)
      : between_steps_(between_steps), during_a_step_(during_a_step) {}
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    const auto& all = view.replicas();
    if (std::any_of(all.begin(), all.end(), [](auto* r) { return r->steps_in_flight() > 0; })) {
      ++*during_a_step_;
    }
    return all[index(request.id) % all.size()]->id();
  }
  bool routes_between_steps() const override { return between_steps_; }

 private:
  bool between_steps_;
  int* during_a_step_;
};

TEST(RoutesBetweenSteps, WhenNoReplicaIsInOneAndLosesNobody) {
  for (const bool burst : {false, true}) {
    const Workload workload = test::make_workload({.requests = 300, .burst = burst}, 1);
    for (const bool between_steps : {false, true}) {
      int during_a_step = 0;
      test::RunOptions options;
      options.replicas = 3;
      options.engine = test::small_engine();
      options.cluster_policy = [&] {
        return std::make_unique<InTurn>(between_steps, &during_a_step);
      };
      EXPECT_EQ(test::violation(workload, test::run(workload, options)), "");
      EXPECT_EQ(during_a_step > 0, !between_steps && !burst);
    }
  }
}

// Of three that come together the second waits for the first one's step and the third for the
// second one's, wherever they go; until then nobody starts another.
TEST(RoutesBetweenSteps, OneRequestAtATime) {
  Workload workload;
  for (int i = 0; i < 3; ++i) {
    workload.requests.push_back({0, kBaseModel, ModelId{}, 20, 3, 10});
  }
  int ignored = 0;
  test::RunOptions options;
  options.technique = "punica";  // takes in whoever waits at each step
  options.replicas = 2;
  options.engine = test::small_engine();
  options.cluster_policy = [&] { return std::make_unique<InTurn>(true, &ignored); };
  const RunRecord record = test::run(workload, options);
  const auto& r = record.requests;
  EXPECT_EQ(r[0].admitted, 0);
  EXPECT_EQ(r[1].admitted, r[0].first_token);
  EXPECT_EQ(r[2].admitted, r[1].first_token) << "replica 0 has ended its step long before";
}

}  // namespace
}  // namespace servelab
