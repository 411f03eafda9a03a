#include <algorithm>

#include "kernels/cuda/blocks.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

namespace servelab::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 4;  // loads of a thread before its first store
constexpr int kBytes = 16;

enum class Move { kWithin, kGather, kScatter };

// One grid row per (array, block): blockIdx.y counts blocks, blockIdx.z arrays.
template <Move move>
__global__ void __launch_bounds__(kThreads)
    move_blocks_kernel(void* const* arrays, std::int64_t block_bytes, const std::int32_t* from,
                       const std::int32_t* to, char* packed) {
  const std::int64_t block = blockIdx.y;
  const std::int64_t array = blockIdx.z;
  char* const pool = static_cast<char*>(arrays[array]);
  char* const own =
      move == Move::kWithin ? nullptr : packed + (array * gridDim.y + block) * block_bytes;
  const char* const source = move == Move::kScatter ? own : pool + from[block] * block_bytes;
  char* const target = move == Move::kGather ? own : pool + to[block] * block_bytes;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads * kBytes;
  const std::int64_t begin = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kBytes;
  for (std::int64_t at = begin; at < block_bytes; at += kInFlight * stride) {
    uint4 value[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (at + i * stride < block_bytes) value[i] = load_16_once(source + at + i * stride);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (at + i * stride < block_bytes) store_16(target + at + i * stride, value[i]);
    }
  }
}

template <Move move>
cudaError_t start(const BlockPool& pool, const std::int32_t* from, const std::int32_t* to,
                  int blocks, void* packed, cudaStream_t stream) {
  constexpr int kMaxRows = 65535;  // of a grid's y and z
  if (pool.block_bytes % kBytes != 0 || pool.count > kMaxRows || blocks > kMaxRows) {
    return cudaErrorInvalidValue;
  }
  const std::int64_t vectors = pool.block_bytes / kBytes;
  const dim3 grid(blocks_for(vectors, kThreads * kInFlight), static_cast<unsigned>(blocks),
                  static_cast<unsigned>(pool.count));
  return launch(move_blocks_kernel<move>, grid, kThreads, 0, stream, pool.arrays, pool.block_bytes,
                from, to, static_cast<char*>(packed));
}

}  // namespace

cudaError_t copy_blocks(const BlockPool& pool, const std::int32_t* from, const std::int32_t* to,
                        int blocks, cudaStream_t stream) {
  return start<Move::kWithin>(pool, from, to, blocks, nullptr, stream);
}

cudaError_t gather_blocks(const BlockPool& pool, const std::int32_t* blocks_of, int blocks,
                          void* packed, cudaStream_t stream) {
  return start<Move::kGather>(pool, blocks_of, nullptr, blocks, packed, stream);
}

cudaError_t scatter_blocks(const BlockPool& pool, const std::int32_t* blocks_of, int blocks,
                           const void* packed, cudaStream_t stream) {
  return start<Move::kScatter>(pool, nullptr, blocks_of, blocks, const_cast<void*>(packed), stream);
}

}  // namespace servelab::kernels::cuda
