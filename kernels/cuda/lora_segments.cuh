// What the sources of SGMV and the einsum share: pieces, t in the workspace, tiles of x and A.
#ifndef SERVELAB_KERNELS_CUDA_LORA_SEGMENTS_CUH_
#define SERVELAB_KERNELS_CUDA_LORA_SEGMENTS_CUH_

#include "kernels/cuda/lora_device.cuh"

namespace servelab::kernels::cuda {

inline constexpr int kTileRows = 64;   // of x, t and y
inline constexpr int kTileDepth = 64;  // of x and A: 128 bytes a row, in 8 chunks
inline constexpr int kStages = 4;
inline constexpr int kChunks = kTileDepth / kVector;
inline constexpr int kChunkBytes = 16;
inline constexpr int kShrinkThreads = 128;

// A segment's rows, or (kEinsum) all rows for one distinct adapter.
struct Piece {
  int begin;  // the first row of x and y
  int rows;   // 0: nothing to do
  int slot;
  std::int64_t t_row;  // the first row of t
};
__device__ inline Piece piece_of(const LoraCall& call, int index) {
  const LoraBatch& batch = call.batch;
  if (call.kind == LoraKind::kEinsum) {
    return {0, batch.rows, batch.distinct_slots[index], std::int64_t{index} * batch.rows};
  }
  const int begin = batch.segment_begin[index];
  const int slot = batch.segment_slots[index];
  return {begin, slot < 0 ? 0 : batch.segment_begin[index + 1] - begin, slot, begin};
}

// t of `type`, and its partial sums, in the workspace.
struct Intermediate {
  std::int64_t rows;  // of t, for each target
  void* t;            // [targets][rows][width]
  float* partial;     // [splits][targets][rows][width]
};
__host__ __device__ inline Intermediate intermediate(const LoraCall& call) {
  const std::int64_t copies = call.kind == LoraKind::kEinsum ? call.batch.distinct : 1;
  const std::int64_t rows = copies * call.batch.rows;
  char* const t = static_cast<char*>(call.workspace);
  const std::int64_t bytes = 2 * call.count * rows * call.batch.width;  // of 16-bit elements
  return {rows, t, reinterpret_cast<float*>(t + bytes)};
}

// Rows of 8 chunks; the chunk's place is its number xor its row's, so that eight rows of a matrix
// lie in different banks. The 128-byte swizzle of tensor copies and wgmma is the same.
__device__ inline char* chunk_at(char* tile, int row, int chunk) {
  return tile + (row * kChunks + (chunk ^ row % kChunks)) * kChunkBytes;
}

// Steps of kTileDepth elements through `in`, the last of which may go past its end.
__host__ __device__ constexpr int steps_of(int in) { return (in + kTileDepth - 1) / kTileDepth; }

// Starts to copy kRows rows of kTileDepth elements with all of the block's threads, zeros past
// `valid` rows and past `depth` elements.
template <int kRows, class T>
__device__ inline void copy_tile(char* tile, const T* from, std::int64_t stride, int valid,
                                 int depth) {
  static_assert(kShrinkThreads % kChunks == 0);  // so a thread's chunks are all of one column
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const int rows = chunk * kVector < depth ? valid : 0;
#pragma unroll
  for (int i = 0; i < kRows * kChunks / kShrinkThreads; ++i) {
    const int row = (i * kShrinkThreads + static_cast<int>(threadIdx.x)) / kChunks;
    const bool inside = row < rows;
    copy_async_16(chunk_at(tile, row, chunk), inside ? from + row * stride + chunk * kVector : from,
                  inside);
  }
}

// The pieces of a call, for its launches.
struct Pieces {
  int count;
  int row_tiles;         // of the longest
  std::int64_t working;  // a bound of the row tiles of all
};

// The shrink by wgmma, whose operands are swapped: see lora_wgmma.cu. cudaErrorNotSupported where
// the device has none.
cudaError_t wgmma_shrink(const LoraCall& call, const Pieces& pieces, int splits,
                         cudaStream_t stream);

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_LORA_SEGMENTS_CUH_
