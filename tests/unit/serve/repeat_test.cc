// Steps that repeat their plan: how often the policy is asked, what it and others see meanwhile,
// and where each step is looked at all the same. That nothing recorded differs from stepping is
// the conformance suite's (RepeatingIsStepping).
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "baselines/shared/step_builder.h"
#include "tests/support/scripted.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

struct Asked {
  int plans = 0, at_once = 0;
  std::int64_t steps = 0, repeats = 0;  // as reported
  TimeNs duration = 0;
};

// First come, first served, with what each plan says of its repeats.
class Fcfs final : public ReplicaPolicy {
 public:
  using Say = std::function<void(const ReplicaView&, StepPlan*)>;
  Fcfs(Asked* asked, Say say, bool at_once = false)
      : asked_(asked), say_(std::move(say)), at_once_(at_once) {}
  bool plan(const ReplicaView& view, StepPlan* out) override {
    ++asked_->plans;
    builder_.begin(view, out);
    if (at_once_) {
      builder_.add_running();
      asked_->at_once += out->decode_all ? 1 : 0;
    } else {
      for (const RequestId id : view.running()) builder_.add_or_yield(id);
    }
    for (const RequestId id : view.waiting()) builder_.add(id);
    say_(view, out);
    return !out->empty();
  }
  void on_step_done(const ReplicaView& /*view*/, const StepReport& report) override {
    asked_->steps += report.steps;
    asked_->repeats += report.repeats;
    asked_->duration += report.duration;
  }

 private:
  Asked* asked_;
  Say say_;
  bool at_once_;  // by StepPlan::decode_all, where that may be
  StepBuilder builder_{StepBuilder::Options{}};
};

void always(const ReplicaView& /*view*/, StepPlan* out) { out->repeats = StepPlan::kAlways; }

Workload requests_of(const std::vector<int>& outputs, TimeNs gap = 0) {
  Workload workload;
  for (const int output : outputs) {
    Request r;
    r.arrival = gap * static_cast<TimeNs>(workload.requests.size());
    r.prompt_tokens = 20;
    r.output_tokens = r.output_limit_tokens = output;
    workload.requests.push_back(r);
  }
  return workload;
}

test::RunOptions options_of(Asked* asked, Fcfs::Say say, bool at_once = false) {
  test::RunOptions options;
  options.engine = test::small_engine();
  options.technique = "null";  // blocks of 16 tokens
  options.replica_policy = [asked, say = std::move(say), at_once] {
    return std::make_unique<Fcfs>(asked, say, at_once);
  };
  return options;
}

TEST(Repeats, APolicyIsAskedWhereSomethingHappened) {
  Asked asked;
  const RunRecord record = test::run(requests_of({500, 300}), options_of(&asked, always));
  EXPECT_EQ(record.steps, 500);
  // Both prompts, both decode, one is left, none is.
  EXPECT_EQ(asked.plans, 4);
  EXPECT_EQ(record.repeated_steps, 500 - 3);
  EXPECT_EQ(asked.steps, 500);
  EXPECT_EQ(asked.repeats, record.repeated_steps);
  EXPECT_EQ(asked.duration, record.end);  // busy throughout
}

TEST(Repeats, APolicyMayBoundThem) {
  Asked asked;
  const auto thrice = [](const ReplicaView&, StepPlan* out) { out->repeats = 3; };
  const RunRecord record = test::run(requests_of({401}), options_of(&asked, thrice));
  EXPECT_EQ(record.steps, 401);
  EXPECT_EQ(record.repeated_steps, 300);
  EXPECT_EQ(asked.plans, 1 + 100 + 1);  // the prompt, every fourth decode, and nothing is left
}

TEST(Repeats, EndWhereRequestsComeUnlessTheBatchIsFull) {
  const Workload workload = requests_of({400, 1, 1, 1}, from_seconds(0.05));
  Asked open, full;
  const RunRecord record = test::run(workload, options_of(&open, always));
  EXPECT_EQ(record.requests[1].generated, 1);
  EXPECT_LT(record.requests[1].first_token, record.requests[0].last_token);

  test::RunOptions options = options_of(&full, [](const ReplicaView& view, StepPlan* out) {
    out->repeats = StepPlan::kAlways;
    out->repeats_when_full = static_cast<int>(view.running().size()) >= view.limits().max_batch;
  });
  options.engine.limits.max_batch = 1;
  const RunRecord one_by_one = test::run(workload, options);
  EXPECT_GT(one_by_one.requests[1].first_token, one_by_one.requests[0].last_token);
  EXPECT_LT(full.plans, open.plans);
  EXPECT_EQ(one_by_one.repeated_steps, 400 - 2);  // but its prompt and its first decode
}

