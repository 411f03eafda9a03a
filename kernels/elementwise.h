// Row-wise and element-wise operations of a Llama layer. Each row is computed alone.
#ifndef SERVELAB_KERNELS_ELEMENTWISE_H_
#define SERVELAB_KERNELS_ELEMENTWISE_H_

#include <cstdint>

#include "kernels/dtype.h"

namespace servelab::kernels {

// out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i] for each of `rows` rows of n elements. x and
// weight f32; out of `type` (kF32 or kBf16). Row strides in elements.
using RmsNormFn = void(const float* x, std::int64_t ldx, const float* weight, float eps, int n,
                       DType type, void* out, std::int64_t ldo, int rows);

// Rotates `heads` neighbouring heads of each row in place, pairs (i, i + head_dim / 2) as Hugging
// Face's Llama does. cos and sin: tables [position][head_dim / 2]; row i is at positions[i].
using RopeFn = void(float* x, std::int64_t ldx, const std::int32_t* positions, const float* cos,
                    const float* sin, int heads, int head_dim, int rows);

// out = silu(gate) * up over n columns of each row; gate and up f32, out of `type`.
using SwigluFn = void(const float* gate, const float* up, std::int64_t ld, int n, DType type,
                      void* out, std::int64_t ldo, int rows);

// out[i] = row-major f32 of `type`'s elements, n of them, and back (rounding to nearest even).
using WidenFn = void(DType type, const void* x, float* out, std::int64_t n);
using NarrowFn = void(const float* x, DType type, void* out, std::int64_t n);

// y[i] += scale * x[i], n of them, rounded as LoRA's expand rounds its last step.
using AddScaledFn = void(float scale, const float* x, float* y, std::int64_t n);

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_ELEMENTWISE_H_
