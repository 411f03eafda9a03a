// The twin's backend: what copies of KV add to a step.
#include <gtest/gtest.h>

#include "engine/serve/backend.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

// A step computes for 100 us; copies take 1 ns a byte.
class PiecewiseCost final : public CostModel {
 public:
  explicit PiecewiseCost(int pieces) : pieces_(pieces) {}
  StepCost step(const BatchShape&, Exec, LoraKernel) const override {
    StepCost cost;
    cost.dense = 100'000;
    return cost;
  }
  TimeNs merge(int) const override { return 0; }
  TimeNs unmerge(int) const override { return 0; }
  TimeNs host_to_device(Bytes bytes) const override { return bytes; }
  TimeNs device_to_host(Bytes bytes) const override { return bytes; }
  int copy_pieces() const override { return pieces_; }

 private:
  int pieces_;
};

// What swapping adds to each of two steps that follow each other, ns.
std::pair<TimeNs, TimeNs> swap_times(int pieces, Bytes in, Bytes out, Bytes loading) {
  const PiecewiseCost cost(pieces);
  VirtualTimeline timeline;
  const auto backend = make_twin_backend(&timeline, &cost);
  test::attach_replicas(backend.get(), 1);
  if (loading > 0) backend->load(ReplicaId{}, AdapterId{}, loading);
  std::pair<TimeNs, TimeNs> added;
  for (TimeNs* one : {&added.first, &added.second}) {
    StepWork work;
    work.swap_in = in;
    work.swap_out = out;
    backend->submit(work);
    Event event;
    do {
      EXPECT_TRUE(timeline.next(&event));
    } while (event.kind != EventKind::kStepDone);
    *one = backend->collect(ReplicaId{}, 0).swap;
  }
  return added;
}

TEST(TwinBackend, AStepWaitsForTheWholeCopyWhereItIsInOnePiece) {
  EXPECT_EQ(swap_times(1, 30'000, 20'000, 0), std::pair(TimeNs{50'000}, TimeNs{50'000}));
}

// Ten layers of 10 us; copies of 5 us each hide behind them but for the first.
TEST(TwinBackend, CopiesHideBehindTheLayersBeforeTheirs) {
  EXPECT_EQ(swap_times(10, 30'000, 20'000, 0).first, 5'000);
}

// Copies of 20 us a layer: the step ends one layer after the last of them, at 210 us.
TEST(TwinBackend, LongCopiesLeaveOneLayerBehindThem) {
  EXPECT_EQ(swap_times(10, 200'000, 0, 0).first, 110'000);
}

// An adapter that is loading has the link first.
TEST(TwinBackend, CopiesQueueOnTheLink) {
  EXPECT_EQ(swap_times(10, 50'000, 0, 40'000).first, 40'000 + 5'000);
}

// A replica's first step has what the engine does once; those after it do not.
TEST(TwinBackend, TheFirstStepIsLonger) {
  class Starting final : public CostModel {
   public:
    StepCost step(const BatchShape&, Exec, LoraKernel) const override { return {.dense = 100}; }
    TimeNs merge(int) const override { return 0; }
    TimeNs unmerge(int) const override { return 0; }
    TimeNs host_to_device(Bytes bytes) const override { return bytes; }
    TimeNs device_to_host(Bytes bytes) const override { return bytes; }
    TimeNs first_step() const override { return 5000; }
  };
  const Starting cost;
  VirtualTimeline timeline;
  const auto backend = make_twin_backend(&timeline, &cost);
  test::attach_replicas(backend.get(), 2);
  const auto duration = [&](ReplicaId replica) {
    StepWork work;
    work.replica = replica;
    const TimeNs before = timeline.now();
    backend->submit(work);
    Event event;
    EXPECT_TRUE(timeline.next(&event));
    return timeline.now() - before;
  };
  EXPECT_EQ(duration(ReplicaId{0}), 5100);
  EXPECT_EQ(duration(ReplicaId{0}), 100);
  EXPECT_EQ(duration(ReplicaId{1}), 5100);
}

TEST(TwinBackend, NothingIsAddedWithoutACopy) {
  EXPECT_EQ(swap_times(10, 0, 0, 0), std::pair(TimeNs{0}, TimeNs{0}));
}

}  // namespace
}  // namespace servelab