TEST(Repeats, NotWhereStepsAreLookedAtOneByOne) {
  for (bool RecorderOptions::*each : {&RecorderOptions::steps, &RecorderOptions::token_times}) {
    Asked asked;
    test::RunOptions options = options_of(&asked, always);
    options.record.*each = true;
    EXPECT_EQ(test::run(requests_of({100}), options).repeated_steps, 0);
    EXPECT_EQ(asked.plans, 101);
  }
}

// Looks at the requests of a replica, and at its blocks, whenever one is routed.
struct Look {
  int generated, context, blocks;
  std::int64_t free_blocks;
  bool operator==(const Look&) const = default;
};
class Looking final : public ClusterPolicy {
 public:
  explicit Looking(std::vector<Look>* looks) : looks_(looks) {}
  ReplicaId route(const RoutedRequest& /*request*/, const ClusterView& view) override {
    const ReplicaView& replica = *view.replicas().front();
    for (const RequestId id : replica.running()) {
      const RequestView& r = replica.request(id);
      looks_->push_back({r.generated(), r.context(), r.blocks(), replica.kv().free_blocks()});
    }
    return ReplicaId{};
  }

 private:
  std::vector<Look>* looks_;
};

TEST(Repeats, WhoLooksSeesRequestsAsTheyAre) {
  std::vector<Look> looks[2];
  for (const bool step_by_step : {false, true}) {
    Asked asked;
    test::RunOptions options = options_of(&asked, always);
    options.step_by_step = step_by_step;
    options.cluster_policy = [&] { return std::make_unique<Looking>(&looks[step_by_step]); };
    test::run(requests_of({300, 200, 100, 50}, from_seconds(0.0437)), options);
  }
  ASSERT_EQ(looks[0].size(), 1u + 2 + 3);
  EXPECT_EQ(looks[0], looks[1]);
  EXPECT_GT(looks[0][0].generated, 10);
  EXPECT_EQ(looks[0][0].context, 20 + looks[0][0].generated - 1);
  EXPECT_EQ(looks[0][0].blocks, (looks[0][0].context + 1 + 15) / 16);
}

// The batch stands while requests join it and end: whoever looks, at whatever moment, sees the same
// as where each of them is a slice of each plan.
TEST(Repeats, WhoLooksAtABatchThatStandsSeesRequestsAsTheyAre) {
  std::vector<int> outputs;
  for (int i = 0; i < 60; ++i) outputs.push_back(1 + i * 37 % 90);
  std::vector<Look> looks[3];
  RunRecord records[3];
  for (const int way : {0, 1, 2}) {
    Asked asked;
    test::RunOptions options = options_of(&asked, always, way > 0);
    options.step_by_step = way == 1;
    options.cluster_policy = [&] { return std::make_unique<Looking>(&looks[way]); };
    records[way] = test::run(requests_of(outputs, from_seconds(0.0037)), options);
    EXPECT_EQ(asked.at_once > (way == 2 ? 50 : 0), way == 2) << asked.at_once;
  }
  EXPECT_GT(looks[0].size(), 300u);
  for (const int way : {1, 2}) {
    EXPECT_EQ(looks[0], looks[way]);
    EXPECT_EQ(test::difference(records[0], records[way]), "");
  }
}

// Who decodes more than there are blocks for is planned one by one, and gives way as ever.
TEST(Repeats, ABatchThatStandsGivesWayWhereBlocksRunOut) {
  RunRecord records[2];
  for (const bool at_once : {false, true}) {
    Asked asked;
    test::RunOptions options = options_of(&asked, always, at_once);
    options.kv_blocks = 24;
    records[at_once] = test::run(requests_of({90, 80, 200, 150, 120, 60, 70}, 5'000'000), options);
    EXPECT_EQ(asked.at_once > 0, at_once);
  }
  EXPECT_EQ(test::difference(records[0], records[1]), "");
  std::int64_t preemptions = 0;
  for (const RequestRecord& r : records[0].requests) preemptions += r.preemptions;
  EXPECT_GT(preemptions, 0);
}

// One line for a plan that is made again and again, whether it was asked for or not.
TEST(Repeats, TheLogHasRunsOfOnePlanOnce) {
  std::string logs[2];
  for (const bool step_by_step : {false, true}) {
    Asked asked;
    test::RunOptions options = options_of(&asked, always);
    options.step_by_step = step_by_step;
    options.record.decision_text = true;
    logs[step_by_step] = test::run(requests_of({5, 3}), options).decisions;
    EXPECT_EQ(asked.plans, step_by_step ? 6 : 4);
  }
  EXPECT_EQ(logs[0], logs[1]);
  EXPECT_EQ(logs[0],
            "0.000000000 r0 unmerged:mbgmv run=0x20,1x20\n"
            "0.001406200 r0 unmerged:mbgmv run=0,1 x2 until 0.002428620\n"
            "0.003451060 r0 unmerged:mbgmv run=0 x2 until 0.004462290\n");
}

}  // namespace
}  // namespace servelab
