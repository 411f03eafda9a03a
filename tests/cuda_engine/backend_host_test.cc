// Real runs on the CUDA engine, on a device on the host whose streams are lazy: every technique
// serves every request with the tokens that it would get alone, through loads, swaps and graphs.
#include <gtest/gtest.h>

#include "engine/backend/real/real_backend.h"
#include "engine/core/registry.h"
#include "engine/run/generate.h"
#include "tests/cuda_engine/engine_testing.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

constexpr std::uint64_t kPromptSeed = 11;
constexpr int kWidest = 16;

ModelConfig tiny_model() {
  ModelConfig model;
  model.name = "tiny";
  model.layers = 2;
  model.hidden = 64;
  model.heads = model.kv_heads = 1;
  model.head_dim = 64;
  model.ffn = 64;
  model.vocab = 64;
  model.max_context_tokens = 1024;
  model.source = "test";
  return model;
}

class Adapters final : public AdapterSource {
 public:
  Adapters(const ModelConfig& model, const Workload& workload, bool keeps) : keeps_(keeps) {
    for (std::size_t i = 0; i < workload.adapters.size(); ++i) {
      adapters_.push_back(random_adapter(model, "a" + std::to_string(i), workload.adapters[i].rank,
                                         {"q", "k", "v", "o"}, i));
    }
  }
  std::shared_ptr<const LoraWeights> load(AdapterId id) override { return adapters_[index(id)]; }
  std::span<const std::shared_ptr<const LoraWeights>> kept() const override {
    return keeps_ ? std::span(adapters_) : std::span<const std::shared_ptr<const LoraWeights>>{};
  }

 private:
  bool keeps_;
  std::vector<std::shared_ptr<const LoraWeights>> adapters_;
};

DevicePlan tiny_plan() {
  DevicePlan plan;
  plan.targets = {LinearLayer::kQ, LinearLayer::kK, LinearLayer::kV, LinearLayer::kO};
  plan.widest_rank = kWidest;
  plan.merges = true;
  plan.limits.kv_blocks = 64;
  return plan;
}

struct RealRun {
  RunRecord record;
  std::vector<std::vector<std::int32_t>> outputs;
};

RealRun run_real(const Workload& workload, test::RunOptions options, bool keeps) {
  options.record.keep_delivered = options.record.measure_scheduling = true;
  const ModelConfig model = tiny_model();
  const auto weights = random_weights(model, 5);
  Adapters adapters(model, workload, keeps);
  RealTimeline timeline;
  const test::LinearCost cost;
  RealBackendOptions backend_options;
  backend_options.widest_rank = kWidest;
  backend_options.merge_targets = tiny_plan().targets;
  const auto make = [&](ReplicaId, const ReplicaLayout& layout) {
    DevicePlan plan = tiny_plan();
    plan.limits = {layout.kv_blocks, layout.block_tokens, layout.max_batch,
                   layout.max_batch_tokens};
    plan.adapters = static_cast<int>(layout.adapters);
    plan.padded = layout.padded_adapters;
    plan.whole_models = layout.whole_models;
    for (const Adapter& adapter : workload.adapters) plan.adapter_bytes += adapter.bytes;
    return find_accelerator("cuda")->make(model, *weights, plan);
  };
  const auto backend =
      make_real_backend(&timeline, &cost, workload, &adapters,
                        random_prompts(kPromptSeed, model.vocab), make, backend_options);
  backend->keep_outputs();
  RealRun run;
  run.record = test::run_on(workload, options, &timeline, backend.get());
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    run.outputs.push_back(backend->output(static_cast<RequestId>(i)));
  }
  return run;
}

// What each request generates when it is alone on the device, step by step without graphs.
std::vector<std::vector<std::int32_t>> alone(const Workload& workload, bool merged) {
  const ModelConfig model = tiny_model();
  Adapters adapters(model, workload, false);
  DevicePlan plan = tiny_plan();
  plan.adapters = 1;
  plan.graphs = false;
  cuda::CudaExecutor executor(model, *random_weights(model, 5), plan);
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
  shape.requests = 40;
  shape.adapters = 6;
  shape.rate_per_s = 1500;
  shape.max_prompt = 40;
  shape.max_output = 16;
  return shape;
}

class CudaBackendRun : public ::testing::TestWithParam<std::string> {};

TEST_P(CudaBackendRun, ServesEveryRequestAndReplaysIdentically) {
  const auto technique = Registry<Technique>::instance().make(GetParam());
  test::RunOptions options;
  options.technique = GetParam();
  options.engine = test::small_engine();
  options.engine.adapter_slots = 3;
  options.kv_blocks = 24;  // four or five requests: preemptions
  options.record.decision_text = true;
  const Workload workload = test::make_workload(shape(), 1);
  const RealRun run = run_real(workload, options, true);
  EXPECT_EQ(test::violation(workload, run.record), "");
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
  ReplayTimeline timeline(run.record.delivered);
  const test::LinearCost cost;
  const auto replay = make_replay_backend(&timeline, &cost, run.record.step_timings);
  EXPECT_EQ(test::run_on(workload, options, &timeline, replay.get()).decisions,
            run.record.decisions);
}

INSTANTIATE_TEST_SUITE_P(All, CudaBackendRun,
                         ::testing::ValuesIn(Registry<Technique>::instance().names()),
                         [](const auto& info) {
                           std::string text = info.param;
                           std::replace(text.begin(), text.end(), '-', '_');
                           return text;
                         });

TEST(CudaBackend, PreemptionLosesNoToken) {
  test::WorkloadShape burst = shape();
  burst.burst = true;
  burst.base_share = 0;
  for (const char* technique : {"unmerged-only", "slora", "punica"}) {  // swap, recompute
    test::RunOptions options;
    options.technique = technique;
    options.engine = test::small_engine();
    options.kv_blocks = 12;
    const Workload workload = test::make_workload(burst, 2);
    const RealRun run = run_real(workload, options, false);
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

TEST(CudaBackend, MergedOnlyGivesTheMergedModelsTokens) {
  test::RunOptions options;
  options.technique = "merged-only";
  options.engine = test::small_engine();
  const Workload workload = test::make_workload(shape(), 3);
  EXPECT_EQ(run_real(workload, options, true).outputs, alone(workload, true));
}

}  // namespace
}  // namespace servelab
