// Kernels that only benchmarks need: the oracle of LoRA, and what measures the card.
#include "kernels/bench/cuda_bench.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

namespace servelab::kernels::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void empty_kernel() {}

__global__ void spin_kernel(std::int64_t cycles) {
  const std::int64_t begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

// t[row][r] = x A^T. Grid: rows; threads: columns of t.
__global__ void reference_shrink_kernel(const LoraPair* pairs, const std::int32_t* slots, int in,
                                        const Bf16* x, double* t) {
  const std::int64_t row = blockIdx.x;
  const int r = static_cast<int>(threadIdx.x);
  const LoraPair& pair = pairs[slots[row]];
  double sum = 0;
  if (r < pair.rank) {
    const Bf16* const a = static_cast<const Bf16*>(pair.a) + std::int64_t{r} * in;
    for (int k = 0; k < in; ++k) sum += double{to_f32(x[row * in + k])} * to_f32(a[k]);
  }
  t[row * kMaxLoraWidth + r] = sum;
}

// Counts in *wrong. Grid: rows, columns of y / kThreads.
__global__ void reference_compare_kernel(const LoraPair* pairs, const std::int32_t* slots, int out,
                                         const double* t, const Bf16* before, const Bf16* after,
                                         int* wrong) {
  const std::int64_t row = blockIdx.x;
  const int o = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (o >= out) return;
  const LoraPair& pair = pairs[slots[row]];
  const Bf16* const b = static_cast<const Bf16*>(pair.b) + std::int64_t{o} * pair.width;
  double sum = 0;
  double terms = 0;
  for (int r = 0; r < pair.rank; ++r) {
    const double product = t[row * kMaxLoraWidth + r] * to_f32(b[r]);
    sum += product;
    terms += product < 0 ? -product : product;
  }
  const double expected = double{to_f32(before[row * out + o])} + pair.scale * sum;
  const double error = to_f32(after[row * out + o]) - expected;
  const double magnitude = expected < 0 ? -expected : expected;
  const double tolerance = magnitude / 128 + pair.scale * terms / 256 + 1e-6;
  const bool right = (error < 0 ? -error : error) <= tolerance;  // false for NaN
  if (!right) atomic_add(wrong, 1);
}

}  // namespace

cudaError_t launch_empty(cudaStream_t stream) { return launch(empty_kernel, 1, 32, 0, stream); }

cudaError_t launch_spin(std::int64_t cycles, cudaStream_t stream) {
  return launch(spin_kernel, 1, 32, 0, stream, cycles);
}

std::int64_t count_wrong_lora(const LoraPair* pairs, const std::int32_t* slots, int rows, int in,
                              int out, const void* x, const void* y_before, const void* y,
                              cudaStream_t stream) {
  const Buffer t(static_cast<std::size_t>(rows) * kMaxLoraWidth * sizeof(double));
  const BufferOf<int> wrong(std::vector<int>{0});
  check(launch(reference_shrink_kernel, static_cast<unsigned>(rows), kMaxLoraWidth, 0, stream,
               pairs, slots, in, static_cast<const Bf16*>(x), t.as<double>()),
        "the oracle");
  check(
      launch(reference_compare_kernel, dim3(static_cast<unsigned>(rows), blocks_for(out, kThreads)),
             kThreads, 0, stream, pairs, slots, out, t.as<double>(),
             static_cast<const Bf16*>(y_before), static_cast<const Bf16*>(y), wrong.get()),
      "the oracle");
  int count = 0;
  check(cudaStreamSynchronize(stream), "the oracle");
  check(cudaMemcpy(&count, wrong.get(), sizeof(count), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return count;
}

}  // namespace servelab::kernels::cuda
