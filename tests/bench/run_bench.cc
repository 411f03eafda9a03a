// Whole runs on the twin with the real cost model: wall time per simulated hour on one core, with
// recording on, and peak memory of the process (run one benchmark per process to read it).
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdlib>
#include <ctime>
#include <string>

#include "engine/run/point.h"
#include "engine/spec/spec.h"

namespace servelab {
namespace {

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

void BM_Run(benchmark::State& state, const char* spec_name, const char* label, double bound_s) {
  const std::string source = SERVELAB_SOURCE_DIR;
  const Spec spec =
      load_spec(source + "/tests/bench/specs/" + spec_name + ".yaml", source + "/experiments");
  const char* data = std::getenv("SERVELAB_DATA");
  for (const TechniqueEntry& entry : spec.techniques) {
    if (entry.label != label) continue;
    const PointSettings settings = resolve_point(spec, spec.positions.front(), entry, 0);
    const BuiltWorkload workload = build_point_workload(settings, data != nullptr ? data : "");
    std::int64_t steps = 0;
    double simulated_s = 0;
    const std::clock_t began = std::clock();
    for (auto _ : state) {
      const PointResult result = run_point(settings, workload.workload);
      steps += result.record.steps;
      simulated_s += to_seconds(result.record.end);
    }
    state.counters["steps_per_s"] =
        benchmark::Counter(static_cast<double>(steps), benchmark::Counter::kIsRate);
    state.counters["s_per_simulated_hour"] = benchmark::Counter(
        simulated_s / 3600, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
    state.counters["peak_MiB"] = peak_mib();
    const double each_s = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC /
                          static_cast<double>(state.iterations());
    if (bound_s == 0) continue;
    state.SetLabel(
        fmt::format("{} ({:.3f} of {:g} s)", each_s < bound_s ? "PASS" : "OVER", each_s, bound_s));
  }
}
constexpr double kHourBoundS = 0.06;       // of CPU time
constexpr double kSaturatedBoundS = 0.03;  // likewise
BENCHMARK_CAPTURE(BM_Run, hour_poisson_slora, "hour_poisson", "slora", kHourBoundS)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Run, hour_poisson_punica, "hour_poisson", "punica", kHourBoundS)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Run, hour_poisson_unmerged, "hour_poisson", "unmerged-only", kHourBoundS)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Run, hour_saturated_slora, "hour_saturated", "slora", kSaturatedBoundS)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Run, hour_saturated_slora_batch_32, "hour_saturated", "slora-32", 0)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Run, hour_saturated_punica, "hour_saturated", "punica", kSaturatedBoundS)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Run, hour_saturated_unmerged, "hour_saturated", "unmerged-only",
                  kSaturatedBoundS)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Run, many_adapters_slora, "many_adapters", "slora", 0)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

}  // namespace
}  // namespace servelab
