// The contract of kernels/cuda/host_rows.h as loops, put on the streams of host_device.h.
#include <atomic>
#include <cstring>

#include "kernels/cuda/host_rows.h"
#include "kernels/ref/ref.h"
#include "tests/cuda_engine/host_device.h"

namespace servelab::kernels::cuda {
namespace {

std::int64_t row_at(const RowStretches& rows, int packed) {
  return packed < rows.count[0] ? rows.begin[0] + packed : rows.begin[1] + packed - rows.count[0];
}

}  // namespace

cudaError_t send_rows(const void* x, std::int64_t ldx, const RowStretches& rows, int columns,
                      void* host, std::uint32_t* signal, std::uint32_t number,
                      std::int32_t* /*arrived*/, cudaStream_t stream) {
  return host_device::enqueue(stream, [=] {
    const auto row_bytes = static_cast<std::size_t>(columns) * 2;
    for (int i = 0; i < rows.rows(); ++i) {
      std::memcpy(static_cast<char*>(host) + static_cast<std::size_t>(i) * row_bytes,
                  static_cast<const char*>(x) + row_at(rows, i) * ldx * 2, row_bytes);
    }
    host_device::signal_late(
        [=] { std::atomic_ref(*signal).store(number, std::memory_order_release); });
  });
}

cudaError_t add_rows(DType type, const void* host, const RowStretches& rows, int columns,
                     DType y_type, void* y, std::int64_t ldy, cudaStream_t stream) {
  return host_device::enqueue(stream, [=] {
    for (int i = 0; i < rows.rows(); ++i) {
      for (int j = 0; j < columns; ++j) {
        const std::int64_t at = row_at(rows, i) * ldy + j;
        ref::store(y_type, y, at,
                   ref::load(y_type, y, at) + ref::load(type, host, std::int64_t{i} * columns + j));
      }
    }
  });
}

}  // namespace servelab::kernels::cuda
