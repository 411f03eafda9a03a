// S-LoRA's admission bound by hand, its early abort, and its handling of adapters.
#include <gtest/gtest.h>

#include "baselines/shared/admission_bound.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

// Two requests: one holds 10 tokens with 5 to come, one holds 20 with 2 to come. After two steps
// the second leaves with 22; both then held 12 + 22 = 34. The first ends alone with 15.
TEST(AdmissionBound, IsThePeakOfTheBatchsFuture) {
  AdmissionBound bound;
  bound.append(20, 2);
  bound.append(10, 5);
  bound.sort();
  EXPECT_EQ(bound.peak_tokens(), 34);
  bound.insert(100, 0);  // ends at once, but is there at the start
  EXPECT_EQ(bound.peak_tokens(), 130);
  EXPECT_EQ(bound.size(), 3u);
}

test::RunOptions overloaded() {
  test::RunOptions options;
  options.technique = "slora";
  options.engine = test::small_engine();
  options.kv_blocks = 60;
  return options;
}

TEST(Slora, EarlyAbortDropsOnlyWhatCanNoLongerMeetItsObjective) {
  test::WorkloadShape shape;
  shape.requests = 1500;
  shape.rate_per_s = 1500;
  const Workload workload = test::make_workload(shape, 4);
  test::RunOptions options = overloaded();
  const RunRecord patient = test::run(workload, options);
  options.params = "{early_abort: true, ttft_slo_s: 1}";
  const RunRecord strict = test::run(workload, options);
  int aborted = 0, served_late = 0;
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const RequestRecord& r = strict.requests[i];
    EXPECT_EQ(patient.requests[i].status, RequestStatus::kFinished);
    if (r.status == RequestStatus::kRejected) {
      ++aborted;
      EXPECT_EQ(r.reject_reason, RejectReason::kPolicy);
      EXPECT_EQ(r.generated, 0);
    } else {
      ASSERT_EQ(r.status, RequestStatus::kFinished);
      served_late += r.first_token - workload.requests[i].arrival > from_seconds(1.1) ? 1 : 0;
    }
  }
  EXPECT_GT(aborted, 100);
  EXPECT_EQ(served_late, 0);
}

// Adapters leave with their last request: what stays is what runs, or was prefetched.
TEST(Slora, IdleAdaptersAreOffLoaded) {
  test::WorkloadShape shape;
  shape.requests = 300;
  shape.adapters = 60;
  shape.rate_per_s = 100;
  const RunRecord record = test::run(test::make_workload(shape, 2), overloaded());
  int loads = 0, evictions = 0;
  for (const EventRecord& event : record.events) {
    loads += event.code == EventCode::kLoad ? 1 : 0;
    evictions += event.code == EventCode::kEvict ? 1 : 0;
  }
  EXPECT_GT(loads, 60) << "an adapter never came back";
  EXPECT_GE(evictions, loads - 16);
}

}  // namespace
}  // namespace servelab
