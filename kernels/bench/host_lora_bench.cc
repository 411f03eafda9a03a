// What one core of a host takes for its share of CaraServe's LoRA (4.2, Fig. 18): x * A * B for a
// few rows of a prompt, one adapter's pair for one linear layer.
#include <cmath>
#include <cstdio>
#include <vector>

#include "kernels/bench/benches.h"
#include "kernels/bench/model.h"

namespace servelab::kernels {
namespace {

constexpr DType kType = DType::kBf16;
constexpr int kWidth = 4096;  // of x and y: Llama-2-7B's q, k, v
constexpr int kRank = 64;
constexpr int kPairs = 384;  // of 1 MiB: weights come from memory, not from a cache
constexpr int kRowCounts[] = {1, 2, 4, 8, 16, 32, 64};
constexpr int kMost = 64;

class HostLora {
 public:
  HostLora()
      : a_(packed_bytes(kType, kRank, kWidth) * kPairs),
        b_(packed_bytes(kType, kWidth, kRank) * kPairs),
        x_(random_memory(kType, std::size_t{kMost} * kWidth, 11)),
        t_(std::size_t{kMost} * kRank),
        y_(std::size_t{kMost} * kWidth) {
    const Memory rows = random_memory(DType::kF32, std::size_t{kWidth} * kRank, 12);
    for (std::size_t i = 0; i < kPairs; ++i) {
      char* a = static_cast<char*>(a_.data()) + packed_bytes(kType, kRank, kWidth) * i;
      char* b = static_cast<char*>(b_.data()) + packed_bytes(kType, kWidth, kRank) * i;
      pack_panels(DType::kF32, rows.data(), kWidth, kRank, kWidth, kType, a, 0, panels_of(kRank));
      pack_panels(DType::kF32, rows.data(), kRank, kWidth, kRank, kType, b, 0, panels_of(kWidth));
      pairs_.push_back({{kType, kRank, kWidth, a}, {kType, kWidth, kRank, b}, kRank, 0.5f});
    }
  }

  void run(const Ops& ops, int rows, int pair) {
    const LoraRows segment{0, rows, &pairs_[static_cast<std::size_t>(pair)]};
    ops.lora_shrink(LoraKind::kSgmv, segment, kRank, x_.data(), kWidth, t_.data(), kRank);
    ops.lora_expand(LoraKind::kSgmv, segment, kRank, t_.data(), kRank, y_.data(), kWidth, 0,
                    kWidth);
  }
  std::vector<float> result(const Ops& ops, int rows) {
    y_.assign(y_.size(), 0);
    run(ops, rows, 0);
    return y_;
  }

 private:
  Memory a_, b_, x_;
  std::vector<float> t_, y_;
  std::vector<LoraPair> pairs_;
};

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::fmax(worst, std::fabs(double{a[i]} - b[i]) / (1 + std::fabs(b[i])));
  }
  return worst;
}

}  // namespace

void bench_host_lora() {
  HostLora lora;
  const Ops& best = ops(best_isa());
  const double error =
      largest_difference(lora.result(best, kMost), lora.result(ops(Isa::kReference), kMost));
  std::printf("\nLoRA of a host core: rank %d, %d -> %d, bf16, %s\n", kRank, kWidth, kWidth,
              best.name);
  if (!(error < 2e-2)) return static_cast<void>(std::printf("WRONG: off by %g\n", error));
  const double flops_per_row = 4.0 * kRank * kWidth;
  double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
  int pair = 0;
  for (const int rows : kRowCounts) {
    const double us = 1e6 * seconds([&] { lora.run(best, rows, pair = (pair + 1) % kPairs); });
    std::printf("%6d rows %10.1f us %8.1f GFLOP/s\n", rows, us, rows * flops_per_row / us * 1e-3);
    // Least squares of the relative error: time = read + rows * compute.
    const double w = 1 / (us * us);
    n += w, sx += w * rows, sy += w * us, sxx += w * rows * rows, sxy += w * rows * us;
  }
  const double compute = (n * sxy - sx * sy) / (n * sxx - sx * sx);
  const double read = (sy - compute * sx) / n;
  std::printf("time = %.1f us + rows * %.2f us: weights at %.1f GB/s, then %.1f GFLOP/s\n", read,
              compute, 4.0 * kRank * kWidth / read * 1e-3, flops_per_row / compute * 1e-3);
}

}  // namespace servelab::kernels
