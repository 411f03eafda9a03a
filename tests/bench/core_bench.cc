// How fast the serving core itself is: engine steps per second with recording on, one core, with a
// cost model that costs next to nothing.
#include <benchmark/benchmark.h>

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

void run_steps(benchmark::State& state, const Workload& workload, const test::RunOptions& options) {
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
