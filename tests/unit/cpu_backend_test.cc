// Real runs on the CPU engine, in wall-clock time, with a tiny model: every technique serves every
// request with the tokens that it would get alone, and a replay repeats every decision.
#include "engine/backend/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include "engine/backend/cpu/thread_team.h"
#include "engine/core/check.h"
#include "engine/core/registry.h"
#include "engine/run/generate.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

constexpr std::uint64_t kPromptSeed = 11;

ModelConfig tiny_model() {
  ModelConfig model;
  model.name = "tiny";
  model.layers = 2;
  model.hidden = 32;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_dim = 16;
  model.ffn = 48;
  model.vocab = 64;
  model.max_context_tokens = 1024;
  model.source = "test";
  return model;
}

class RandomAdapters final : public AdapterSource {
 public:
  RandomAdapters(const ModelConfig& model, const Workload& workload, int bad = -1) : bad_(bad) {
    for (std::size_t i = 0; i < workload.adapters.size(); ++i) {
      adapters_.push_back(random_adapter(model, "a" + std::to_string(i), workload.adapters[i].rank,
                                         {"q", "k", "v", "o"}, i));
    }
  }
  std::shared_ptr<const LoraWeights> load(AdapterId id) override {
    if (static_cast<int>(index(id)) == bad_) throw SpecError("adapter a0 was deleted");
    return adapters_[index(id)];
  }

 private:
  int bad_;
  std::vector<std::shared_ptr<const LoraWeights>> adapters_;
};

struct RealRun {
  RunRecord record;
  std::vector<std::vector<std::int32_t>> outputs;
};

CpuBackendOptions backend_options() {
  CpuBackendOptions options;
  options.threads = 2;
  options.isa = kernels::best_isa();
  options.type = kernels::DType::kF32;
  options.widest_rank = 16;
  return options;
}

RealRun run_real(const Workload& workload, test::RunOptions options, int bad_adapter = -1) {
  options.record.keep_delivered = options.record.measure_scheduling = true;
  const ModelConfig model = tiny_model();
  const auto weights = random_weights(model, 5);
  RandomAdapters adapters(model, workload, bad_adapter);
  RealTimeline timeline;
  const test::LinearCost cost;
  const auto backend =
      make_cpu_backend(&timeline, &cost, model, *weights, workload, &adapters,
                       random_prompts(kPromptSeed, model.vocab), backend_options());
  backend->keep_outputs();
  RealRun run;
  run.record = test::run_on(workload, options, &timeline, backend.get());
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    run.outputs.push_back(backend->output(static_cast<RequestId>(i)));
  }
  return run;
}

RunRecord replay(const Workload& workload, test::RunOptions options, const RunRecord& original) {
  ReplayTimeline timeline(original.delivered);
  const test::LinearCost cost;
  const auto backend = make_replay_backend(&timeline, &cost, original.step_timings);
  return test::run_on(workload, options, &timeline, backend.get());
}

// What each request generates when it is alone on the machine.
std::vector<std::vector<std::int32_t>> alone(const Workload& workload, bool merged) {
  const ModelConfig model = tiny_model();
  const auto weights = random_weights(model, 5);
  RandomAdapters adapters(model, workload);
  CpuExecutorOptions options;
  options.isa = kernels::best_isa();
  options.type = kernels::DType::kF32;
  options.kv_blocks = 64;
  CpuExecutor executor(model, *weights, options);
  const PromptSource prompts = random_prompts(kPromptSeed, model.vocab);
  std::vector<std::vector<std::int32_t>> outputs;
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const Request& request = workload.requests[i];
    std::unique_ptr<DeviceAdapter> adapter;
    if (request.adapter != kBaseModel) {
      adapter = executor.pack_adapter(*adapters.load(request.adapter), 0);
      if (merged) executor.merge(*adapter);
    }
    outputs.push_back(generate(&executor, prompts(static_cast<RequestId>(i), request.prompt_tokens),
                               merged ? nullptr : adapter.get(),
                               merged ? Exec::kMerged : Exec::kUnmerged, request.output_tokens,
                               {}));
    executor.unmerge();
  }
  return outputs;
}

