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
  // kF16; others: cudaErrorNotSupported); y of y_type (`type` or kF32), row strides in elements. W
  // is dense; buffers are aligned to their elements, better to 16 bytes. A shape's first call also
  // chooses its algorithm.
  virtual cudaError_t multiply(DType type, const void* x, std::int64_t ldx, const void* w, int m,
                               int n, int k, DType y_type, void* y, std::int64_t ldy, bool add,
                               cudaStream_t stream) = 0;

  // How many multiprocessors the stream's work can use: what algorithms are chosen for. All of the
  // device's unless told.
  virtual void tune_for(int /*multiprocessors*/) {}
};

enum class DenseChoice : std::uint8_t {
  // The fastest of the heuristic's, measured on the first call of a shape (never while `stream` is
  // captured: then the heuristic's first). Rows are grouped: to powers of two up to 64, then
  // multiples of 64 and, from 512, of 256. Another process may choose, and so round, differently.
  kTimed,
  kHeuristic,  // the heuristic's first for each shape: the same in every process
};

// `workspace` (device memory, 32 MiB is enough) outlives the handle and is used by one call at a
// time. Null when cuBLASLt refuses.
std::unique_ptr<Dense> make_dense(void* workspace, std::size_t workspace_bytes,
                                  DenseChoice choice = DenseChoice::kTimed);

// One thread per element of y, k ascending: what tests compare with.
std::unique_ptr<Dense> make_reference_dense();

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_DENSE_H_
