// Paged attention on the device. The cache's layout is the CPU engine's (kernels/attention.h):
// [block][kv_head][block_tokens][head_dim], one array for keys and one for values of each layer.
#ifndef SERVELAB_KERNELS_CUDA_ATTENTION_H_
#define SERVELAB_KERNELS_CUDA_ATTENTION_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"

namespace servelab::kernels::cuda {

// The sequences of a step; arrays are device memory.
struct AttentionBatch {
  int sequences = 0;
  const std::int32_t* query_begin = nullptr;  // [sequences + 1] rows of q and out
  const std::int32_t* contexts = nullptr;     // [sequences] positions before this step; -1: padding
  const std::int32_t* block_tables = nullptr;  // [sequences][table_stride]
  int table_stride = 0;
  int max_queries = 0;  // host: a bound of the rows of any sequence
  int max_length = 0;   // host: a bound of contexts + rows of any sequence
};

// Both functions below: softmax(q k / sqrt(head_dim)). q: elements of cache.type (kBf16 or kF16),
// row stride ldq, all heads side by side; out likewise. Rows of padding sequences get zeros.
// head_dim: a multiple of 8, at most 256; heads: a multiple of cache.kv_heads; strides: multiples
// of 8; buffers 16-byte aligned. What does not fit: cudaErrorNotSupported. Slots past a sequence's
// keys may hold anything, NaN included.

// How many parts of the context run side by side in a decode step, so that few sequences still fill
// the device. A row's result depends on it in the last bits.
int decode_splits(int sequences, int kv_heads, int max_length, int multiprocessors);
// Bytes; 0 for one split.
std::size_t decode_workspace(int sequences, int heads, int head_dim, int splits);

// One query per sequence (row s of q is sequence s; query_begin is not read), which sees
// contexts[s]
// + 1 keys. At most 65,535 sequences.
cudaError_t decode_attention(const KvCache& cache, const AttentionBatch& batch, int heads,
                             const void* q, std::int64_t ldq, void* out, std::int64_t ldo,
                             int splits, void* workspace, cudaStream_t stream);

// Any number of queries per sequence, causal, tensor cores, tiles over paged keys with an online
// softmax (FlashAttention-2). Also correct for one query.
cudaError_t prefill_attention(const KvCache& cache, const AttentionBatch& batch, int heads,
                              const void* q, std::int64_t ldq, void* out, std::int64_t ldo,
                              cudaStream_t stream);

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_ATTENTION_H_
