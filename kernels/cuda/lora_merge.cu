// W + scale * B A on tensor cores. Bound by reading and writing W.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/lora.h"

namespace servelab::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 64;  // of the block's tile of W
constexpr int kColumns = 128;
constexpr int kWarpRows = 32;
constexpr int kWarpColumns = 32;
constexpr int kGroups = kWarpRows / 16;
constexpr int kTiles = kWarpColumns / 8;
constexpr int kChunkBytes = 16;
// Rows in shared memory, of B [kRows][kMaxLoraWidth] and of A [kMaxLoraWidth][kColumns], are 16
// bytes apart: eight rows of a matrix lie in different banks.
constexpr int kLeftStride = 2 * kMaxLoraWidth + kChunkBytes;
constexpr int kRightStride = 2 * kColumns + kChunkBytes;

// Starts to copy rows x columns elements, a multiple of 8 columns; zeros past the valid ones.
template <class T>
__device__ inline void copy_rows(char* tile, int tile_stride, const T* from, std::int64_t stride,
                                 int rows, int columns, int valid_rows, int valid_columns) {
  const int chunks = columns / 8;
  for (int i = static_cast<int>(threadIdx.x); i < rows * chunks; i += kThreads) {
    const int row = i / chunks;
    const int column = i % chunks * 8;
    const bool inside = row < valid_rows && column < valid_columns;
    copy_async_16(tile + row * tile_stride + 2 * column,
                  inside ? from + row * stride + column : from, inside);
  }
}

// sums += B A for the warp's rows and columns (`row`, `column` within the tiles).
template <class T>
__device__ inline void multiply(const char* b, const char* a, int row, int column, int depth,
                                float (&sums)[kGroups][kTiles][4]) {
  const int lane = lane_id();
  const char* const left = b + (row + lane % 16) * kLeftStride + lane / 16 * kChunkBytes;
  const char* const right = a + lane % 16 * kRightStride + 2 * (column + lane / 16 * 8);
  for (int k = 0; k < depth; k += 16) {
    std::uint32_t columns[kTiles / 2][4];
#pragma unroll
    for (int i = 0; i < kTiles / 2; ++i) {
      load_matrices_transposed(columns[i], right + k * kRightStride + 32 * i);
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      std::uint32_t rows[4];
      load_matrices(rows, left + 16 * group * kLeftStride + 2 * k);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        multiply_add<T>(sums[group][tile], rows, columns[tile / 2][tile % 2 * 2],
                        columns[tile / 2][tile % 2 * 2 + 1]);
      }
    }
  }
}

// Grid: tiles of columns, tiles of rows.
template <class T>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(LoraPair pair, int depth, int out_rows, int in, const T* w, T* out) {
  const int tile_row = static_cast<int>(blockIdx.y) * kRows;
  const int tile_column = static_cast<int>(blockIdx.x) * kColumns;
  const int row = warp_id() / (kColumns / kWarpColumns) * kWarpRows;
  const int column = warp_id() % (kColumns / kWarpColumns) * kWarpColumns;
  const int own_column = tile_column + column + 2 * (lane_id() % 4);
  const std::int64_t first = std::int64_t{tile_row + row + lane_id() / 4} * in + own_column;
  // A tile's eight columns are inside or outside as a whole.
  const auto inside = [&](int group, int tile, int half) {
    return tile_column + column + 8 * tile < in &&
           tile_row + row + 16 * group + 8 * half + lane_id() / 4 < out_rows;
  };

  const auto at = [&](int group, int tile, int half) {
    return first + std::int64_t{16 * group + 8 * half} * in + 8 * tile;
  };
  std::uint32_t before[kGroups][kTiles][2] = {};
#pragma unroll
  for (int i = 0; i < kGroups * kTiles * 2; ++i) {
    const int group = i / 2 / kTiles;
    const int tile = i / 2 % kTiles;
    if (!inside(group, tile, i % 2)) continue;
    before[group][tile][i % 2] =
        *reinterpret_cast<const std::uint32_t*>(w + at(group, tile, i % 2));
  }
  char* const left = shared_memory();
  char* const right = left + kRows * kLeftStride;
  const T* const b = static_cast<const T*>(pair.b) + std::int64_t{tile_row} * pair.width;
  const T* const a = static_cast<const T*>(pair.a) + tile_column;
  const int padded = (depth + 15) / 16 * 16;
  copy_rows(left, kLeftStride, b, pair.width, kRows, padded, out_rows - tile_row, depth);
  copy_rows(right, kRightStride, a, in, padded, kColumns, depth, in - tile_column);
  copy_async_commit();
  copy_async_wait<0>();
  block_barrier();
  float sums[kGroups][kTiles][4] = {};
  multiply<T>(left, right, row, column, padded, sums);
#pragma unroll
  for (int i = 0; i < kGroups * kTiles * 2; ++i) {
    const int group = i / 2 / kTiles;
    const int tile = i / 2 % kTiles;
    const int half = i % 2;
    if (!inside(group, tile, half)) continue;
    const float2 old = unpack<T>(before[group][tile][half]);
    *reinterpret_cast<std::uint32_t*>(out + at(group, tile, half)) =
        pack<T>(old.x + pair.scale * sums[group][tile][2 * half],
                old.y + pair.scale * sums[group][tile][2 * half + 1]);
  }
}

template <class T>
cudaError_t start(const LoraPair& pair, int depth, int out_rows, int in, const void* w, void* out,
                  cudaStream_t stream) {
  const std::size_t shared =
      kRows * kLeftStride + static_cast<std::size_t>(depth + 8) * kRightStride;
  return launch(merge_kernel<T>, dim3(blocks_for(in, kColumns), blocks_for(out_rows, kRows)),
                kThreads, shared, stream, pair, depth, out_rows, in, static_cast<const T*>(w),
                static_cast<T*>(out));
}

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

}  // namespace

cudaError_t lora_merge(DType type, const LoraPair& pair, int out_rows, int in, const void* w,
                       void* out, cudaStream_t stream) {
  if (type != DType::kBf16 && type != DType::kF16) return cudaErrorNotSupported;
  if (pair.rank < 0 || out_rows < 0 || in < 0 || in % 8 != 0 || !aligned(w) || !aligned(out)) {
    return cudaErrorInvalidValue;
  }
  if (pair.rank > 0 && (pair.width < pair.rank || pair.width % 8 != 0 ||
                        pair.width > kMaxLoraWidth || !aligned(pair.a) || !aligned(pair.b))) {
    return cudaErrorInvalidValue;
  }
  if (out_rows == 0 || in == 0) return cudaSuccess;
  if (pair.rank == 0) {
    if (w == out) return cudaSuccess;
    const auto bytes = static_cast<std::size_t>(out_rows) * static_cast<std::size_t>(in) * 2;
    return cudaMemcpyAsync(out, w, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  const int depth = (pair.rank + 7) / 8 * 8;
  return with_half_type(type, [&](auto element) {
    return start<decltype(element)>(pair, depth, out_rows, in, w, out, stream);
  });
}

}  // namespace servelab::kernels::cuda
