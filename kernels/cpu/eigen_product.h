// Eigen's matrix product. Eigen picks its instructions when it is compiled, so the call is a unit
// of its own, compiled once for any processor and once for AVX-512.
#ifndef SERVELAB_KERNELS_CPU_EIGEN_PRODUCT_H_
#define SERVELAB_KERNELS_CPU_EIGEN_PRODUCT_H_

#include <cstdint>

namespace servelab::kernels {

// y[m, n] = x[m, k] * w[n, k]^T (+ y), all row-major; w's rows are k apart.
using EigenProductFn = void(const float* w, int n, int k, const float* x, std::int64_t ldx,
                            float* y, std::int64_t ldy, int m, bool add);
EigenProductFn eigen_product;  // with the best instructions of this processor

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_CPU_EIGEN_PRODUCT_H_
