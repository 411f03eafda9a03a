// How long dLoRA's co-migration program takes to build and solve, beside what solving_seconds
// charges for it in virtual time:
//   servelab_bench --benchmark_filter=Migration
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/calibrate/nnls.h"
#include "tests/support/migration_cluster.h"

namespace servelab {
namespace {

struct Timed {
  MigrationSolution solution;
  double seconds = 0;  // the least of three solves: what the program takes, not what disturbs it
};

Timed timed(const MigrationProblem& problem, const MigrationOptions& options, int repeats) {
  Timed out;
  out.seconds = 1e9;
  for (int n = 0; n < repeats; ++n) {
    const auto begin = std::chrono::steady_clock::now();
    out.solution = solve_migration(problem, options);
    const auto end = std::chrono::steady_clock::now();
    out.seconds = std::min(out.seconds, std::chrono::duration<double>(end - begin).count());
  }
  return out;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<std::size_t>(q * values.size()))];
}

// One random instance per iteration: skewed loads on 32 replicas, 128 adapters, 2,000 requests.
// Arguments: K, eta in ms, memory of a device in GB (58: hardly any swapping), width of classes in
// % (0: a column per request that differs).
void BM_Migration(benchmark::State& state, MigrationForm form) {
  test::MigrationCluster cluster;
  cluster.pairs = static_cast<int>(state.range(0));
  cluster.eta_s = 1e-3 * static_cast<double>(state.range(1));
  cluster.device_bytes = 1e9 * static_cast<double>(state.range(2));
  cluster.both_ways = form == MigrationForm::kArtifact;  // it lets the whole pair move
  MigrationOptions options;
  options.form = form;
  options.class_width = 0.01 * static_cast<double>(state.range(3));
  std::vector<double> measured, modelled, gap;
  std::int64_t seed = 0, columns = 0, nonzeros = 0, nodes = 0, iterations = 0, unfinished = 0;
  double gain = 0;
  for (auto _ : state) {
    const MigrationProblem problem = test::make_migration_problem(cluster, seed++);
    const auto [solution, seconds] = timed(problem, options, 1);
    state.SetIterationTime(seconds);
    measured.push_back(1e3 * seconds);
    modelled.push_back(1e3 * solving_seconds(solution));
    gap.push_back(1 - solution.bound_s / solution.objective_s);
    columns += solution.columns;
    nonzeros += solution.nonzeros;
    nodes += solution.nodes;
    iterations += solution.iterations;
    unfinished += solution.status == MipStatus::kOptimal ? 0 : 1;
    gain += solution.stay_s / solution.bottleneck_s;
  }
  const auto mean = [&](auto sum) {
    return static_cast<double>(sum) / static_cast<double>(measured.size());
  };
  state.counters["median_ms"] = quantile(measured, 0.5);
  state.counters["p99_ms"] = quantile(measured, 0.99);
  state.counters["model_median_ms"] = quantile(modelled, 0.5);
  state.counters["model_p99_ms"] = quantile(modelled, 0.99);
  state.counters["columns"] = mean(columns);
  state.counters["nonzeros"] = mean(nonzeros);
  state.counters["nodes"] = mean(nodes);
  state.counters["iterations"] = mean(iterations);
  state.counters["gap_max"] = quantile(gap, 1);
  state.counters["limited"] = mean(unfinished);
  state.counters["gain"] = mean(gain);  // how much sooner the slowest replica is done
}
void cases(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"K", "eta_ms", "GB", "width"})->UseManualTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(BM_Migration, relaxed, MigrationForm::kRelaxed)
    ->Apply(cases)
    ->Args({1, 100, 58, 5})
    ->Args({2, 100, 58, 5})
    ->Args({4, 100, 58, 5})
    ->Args({8, 100, 58, 5})
    ->Args({4, 1000, 58, 5})
    ->Args({4, 5000, 58, 5})
    ->Args({4, 100, 20, 5})
    ->Args({4, 100, 58, 1})
    ->Iterations(200);
BENCHMARK_CAPTURE(BM_Migration, relaxed_without_classes, MigrationForm::kRelaxed)
    ->Apply(cases)
    ->Args({1, 100, 58, 0})
    ->Args({2, 100, 58, 0})
    ->Args({4, 100, 58, 0})
    ->Iterations(20);
BENCHMARK_CAPTURE(BM_Migration, artifact, MigrationForm::kArtifact)
    ->Apply(cases)
    ->Args({1, 0, 58, 5})
    ->Iterations(200);

// The coefficients of solving_seconds, in ns, fitted to this machine with relative errors weighed
// alike; and how far the model is off on instances that the fit has not seen.
void BM_MigrationFit(benchmark::State& state) {
  LeastSquares fit(kMigrationCostTerms);
  std::vector<std::pair<std::vector<double>, double>> checks;
  const auto collect = [&](std::uint64_t seed, int pairs, double eta_s, int requests) {
    test::MigrationCluster cluster;
    cluster.pairs = pairs;
    cluster.eta_s = eta_s;
    cluster.requests = requests;
    const auto problem = test::make_migration_problem(cluster, seed);
    const auto [solution, seconds] = timed(problem, {}, 3);
    const std::vector<double> terms = migration_cost_terms(solution);
    if (seed % 2 == 0) {
      fit.add(terms, 1e9 * seconds, 1 / (1e9 * seconds));
    } else {
      checks.push_back({terms, 1e9 * seconds});
    }
  };
  for (auto _ : state) {
    for (std::uint64_t seed = 0; seed < 24; ++seed) {
      for (const int pairs : {1, 2, 4}) {
        for (const double eta_s : {0.0, 0.1, 1.0, 5.0}) {
          for (const int requests : {200, 2000}) collect(seed, pairs, eta_s, requests);
        }
      }
    }
  }
  const std::vector<double> ns = fit.solve();
  std::string label = "ns:";
  for (const double c : ns) {
    char text[32];
    std::snprintf(text, sizeof text, " %.4g", c);
    label += text;
  }
  state.SetLabel(label);
  std::vector<double> error;
  for (const auto& [terms, measured] : checks) {
    double sum = 0;
    for (std::size_t t = 0; t < ns.size(); ++t) sum += ns[t] * terms[t];
    error.push_back(std::abs(sum - measured) / measured);
  }
  state.counters["error_median"] = quantile(error, 0.5);
  state.counters["error_p90"] = quantile(error, 0.9);
}
BENCHMARK(BM_MigrationFit)->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace servelab
