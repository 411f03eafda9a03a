// Copies over the host's link, each thread 16 bytes at a time with several under way. They are
// bound by the link, so a few blocks are enough.
#include <algorithm>
#include <limits>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/host_rows.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/lora_device.cuh"

namespace servelab::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 4;     // loads of a thread before its first store
constexpr int kMostBlocks = 64;  // 1 MiB under way: what a link of 64 GB/s moves in 16 us
constexpr int kBytes = 16;

// Where a packed row lies in the matrix.
__device__ inline std::int64_t row_at(const RowStretches& rows, int packed) {
  return packed < rows.count[0] ? rows.begin[0] + packed : rows.begin[1] + (packed - rows.count[0]);
}

// Vectors [0, rows * per_row), dealt to all threads of the grid, kInFlight for each at a time:
// visit(first, stride).
template <class Visit>
__device__ inline void for_each_group(int total, Visit visit) {
  const int stride = static_cast<int>(gridDim.x) * kThreads;
  const int first = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  for (std::int64_t at = first; at < total; at += std::int64_t{kInFlight} * stride) {
    visit(at, stride);
  }
}

// Every thread's stores come before its block's part of `arrived`, and all parts before the signal:
// a fence of one thread behind a barrier covers what its block wrote.
__global__ void __launch_bounds__(kThreads)
    send_rows_kernel(const char* x, std::int64_t stride_bytes, RowStretches rows, int total,
                     int per_row, char* host, std::uint32_t* signal, std::uint32_t number,
                     std::int32_t* arrived) {
  for_each_group(total, [&](std::int64_t at, int stride) {
    uint4 value[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::int64_t v = at + std::int64_t{i} * stride;
      if (v >= total) continue;
      const int row = static_cast<int>(v) / per_row;
      const int column = static_cast<int>(v) % per_row;
      value[i] = load_16(x + row_at(rows, row) * stride_bytes + std::int64_t{column} * kBytes);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::int64_t v = at + std::int64_t{i} * stride;
      if (v < total) store_16(host + v * kBytes, value[i]);
    }
  });
  block_barrier();
  if (threadIdx.x != 0) return;
  memory_fence_system();
  if (atomic_add(arrived, 1) + 1 < static_cast<int>(gridDim.x)) return;
  *arrived = 0;
  memory_fence_system();
  store_release_system(signal, number);
}

template <class T, class Y>
__global__ void __launch_bounds__(kThreads)
    add_rows_kernel(const T* host, RowStretches rows, int total, int per_row, Y* y,
                    std::int64_t ldy) {
  for_each_group(total, [&](std::int64_t at, int stride) {
    uint4 value[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::int64_t v = at + std::int64_t{i} * stride;
      if (v < total) value[i] = load_16_once(host + v * kVector);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::int64_t v = at + std::int64_t{i} * stride;
      if (v >= total) continue;
      const int row = static_cast<int>(v) / per_row;
      const int column = static_cast<int>(v) % per_row * kVector;
      float sums[kVector];
      unpack_8<T>(value[i], sums);
      Y* const to = y + row_at(rows, row) * ldy + column;
      Eight<Y> before;
      before.load(to);
      before.add_and_store(sums, to);
    }
  });
}

// False where the contract is broken. *total: 16-byte vectors of all rows.
bool measure(const RowStretches& rows, int columns, std::int64_t ld, int* total) {
  const std::int64_t elements = std::int64_t{rows.rows()} * columns;
  *total = static_cast<int>(elements / kVector);
  return columns % kVector == 0 && ld % kVector == 0 &&
         elements <= std::numeric_limits<std::int32_t>::max();
}

unsigned blocks_of(int total) {
  return std::min<unsigned>(kMostBlocks, blocks_for(total, kThreads * kInFlight));
}

}  // namespace

cudaError_t send_rows(const void* x, std::int64_t ldx, const RowStretches& rows, int columns,
                      void* host, std::uint32_t* signal, std::uint32_t number,
                      std::int32_t* arrived, cudaStream_t stream) {
  int total = 0;
  if (!measure(rows, columns, ldx, &total)) return cudaErrorInvalidValue;
  return launch(send_rows_kernel, std::max(1u, blocks_of(total)), kThreads, 0, stream,
                static_cast<const char*>(x), ldx * 2, rows, total, columns / kVector,
                static_cast<char*>(host), signal, number, arrived);
}

cudaError_t add_rows(DType type, const void* host, const RowStretches& rows, int columns,
                     DType y_type, void* y, std::int64_t ldy, cudaStream_t stream) {
  int total = 0;
  if (y_type != type && y_type != DType::kF32) return cudaErrorNotSupported;
  if (!measure(rows, columns, ldy, &total)) return cudaErrorInvalidValue;
  return with_half_type(type, [&](auto element) {
    using T = decltype(element);
    const auto start = [&](auto* to) {
      using Y = std::remove_pointer_t<decltype(to)>;
      return launch(add_rows_kernel<T, Y>, blocks_of(total), kThreads, 0, stream,
                    static_cast<const T*>(host), rows, total, columns / kVector, to, ldy);
    };
    return y_type == DType::kF32 ? start(static_cast<float*>(y)) : start(static_cast<T*>(y));
  });
}

}  // namespace servelab::kernels::cuda
