// Sampling from the most likely tokens without sorting: the weights' bits are searched four at a
// time for the value at which the running sum of the descending weights passes a target.
#include <bit>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_argmax.cuh"
#include "kernels/cuda/sampling.h"

namespace servelab::kernels::cuda {
namespace {

using Mass = unsigned long long;  // of weights, in units of 2^-40 of the largest

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kDigits = 16;  // values of four bits
constexpr int kTopBit = 28;  // of the first four: the largest weight is 1, bits 0x3f800000
constexpr float kUnit = 1099511627776.0f;  // 2^40
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kMostLogits = 8388608.0f;  // 2^23: the sum of their masses still fits
static_assert(kMostLogits * kUnit < 1.8446744e19f);

struct Shared {
  Best best[kWarps];
  Mass sums[kWarps][kDigits];
};

__device__ Mass mass_of(float weight) { return static_cast<Mass>(weight * kUnit); }

// One row's weights: exp((logit - largest) / temperature).
struct Row {
  const float* logits;
  int n;
  float largest;
  float scale;  // log2(e) / temperature

  __device__ float weight(int i) const { return exp2_fast((logits[i] - largest) * scale); }
};

__device__ Mass warp_mass(Mass x) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) x += shuffle_xor(x, lanes);
  return x;
}

// Where in the descending order of weights a running sum passes a target.
struct Passage {
  std::uint32_t bits;  // of the weight there
  Mass above;          // the sum of all larger weights
};

// The sums by digit over the block, for every thread.
__device__ void block_masses(Mass (&mass)[kDigits], Shared* shared) {
  block_barrier();
#pragma unroll
  for (int digit = 0; digit < kDigits; ++digit) {
    const Mass sum = warp_mass(mass[digit]);
    if (lane_id() == 0) shared->sums[warp_id()][digit] = sum;
  }
  block_barrier();
#pragma unroll
  for (int digit = 0; digit < kDigits; ++digit) {
    mass[digit] = 0;
    for (int warp = 0; warp < kWarps; ++warp) mass[digit] += shared->sums[warp][digit];
  }
}

// The largest weight w with sum(weights >= w) > target. target < the sum of all.
__device__ Passage find_passage(const Row& row, Mass target, Shared* shared) {
  Passage found = {0, 0};
  for (int shift = kTopBit; shift >= 0; shift -= 4) {
    Mass mass[kDigits] = {};
    for (int i = static_cast<int>(threadIdx.x); i < row.n; i += kThreads) {
      const float weight = row.weight(i);
      const std::uint32_t offset = std::bit_cast<std::uint32_t>(weight) - found.bits;
      if (offset >> shift >= kDigits) continue;  // larger than the range searched, or smaller
      const Mass own = mass_of(weight);
#pragma unroll
      for (int digit = 0; digit < kDigits; ++digit) {
        if (offset >> shift == static_cast<std::uint32_t>(digit)) mass[digit] += own;
      }
    }
    block_masses(mass, shared);
    Mass above = found.above;
    bool passed = false;
    std::uint32_t chosen = 0;
#pragma unroll
    for (int digit = kDigits - 1; digit >= 0; --digit) {
      if (passed) continue;
      if (above + mass[digit] > target) {
        passed = true;
        chosen = static_cast<std::uint32_t>(digit);
      } else {
        above += mass[digit];
      }
    }
    found.bits += chosen << shift;
    found.above = above;
  }
  return found;
}

