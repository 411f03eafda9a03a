// dLoRA's credits bound how often a request is passed over, however hot another adapter is.
//
// The bound, from Algorithm 3 (OSDI '24, A.1). Let M be max_batch, n the adapters, c starve_credit.
// Credits start at c (n - 1); an adapter starves above c n, until it falls below c (n - 1/2); each
// request of B_fcfs (the M oldest) that a step leaves out gives its adapter u = 1/M, paid by the
// adapters that the step serves in its place.
//
// Take a request of adapter a that has come into B_fcfs; it stays there until it ends. A step that
// leaves it out is merged for another adapter, or serves the starving ones, of which a is none:
// B_starve has the M oldest requests of the starving adapters, so it has those of them that are in
// B_fcfs. Either way a pays nothing and its credit grows by at least u. It is above c n, and a is
// served, after more than M (c n - e) such steps, where e is a's credit when the first of them
// came.
//
// How small can e be? a pays in two cases. (1) It is merged: L_eligible (line 17) lets it only if
// it can pay, so e >= 0. (2) It starves and overtakes: it had at least c (n - 1/2) (line 7) and
// pays for at most M - 1 requests, so e > c (n - 1/2) - 1. Hence, for the steps in a row that leave
// a request of B_fcfs out,
//   any adapter:         at most floor(M c n) + 1             (if c (n - 1/2) >= 1, so that e >= 0)
//   one not yet merged:  at most floor(M max(c, c / 2 + 1)) + 1
// when blocks, tokens and adapter room never are what a step lacks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "baselines/shared/batches.h"
#include "engine/core/rng.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

constexpr int kAdapters = 8;

struct Worst {
  int any = 0;         // most steps in a row that passed over a request of B_fcfs
  int cold = 0;        // the same, of an adapter that was never merged before
  int cold_first = 0;  // the same, before the request's first service
  int merged_steps = 0;
};

// Hands every decision to another policy, and counts whom its steps leave out.
class PassedOver final : public ReplicaPolicy {
 public:
  PassedOver(std::unique_ptr<ReplicaPolicy> policy, std::size_t requests, Worst* worst)
      : policy_(std::move(policy)),
        worst_(worst),
        passed_(requests),
        was_served_(requests),
        was_merged_(kAdapters) {}

  bool plan(const ReplicaView& view, StepPlan* out) override {
    if (!policy_->plan(view, out)) return false;
    if (out->slices.empty()) return true;
    if (out->exec == Exec::kMerged) {
      ++worst_->merged_steps;
      was_merged_[index(out->merged)] = true;
    }
    for (const Slice& slice : out->slices) {
      passed_[index(slice.request)] = 0;
      was_served_[index(slice.request)] = true;
    }
    oldest_requests(view, view.limits().max_batch, &fcfs_);
    for (const RequestId id : fcfs_) {
      const bool served = std::any_of(out->slices.begin(), out->slices.end(),
                                      [id](const Slice& slice) { return slice.request == id; });
      if (!served) note(view, id);
    }
    return true;
  }
  void on_step_done(const ReplicaView& view, const StepReport& report) override {
    policy_->on_step_done(view, report);
  }

 private:
  void note(const ReplicaView& view, RequestId id) {
    const int passed = ++passed_[index(id)];
    worst_->any = std::max(worst_->any, passed);
    if (was_merged_[index(view.request(id).adapter())]) return;
    worst_->cold = std::max(worst_->cold, passed);
    if (!was_served_[index(id)]) worst_->cold_first = std::max(worst_->cold_first, passed);
  }

  std::unique_ptr<ReplicaPolicy> policy_;
  Worst* worst_;
  std::vector<int> passed_;  // steps in a row, by request
  std::vector<bool> was_served_;
  std::vector<bool> was_merged_;  // by adapter
  std::vector<RequestId> fcfs_;
};

