// Paged attention over one KV head, for prefill chunks and decode steps alike (the same arithmetic,
// so that chunked, whole and resumed prefills and decodes agree bit for bit).
//
// Keys and values of a position lie in blocks[position / block_tokens] at position % block_tokens:
// elements [block][kv_heads][block_tokens][head_dim] of bf16 or f32, so that what a head reads of a
// block is one stretch of memory. Slots past the context may hold anything, NaN included: they
// never reach a result.
//
// Batch invariance: keys are visited in tiles of kKeyTile positions from 0; a query's result
// depends on its own row and on keys 0 .. its position only.
#ifndef SERVELAB_KERNELS_ATTENTION_H_
#define SERVELAB_KERNELS_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace servelab::kernels {

inline constexpr int kKeyTile = 64;

struct KvCache {
  DType type = DType::kF32;  // kF32 or kBf16
  void* keys = nullptr;      // of one layer
  void* values = nullptr;
  int kv_heads = 0;
  int head_dim = 0;  // a multiple of 16, at most 256
  int block_tokens = 0;
};

// One sequence's share of a step: queries at positions context .. context + tokens - 1.
struct AttentionTask {
  int context = 0;                       // earlier tokens, whose keys exist
  int tokens = 0;                        // queries; their keys are already written
  const std::int32_t* blocks = nullptr;  // block table over context + tokens positions
};

// Causal attention of the query heads of `kv_head` (group = heads / kv_heads of them, consecutive),
// for queries [query_begin, query_end) of the task. q: f32, row i is query i of the task, row
// stride ldq, all heads side by side; bf16 caches round q to bf16. out: elements of cache.type,
// laid out like q with row stride ldo. softmax(q k / sqrt(head_dim)). scratch: attention_scratch()
// bytes, 64-byte aligned, one per thread.
using AttentionFn = void(const KvCache& cache, const AttentionTask& task, int kv_head, int group,
                         const float* q, std::int64_t ldq, void* out, std::int64_t ldo,
                         int query_begin, int query_end, void* scratch);
std::size_t attention_scratch(const KvCache& cache, int group);

// Writes keys and values (f32, row i for position context + i, row strides ldk and ldv, of all KV
// heads) of heads [head_begin, head_end) into the cache.
using KvWriteFn = void(const KvCache& cache, const AttentionTask& task, const float* k,
                       std::int64_t ldk, const float* v, std::int64_t ldv, int head_begin,
                       int head_end);

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_ATTENTION_H_