test::WorkloadShape shape() {
  test::WorkloadShape shape;
  shape.requests = 60;
  shape.adapters = 6;
  shape.rate_per_s = 1500;
  shape.max_prompt = 60;
  shape.max_output = 20;
  return shape;
}

class CpuBackendRun : public ::testing::TestWithParam<std::string> {};

TEST_P(CpuBackendRun, ServesEveryRequestAndReplaysIdentically) {
  const auto technique = Registry<Technique>::instance().make(GetParam());
  test::RunOptions options;
  options.technique = GetParam();
  options.engine = test::small_engine();
  options.engine.adapter_slots = 3;
  options.kv_blocks = 24;  // four or five requests: preemptions
  options.record.decision_text = true;
  const Workload workload = test::make_workload(shape(), 1);
  const RealRun run = run_real(workload, options);
  EXPECT_EQ(test::violation(workload, run.record), "");
  EXPECT_GT(run.record.replicas.front().scheduling, 0);
  EngineSettings engine;
  technique->configure(&engine);
  const bool whole = engine.adapter_form == AdapterForm::kWholeModel;
  if (whole || !technique->capabilities().merges) {
    const auto expected = alone(workload, whole);
    for (std::size_t i = 0; i < workload.requests.size(); ++i) {
      if (run.record.requests[i].status != RequestStatus::kFinished) continue;
      EXPECT_EQ(run.outputs[i], expected[i]) << "request " << i;
    }
  }
  const RunRecord again = replay(workload, options, run.record);
  EXPECT_EQ(again.decisions, run.record.decisions);
  EXPECT_EQ(again.decision_hash.value(), run.record.decision_hash.value());
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    EXPECT_EQ(again.requests[i].last_token, run.record.requests[i].last_token);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuBackendRun,
                         ::testing::ValuesIn(Registry<Technique>::instance().names()),
                         [](const auto& info) {
                           std::string text = info.param;
                           std::replace(text.begin(), text.end(), '-', '_');
                           return text;
                         });

TEST(CpuBackend, PreemptionLosesNoToken) {
  test::WorkloadShape burst = shape();
  burst.burst = true;
  burst.base_share = 0;
  for (const char* technique : {"unmerged-only", "slora", "punica"}) {  // swap, recompute
    test::RunOptions options;
    options.technique = technique;
    options.engine = test::small_engine();
    options.kv_blocks = 12;
    const Workload workload = test::make_workload(burst, 2);
    const RealRun run = run_real(workload, options);
    int preemptions = 0;
    for (const RequestRecord& r : run.record.requests) preemptions += r.preemptions;
    const auto expected = alone(workload, false);
    for (std::size_t i = 0; i < workload.requests.size(); ++i) {
      if (run.record.requests[i].status != RequestStatus::kFinished) continue;
      EXPECT_EQ(run.outputs[i], expected[i]) << technique << " request " << i;
    }
    if (std::string(technique) == "unmerged-only") {
      EXPECT_GT(preemptions, 0);
    }
  }
}

TEST(CpuBackend, MergedOnlyGivesTheMergedModelsTokens) {
  test::RunOptions options;
  options.technique = "merged-only";
  options.engine = test::small_engine();
  const Workload workload = test::make_workload(shape(), 3);
  const RealRun run = run_real(workload, options);
  EXPECT_EQ(run.outputs, alone(workload, true));
}

TEST(CpuBackend, AnAdapterThatCannotBeLoadedEndsTheRunWithItsReason) {
  test::RunOptions options;
  options.engine = test::small_engine();
  options.engine.adapter_slots = 2;
  const Workload workload = test::make_workload(shape(), 4);
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
  const Workload workload = test::make_workload(shape(), 5);
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
  test::WorkloadShape burst = shape();
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
    EXPECT_EQ(still.outputs, alone(workload, merged)) << technique;
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
  Workload workload = test::make_workload(shape(), 6);
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
