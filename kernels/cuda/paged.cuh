// Where a sequence's keys and values lie.
#ifndef SERVELAB_KERNELS_CUDA_PAGED_CUH_
#define SERVELAB_KERNELS_CUDA_PAGED_CUH_

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/platform.cuh"

namespace servelab::kernels::cuda {

// A cache and the sequences of a step, as kernels use them.
template <class T>
struct PagedKv {
  const T* keys;
  const T* values;
  int kv_heads;
  int head_dim;
  int block_tokens;
  int block_shift;  // log2(block_tokens), or -1: then it is divided
  const std::int32_t* query_begin;
  const std::int32_t* contexts;
  const std::int32_t* block_tables;
  int table_stride;

  // From a block's first element to that of `kv_head`.
  __device__ std::int64_t head_offset(int kv_head) const {
    return std::int64_t{kv_head} * block_tokens * head_dim;
  }
  __device__ const std::int32_t* table(int sequence) const {
    return block_tables + std::int64_t{sequence} * table_stride;
  }
  __device__ int entry(int position) const {  // of the table
    return block_shift >= 0 ? position >> block_shift : position / block_tokens;
  }
  // From a head's first element in block 0 to that of `position`, which is in `block`.
  __device__ std::int64_t offset(int block, int position) const {
    const int inside = block_shift >= 0 ? position & (block_tokens - 1) : position % block_tokens;
    return (std::int64_t{block} * kv_heads * block_tokens + inside) * head_dim;
  }
};

template <class T>
PagedKv<T> paged_kv(const KvCache& cache, const AttentionBatch& batch) {
  const auto tokens = static_cast<unsigned>(cache.block_tokens);
  return {static_cast<const T*>(cache.keys),
          static_cast<const T*>(cache.values),
          cache.kv_heads,
          cache.head_dim,
          cache.block_tokens,
          std::has_single_bit(tokens) ? std::countr_zero(tokens) : -1,
          batch.query_begin,
          batch.contexts,
          batch.block_tables,
          batch.table_stride};
}

// Scores are kept in units of log2: exp(s / sqrt(head_dim)) = exp2(s * score_scale).
inline float score_scale(int head_dim) {
  return 1.4426950408889634f / std::sqrt(static_cast<float>(head_dim));
}

inline bool attention_fits(const KvCache& cache, const AttentionBatch& batch, int heads,
                           std::int64_t ldq, std::int64_t ldo) {
  return cache.head_dim % 8 == 0 && cache.head_dim <= 256 && cache.kv_heads > 0 &&
         heads % cache.kv_heads == 0 && ldq % 8 == 0 && ldo % 8 == 0 && cache.block_tokens > 0 &&
         batch.sequences <= 65535;
}

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_PAGED_CUH_
