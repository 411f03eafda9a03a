// What kernels share on top of the platform's instructions: vectors of elements, reductions.
#ifndef SERVELAB_KERNELS_CUDA_DEVICE_CUH_
#define SERVELAB_KERNELS_CUDA_DEVICE_CUH_

#include <cstdint>

#include "kernels/cuda/platform.cuh"

namespace servelab::kernels::cuda {

inline constexpr int kWarp = 32;

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x) / kWarp; }

// 16 bytes of 16-bit elements as eight floats, and back.
template <class T>
__device__ inline void unpack_8(uint4 packed, float (&x)[8]) {
  const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack<T>(words[i]);
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}
template <class T>
__device__ inline uint4 pack_8(const float (&x)[8]) {
  return {pack<T>(x[0], x[1]), pack<T>(x[2], x[3]), pack<T>(x[4], x[5]), pack<T>(x[6], x[7])};
}

// Every thread of the warp gets the result.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) x += shuffle_xor(x, lanes);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) x = fmaxf(x, shuffle_xor(x, lanes));
  return x;
}

// The block's sum, for every thread, in the same order each time. `scratch`: shared memory, one
// float per warp; free again after the next barrier. blockDim.x is a multiple of 32; y, z are 1.
__device__ inline float block_sum(float x, float* scratch) {
  x = warp_sum(x);
  if (lane_id() == 0) scratch[warp_id()] = x;
  block_barrier();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  float sum = 0;
  for (int i = 0; i < warps; ++i) sum += scratch[i];
  return sum;
}

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_DEVICE_CUH_
