// Copies of KV blocks: within the device, and between the device and pinned host memory.
#ifndef SERVELAB_KERNELS_CUDA_BLOCKS_H_
#define SERVELAB_KERNELS_CUDA_BLOCKS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace servelab::kernels::cuda {

// A pool's arrays: keys and values of every layer, each [blocks][block_bytes].
struct BlockPool {
  void* const* arrays = nullptr;  // device memory: `count` array pointers
  int count = 0;
  std::int64_t block_bytes = 0;  // a multiple of 16
};

// In every array: block from[i] to block to[i] (device memory, `blocks` of each, at most 65,535).
// No block is both read and written. cudaErrorInvalidValue when block_bytes is not a multiple
// of 16.
cudaError_t copy_blocks(const BlockPool& pool, const std::int32_t* from, const std::int32_t* to,
                        int blocks, cudaStream_t stream);

// Gathers blocks into `packed` [count][blocks][block_bytes] and scatters them back. `packed` is
// device memory or pinned host memory that the device can address.
cudaError_t gather_blocks(const BlockPool& pool, const std::int32_t* blocks_of, int blocks,
                          void* packed, cudaStream_t stream);
cudaError_t scatter_blocks(const BlockPool& pool, const std::int32_t* blocks_of, int blocks,
                           const void* packed, cudaStream_t stream);

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_BLOCKS_H_
