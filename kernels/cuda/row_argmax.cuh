// The largest logit of a row, found by one block.
#ifndef SERVELAB_KERNELS_CUDA_ROW_ARGMAX_CUH_
#define SERVELAB_KERNELS_CUDA_ROW_ARGMAX_CUH_

#include "kernels/cuda/device.cuh"

namespace servelab::kernels::cuda {

struct Best {
  float value;
  std::int32_t index;  // n when there is none
  bool has_nan;        // of what was looked at
};

// NaN never wins; the smaller index wins among equals.
__device__ inline void take(Best& best, float value, std::int32_t index) {
  if (value > best.value || (value == best.value && index < best.index)) {
    best.value = value;
    best.index = index;
  }
}

__device__ inline Best block_best(Best best, Best* scratch) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    const float value = shuffle_xor(best.value, lanes);
    const std::int32_t index = shuffle_xor(best.index, lanes);
    best.has_nan |= shuffle_xor(static_cast<int>(best.has_nan), lanes) != 0;
    take(best, value, index);
  }
  if (lane_id() == 0) scratch[warp_id()] = best;
  block_barrier();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  for (int i = 0; i < warps; ++i) {
    take(best, scratch[i].value, scratch[i].index);
    best.has_nan |= scratch[i].has_nan;
  }
  block_barrier();
  return best;
}

// For every thread of the block. `scratch`: shared, one per warp; free again afterwards.
__device__ inline Best row_argmax(const float* row, int n, Best* scratch) {
  Best best = {-__builtin_huge_valf(), n, false};
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  const auto look = [&](float value, int index) {
    best.has_nan |= value != value;
    take(best, value, index);
  };
  // 16 bytes at a time where the row begins at such an address.
  const int quads = reinterpret_cast<std::uintptr_t>(row) % 16 == 0 ? n / 4 : 0;
#pragma unroll 4
  for (int i = thread; i < quads; i += threads) {
    const float4 v = *reinterpret_cast<const float4*>(row + 4 * i);
    look(v.x, 4 * i);
    look(v.y, 4 * i + 1);
    look(v.z, 4 * i + 2);
    look(v.w, 4 * i + 3);
  }
  for (int i = 4 * quads + thread; i < n; i += threads) look(row[i], i);
  return block_best(best, scratch);
}

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_ROW_ARGMAX_CUH_
