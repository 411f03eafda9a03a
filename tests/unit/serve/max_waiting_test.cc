// A bound on the requests that wait at a replica: who is held back, when they enter, who is turned
// away, by hand on a replica that serves one request of one prompt and one output token a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/record/summary.h"
#include "tests/support/scripted.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

// LinearCost: 1 ms, one token computed (10 us), one sampled (1 us), one pair of attention (10 ns).
constexpr TimeNs kStep = 1'011'010;
constexpr std::int64_t kUnbounded = 0;

// Arrivals in steps' time, every request of the base model and served by one step.
Workload one_step_requests(const std::vector<double>& arrivals) {
  Workload workload;
  for (const double at : arrivals) {
    Request r;
    r.arrival = static_cast<TimeNs>(at * static_cast<double>(kStep));
    r.prompt_tokens = r.output_tokens = r.output_limit_tokens = 1;
    workload.requests.push_back(r);
  }
  return workload;
}

test::RunOptions bounded(std::int64_t max_waiting, WhenFull when_full) {
  test::RunOptions options;
  options.technique = "null";
  options.engine = test::small_engine();
  options.engine.limits.max_batch = 1;
  options.max_waiting = max_waiting;
  options.when_full = when_full;
  return options;
}

struct Entry {
  TimeNs at;
  std::int64_t request;
  double waited_s;
  bool operator==(const Entry&) const = default;
};
std::vector<Entry> entries(const RunRecord& record) {
  std::vector<Entry> found;
  for (const EventRecord& event : record.events) {
    if (event.code == EventCode::kEnter) found.push_back({event.at, event.subject, event.value});
  }
  return found;
}

// Five at once, of which two may wait. The first begins at once and makes room for the third; each
// end makes room for one more.
TEST(MaxWaiting, HeldBackRequestsEnterInTheirOrderAsSoonAsThereIsRoom) {
  const Workload workload = one_step_requests({0, 0, 0, 0, 0});
  const RunRecord record = test::run(workload, bounded(2, WhenFull::kWait));
  EXPECT_EQ(test::violation(workload, record), "");
  EXPECT_EQ(entries(record),
            (std::vector<Entry>{
                {0, 2, 0}, {kStep, 3, to_seconds(kStep)}, {2 * kStep, 4, to_seconds(2 * kStep)}}));
  for (std::size_t i = 0; i < 5; ++i) {
    const auto n = static_cast<TimeNs>(i);
    EXPECT_EQ(record.requests[i].admitted, n * kStep) << i;
    EXPECT_EQ(record.requests[i].first_token, (n + 1) * kStep) << i;
  }
  EXPECT_EQ(record.cluster.held_back, 3);
  EXPECT_EQ(record.cluster.turned_away, 0);
  const Summary summary = summarize(workload, record);
  EXPECT_EQ(value_of(summary, "requests_held_back"), 3);
  EXPECT_EQ(value_of(summary, "requests_turned_away"), 0);
  // From the arrival, whether they waited inside or outside: 1, 2, 3, 4, 5 steps.
  EXPECT_DOUBLE_EQ(value_of(summary, "ttft_mean_s"), to_seconds(3 * kStep));
}

// First come, first served, sees nothing behind the first: the bound changes no decision.
TEST(MaxWaiting, AServerThatServesInOrderDecidesAsWithoutABound) {
  const Workload workload = test::make_workload({.requests = 100, .burst = true}, 1);
  test::RunOptions options;
  options.technique = "null";
  options.engine = test::small_engine();
  options.max_waiting = 30;  // more than join in a step
  const RunRecord bound = test::run(workload, options);
  EXPECT_EQ(bound.cluster.held_back, 70);
  options.max_waiting = kUnbounded;
  const RunRecord free = test::run(workload, options);
  EXPECT_EQ(bound.decision_hash.value(), free.decision_hash.value());
  EXPECT_EQ(free.cluster.held_back, -1);
  EXPECT_TRUE(std::isnan(value_of(summarize(workload, free), "requests_held_back")));
}

TEST(MaxWaiting, ThoseWhoNeverGetInAreUnfinishedAndNowhere) {
  const Workload workload = one_step_requests({0, 0, 0, 0, 0});
  test::RunOptions options = bounded(2, WhenFull::kWait);
  options.stop_at = kStep + kStep / 2;  // the second runs, the third and fourth wait
  const RunRecord record = test::run(workload, options);
  EXPECT_TRUE(record.invalid_reasons.empty());
  for (std::size_t i = 0; i < 5; ++i) {
    const RequestRecord& r = record.requests[i];
    EXPECT_EQ(r.status, i == 0 ? RequestStatus::kFinished : RequestStatus::kUnfinished) << i;
    EXPECT_EQ(r.replica, i < 4 ? ReplicaId{0} : kNoReplica) << i;
  }
  EXPECT_EQ(record.cluster.held_back, 3);
  EXPECT_EQ(entries(record).size(), 2u);
  EXPECT_EQ(value_of(summarize(workload, record), "requests_unfinished"), 4);
}

