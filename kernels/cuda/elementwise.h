// Row-wise operations of a Llama layer on the device. The residual stream is f32; everything that
// enters a matrix product is `type` (kBf16 or kF16).
#ifndef SERVELAB_KERNELS_CUDA_ELEMENTWISE_H_
#define SERVELAB_KERNELS_CUDA_ELEMENTWISE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/dtype.h"

namespace servelab::kernels::cuda {

// x[i, :] = embedding[ids[i], :]; x f32 [rows, hidden], dense rows. An id < 0 (padding) gives zeros.
cudaError_t embed(DType type, const void* embedding, const std::int32_t* ids, int rows, int hidden,
                  float* x, cudaStream_t stream);

// As kernels::RmsNormFn: x f32 [rows, n], weight f32, out of `type` [rows, n].
cudaError_t rms_norm(const float* x, const float* weight, float eps, int n, DType type, void* out,
                     int rows, cudaStream_t stream);

// Adds `bias` (f32 [n]; null: none) to q, k, v side by side in `qkv` [rows, ld], rotates q and k in
// place (pairs (i, i + head_dim / 2)), and writes k and v into the cache. cos, sin:
// [position][head_dim / 2]. cache_rows[i]: block * block_tokens + offset of row i, -1: not written.
cudaError_t rope_and_write_kv(const KvCache& cache, void* qkv, std::int64_t ld, int heads,
                              const float* bias, const std::int32_t* positions, const float* cos,
                              const float* sin, const std::int32_t* cache_rows, int rows,
                              cudaStream_t stream);

// out = silu(gate) * up; gate_up [rows, 2 n]: gate's n columns, then up's. out [rows, n].
cudaError_t swiglu(DType type, const void* gate_up, int n, void* out, int rows,
                   cudaStream_t stream);

// out[i, :] = x[rows_of[i], :], f32 [count, n]: the rows that are sampled.
cudaError_t gather_rows(const float* x, const std::int32_t* rows_of, int count, int n, float* out,
                        cudaStream_t stream);

// The same values as engine/model's random weights: element i of a tensor is a function of (seed,
// i) alone. See kernels/random.h.
cudaError_t fill_random(DType type, std::uint64_t key, float scale, void* out, std::int64_t count,
                        cudaStream_t stream);

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_ELEMENTWISE_H_
