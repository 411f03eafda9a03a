#include <cmath>
#include <limits>

#include "kernels/ref/ref.h"

namespace servelab::kernels::ref {
namespace {

// The element index of the first of head_dim elements of `kv_head` at `position`.
std::int64_t slot_offset(const KvCache& cache, const AttentionTask& task, int position,
                         int kv_head) {
  const std::int64_t block = task.blocks[position / cache.block_tokens];
  return ((block * cache.kv_heads + kv_head) * cache.block_tokens + position % cache.block_tokens) *
         cache.head_dim;
}

float score(const KvCache& cache, const float* q, std::int64_t key) {
  float sum = 0;
  for (int i = 0; i < cache.head_dim; ++i) {
    const float value = cache.type == DType::kBf16 ? to_float(to_bf16(q[i])) : q[i];
    sum += value * load(cache.type, cache.keys, key + i);
  }
  return sum / std::sqrt(static_cast<float>(cache.head_dim));
}

}  // namespace

// Three passes over the keys (maximum, sum, values) instead of a buffer of scores.
void attention(const KvCache& cache, const AttentionTask& task, int kv_head, int group,
               const float* q, std::int64_t ldq, void* out, std::int64_t ldo, int query_begin,
               int query_end, void* /*scratch*/) {
  for (int query = query_begin; query < query_end; ++query) {
    const int keys = task.context + query + 1;
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const float* row = q + query * ldq + std::int64_t{head} * cache.head_dim;
      float largest = -std::numeric_limits<float>::infinity();
      for (int key = 0; key < keys; ++key) {
        largest = std::fmax(largest, score(cache, row, slot_offset(cache, task, key, kv_head)));
      }
      float total = 0;
      float sums[256] = {};  // head_dim is at most 256
      for (int key = 0; key < keys; ++key) {
        const std::int64_t offset = slot_offset(cache, task, key, kv_head);
        const float weight = std::exp(score(cache, row, offset) - largest);
        total += weight;
        for (int i = 0; i < cache.head_dim; ++i) {
          sums[i] += weight * load(cache.type, cache.values, offset + i);
        }
      }
      const std::int64_t at = query * ldo + std::int64_t{head} * cache.head_dim;
      for (int i = 0; i < cache.head_dim; ++i) store(cache.type, out, at + i, sums[i] / total);
    }
  }
}

void kv_write(const KvCache& cache, const AttentionTask& task, const float* k, std::int64_t ldk,
              const float* v, std::int64_t ldv, int head_begin, int head_end) {
  for (int token = 0; token < task.tokens; ++token) {
    for (int head = head_begin; head < head_end; ++head) {
      const std::int64_t to = slot_offset(cache, task, task.context + token, head);
      const std::int64_t column = std::int64_t{head} * cache.head_dim;
      for (int i = 0; i < cache.head_dim; ++i) {
        store(cache.type, cache.keys, to + i, k[token * ldk + column + i]);
        store(cache.type, cache.values, to + i, v[token * ldv + column + i]);
      }
    }
  }
}

}  // namespace servelab::kernels::ref
