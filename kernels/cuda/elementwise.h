// Row-wise operations of a Llama layer on the device. The residual stream is f32; everything that
// enters a matrix product is `type` (kBf16 or kF16).
#ifndef SERVELAB_KERNELS_CUDA_ELEMENTWISE_H_
#define SERVELAB_KERNELS_CUDA_ELEMENTWISE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/dtype.h"
#include "kernels/random.h"

namespace servelab::kernels::cuda {

// Wherever a type is an argument it is kBf16 or kF16, unless said; others: cudaErrorNotSupported,
// as are widths that are not multiples of what a contract names. Buffers are 16-byte aligned.

// x[i, :] = embedding[ids[i], :]; x f32 [rows, hidden]. An id < 0 (padding) gives zeros. hidden: a
// multiple of 8.
cudaError_t embed(DType type, const void* embedding, const std::int32_t* ids, int rows, int hidden,
                  float* x, cudaStream_t stream);

// As kernels::RmsNormFn: x f32 [rows, n], weight f32, out of `type` [rows, n]. n: a multiple of 4.
cudaError_t rms_norm(const float* x, const float* weight, float eps, int n, DType type, void* out,
                     int rows, cudaStream_t stream);

// Adds `bias` (f32, of one row; null: none) to q, k, v side by side in `qkv` (cache.type; row
// stride ld, a multiple of 8), rotates q and k in place (pairs (i, i + head_dim / 2)), and writes k
// and v into the cache. cos, sin: [position][head_dim / 2]. cache_rows[i]: block * block_tokens +
// offset of row i, -1: not written. A row at a position < 0 (padding) is left alone.
cudaError_t rope_and_write_kv(const KvCache& cache, void* qkv, std::int64_t ld, int heads,
                              const float* bias, const std::int32_t* positions, const float* cos,
                              const float* sin, const std::int32_t* cache_rows, int rows,
                              cudaStream_t stream);

// out = silu(gate) * up; gate_up [rows, 2 n]: gate's n columns, then up's. out [rows, n]. n: a
// multiple of 8.
cudaError_t swiglu(DType type, const void* gate_up, int n, void* out, int rows,
                   cudaStream_t stream);

// out[i, :] = x[rows_of[i], :], f32 [count, n]: the rows that are sampled. A row < 0 (padding)
// gives zeros. n: a multiple of 4.
cudaError_t gather_rows(const float* x, const std::int32_t* rows_of, int count, int n, float* out,
                        cudaStream_t stream);

// Elements [0, count) of the random tensor `key` of engine/model (see kernels/random.h): rounded to
// bf16, then, where `type` is another (kF32 too), converted to it. step: random_step(). `first` is
// the number of the first element.
cudaError_t fill_random(RandomKind kind, DType type, std::uint64_t key, float step,
                        std::int64_t first, void* out, std::int64_t count, cudaStream_t stream);

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_ELEMENTWISE_H_
