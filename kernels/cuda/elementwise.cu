// Embedding, gating, gathering rows, random tensors. Each thread handles 16 bytes of the narrower
// side; everything here is bound by memory.
#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch.h"

namespace servelab::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 8;  // 16-bit elements in 16 bytes
constexpr float kLog2E = 1.4426950408889634f;

__device__ std::int64_t thread_number() {
  return std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
}

__device__ void store_8(float* to, const float (&x)[kVector]) {
  reinterpret_cast<float4*>(to)[0] = {x[0], x[1], x[2], x[3]};
  reinterpret_cast<float4*>(to)[1] = {x[4], x[5], x[6], x[7]};
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    embed_kernel(const T* embedding, const std::int32_t* ids, std::int64_t vectors, int hidden,
                 float* out) {
  const std::int64_t i = thread_number();
  if (i >= vectors) return;
  const int per_row = hidden / kVector;
  const std::int64_t row = i / per_row;
  const std::int64_t column = i % per_row * kVector;
  const std::int32_t id = ids[row];
  float x[kVector] = {};
  if (id >= 0) unpack_8<T>(load_16(embedding + std::int64_t{id} * hidden + column), x);
  store_8(out + row * hidden + column, x);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    swiglu_kernel(const T* gate_up, std::int64_t vectors, int n, T* out) {
  const std::int64_t i = thread_number();
  if (i >= vectors) return;
  const int per_row = n / kVector;
  const T* from = gate_up + i / per_row * 2 * n + i % per_row * kVector;
  const uint4 packed_gate = load_16_once(from);
  const uint4 packed_up = load_16_once(from + n);
  float gate[kVector];
  float up[kVector];
  unpack_8<T>(packed_gate, gate);
  unpack_8<T>(packed_up, up);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    gate[j] = gate[j] / (1.0f + exp2_fast(-kLog2E * gate[j])) * up[j];
  }
  store_16(out + i * kVector, pack_8<T>(gate));
}

__global__ void __launch_bounds__(kThreads)
    gather_rows_kernel(const float* x, const std::int32_t* rows_of, std::int64_t vectors, int n,
                       float* out) {
  const std::int64_t i = thread_number();
  if (i >= vectors) return;
  const int per_row = n / 4;
  const std::int32_t row = rows_of[i / per_row];
  uint4 value = {0, 0, 0, 0};
  if (row >= 0) value = load_16(x + std::int64_t{row} * n + i % per_row * 4);
  store_16(out + i * 4, value);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    fill_random_kernel(RandomKind kind, std::uint64_t key, float step, std::int64_t first, T* out,
                       std::int64_t count) {
  const std::int64_t threads = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = thread_number(); i < count; i += threads) {
    const float value = random_value(kind, key, static_cast<std::uint64_t>(first + i), step);
    out[i] = from_f32<T>(to_f32(from_f32<Bf16>(value)));
  }
}

}  // namespace

cudaError_t embed(DType type, const void* embedding, const std::int32_t* ids, int rows, int hidden,
                  float* x, cudaStream_t stream) {
  if (hidden % kVector != 0) return cudaErrorNotSupported;
  const std::int64_t vectors = std::int64_t{rows} * hidden / kVector;
  return with_half_type(type, [&](auto element) {
    using T = decltype(element);
    return launch(embed_kernel<T>, blocks_for(vectors, kThreads), kThreads, 0, stream,
                  static_cast<const T*>(embedding), ids, vectors, hidden, x);
  });
}

cudaError_t swiglu(DType type, const void* gate_up, int n, void* out, int rows,
                   cudaStream_t stream) {
  if (n % kVector != 0) return cudaErrorNotSupported;
  const std::int64_t vectors = std::int64_t{rows} * n / kVector;
  return with_half_type(type, [&](auto element) {
    using T = decltype(element);
    return launch(swiglu_kernel<T>, blocks_for(vectors, kThreads), kThreads, 0, stream,
                  static_cast<const T*>(gate_up), vectors, n, static_cast<T*>(out));
  });
}

cudaError_t gather_rows(const float* x, const std::int32_t* rows_of, int count, int n, float* out,
                        cudaStream_t stream) {
  if (n % 4 != 0) return cudaErrorNotSupported;
  const std::int64_t vectors = std::int64_t{count} * n / 4;
  return launch(gather_rows_kernel, blocks_for(vectors, kThreads), kThreads, 0, stream, x, rows_of,
                vectors, n, out);
}

cudaError_t fill_random(RandomKind kind, DType type, std::uint64_t key, float step,
                        std::int64_t first, void* out, std::int64_t count, cudaStream_t stream) {
  constexpr unsigned kMaxBlocks = 1u << 14;
  const unsigned blocks = std::min(kMaxBlocks, blocks_for(count, kThreads));
  return with_type(type, [&](auto element) {
    using T = decltype(element);
    return launch(fill_random_kernel<T>, blocks, kThreads, 0, stream, kind, key, step, first,
                  static_cast<T*>(out), count);
  });
}

}  // namespace servelab::kernels::cuda
