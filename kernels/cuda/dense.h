// Dense matrix products through cuBLASLt, with the choice of algorithm cached by shape.
#ifndef SERVELAB_KERNELS_CUDA_DENSE_H_
#define SERVELAB_KERNELS_CUDA_DENSE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/dtype.h"

namespace servelab::kernels::cuda {

// One device's handle. Not for several threads at once.
class Dense {
 public:
  virtual ~Dense() = default;

  // y[m, n] = x[m, k] W[n, k]^T (+ y when `add`), f32 accumulation. x and W of `type` (kBf16 or
  // kF16); y of y_type (`type` or kF32), row strides in elements. The first call of a shape picks
  // an algorithm among the heuristic's by timing them (never while `stream` is captured: then the
  // heuristic's first); later calls reuse it.
  virtual cudaError_t multiply(DType type, const void* x, std::int64_t ldx, const void* w, int m,
                               int n, int k, DType y_type, void* y, std::int64_t ldy, bool add,
                               cudaStream_t stream) = 0;
};

// `workspace` (device memory, 32 MiB is enough) outlives the handle. Null when cuBLASLt refuses.
std::unique_ptr<Dense> make_dense(void* workspace, std::size_t workspace_bytes);

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_DENSE_H_
