// What the LoRA kernels share on the device.
#ifndef SERVELAB_KERNELS_CUDA_LORA_DEVICE_CUH_
#define SERVELAB_KERNELS_CUDA_LORA_DEVICE_CUH_

#include <cstring>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/lora_kernels.h"

namespace servelab::kernels::cuda {

inline constexpr int kVector = 8;  // elements of 16 bytes

// At once, rather than field after field where each is first used.
__device__ inline LoraPair load_pair(const LoraPair* from) {
  static_assert(sizeof(LoraPair) == 2 * sizeof(uint4));
  const uint4 words[2] = {load_16_once(from),
                          load_16_once(reinterpret_cast<const char*>(from) + sizeof(uint4))};
  LoraPair pair;
  memcpy(&pair, words, sizeof(pair));
  return pair;
}

// Columns of t that this pair needs, a multiple of 8: its own, or with padding.
__device__ inline int columns_of(const LoraCall& call, const LoraPair& pair) {
  if (pair.rank <= 0) return 0;
  const bool padded = call.kind == LoraKind::kBgmv || call.kind == LoraKind::kEinsum;
  if (padded) return min(call.batch.width, pair.width);
  return (pair.rank + kVector - 1) / kVector * kVector;
}

// Eight elements of y, 16-byte aligned.
template <class Y>
struct Eight {
  uint4 words;
  __device__ void load(const Y* from) { words = load_16(from); }
  __device__ void add_and_store(const float (&sums)[kVector], Y* to) const {
    float values[kVector];
    unpack_8<Y>(words, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] += sums[i];
    store_16(to, pack_8<Y>(values));
  }
};
template <>
struct Eight<float> {
  float4 words[2];
  __device__ void load(const float* from) {
    words[0] = *reinterpret_cast<const float4*>(from);
    words[1] = *reinterpret_cast<const float4*>(from + 4);
  }
  __device__ void add_and_store(const float (&sums)[kVector], float* to) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 v = words[i];
      const float* const s = sums + 4 * i;
      *reinterpret_cast<float4*>(to + 4 * i) = {v.x + s[0], v.y + s[1], v.z + s[2], v.w + s[3]};
    }
  }
};

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_LORA_DEVICE_CUH_
