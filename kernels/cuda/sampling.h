// Choosing the next token on the device; the contract is kernels/sampling.h's.
#ifndef SERVELAB_KERNELS_CUDA_SAMPLING_H_
#define SERVELAB_KERNELS_CUDA_SAMPLING_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace servelab::kernels::cuda {

// tokens[i] = argmax of row i of logits f32 [rows, n]; smallest index among equals, -1: all NaN.
cudaError_t argmax(const float* logits, int rows, int n, std::int32_t* tokens, cudaStream_t stream);

// As kernels::sample_top_p with uniforms[i] for row i. -1 when a logit is NaN. Weights are summed
// as multiples of 2^-40 of the largest, exactly and so in any order: the same call gives the same
// tokens. n: at most 2^23.
cudaError_t sample_top_p(const float* logits, int rows, int n, float temperature, float top_p,
                         const double* uniforms, std::int32_t* tokens, cudaStream_t stream);

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_SAMPLING_H_