// 95 % of the requests want adapter 0. `load` is in full merged batches.
Workload hot_workload(int requests, double load, int max_batch, std::uint64_t seed) {
  constexpr double kMeanOutput = 20.5, kStepS = 1.2e-3;
  test::WorkloadShape shape;
  shape.requests = requests;
  shape.adapters = kAdapters;
  shape.base_share = 0;
  shape.max_prompt = 60;
  shape.max_output = 40;
  shape.rate_per_s = load * max_batch / (kMeanOutput * kStepS);
  Workload workload = test::make_workload(shape, seed);
  RngStream rng(seed, "hot");
  for (Request& request : workload.requests) {
    const bool hot = rng.uniform() < 0.95;
    request.adapter =
        static_cast<AdapterId>(hot ? 0 : 1 + static_cast<std::uint32_t>(rng.below(kAdapters - 1)));
  }
  return workload;
}

Worst worst_of(const Workload& workload, int starve_credit, int max_batch) {
  Worst worst;
  test::RunOptions options;
  options.engine.limits.max_batch = max_batch;
  options.engine.limits.max_batch_tokens = 4096;
  options.kv_blocks = 20'000;  // everything at once
  options.replica_policy = [&] {
    const auto technique = Registry<Technique>::instance().make("dlora");
    ParamFields fields;
    technique->fields(fields);
    fields.bind(parse_yaml("starve_credit: " + std::to_string(starve_credit), "test"), "test");
    return std::make_unique<PassedOver>(technique->replica_policy(), workload.requests.size(),
                                        &worst);
  };
  options.technique = "dlora";
  options.step_by_step = true;  // a step is counted where it is planned
  const RunRecord record = test::run(workload, options);
  EXPECT_EQ(test::violation(workload, record), "");
  for (const RequestRecord& r : record.requests) EXPECT_EQ(r.status, RequestStatus::kFinished);
  return worst;
}

TEST(Starvation, NoRequestIsPassedOverMoreOftenThanCreditsAllow) {
  int tight = 0;
  std::printf("max_batch credit load: worst (bound) of adapters never merged; of any adapter\n");
  for (const int max_batch : {4, 16}) {
    for (const int credit : {1, 5, 20}) {
      const double c = credit;
      const int bound = static_cast<int>(std::floor(max_batch * std::max(c, c / 2 + 1))) + 1;
      const int bound_any = max_batch * credit * kAdapters + 1;
      for (const double load : {0.7, 1.1, 2.0}) {
        Worst worst;
        for (std::uint64_t seed = 0; seed < 3; ++seed) {
          SCOPED_TRACE("max_batch " + std::to_string(max_batch) + ", starve_credit " +
                       std::to_string(credit) + ", load " + std::to_string(load) + ", seed " +
                       std::to_string(seed));
          const Worst now =
              worst_of(hot_workload(100 * max_batch, load, max_batch, seed), credit, max_batch);
          EXPECT_LE(now.cold, bound);
          EXPECT_LE(now.cold_first, bound);
          EXPECT_LE(now.any, bound_any);
          EXPECT_GT(now.merged_steps, 0);
          worst.cold = std::max(worst.cold, now.cold);
          worst.cold_first = std::max(worst.cold_first, now.cold_first);
          worst.any = std::max(worst.any, now.any);
        }
        std::printf("%9d %6d %4.1f: %3d, before its first step %3d (%3d); %4d (%4d)\n", max_batch,
                    credit, load, worst.cold, worst.cold_first, bound, worst.any, bound_any);
        tight += 3 * worst.cold_first >= bound ? 1 : 0;
      }
    }
  }
  EXPECT_GE(tight, 6) << "the bound says hardly anything";
}

// Line 17. With two adapters and c = 1 the hot one has a credit of 1, which is four requests left
// out at max_batch 4. Then it may not be merged, before the other's credit passes 2 and it starves.
TEST(Starvation, AnAdapterThatCannotPayIsNotMerged) {
  Workload workload = hot_workload(200, 3, 4, 1);
  workload.adapters.resize(2);
  for (Request& request : workload.requests) {
    request.arrival = 0;
    request.adapter = AdapterId{0};
    request.output_tokens = request.output_limit_tokens = 30;
  }
  workload.requests[6].adapter = AdapterId{1};
  EXPECT_EQ(worst_of(workload, 1, 4).cold_first, 4);
}

}  // namespace
}  // namespace servelab
