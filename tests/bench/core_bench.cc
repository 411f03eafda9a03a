// How fast the serving core itself is: engine steps per second with recording on, one core, with a
// cost model that costs next to nothing.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <ctime>
#include <string_view>

#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

// A replica that stays saturated; `registered` adapters are known, eight of them are used.
Workload saturated(int requests, int registered) {
  test::WorkloadShape shape;
  shape.requests = requests;
  shape.adapters = registered;
  shape.burst = true;
  shape.base_share = 0;
  shape.max_prompt = 400;
  shape.max_output = 400;
  Workload workload = test::make_workload(shape, 1);
  for (Request& r : workload.requests) {
    r.adapter = static_cast<AdapterId>(static_cast<std::uint32_t>(index(r.adapter) % 8));
  }
  return workload;
}

std::int64_t run_steps(benchmark::State& state, const Workload& workload,
                       const test::RunOptions& options) {
  std::int64_t steps = 0;
  std::int64_t slices = 0;
  for (auto _ : state) {
    const RunRecord record = test::run(workload, options);
    steps += record.steps;
    for (const SeriesBin& bin : record.series) slices += bin.batch_requests;
  }
  state.counters["steps_per_s"] =
      benchmark::Counter(static_cast<double>(steps), benchmark::Counter::kIsRate);
  state.counters["s_per_request_step"] = benchmark::Counter(
      static_cast<double>(slices), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["mean_batch"] = static_cast<double>(slices) / static_cast<double>(steps);
  return steps;
}

void run_steps(benchmark::State& state, const char* technique, const Workload& workload,
               int batch) {
  test::RunOptions options;
  options.technique = technique;
  options.engine.limits.max_batch = batch;
  options.engine.limits.max_batch_tokens = 8192;
  options.engine.adapter_slots = 8;
  options.kv_blocks = 64 * batch;
  run_steps(state, workload, options);
}

// Time per step against the batch: s_per_request_step must not grow.
void BM_Batch(benchmark::State& state, const char* technique) {
  const int batch = static_cast<int>(state.range(0));
  run_steps(state, technique, saturated(40 * batch, 8), batch);
}
BENCHMARK_CAPTURE(BM_Batch, slora, "slora")->Arg(8)->Arg(32)->Arg(64)->Arg(128)->Arg(256);
BENCHMARK_CAPTURE(BM_Batch, punica, "punica")->Arg(32);
BENCHMARK_CAPTURE(BM_Batch, unmerged_only, "unmerged-only")->Arg(32);
BENCHMARK_CAPTURE(BM_Batch, dlora, "dlora")->Arg(16);
BENCHMARK_CAPTURE(BM_Batch, caraserve, "caraserve")->Arg(32);
BENCHMARK_CAPTURE(BM_Batch, vllm_lora, "vllm-lora")->Arg(32);
BENCHMARK_CAPTURE(BM_Batch, peft, "peft")->Arg(32);

// Million steps per second of CPU time, by batch.
struct Floor {
  double of_32;
  double of_256;
};
constexpr Floor kPlain{10, 6}, kAccounting{3, 3};

// A batch that decodes for long, which nothing disturbs: what a repeated step costs, whatever the
// batch. Requests of equal length come in waves of one batch each.
void BM_Decode(benchmark::State& state, const char* technique, const char* params, Floor floor) {
  constexpr int kWaves = 8, kPrompt = 16, kOutput = 4000;
  const int batch = static_cast<int>(state.range(0));
  Workload workload = saturated(kWaves * batch, 8);
  const bool one_adapter = std::string_view(technique) == "peft";  // serves one at a time
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    Request& r = workload.requests[i];
    r.arrival = from_seconds(1e4) * static_cast<TimeNs>(i / static_cast<std::size_t>(batch));
    r.prompt_tokens = kPrompt;
    r.output_tokens = r.output_limit_tokens = kOutput;
    if (one_adapter) r.adapter = AdapterId{0};
  }
  test::RunOptions options;
  options.technique = technique;
  options.params = params;
  options.engine.limits.max_batch = batch;
  options.engine.limits.max_batch_tokens = 8192;
  options.engine.adapter_slots = 8;
  options.kv_blocks = 300 * batch;
  const std::clock_t began = std::clock();
  const std::int64_t steps = run_steps(state, workload, options);
  const double seconds = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
  const double least = batch == 32 ? floor.of_32 : floor.of_256;
  const double millions = static_cast<double>(steps) / seconds / 1e6;
  state.SetLabel(
      fmt::format("{} ({:.1f} of {:g} M/s)", millions < least ? "UNDER" : "PASS", millions, least));
}
BENCHMARK_CAPTURE(BM_Decode, slora, "slora", "{}", kPlain)->Arg(32)->Arg(256);
BENCHMARK_CAPTURE(BM_Decode, punica, "punica", "{prefills_per_step: 256}", kPlain)
    ->Arg(32)
    ->Arg(256);
BENCHMARK_CAPTURE(BM_Decode, vllm_lora, "vllm-lora", "{}", kPlain)->Arg(32)->Arg(256);
BENCHMARK_CAPTURE(BM_Decode, peft, "peft", "{}", kPlain)->Arg(32)->Arg(256);
BENCHMARK_CAPTURE(BM_Decode, dlora, "dlora", "{}", kAccounting)->Arg(32)->Arg(256);
BENCHMARK_CAPTURE(BM_Decode, caraserve, "caraserve", "{prefill_batch: 256}", kAccounting)
    ->Arg(32)
    ->Arg(256);

// ... against the requests that have already finished,
void BM_FinishedRequests(benchmark::State& state) {
  run_steps(state, "slora", saturated(static_cast<int>(state.range(0)), 8), 32);
}
BENCHMARK(BM_FinishedRequests)->Arg(1000)->Arg(8000)->Arg(64000)->Unit(benchmark::kMillisecond);

// ... and against the adapters that are registered. The pools' set-up is part of each run, so the
// run is long.
void BM_RegisteredAdapters(benchmark::State& state) {
  run_steps(state, "slora", saturated(16000, static_cast<int>(state.range(0))), 32);
}
BENCHMARK(BM_RegisteredAdapters)->Arg(8)->Arg(1000)->Arg(40000)->Unit(benchmark::kMillisecond);

// ... and against the requests that wait for a slot: 384 adapters on 8 slots, cut off while all but
// the first few thousand wait. Their set-up is part of each run, so the run is long.
void BM_Starving(benchmark::State& state) {
  test::WorkloadShape shape;
  shape.requests = static_cast<int>(state.range(0));
  shape.adapters = 384;
  shape.burst = true;
  shape.base_share = 0;
  shape.max_output = 400;
  const Workload workload = test::make_workload(shape, 1);
  test::RunOptions options;
  options.technique = "vllm-lora";
  options.engine.limits.max_batch = 512;
  options.engine.limits.max_batch_tokens = 2048;
  options.engine.adapter_slots = 8;
  options.kv_blocks = 16'000;
  options.stop_at = from_seconds(60);
  run_steps(state, workload, options);
}
BENCHMARK(BM_Starving)->Arg(25'000)->Arg(250'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace servelab
