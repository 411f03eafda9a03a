// How fast the serving core itself is: engine steps per second with recording on, one core, with a
// cost model that costs next to nothing.
#include <benchmark/benchmark.h>

#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

// A replica that stays saturated at `batch` requests of 8 adapters.
Workload saturated(int batch, int requests) {
  test::WorkloadShape shape;
  shape.requests = requests;
  shape.burst = true;
  shape.base_share = 0;
  shape.max_prompt = 400;
  shape.max_output = 400;
  (void)batch;
  return test::make_workload(shape, 1);
}

void BM_Steps(benchmark::State& state, const char* technique) {
  const int batch = static_cast<int>(state.range(0));
  const Workload workload = saturated(batch, 40 * batch);
  test::RunOptions options;
  options.technique = technique;
  options.engine.limits.max_batch = batch;
  options.engine.limits.max_batch_tokens = 8192;
  options.kv_blocks = 64 * batch;
  std::int64_t steps = 0;
  std::int64_t slices = 0;
  for (auto _ : state) {
    const RunRecord record = test::run(workload, options);
    steps += record.steps;
    for (const SeriesBin& bin : record.series) slices += bin.batch_requests;
  }
  state.counters["steps_per_s"] =
      benchmark::Counter(static_cast<double>(steps), benchmark::Counter::kIsRate);
  state.counters["mean_batch"] = static_cast<double>(slices) / static_cast<double>(steps);
}
BENCHMARK_CAPTURE(BM_Steps, slora, "slora")->Arg(8)->Arg(32)->Arg(64)->Arg(128);
BENCHMARK_CAPTURE(BM_Steps, punica, "punica")->Arg(32);
BENCHMARK_CAPTURE(BM_Steps, template, "template")->Arg(32);
BENCHMARK_CAPTURE(BM_Steps, dlora, "dlora")->Arg(16);

}  // namespace
}  // namespace servelab
