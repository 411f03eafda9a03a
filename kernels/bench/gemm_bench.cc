#include <algorithm>
#include <cstdio>

#include "kernels/bench/benches.h"
#include "kernels/bench/model.h"

namespace servelab::kernels {
namespace {

void print_row(const Machine& machine, DType type, const Model& model, GemmLibrary library, int m,
               double time) {
  const double bandwidth = model.bytes() / time / machine.bytes_per_s;
  const double peak = model.flops(m) / time / machine.flops_per_s(type);
  std::printf("%-8s %5d %9.3f %9.1f %8.1f %9.1f%% %9.1f%% %9.1f%%\n", name(library), m, time * 1e3,
              model.flops(m) / time * 1e-9, model.bytes() / time * 1e-9, 100 * bandwidth,
              100 * peak, 100 * std::max(bandwidth, peak));
}

}  // namespace

void bench_gemm(Team& team, const Machine& machine, DType type) {
  const Memory weights = random_memory(type, std::size_t{kVocabulary} * kHidden, 2);
  std::printf("\nlinear layers of a step, %s\n%-8s %5s %9s %9s %8s %10s %10s %10s\n", name(type),
              "library", "rows", "ms", "GFLOP/s", "GB/s", "bandwidth", "peak", "roofline");
  for (const GemmLibrary library :
       {GemmLibrary::kNative, GemmLibrary::kOneDnn, GemmLibrary::kEigen}) {
    Model model(library, type, team.size(), weights);
    if (!model.complete()) {
      std::printf("%-8s not built in, or lacks the type\n", name(library));
      continue;
    }
    const double error = model.error(team, weights, 50);
    if (!(error < 1e-3)) {
      std::printf("%-8s WRONG: off by %g\n", name(library), error);
      continue;
    }
    for (const int m : {1, 2, 4, 8, 16, 32, 64, 128, kMostRows}) {
      for (int copy = 1; copy < kCopies; ++copy) model.run(team, m);  // prepacks where it must
      print_row(machine, type, model, library, m, seconds([&] { model.run(team, m); }));
    }
  }
}

}  // namespace servelab::kernels
