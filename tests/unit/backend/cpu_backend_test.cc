// Real runs on the CPU engine, in wall-clock time, with a tiny model: every technique serves every
// request with the tokens that it would get alone, and a replay repeats every decision.
#include <gtest/gtest.h>

#include "engine/backend/device/accelerator.h"
#include "engine/backend/device/real_backend.h"
#include "engine/backend/device/thread_team.h"
#include "engine/core/check.h"
#include "engine/core/registry.h"
#include "tests/support/device_testing.h"
#include "tests/support/real_runs.h"

namespace servelab {
namespace {

using test::RealRun;
using test::replay;

class CpuEngine final : public test::TestedEngine {
 public:
  const ModelConfig& model() const override { return model_; }
  std::unique_ptr<RealBackend> backend(RealTimeline* timeline, const CostModel* cost,
                                       const ModelWeights& weights, const Workload& workload,
                                       AdapterSource* adapters,
                                       PromptSource prompts) const override {
    const auto make = [this, &weights](ReplicaId, const ReplicaLayout& layout) {
      DevicePlan plan;
      plan.type = kernels::DType::kF32;
      plan.limits = {layout.kv_blocks, layout.block_tokens, layout.max_batch,
                     layout.max_batch_tokens};
      plan.host_threads = 2;
      return find_accelerator("cpu")->make(model_, weights, plan);
    };
    return make_real_backend(timeline, cost, workload, adapters, std::move(prompts), make, {});
  }
  std::unique_ptr<Device> device(const ModelWeights& weights) const override {
    return test::cpu_device(model_, weights, {.kv_blocks = 64});
  }

