#include "tests/support/real_runs.h"

#include <gtest/gtest.h>

#include "engine/cli/generate.h"
#include "engine/core/check.h"
#include "engine/core/registry.h"
#include "tests/support/device_testing.h"

namespace servelab::test {
namespace {

constexpr std::uint64_t kPromptSeed = 11;
constexpr std::uint64_t kWeightSeed = 5;

}  // namespace

ModelConfig tiny_model(int hidden, int heads, int kv_heads, int ffn) {
  ModelConfig model;
  model.name = "tiny";
  model.layers = 2;
  model.hidden = hidden;
  model.heads = heads;
  model.kv_heads = kv_heads;
  model.head_dim = hidden / heads;
  model.ffn = ffn;
  model.vocab = 64;
  model.max_context_tokens = 1024;
  model.source = "test";
  return model;
}

RandomAdapters::RandomAdapters(const ModelConfig& model, const Workload& workload, bool keeps,
                               int bad)
    : keeps_(keeps), bad_(bad) {
  for (std::size_t i = 0; i < workload.adapters.size(); ++i) {
    adapters_.push_back(random_adapter(model, "a" + std::to_string(i), workload.adapters[i].rank,
                                       {"q", "k", "v", "o"}, i));
  }
}

std::shared_ptr<const LoraWeights> RandomAdapters::load(AdapterId id) {
  if (static_cast<int>(index(id)) == bad_) throw SpecError("adapter a0 was deleted");
  return adapters_[index(id)];
}

std::span<const std::shared_ptr<const LoraWeights>> RandomAdapters::kept() const {
  if (!keeps_) return {};
  return adapters_;
}

RealRun run_real(const TestedEngine& engine, const Workload& workload, RunOptions options,
                 const RealRunOptions& how) {
  options.record.keep_delivered = options.record.measure_scheduling = true;
  const ModelConfig& model = engine.model();
  const auto weights = random_weights(model, kWeightSeed);
  RandomAdapters adapters(model, workload, how.keeps_adapters, how.bad_adapter);
  RealTimeline timeline;
  const LinearCost cost;
  const auto backend = engine.backend(&timeline, &cost, *weights, workload, &adapters,
                                      random_prompts(kPromptSeed, model.vocab));
  backend->keep_outputs();
  RealRun run;
  run.record = run_on(workload, options, &timeline, backend.get());
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    run.outputs.push_back(backend->output(static_cast<RequestId>(i)));
  }
  return run;
}

RunRecord replay(const Workload& workload, const RunOptions& options, const RunRecord& original) {
  ReplayTimeline timeline(original.delivered);
  const LinearCost cost;
  const auto backend = make_replay_backend(
      &timeline, [&cost](ModelId, int) -> const CostModel& { return cost; }, original.step_timings);
  return run_on(workload, options, &timeline, backend.get());
}

std::vector<std::vector<std::int32_t>> alone(const TestedEngine& engine, const Workload& workload,
                                             bool merged) {
  const ModelConfig& model = engine.model();
  RandomAdapters adapters(model, workload);
  const auto weights = random_weights(model, kWeightSeed);
  const auto device = engine.device(*weights);
  const PromptSource prompts = random_prompts(kPromptSeed, model.vocab);
  std::vector<std::vector<std::int32_t>> outputs;
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const Request& request = workload.requests[i];
    const bool adapted = request.adapter != kBaseModel;
    if (adapted) load(device.get(), request.adapter, adapters.load(request.adapter));
    if (adapted && merged) merge(device.get(), request.adapter);
    outputs.push_back(
        generate(device.get(), prompts(static_cast<RequestId>(i), request.prompt_tokens),
                 merged ? kBaseModel : request.adapter, merged ? Exec::kMerged : Exec::kUnmerged,
                 request.output_tokens, {}));
    unmerge(device.get());
    if (adapted) device->evict(request.adapter);
  }
  return outputs;
}

WorkloadShape short_requests() {
  WorkloadShape shape;
  shape.requests = 60;
  shape.adapters = 6;
  shape.rate_per_s = 1500;
  shape.max_prompt = 60;
  shape.max_output = 20;
  return shape;
}

void expect_serves_and_replays(const TestedEngine& engine, const std::string& technique,
                               const RealRunOptions& how) {
  RunOptions options;
  options.technique = technique;
  options.engine = small_engine();
  options.engine.adapter_slots = 3;
  options.kv_blocks = 24;  // four or five requests: preemptions
  options.record.decision_text = true;
  const Workload workload = make_workload(short_requests(), 1);
  const RealRun run = run_real(engine, workload, options, how);
  EXPECT_EQ(violation(workload, run.record), "");
  EXPECT_GT(run.record.replicas.front().scheduling, 0);
  // It ends with its last request, and does not wait for a timer.
  EXPECT_EQ(run.record.delivered.back().at, run.record.end);
  const auto made = Registry<Technique>::instance().make(technique);
  EngineSettings settings;
  made->configure(&settings);
  const bool whole = settings.adapters_as_models;
  if (whole || !made->capabilities().merges) {
    const auto expected = alone(engine, workload, whole);
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

void expect_preemption_loses_no_token(const TestedEngine& engine) {
  WorkloadShape burst = short_requests();
  burst.burst = true;
  burst.base_share = 0;
  for (const char* technique : {"unmerged-only", "slora", "punica"}) {  // swap, recompute
    RunOptions options;
    options.technique = technique;
    options.engine = small_engine();
    options.kv_blocks = 12;
    const Workload workload = make_workload(burst, 2);
    const RealRun run = run_real(engine, workload, options);
    int preemptions = 0;
    for (const RequestRecord& r : run.record.requests) preemptions += r.preemptions;
    const auto expected = alone(engine, workload, false);
    for (std::size_t i = 0; i < workload.requests.size(); ++i) {
      if (run.record.requests[i].status != RequestStatus::kFinished) continue;
      EXPECT_EQ(run.outputs[i], expected[i]) << technique << " request " << i;
    }
    if (std::string(technique) == "unmerged-only") {
      EXPECT_GT(preemptions, 0);
    }
  }
}

void expect_merged_tokens(const TestedEngine& engine, const RealRunOptions& how) {
  RunOptions options;
  options.technique = "merged-only";
  options.engine = small_engine();
  const Workload workload = make_workload(short_requests(), 3);
  EXPECT_EQ(run_real(engine, workload, options, how).outputs, alone(engine, workload, true));
}

}  // namespace servelab::test
