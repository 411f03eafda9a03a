#include "kernels/cuda/device.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch.h"

namespace servelab::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 8;  // elements in 16 bytes

template <class T>
struct Rope {
  T* qkv;
  std::int64_t ld;
  int heads;
  int kv_heads;
  int head_dim;
  int block_tokens;
  const float* bias;
  const std::int32_t* positions;
  const float* cos;
  const float* sin;
  const std::int32_t* cache_rows;
  T* keys;
  T* values;
};

__device__ void load_8(const float* from, float (&x)[kVector]) {
  const float4 low = reinterpret_cast<const float4*>(from)[0];
  const float4 high = reinterpret_cast<const float4*>(from)[1];
  x[0] = low.x;
  x[1] = low.y;
  x[2] = low.z;
  x[3] = low.w;
  x[4] = high.x;
  x[5] = high.y;
  x[6] = high.z;
  x[7] = high.w;
}

__device__ void add_8(const float* from, float (&x)[kVector]) {
  float addend[kVector];
  load_8(from, addend);
#pragma unroll
  for (int j = 0; j < kVector; ++j) x[j] += addend[j];
}

// (first, second) are eight pairs; turned by the angles of their position.
__device__ void rotate(const float* cos, const float* sin, float (&first)[kVector],
                       float (&second)[kVector]) {
  float c[kVector];
  float s[kVector];
  load_8(cos, c);
  load_8(sin, s);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float a = first[j];
    const float b = second[j];
    first[j] = a * c[j] - b * s[j];
    second[j] = b * c[j] + a * s[j];
  }
}

// A thread has eight pairs of one head of one row: elements [at, at + 8) of its first and of its
// second half. blockIdx.x is the row.
template <class T>
__global__ void __launch_bounds__(kThreads) rope_kernel(Rope<T> o) {
  const int half = o.head_dim / 2;
  const int per_head = half / kVector;
  const int unit = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  const int head = unit / per_head;  // of q's, then k's, then v's
  if (head >= o.heads + 2 * o.kv_heads) return;
  const int at = unit % per_head * kVector;
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const std::int64_t position = o.positions[row];
  if (position < 0) return;

  const int column = head * o.head_dim + at;
  T* const from = o.qkv + row * o.ld + column;
  float first[kVector];
  float second[kVector];
  unpack_8<T>(load_16(from), first);
  unpack_8<T>(load_16(from + half), second);
  if (o.bias != nullptr) {
    add_8(o.bias + column, first);
    add_8(o.bias + column + half, second);
  }
  const bool turns = head < o.heads + o.kv_heads;
  if (turns) rotate(o.cos + position * half + at, o.sin + position * half + at, first, second);
  const uint4 packed_first = pack_8<T>(first);
  const uint4 packed_second = pack_8<T>(second);
  store_16(from, packed_first);
  store_16(from + half, packed_second);

  const std::int64_t slot = o.cache_rows[row];
  if (head < o.heads || slot < 0) return;
  const int kv_head = (head - o.heads) % o.kv_heads;
  const std::int64_t line =
      (slot / o.block_tokens * o.kv_heads + kv_head) * o.block_tokens + slot % o.block_tokens;
  T* const to = (turns ? o.keys : o.values) + line * o.head_dim + at;
  store_16(to, packed_first);
  store_16(to + half, packed_second);
}

}  // namespace

cudaError_t rope_and_write_kv(const KvCache& cache, void* qkv, std::int64_t ld, int heads,
                              const float* bias, const std::int32_t* positions, const float* cos,
                              const float* sin, const std::int32_t* cache_rows, int rows,
                              cudaStream_t stream) {
  if (cache.head_dim % (2 * kVector) != 0 || ld % kVector != 0) return cudaErrorNotSupported;
  const int units = (heads + 2 * cache.kv_heads) * cache.head_dim / (2 * kVector);
  return with_half_type(cache.type, [&](auto element) {
    using T = decltype(element);
    const Rope<T> rope{static_cast<T*>(qkv),
                       ld,
                       heads,
                       cache.kv_heads,
                       cache.head_dim,
                       cache.block_tokens,
                       bias,
                       positions,
                       cos,
                       sin,
                       cache_rows,
                       static_cast<T*>(cache.keys),
                       static_cast<T*>(cache.values)};
    const dim3 grid(static_cast<unsigned>(rows), blocks_for(units, kThreads));
    return launch(rope_kernel<T>, grid, kThreads, 0, stream, rope);
  });
}

}  // namespace servelab::kernels::cuda