 private:
  const ModelConfig model_ = test::tiny_model(32, 2, 1, 48);
};

RealRun run_real(const Workload& workload, const test::RunOptions& options, int bad_adapter = -1) {
  return test::run_real(CpuEngine(), workload, options, {.bad_adapter = bad_adapter});
}

class CpuBackendRun : public ::testing::TestWithParam<std::string> {};

TEST_P(CpuBackendRun, ServesEveryRequestAndReplaysIdentically) {
  test::expect_serves_and_replays(CpuEngine(), GetParam(), {.keeps_adapters = true});
}

// In wall-clock time as in virtual time: nobody is lost outside, and a replay repeats who enters
// when, or who is turned away.
TEST(CpuBackend, KeepsTheBoundOnWaitingRequests) {
  for (const WhenFull when_full : {WhenFull::kWait, WhenFull::kReject}) {
    test::RunOptions options;
    options.technique = "vllm-lora";
    options.engine = test::small_engine();
    options.engine.adapter_slots = 2;
    options.kv_blocks = 24;
    options.max_waiting = 2;
    options.when_full = when_full;
    options.record.decision_text = true;
    test::WorkloadShape shape = test::short_requests();
    shape.burst = true;
    const Workload workload = test::make_workload(shape, 1);
    const RealRun run = run_real(workload, options);
    EXPECT_EQ(test::violation(workload, run.record), "");
    const ClusterTotals& totals = run.record.cluster;
    const bool waits = when_full == WhenFull::kWait;
    EXPECT_GE(waits ? totals.held_back : totals.turned_away, 40);
    EXPECT_EQ(waits ? totals.turned_away : totals.held_back, 0);
    const RunRecord again = replay(workload, options, run.record);
    EXPECT_EQ(again.decisions, run.record.decisions);
    EXPECT_EQ(again.cluster.held_back, totals.held_back);
    EXPECT_EQ(again.cluster.turned_away, totals.turned_away);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuBackendRun,
                         ::testing::ValuesIn(Registry<Technique>::instance().names()),
                         [](const auto& info) {
                           std::string text = info.param;
                           std::replace(text.begin(), text.end(), '-', '_');
                           return text;
                         });

// Tokens of each adapter's LoRA on the host, on the device and in both by turns are the same.
TEST(CpuBackend, LoraOnTheHostChangesNoToken) {
  const Workload workload = test::make_workload(test::short_requests(), 8);
  const auto expected = test::alone(CpuEngine(), workload, false);
  for (const char* kernel : {"bgmv", "mbgmv", "sgmv", "einsum"}) {
    for (const char* loading : {"wait", "host, take_over: layers", "skip, take_over: never"}) {
      test::RunOptions options;
      options.technique = "caraserve";
      options.params = std::string("{kernel: ") + kernel + ", loading: " + loading + "}";
      options.engine = test::small_engine();
      options.engine.adapter_slots = 3;
      options.record.steps = true;
      const RealRun run = test::run_real(CpuEngine(), workload, options, {.keeps_adapters = true});
      EXPECT_EQ(test::violation(workload, run.record), "");
      EXPECT_EQ(run.outputs, expected) << options.params;
      int on_host = 0;
      for (const StepRecord& step : run.record.step_log) {
        on_host += step.host_requests;
        EXPECT_LE(step.timing.host_layers, step.host_requests > 0 ? 2 : 0);
        if (options.params.find("never") != std::string::npos && step.host_requests > 0) {
          EXPECT_EQ(step.timing.host_layers, 2);
        }
      }
      EXPECT_GT(on_host, 0) << options.params;
    }
  }
}

TEST(CpuBackend, LoraOnTheHostNeedsAdaptersInHostMemory) {
  test::RunOptions options;
  options.technique = "caraserve";
  options.engine = test::small_engine();
  try {
    run_real(test::make_workload(test::short_requests(), 4), options);
    FAIL() << "LoRA was computed on the host from adapters that are not there";
  } catch (const SpecError& error) {
    EXPECT_STREQ(error.what(),
                 "the backend cannot carry this plan out: LoRA on the host needs adapters that "
                 "stay in host memory: runtime.adapter_store: host");
  }
}

TEST(CpuBackend, PreemptionLosesNoToken) { test::expect_preemption_loses_no_token(CpuEngine()); }

TEST(CpuBackend, MergedOnlyGivesTheMergedModelsTokens) {
  test::expect_merged_tokens(CpuEngine(), {});
}

TEST(CpuBackend, AnAdapterThatCannotBeLoadedEndsTheRunWithItsReason) {
  test::RunOptions options;
  options.engine = test::small_engine();
  options.engine.adapter_slots = 2;
  const Workload workload = test::make_workload(test::short_requests(), 4);
  try {
    run_real(workload, options, 0);
    FAIL() << "the run went on without its adapter";
  } catch (const SpecError& error) {
    EXPECT_STREQ(error.what(), "adapter a0 was deleted");
  }
}

TEST(CpuBackend, TwoReplicasServeOneWorkload) {
  test::RunOptions options;
  options.engine = test::small_engine();
  options.replicas = 2;
  const Workload workload = test::make_workload(test::short_requests(), 5);
  const RealRun run = run_real(workload, options);
  EXPECT_EQ(test::violation(workload, run.record), "");
  EXPECT_EQ(replay(workload, options, run.record).decision_hash.value(),
            run.record.decision_hash.value());
}

struct Shuttled {
  int swapped = 0, in_step = 0;  // moves of requests in these states, asked for
};

// Moves every swapped request, and at every fourth look the running ones, to the other replica,
// each three times at most: some come back to where their KV was in host memory before.
class Shuttle final : public ClusterPolicy {
 public:
  Shuttle(std::size_t requests, Shuttled* shuttled)
      : swapped_moves_(requests), running_moves_(requests), shuttled_(shuttled) {}
  ReplicaId route(const RoutedRequest& request, const ClusterView&) override {
    return static_cast<ReplicaId>(index(request.id) % 2);
  }
  TimeNs rebalance_every() const override { return 200'000; }
  Rebalance rebalance(const ClusterView& view) override {
    Rebalance decision;
    decision.outcome = Rebalance::Outcome::kDecided;
    ++looks_;
    for (const ReplicaView* replica : view.replicas()) {
      const ReplicaId other = static_cast<ReplicaId>(1 - index(replica->id()));
      const auto move = [&](RequestId id, std::vector<int>* moves) {
        if (++(*moves)[index(id)] > 3) return 0;
        decision.migrations.push_back({id, other});
        return 1;
      };
      for (const RequestId id : replica->swapped()) {
        shuttled_->swapped += move(id, &swapped_moves_);
      }
      for (const RequestId id : replica->running()) {
        if (looks_ % 4 != 0) break;
        const int moved = move(id, &running_moves_);
        if (replica->request(id).in_step()) shuttled_->in_step += moved;
      }
    }
    return decision;
  }

 private:
  std::vector<int> swapped_moves_, running_moves_;  // by request
  Shuttled* shuttled_;
  int looks_ = 0;
};

// Migrated between two replicas, also with their KV in host memory and in the middle of steps,
// requests get the tokens that they get where they stay.
TEST(CpuBackend, MigrationChangesNoToken) {
  test::WorkloadShape burst = test::short_requests();
  burst.burst = true;
  burst.max_output = 30;
  const Workload workload = test::make_workload(burst, 7);
  for (const char* technique : {"unmerged-only", "punica", "merged-only"}) {
    const bool merged = std::string(technique) == "merged-only";
    test::RunOptions options;
    options.technique = technique;
    options.engine = test::small_engine();
    options.kv_blocks = 14;
    options.replicas = 2;
    options.route = "round-robin";
    options.record.token_times = true;
    const RealRun still = run_real(workload, options);
    EXPECT_EQ(test::violation(workload, still.record), "");
    EXPECT_EQ(still.record.cluster.migrations, 0);
    EXPECT_EQ(still.outputs, test::alone(CpuEngine(), workload, merged)) << technique;
    const bool swaps = std::string(technique) == "unmerged-only";
    Shuttled shuttled;
    options.cluster_policy = [&] {
      return std::make_unique<Shuttle>(workload.requests.size(), &shuttled);
    };
    // Again where the wall clock let no look fall on a swapped request.
    for (int run = 0; run < 5 && (run == 0 || (swaps && shuttled.swapped == 0)); ++run) {
      const RealRun moved = run_real(workload, options);
      EXPECT_EQ(test::violation(workload, moved.record), "");
      EXPECT_GT(moved.record.cluster.migrations, 10) << technique;
      EXPECT_EQ(moved.outputs, still.outputs) << technique;
      const Shuttled seen = shuttled;
      const RunRecord again = replay(workload, options, moved.record);
      shuttled = seen;
      EXPECT_EQ(again.decision_hash.value(), moved.record.decision_hash.value()) << technique;
      EXPECT_EQ(again.token_times, moved.record.token_times) << technique;
    }
    EXPECT_GT(shuttled.in_step, 0) << technique;
    EXPECT_GT(shuttled.swapped, swaps ? 0 : -1);
  }
}

TEST(CpuBackend, ALaggingLoadGeneratorMakesARunInvalid) {
  // Arrivals long before the run begins are as late as those that a slow generator handed in.
  Workload workload = test::make_workload(test::short_requests(), 6);
  for (Request& request : workload.requests) request.arrival = 0;
  test::RunOptions options;
  options.engine = test::small_engine();
  options.max_arrival_lag = 1;
  const RealRun run = run_real(workload, options);
  ASSERT_EQ(run.record.invalid_reasons.size(), 1u);
  EXPECT_NE(run.record.invalid_reasons.front().find("load generator lagged"), std::string::npos);
}

TEST(ThreadTeam, EveryMemberRunsAndBarriersHold) {
  ThreadTeam team(4, {});
  for (int round = 0; round < 200; ++round) {
    std::vector<int> before(4), after(4);
    team.run([&](int member) {
      before[static_cast<std::size_t>(member)] = 1;
      team.barrier();
      after[static_cast<std::size_t>(member)] = before[0] + before[1] + before[2] + before[3];
      team.barrier();
    });
    EXPECT_EQ(after, (std::vector<int>{4, 4, 4, 4}));
  }
}

}  // namespace
}  // namespace servelab
