// What the harness itself costs, on the null backend with the null technique and recording on:
//   servelab_bench --benchmark_filter=Harness
// Once per request: drawing it, routing and admitting it, its end, its part of the summary and of
// the file. Per step: the timeline, planning, verifying, carrying out and recording it; a step
// costs something for itself and something for each request in it, so that it is given for batches
// of 1 and of 32. A label says PASS or OVER where there is a bound.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "engine/record/atomic_file.h"
#include "engine/record/point_file.h"
#include "engine/record/summary.h"
#include "tests/bench/harness.h"

namespace servelab {
namespace {

constexpr double kRequestBoundNs = 700;  // without its row in the file
constexpr double kRequestRowBoundNs = 1300;
constexpr double kStepBoundNs = 200;  // of a batch of 1
constexpr double kFileBoundS = 10;    // for a million requests
constexpr double kFileBoundMb = 200;
constexpr int kRounds = 5;
constexpr int kRepeats = 9;  // of a decision, to see what one costs

std::string verdict(const char* what, double value, double bound, const char* unit) {
  return fmt::format("{}: {} ({:.0f} of {:.0f} {})", what, value < bound ? "PASS" : "OVER", value,
                     bound, unit);
}

// The least of several: what the work takes, not what disturbs it.
double least_seconds(const std::function<void()>& work) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRounds; ++i) least = std::min(least, cpu_seconds_of(work));
  return least;
}

PointSettings one_replica() {
  PointSettings settings = bench_point("harness");
  settings.cluster.replicas = 1;
  return settings;
}

