// The null backend: everything takes the same time and nothing is refused. The null technique on it
// is what the harness measures itself with.
#include <gtest/gtest.h>

#include "engine/serve/backend.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

constexpr TimeNs kEach = 1'000;

class NullBackendTest : public ::testing::Test {
 protected:
  // Delivers the next event, which must be of this kind, and returns its stamp.
  TimeNs next(EventKind kind) {
    Event event;
    EXPECT_TRUE(timeline_.next(&event));
    EXPECT_EQ(event.kind, kind);
    return event.at;
  }

  NullBackendTest() { test::attach_replicas(backend_.get(), 2); }

  VirtualTimeline timeline_;
  std::unique_ptr<Backend> backend_ = make_null_backend(&timeline_, kEach);
};

TEST_F(NullBackendTest, AStepTakesTheSameTimeWhateverIsInIt) {
  StepWork work;
  backend_->submit(work);
  EXPECT_EQ(next(EventKind::kStepDone), kEach);
  EXPECT_EQ(backend_->collect(ReplicaId{}, 0).busy(), kEach);
  work.shape.add_slice(2000, 500, true);
  backend_->submit(work);
  EXPECT_EQ(next(EventKind::kStepDone), 2 * kEach);
  EXPECT_EQ(backend_->collect(ReplicaId{}, 0).cost.total(), kEach);
}

TEST_F(NullBackendTest, MergingUnmergingAndSwappingTakeThatTimeEach) {
  StepWork work;
  work.merge = AdapterId{1};
  work.unmerge = AdapterId{2};
  work.swap_in = work.swap_out = 100 * kMiB;
  backend_->submit(work);
  EXPECT_EQ(next(EventKind::kStepDone), 4 * kEach);
  const StepTiming timing = backend_->collect(ReplicaId{}, 0);
  EXPECT_EQ(timing.switching, 2 * kEach);
  EXPECT_EQ(timing.swap, kEach);
}

TEST_F(NullBackendTest, AStepWaitsForLoadsAtItsReplica) {
  backend_->load(ReplicaId{0}, AdapterId{3}, 10 * kGiB);
  backend_->load(ReplicaId{0}, AdapterId{4}, 1);
  StepWork work;
  backend_->submit(work);
  work.replica = ReplicaId{1};
  backend_->submit(work);
  EXPECT_EQ(next(EventKind::kStepDone), kEach) << "the other replica has nothing to wait for";
  EXPECT_EQ(next(EventKind::kLoadDone), kEach);
  EXPECT_EQ(next(EventKind::kLoadDone), kEach);
  EXPECT_EQ(next(EventKind::kStepDone), 2 * kEach);
  EXPECT_EQ(backend_->collect(ReplicaId{0}, 0).load_wait, kEach);
  EXPECT_EQ(backend_->collect(ReplicaId{1}, 0).load_wait, 0);
}

TEST_F(NullBackendTest, RefusesNoPlanAndChargesNoCost) {
  StepPlan plan;
  plan.device_share = 0.5;
  plan.model = ModelId{3};
  plan.slices.push_back(Slice{RequestId{}, 1, LoraSite::kRemote});
  EXPECT_EQ(backend_->unsupported(ReplicaId{}, plan), nullptr);
  const CostModel& cost = backend_->cost(ReplicaId{}, ModelId{});
  EXPECT_EQ(cost.step(BatchShape{}, Exec::kUnmerged, LoraKernel::kSgmv).total(), kEach);
  EXPECT_EQ(cost.merge(64), kEach);
  EXPECT_EQ(cost.unmerge(64), kEach);
  EXPECT_EQ(cost.host_to_device(kGiB), kEach);
  EXPECT_EQ(cost.device_to_host(kGiB), kEach);
}

// Stamps of many events are equal here, which the twin's hardly ever are.
TEST(NullBackend, EveryTechniqueRunsOnIt) {
  test::WorkloadShape shape;
  shape.burst = true;
  const Workload workload = test::make_workload(shape, 5);
  for (const std::string& technique : Registry<Technique>::instance().names()) {
    SCOPED_TRACE(technique);
    test::RunOptions options;
    options.technique = technique;
    options.engine = test::small_engine();
    options.engine.adapter_slots = 3;
    options.kv_blocks = 60;
    options.replicas = 2;
    VirtualTimeline timeline;
    const auto backend = make_null_backend(&timeline, kEach);
    EXPECT_EQ(test::violation(workload, test::run_on(workload, options, &timeline, backend.get())),
              "");
  }
}

// A run whose steps all get this share of the device.
RunRecord run_on_share(double share) {
  Workload workload;
  workload.requests.push_back({0, kBaseModel, ModelId{}, 4, 3, 3});
  test::RunOptions options;
  options.technique = "null";
  options.engine.device_share = share;
  options.record.decision_text = true;
  VirtualTimeline timeline;
  const auto backend = make_null_backend(&timeline, kEach);
  return test::run_on(workload, options, &timeline, backend.get());
}

TEST(NullBackend, TheDecisionLogTellsSharesOfTheDeviceApart) {
  const RunRecord whole = run_on_share(1);
  const RunRecord part = run_on_share(0.3);
  EXPECT_NE(part.decision_hash.value(), whole.decision_hash.value());
  EXPECT_NE(part.decision_hash.value(), run_on_share(0.4).decision_hash.value());
  EXPECT_EQ(part.decision_hash.value(), run_on_share(0.3).decision_hash.value());
  EXPECT_NE(part.decisions.find(" share=0.3 "), std::string::npos) << part.decisions;
  EXPECT_EQ(whole.decisions.find("share"), std::string::npos);
}

TEST(Invariants, I7ShareOfTheDevice) {
  for (const double share : {0.0, -0.5, 1.5}) {
    try {
      run_on_share(share);
      FAIL() << "a share of " << share << " was accepted";
    } catch (const InvariantError& error) {
      EXPECT_NE(std::string(error.what()).find("I7"), std::string::npos) << error.what();
    }
  }
}

// Without a shortage the null technique keeps every step full, and nobody begins twice.
TEST(NullTechnique, ServesInTheOrderOfArrivalInFullSteps) {
  Workload workload;
  for (int i = 0; i < 40; ++i) {
    workload.requests.push_back({i, kBaseModel, ModelId{}, 4, 10, 10});
  }
  test::RunOptions options;
  options.technique = "null";
  options.engine.limits = {.max_batch = 8, .max_batch_tokens = 512};
  VirtualTimeline timeline;
  const auto backend = make_null_backend(&timeline, kEach);
  const RunRecord record = test::run_on(workload, options, &timeline, backend.get());
  EXPECT_EQ(test::violation(workload, record), "");
  EXPECT_LE(record.steps, 40 * 10 / 8 + 10);
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const RequestRecord& r = record.requests[i];
    EXPECT_EQ(r.preemptions, 0);
    EXPECT_EQ(r.last_token - r.first_token, 9 * kEach) << "request " << i << " paused";
    EXPECT_GE(r.admitted, record.requests[i == 0 ? 0 : i - 1].admitted);
  }
}

}  // namespace
}  // namespace servelab
