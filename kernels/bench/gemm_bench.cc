#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

#include "kernels/bench/benches.h"
#include "kernels/bench/model.h"

namespace servelab::kernels {
namespace {

constexpr int kRowCounts[] = {1, 2, 4, 8, 16, 32, 64, 128, kMostRows};
constexpr double kSecondsPerRow = 1.5;

struct Candidate {
  std::string name;
  Model model;
  double best = 0;  // seconds
};

// Every candidate in turn, over and over: what disturbs the machine hits them alike, and each finds
// the caches full of the others' weights. The fastest turn counts.
void time_all(Team& team, int m, std::vector<Candidate>* candidates) {
  using Clock = std::chrono::steady_clock;
  for (Candidate& candidate : *candidates) {
    candidate.model.run(team, m);  // prepacks where it must
    candidate.best = std::numeric_limits<double>::infinity();
  }
  double total = 0;
  for (int turn = 0; turn < 5 || (total < kSecondsPerRow && turn < 200); ++turn) {
    for (Candidate& candidate : *candidates) {
      const auto start = Clock::now();
      candidate.model.run(team, m);
      const double time = std::chrono::duration<double>(Clock::now() - start).count();
      candidate.best = std::min(candidate.best, time);
      total += time;
    }
  }
}

// The machine's bounds are measured on both sides of each number of rows: a shared machine's clock
// and memory change from minute to minute.
Machine best_of(const Machine& a, const Machine& b) {
  return {std::max(a.bytes_per_s, b.bytes_per_s), std::max(a.dot_flops_per_s, b.dot_flops_per_s),
          std::max(a.fma_flops_per_s, b.fma_flops_per_s)};
}

void print_rows(const Machine& machine, DType type, int m,
                const std::vector<Candidate>& candidates) {
  double best = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : candidates) best = std::min(best, candidate.best);
  for (const Candidate& candidate : candidates) {
    const double flops = candidate.model.flops(m) / candidate.best;
    const double bytes = candidate.model.bytes() / candidate.best;
    const double roofline = std::max(candidate.model.bytes() / machine.bytes_per_s,
                                     candidate.model.flops(m) / machine.flops_per_s(type)) /
                            candidate.best;
    std::printf("%-24s %5d %9.3f %9.1f %8.1f %9.1f%% %9.1f%% %9.1f%% %9.1f%% %8.2f\n",
                candidate.name.c_str(), m, candidate.best * 1e3, flops * 1e-9, bytes * 1e-9,
                100 * bytes / machine.bytes_per_s, 100 * flops / machine.dot_flops_per_s,
                100 * flops / machine.fma_flops_per_s, 100 * roofline, best / candidate.best);
  }
}

void bench_shape(Team& team, DType type, const ModelShape& shape) {
  const Memory weights = random_memory(type, shape.largest(), 2);
  std::printf("\n%s: linear layers of a step, %s\n%-24s %5s %9s %9s %8s %10s %10s %10s %10s %8s\n",
              shape.name, name(type), "kernels", "rows", "ms", "GFLOP/s", "GB/s", "bandwidth",
              "dot peak", "f32 peak", "roofline", "of best");
  std::vector<Candidate> candidates;
  for (const KernelChoice& choice : kernel_choices(type)) {
    Candidate candidate{text(choice), Model(shape, choice, type, team.size(), weights, 1)};
    const double error = candidate.model.error(team, weights, 50);
    if (error < 1e-3) {
      candidates.push_back(std::move(candidate));
    } else {
      std::printf("%-24s WRONG: off by %g\n", candidate.name.c_str(), error);
    }
  }
  for (const int m : kRowCounts) {
    const Machine before = measure(team);
    time_all(team, m, &candidates);
    print_rows(best_of(before, measure(team)), type, m, candidates);
  }
}

}  // namespace

void bench_gemm(Team& team, DType type) {
  for (const ModelShape& shape : {kLlama134m, kLlama7bLayer}) {
    bench_shape(team, type, shape);
  }
}

}  // namespace servelab::kernels