// Whole runs, to compare with what the costs below add up to: by batch and by number of requests,
// each of 32 tokens.
void BM_Run(benchmark::State& state) {
  PointSettings settings = one_replica();
  const RunShape shape{static_cast<int>(state.range(1)), static_cast<int>(state.range(0)), 32};
  settings.engine.limits.max_batch = shape.batch;
  const Workload workload = even_workload(shape);
  std::int64_t steps = 0;
  for (auto _ : state) steps += run_point(settings, workload).record.steps;
  state.counters["s_per_step"] = benchmark::Counter(
      static_cast<double>(steps), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_Run)
    ->Name("Harness/Run")
    ->ArgNames({"batch", "requests"})
    ->ArgsProduct({{1, 8, 32, 256}, {1'000, 10'000, 100'000}})
    ->Unit(benchmark::kMillisecond);

void BM_Step(benchmark::State& state) {
  PointSettings settings = one_replica();
  settings.record.token_times = state.range(0) != 0;
  RunCost cost;
  for (auto _ : state) cost = run_costs({settings}, kRounds).front();
  const double step_of_1 = cost.step_ns + cost.slice_ns;
  state.counters["run_request_ns"] = cost.request_ns;
  state.counters["step_ns"] = cost.step_ns;
  state.counters["request_in_step_ns"] = cost.slice_ns;
  state.counters["step_of_1_ns"] = step_of_1;
  state.counters["step_of_32_ns"] = cost.step_ns + 32 * cost.slice_ns;
  state.counters["fit_error"] = cost.error;
  state.SetLabel(verdict("a step of one request", step_of_1, kStepBoundNs, "ns"));
}
BENCHMARK(BM_Step)
    ->Name("Harness/Step")
    ->ArgName("token_times")
    ->Arg(0)
    ->Arg(1)
    ->Iterations(1)
    ->Unit(benchmark::kSecond);

// Parts of a step that can be told apart: by doing them more often, or not at all. What is left is
// the timeline, verifying and carrying out, request records and the decision hash.
void BM_StepParts(benchmark::State& state) {
  PointSettings planned = one_replica(), without_series = one_replica();
  planned.step_by_step = without_series.step_by_step = true;
  plan_repeatedly(kRepeats, &planned);
  without_series.record.series = false;
  std::vector<RunCost> costs;
  PointSettings stepping = one_replica();
  stepping.step_by_step = true;
  for (auto _ : state) costs = run_costs({stepping, planned, without_series}, kRounds);
  const auto per_plan = [&](double RunCost::*part) {
    return (costs[1].*part - costs[0].*part) / (kRepeats - 1);
  };
  state.counters["plan_ns"] = per_plan(&RunCost::step_ns);
  state.counters["plan_request_ns"] = per_plan(&RunCost::slice_ns);
  state.counters["series_ns"] = costs[0].step_ns - costs[2].step_ns;
  state.counters["rest_ns"] = costs[2].step_ns - per_plan(&RunCost::step_ns);
  state.counters["rest_request_ns"] = costs[2].slice_ns - per_plan(&RunCost::slice_ns);
}
BENCHMARK(BM_StepParts)->Name("Harness/StepParts")->Iterations(1)->Unit(benchmark::kSecond);

void BM_Route(benchmark::State& state, const char* policy, const char* params) {
  PointSettings once = bench_point("harness"), often = bench_point("harness");
  route_repeatedly(1, policy, params, &once);
  route_repeatedly(kRepeats, policy, params, &often);
  once.cluster.replicas = often.cluster.replicas = static_cast<int>(state.range(0));
  const Workload workload = draw_requests(once, 20'000);
  double seconds[2] = {};
  for (auto _ : state) {
    for (int i = 0; i < 2; ++i) {
      seconds[i] = least_seconds([&] { run_point(i == 0 ? once : often, workload); });
    }
  }
  state.counters["per_request_ns"] = 1e9 * (seconds[1] - seconds[0]) / (kRepeats - 1) / 20'000;
}
BENCHMARK_CAPTURE(BM_Route, round_robin, "round-robin", "{}")
    ->Name("Harness/Route/round_robin")
    ->ArgName("replicas")
    ->Arg(8)
    ->Iterations(1);
BENCHMARK_CAPTURE(BM_Route, least_loaded, "least-loaded", "{}")
    ->Name("Harness/Route/least_loaded")
    ->ArgName("replicas")
    ->Arg(8)
    ->Arg(64)
    ->Iterations(1);
// The null backend's steps all take the same: the lines are given.
BENCHMARK_CAPTURE(BM_Route, rank_aware, "rank-aware",
                  "{decode_alpha_ms: 0.0036, decode_beta_ms: 32, prefill_alpha_ms: 0.02,"
                  " prefill_beta_ms: 28}")
    ->Name("Harness/Route/rank_aware")
    ->ArgName("replicas")
    ->Arg(60)
    ->Arg(120)
    ->Iterations(1);

// Where the time of a request goes, by their number in the run; without what every file takes.
void BM_Request(benchmark::State& state) {
  const auto requests = static_cast<int>(state.range(0));
  const PointSettings settings = bench_point("harness");
  const auto each = [&](double seconds) { return 1e9 * seconds / requests; };
  double draw = 0, run = 0, summary = 0, file = 0, empty_file_s = 0;
  for (auto _ : state) {
    Workload workload;
    draw = each(least_seconds([&] { workload = draw_requests(settings, requests); }));
    run = run_costs({one_replica()}, 3).front().request_ns;
    const PointResult result = run_point(settings, workload);
    summary = each(least_seconds([&] { summarize(workload, result.record); }));
    const Workload none;
    empty_file_s = least_seconds([&] { point_file({}, none, RunRecord{}, result.summary); });
    file = each(least_seconds([&] { point_file({}, workload, result.record, result.summary); }) -
                empty_file_s);
  }
  const double without_row = draw + run + summary;
  state.counters["draw_ns"] = draw;
  state.counters["run_ns"] = run;
  state.counters["summary_ns"] = summary;
  state.counters["file_ns"] = file;
  state.counters["empty_file_ms"] = 1e3 * empty_file_s;
  state.SetLabel(verdict("a request without its row", without_row, kRequestBoundNs, "ns") + ", " +
                 verdict("with it", without_row + file, kRequestRowBoundNs, "ns"));
}
BENCHMARK(BM_Request)
    ->Name("Harness/Request")
    ->ArgName("requests")
    ->Arg(10'000)
    ->Arg(100'000)
    ->Arg(500'000)
    ->Iterations(1)
    ->Unit(benchmark::kSecond);

// A point's file in memory; 0 requests: what is there for every point.
void BM_File(benchmark::State& state) {
  PointSettings settings = bench_point("harness");
  const Workload workload = draw_requests(settings, static_cast<int>(state.range(0)));
  const PointResult result = run_point(settings, workload);
  std::size_t bytes = 0;
  for (auto _ : state) {
    bytes = point_file({}, workload, result.record, result.summary).size();
  }
  state.counters["kB"] = static_cast<double>(bytes) / 1e3;
}
BENCHMARK(BM_File)
    ->Name("Harness/File")
    ->ArgName("requests")
    ->Arg(1)
    ->Arg(1'000)
    ->Arg(100'000)
    ->Unit(benchmark::kMillisecond);

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

// A million requests to 40,000 adapters on 60 replicas of the twin, with the loads, evictions and
// stamps of an experiment; from settings to the file on the disk. The peak is that of the process:
// of one benchmark where the filter chooses one.
void BM_Million(benchmark::State& state) {
  PointSettings settings = bench_point("many_adapters");
  settings.record.token_times = state.range(0) != 0;
  const std::string path = std::filesystem::temp_directory_path() / "servelab-harness-bench.h5";
  double draw = 0, run = 0, file = 0, save = 0, megabytes = 0;
  for (auto _ : state) {
    Workload workload;
    PointResult result;
    std::vector<std::byte> bytes;
    draw = seconds_of([&] { workload = draw_requests(settings); });
    run = seconds_of([&] { result = run_point(settings, workload); });
    file = seconds_of([&] { bytes = point_file({}, workload, result.record, result.summary); });
    save = seconds_of([&] { save_atomically(path, bytes); });
    megabytes = static_cast<double>(bytes.size()) / 1e6;
  }
  std::filesystem::remove(path);
  state.counters["draw_s"] = draw;
  state.counters["run_s"] = run;
  state.counters["file_s"] = file;
  state.counters["save_s"] = save;
  state.counters["file_MB"] = megabytes;
  state.counters["peak_MiB"] = peak_mib();
  state.SetLabel(verdict("writing", file + save, kFileBoundS, "s") + ", " +
                 verdict("size", megabytes, kFileBoundMb, "MB"));
}
BENCHMARK(BM_Million)
    ->Name("Harness/Million")
    ->ArgName("token_times")
    ->Arg(0)
    ->Arg(1)
    ->Iterations(1)
    ->Unit(benchmark::kSecond);

}  // namespace
}  // namespace servelab
