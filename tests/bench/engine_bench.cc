// The CPU engine's steps on a 134M Llama against this machine's own bounds: the time of a step can
// be no less than its bytes at read bandwidth and its floating-point operations at the bf16 peak.
// Both bounds are measured again in every round, right beside the steps, because a shared machine's
// clock and memory differ by a fifth from minute to minute. Prints one line per step and exits 1
// when a share is below what is asked of it, so that a slower engine is noticed.
//
//   servelab_engine_bench [THREADS]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "engine/backend/cpu/cpu_device.h"
#include "engine/backend/device/thread_team.h"
#include "kernels/bench/machine.h"
#include "tests/bench/steps.h"

namespace servelab {
namespace {

constexpr int kRounds = 10;
constexpr int kRepeats = 4;
constexpr int kContext = 64;
constexpr int kRank = 16;
constexpr int kAdapters = 8;

constexpr StepCase kCases[] = {
    {"decode, batch 1", 1, kContext, 1, 0, 0.95},
    {"decode, batch 8", 8, kContext, 1, 0, 0.85},
    {"decode, batch 8, 8 adapters", 8, kContext, 1, 8,
     0.93},  // right after what it is compared with
    {"decode, batch 32", 32, kContext, 1, 0, 0.70},
    {"prefill, 512 tokens", 1, 0, 512, 0, 0.75},
};

ModelConfig llama_134m() {
  ModelConfig model;
  model.name = "llama-134m";
  model.layers = 12;
  model.hidden = 768;
  model.heads = model.kv_heads = 12;
  model.head_dim = 64;
  model.ffn = 2048;
  model.vocab = 32000;
  model.max_context_tokens = 2048;
  model.source = "benchmark";
  return model;
}

StepLoad open(int threads) {
  const ModelConfig model = llama_134m();
  CpuDeviceOptions options;
  options.threads = threads;
  options.cores = usable_cores();
  options.isa = kernels::best_isa();
  options.type = kernels::DType::kBf16;
  options.block_tokens = kStepBlockTokens;
  for (const StepCase& c : kCases) options.kv_blocks = std::max(options.kv_blocks, blocks_of(c));
  auto device = std::make_unique<CpuDevice>(model, *random_weights(model, 1), options);
  return {std::move(device), kAdapters, kRank};
}

// A team pins its leader for good and its members spin, so it gets a thread and a life of its own.
kernels::Machine measure_machine(int threads) {
  kernels::Machine machine;
  std::thread([&] {
    kernels::Team team(threads);
    machine = kernels::measure(team);
  }).join();
  return machine;
}

// What one step did in all rounds.
struct StepTimes {
  std::vector<double> total, attention, lora;  // seconds, of every repeat
  std::vector<double> fastest;                 // seconds, of every round
  std::vector<double> share;                   // of every round
};

// Rounds go through all cases, so that what disturbs the machine hits them alike. Within a round a
// step is repeated, as decodes follow decodes when an engine serves; the first is not counted. A
// round's share compares the fastest of its repeats with the fastest that the machine did in it.
bool run_steps(int threads) {
  StepLoad bench = open(threads);
  StepTimes times[std::size(kCases)];
  std::vector<double> bandwidth, peak;
  for (int round = 0; round < kRounds; ++round) {
    const kernels::Machine machine = measure_machine(threads);
    bandwidth.push_back(machine.bytes_per_s);
    peak.push_back(machine.flops_per_s(kernels::DType::kBf16));
    double without_adapters = 0;
    for (std::size_t i = 0; i < std::size(kCases); ++i) {
      const StepCase& c = kCases[i];
      bench.run(c);
      double fastest = 1e30;
      for (int repeat = 0; repeat < kRepeats; ++repeat) {
        const StepParts parts = bench.run(c);
        times[i].total.push_back(to_seconds(parts.total));
        times[i].attention.push_back(to_seconds(parts.attention));
        times[i].lora.push_back(to_seconds(parts.lora));
        fastest = std::min(fastest, to_seconds(parts.total));
      }
      if (c.batch == 8 && c.adapters == 0) without_adapters = fastest;
      const double bound =
          std::max(bench.bytes(c) / bandwidth.back(), bench.flops(c) / peak.back());
      times[i].fastest.push_back(fastest);
      times[i].share.push_back((c.adapters > 0 ? without_adapters : bound) / fastest);
    }
  }
  std::printf("%d threads, %s: reads %.1f GB/s, bf16 %.0f GFLOP/s (medians of %d rounds)\n",
              threads, kernels::ops(kernels::best_isa()).name, median(bandwidth) * 1e-9,
              median(peak) * 1e-9, kRounds);
  std::printf("%-28s %9s %9s %9s %9s %9s %7s %17s %6s\n", "step", "median ms", "attention", "LoRA",
              "fastest", "tokens/s", "share", "lowest, highest", "asked");
  bool met = true;
  for (std::size_t i = 0; i < std::size(kCases); ++i) {
    const StepCase& c = kCases[i];
    const StepTimes& t = times[i];
    const double share = median(t.share);
    met = met && share >= c.asked;
    const auto [low, high] = std::minmax_element(t.share.begin(), t.share.end());
    std::printf("%-28s %9.2f %9.2f %9.2f %9.2f %9.0f %6.0f%% %8.0f%% %6.0f%% %5.0f%%%s\n", c.name,
                median(t.total) * 1e3, median(t.attention) * 1e3, median(t.lora) * 1e3,
                median(t.fastest) * 1e3, c.batch * c.tokens / median(t.total), share * 100,
                *low * 100, *high * 100, c.asked * 100, share < c.asked ? "  BELOW" : "");
  }
  std::printf(
      "share: of the bound, median of the rounds' (fastest repeat, beside the bounds of that\n"
      "round); with adapters: of the same step without them. tokens/s: by the median time\n");
  return met;
}

}  // namespace
}  // namespace servelab

int main(int argc, char** argv) {
  const int threads =
      argc > 1 ? std::atoi(argv[1]) : static_cast<int>(servelab::usable_cores().size());
  return servelab::run_steps(threads) ? 0 : 1;
}
