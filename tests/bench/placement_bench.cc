// How long a placement takes, and a prediction (placement paper, Tables 3 to 5): 384 adapters on 4
// GPUs, rates and sizes drawn from the paper's mixed sets, by the predictor that comes along.
#include <benchmark/benchmark.h>

#include "baselines/shared/adapter_packing.h"
#include "baselines/shared/burst_tolerance.h"
#include "engine/core/rng.h"

namespace servelab {
namespace {

const Predictor& predictor() {
  static const auto loaded = load_predictor(std::string(SERVELAB_SOURCE_DIR) +
                                            "/experiments/base/predictor/llama-3.1-8b-h100-64g.h5");
  return *loaded;
}

// Rates at which adapters need all four GPUs.
PackingProblem problem(std::int64_t adapters) {
  PackingProblem problem;
  RngStream rng(0, "placement");
  const double rates[] = {0.6, 0.3, 0.15, 0.075, 0.0375};
  const int ranks[] = {8, 16, 32};
  for (std::int64_t i = 0; i < adapters; ++i) {
    problem.adapters.push_back({static_cast<AdapterId>(static_cast<std::uint32_t>(i)),
                                ranks[rng.below(3)], rates[rng.below(5)]});
  }
  problem.gpus = 4;
  // T_max of Llama-3.1-8B on an H100 64 GB, nearly (placement paper): the server needs 131,072.
  problem.kv_tokens = [](int slots, int rank) {
    const std::int64_t left = 310'000 - std::int64_t{50} * slots * rank;
    return left < 131'072 ? 0 : left;
  };
  return problem;
}

void place(benchmark::State& state, const PackingModels& models) {
  const PackingProblem all = problem(state.range(0));
  std::size_t used = 0;
  for (auto _ : state) {
    const Packing packing = pack_greedily(all, models, {.retry_final = true});
    used = 0;
    for (const PackedGpu& gpu : packing.gpus) used += gpu.adapters.empty() ? 0 : 1;
    benchmark::DoNotOptimize(used);
  }
  state.counters["gpus"] = static_cast<double>(used);
}

void proposed(benchmark::State& state) { place(state, forests_of(predictor())); }
void proposed_fast(benchmark::State& state) { place(state, rules_of(predictor())); }
BENCHMARK(proposed)->Arg(384);
BENCHMARK(proposed_fast)->Arg(384);

// dLoRA's proactive placement of the same adapters, beside them. Room for half of them on a GPU.
void dlora_proactive(benchmark::State& state) {
  const PackingProblem all = problem(state.range(0));
  PlacementProblem by_tolerance;
  for (const AdapterDemand& adapter : all.adapters) by_tolerance.load.push_back(adapter.rate);
  by_tolerance.replicas = static_cast<std::size_t>(all.gpus);
  by_tolerance.adapter_blocks.assign(all.adapters.size(), 1);
  by_tolerance.preload_adapters = state.range(0) / 2;
  by_tolerance.replica_blocks = by_tolerance.preload_blocks = by_tolerance.preload_adapters;
  for (auto _ : state) benchmark::DoNotOptimize(place_by_burst_tolerance(by_tolerance));
}
BENCHMARK(dlora_proactive)->Arg(384);

// Each prediction of other features.
void predict(benchmark::State& state, const Forest& forest) {
  RngStream rng(1, "features");
  std::vector<Features> rows(1024);
  const Predictor& known = predictor();
  for (Features& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i] = static_cast<float>(rng.uniform(known.low[i], known.high[i]));
    }
  }
  std::size_t at = 0;
  for (auto _ : state) benchmark::DoNotOptimize(forest.predict(rows[at++ % rows.size()]));
  state.counters["rules"] = static_cast<double>(forest.leaves());
}

void forest_throughput(benchmark::State& state) { predict(state, predictor().throughput); }
void forest_starvation(benchmark::State& state) { predict(state, predictor().starvation); }
void rules_throughput(benchmark::State& state) { predict(state, predictor().throughput_rules); }
void rules_starvation(benchmark::State& state) { predict(state, predictor().starvation_rules); }
BENCHMARK(forest_throughput);
BENCHMARK(forest_starvation);
BENCHMARK(rules_throughput);
BENCHMARK(rules_starvation);

}  // namespace
}  // namespace servelab