// The first index, ascending, at which the running sum of `mass(i)` passes `target`; every thread
// gets it. Each warp has a stretch of the row.
template <class MassAt>
__device__ int first_beyond(int n, Mass target, const MassAt& mass, Shared* shared) {
  const int stretch = (n + kWarps * kWarp - 1) / (kWarps * kWarp) * kWarp;
  const int begin = warp_id() * stretch;
  const auto at = [&](int i) { return i < n ? mass(i) : Mass{0}; };
  Mass own = 0;
  for (int i = begin + lane_id(); i < begin + stretch; i += kWarp) own += at(i);
  own = warp_mass(own);
  block_barrier();
  if (lane_id() == 0) shared->sums[warp_id()][0] = own;
  if (threadIdx.x == 0) shared->best[0].index = n - 1;
  block_barrier();
  Mass before = 0;
  for (int warp = 0; warp < warp_id(); ++warp) before += shared->sums[warp][0];
  if (before <= target && before + own > target) {  // the same for the whole warp
    for (int i = begin; i < begin + stretch; i += kWarp) {
      Mass running = at(i + lane_id());
      for (int lanes = 1; lanes < kWarp; lanes *= 2) {
        const Mass left = shuffle_up(running, lanes);
        if (lane_id() >= lanes) running += left;
      }
      const unsigned beyond = ballot(before + running > target);
      if (beyond != 0) {
        if (lane_id() == 0) shared->best[0].index = i + std::countr_zero(beyond);
        break;
      }
      before += shuffle(running, kWarp - 1);
    }
  }
  block_barrier();
  return shared->best[0].index;
}

__device__ Mass total_mass(const Row& row, Shared* shared) {
  Mass own = 0;
  for (int i = static_cast<int>(threadIdx.x); i < row.n; i += kThreads) {
    own += mass_of(row.weight(i));
  }
  own = warp_mass(own);
  block_barrier();
  if (lane_id() == 0) shared->sums[warp_id()][0] = own;
  block_barrier();
  Mass sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += shared->sums[warp][0];
  return sum;
}

// fraction * total, rounded down and below total.
__device__ Mass part_of(Mass total, double fraction) {
  const auto part = static_cast<Mass>(fraction * static_cast<double>(total));
  return part < total ? part : total - 1;
}

// Draws from the smallest set of largest weights that has `top_p` of the mass.
__device__ int draw(const Row& row, float top_p, double uniform, Shared* shared) {
  const Mass total = total_mass(row, shared);
  if (top_p >= 1) {
    const auto mass = [&](int i) { return mass_of(row.weight(i)); };
    return first_beyond(row.n, part_of(total, uniform), mass, shared);
  }
  const auto wanted = static_cast<double>(top_p) * static_cast<double>(total);
  const auto whole = static_cast<Mass>(wanted);
  const Mass goal = static_cast<double>(whole) < wanted ? whole + 1 : whole;
  const Mass last = goal == 0 ? 0 : goal - 1;  // the sum that must be passed
  const Passage cut = find_passage(row, last, shared);
  const Mass each = mass_of(std::bit_cast<float>(cut.bits));
  const Mass kept = cut.above + ((last - cut.above) / each + 1) * each;
  const Mass target = part_of(kept, uniform);
  const Passage drawn = find_passage(row, target, shared);
  const auto mass = [&](int i) {
    const float weight = row.weight(i);
    return std::bit_cast<std::uint32_t>(weight) == drawn.bits ? mass_of(weight) : Mass{0};
  };
  return first_beyond(row.n, target - drawn.above, mass, shared);
}

__global__ void __launch_bounds__(kThreads)
    sample_kernel(const float* logits, int n, float temperature, float top_p,
                  const double* uniforms, std::int32_t* tokens) {
  auto* const shared = reinterpret_cast<Shared*>(shared_memory());
  const float* const row = logits + std::int64_t{blockIdx.x} * n;
  const Best best = row_argmax(row, n, shared->best);
  int token = best.index;
  constexpr float kInfinity = __builtin_huge_valf();
  if (best.has_nan) {
    token = -1;
  } else if (best.value < kInfinity && best.value > -kInfinity) {
    token = draw({row, n, best.value, kLog2E / temperature}, top_p, uniforms[blockIdx.x], shared);
  }
  if (threadIdx.x == 0) tokens[blockIdx.x] = token;
}

}  // namespace

cudaError_t sample_top_p(const float* logits, int rows, int n, float temperature, float top_p,
                         const double* uniforms, std::int32_t* tokens, cudaStream_t stream) {
  if (n < 1 || static_cast<float>(n) > kMostLogits || !(temperature > 0) || !(top_p > 0)) {
    return cudaErrorInvalidValue;
  }
  return launch(sample_kernel, static_cast<unsigned>(rows), kThreads, sizeof(Shared), stream,
                logits, n, temperature, top_p, uniforms, tokens);
}

}  // namespace servelab::kernels::cuda
