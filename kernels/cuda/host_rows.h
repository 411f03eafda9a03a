// Rows whose LoRA the host computes (CaraServe 4.2): their inputs go to pinned host memory in one
// operation that also signals, so that nobody waits for the device (Figure 8, F2' and F3'), and
// what the host makes of them is added when it has come back.
#ifndef SERVELAB_KERNELS_CUDA_HOST_ROWS_H_
#define SERVELAB_KERNELS_CUDA_HOST_ROWS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/dtype.h"

namespace servelab::kernels::cuda {

// Rows of a step in at most two stretches (of its decodes, of its prefills). The host holds them
// packed: those of the first stretch, then those of the second.
struct RowStretches {
  int begin[2] = {0, 0};
  int count[2] = {0, 0};

  int rows() const { return count[0] + count[1]; }
};

// `host` is pinned memory that the device can address, [rows.rows()][columns] of 16-bit elements.
// Buffers are 16-byte aligned; columns, ldx and ldy are multiples of 8, and all rows together have
// fewer than 2^31 elements; else cudaErrorInvalidValue.

// host[i, :] = x[row i, :] (row stride ldx elements of 16 bits); when all of it is there for the
// host to read, *signal = number, in pinned memory too, which the host reads with acquire. Without
// rows too. `arrived`: of the device; zero before the first call, and zero again after each.
cudaError_t send_rows(const void* x, std::int64_t ldx, const RowStretches& rows, int columns,
                      void* host, std::uint32_t* signal, std::uint32_t number,
                      std::int32_t* arrived, cudaStream_t stream);

// y[row i, :] += host[i, :], rounded once to y_type: `type` or kF32. `host` is of `type`, kBf16 or
// kF16; others: cudaErrorNotSupported.
cudaError_t add_rows(DType type, const void* host, const RowStretches& rows, int columns,
                     DType y_type, void* y, std::int64_t ldy, cudaStream_t stream);

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_HOST_ROWS_H_