// Three of five at once are too many. Half a step later one waits, so that one more may.
TEST(MaxWaiting, ArrivalsAtAFullReplicaAreTurnedAwayAtOnce) {
  const Workload workload = one_step_requests({0, 0, 0, 0, 0, 0.5, 0.5});
  const RunRecord record = test::run(workload, bounded(2, WhenFull::kReject));
  EXPECT_EQ(test::violation(workload, record), "");
  const bool served[] = {true, true, false, false, false, true, false};
  for (std::size_t i = 0; i < 7; ++i) {
    const RequestRecord& r = record.requests[i];
    EXPECT_EQ(r.status, served[i] ? RequestStatus::kFinished : RequestStatus::kRejected) << i;
    EXPECT_EQ(r.reject_reason, served[i] ? RejectReason::kNone : RejectReason::kQueueFull) << i;
    EXPECT_EQ(r.replica, ReplicaId{0}) << i;
    EXPECT_EQ(r.first_token == kUnset, !served[i]) << i;
  }
  std::vector<std::pair<TimeNs, std::int64_t>> rejected;
  for (const EventRecord& event : record.events) {
    if (event.code == EventCode::kReject) rejected.emplace_back(event.at, event.subject);
  }
  EXPECT_EQ(rejected,
            (std::vector<std::pair<TimeNs, std::int64_t>>{{0, 2}, {0, 3}, {0, 4}, {kStep / 2, 6}}));
  EXPECT_EQ(record.cluster.turned_away, 4);
  EXPECT_EQ(record.cluster.held_back, 0);
  const Summary summary = summarize(workload, record);
  EXPECT_EQ(value_of(summary, "requests_turned_away"), 4);
  EXPECT_EQ(value_of(summary, "requests_rejected"), 4);
  EXPECT_DOUBLE_EQ(value_of(summary, "requests_per_s"), 3 / to_seconds(3 * kStep));
  // 1, 2 and 3 - 0.5 steps.
  EXPECT_NEAR(value_of(summary, "ttft_mean_s"), to_seconds(kStep) * 5.5 / 3, 1e-9);
}

// Two replicas in turn, one place each: four stay outside, and each enters where it was sent.
TEST(MaxWaiting, EveryReplicaHasItsOwnBoundAndItsOwnRequestsOutside) {
  const Workload workload = one_step_requests({0, 0, 0, 0, 0, 0});
  test::RunOptions options = bounded(1, WhenFull::kWait);
  options.replicas = 2;
  const RunRecord record = test::run(workload, options);
  EXPECT_EQ(test::violation(workload, record), "");
  EXPECT_EQ(record.cluster.held_back, 4);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(index(record.requests[i].replica), i % 2) << i;
    EXPECT_EQ(record.requests[i].admitted, static_cast<TimeNs>(i / 2) * kStep) << i;
  }
}

// Two are preempted for a third, in either way: both wait where one may. Who arrives then enters
// when not the first of them has left the queue, but the second.
TEST(MaxWaiting, PreemptedRequestsWaitBeyondTheBound) {
  for (const PreemptMode mode : {PreemptMode::kRecompute, PreemptMode::kSwap}) {
    Workload workload = one_step_requests({0, 0.25, 1.5, 2.5});
    for (const std::size_t i : {0u, 1u}) {
      workload.requests[i].output_tokens = workload.requests[i].output_limit_tokens = 3;
    }
    test::RunOptions options = bounded(1, WhenFull::kWait);
    options.engine.limits.max_batch = 2;
    std::size_t most = 0;
    int plans = 0;
    const auto plan = [&](const ReplicaView& view, StepPlan* out) {
      most = std::max(most, view.waiting().size() + view.swapped().size());
      if (view.unfinished() == 0) return false;
      const auto run = [&](RequestId id) {
        out->slices.push_back({id, view.request(id).pending()});
      };
      const bool both = ++plans == 2;
      if (plans == 3) {
        for (const RequestId id : view.running()) out->preempt.push_back({id, mode});
        run(view.waiting().front());
        return true;
      }
      for (const auto& queue : {view.running(), view.swapped(), view.waiting()}) {
        if (!queue.empty() && (both || out->slices.empty())) run(queue.front());
      }
      return true;
    };
    options.replica_policy = [&] { return std::make_unique<test::ScriptedPolicy>(plan); };
    const RunRecord record = test::run(workload, options);
    EXPECT_EQ(test::violation(workload, record), "");
    EXPECT_EQ(record.requests[0].preemptions + record.requests[1].preemptions, 2);
    EXPECT_EQ(most, 2u);
    EXPECT_EQ(record.cluster.held_back, 1);
    ASSERT_EQ(entries(record).size(), 1u);
    EXPECT_EQ(entries(record)[0].request, 3);
    EXPECT_EQ(entries(record)[0].at, record.requests[0].last_token);
    EXPECT_LT(record.requests[0].last_token, record.requests[1].last_token);
  }
}

}  // namespace
}  // namespace servelab
