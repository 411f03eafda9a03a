// The contracts of kernels/cuda as loops on the host, put on the streams of host_device.h: what the
// engine is tested with when its own logic is in question and not the kernels'. Sums are in f32 in
// ascending order, results rounded once to their type, as the contracts say.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/lora.h"
#include "kernels/cuda/sampling.h"
#include "kernels/ref/ref.h"
#include "kernels/sampling.h"
#include "tests/cuda_engine/host_device.h"

namespace servelab::kernels::cuda {
namespace {

using host_device::enqueue;

// Every half as a float.
const std::vector<float> kHalves = [] {
  std::vector<float> all;
  for (int bits = 0; bits <= 0xffff; ++bits) {
    all.push_back(to_float(F16{static_cast<std::uint16_t>(bits)}));
  }
  return all;
}();

// ref::load, inlined: most of these loops' time goes there.
inline float load(DType type, const void* data, std::int64_t i) {
  if (type == DType::kF32) return static_cast<const float*>(data)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[i];
  return type == DType::kBf16 ? to_float(Bf16{bits}) : kHalves[bits];
}

float rounded(DType type, float value) {
  float out = 0;
  ref::store(type, &out, 0, value);
  return load(type, &out, 0);
}

class NaiveDense final : public Dense {
 public:
  cudaError_t multiply(DType type, const void* x, std::int64_t ldx, const void* w, int m, int n,
                       int k, DType y_type, void* y, std::int64_t ldy, bool add,
                       cudaStream_t stream) override {
    return enqueue(stream, [=] {
      // Some rows at once beside a weight, which is loaded for all: every sum stays in k's order.
      constexpr int kRows = 4;
      std::vector<float> columns(static_cast<std::size_t>(k) * kRows);
      for (int first = 0; first < m; first += kRows) {
        const int rows = std::min(kRows, m - first);
        for (int c = 0; c < k; ++c) {
          for (int i = 0; i < rows; ++i) {
            columns[static_cast<std::size_t>(c * kRows + i)] = load(type, x, (first + i) * ldx + c);
          }
        }
        for (int j = 0; j < n; ++j) {
          float sums[kRows] = {};
          for (int c = 0; c < k; ++c) {
            const float weight = load(type, w, std::int64_t{j} * k + c);
            const float* const column = columns.data() + std::ptrdiff_t{c} * kRows;
            for (int i = 0; i < kRows; ++i) sums[i] += column[i] * weight;
          }
          for (int i = 0; i < rows; ++i) {
            const std::int64_t at = (first + i) * ldy + j;
            ref::store(y_type, y, at, add ? load(y_type, y, at) + sums[i] : sums[i]);
          }
        }
      }
    });
  }
};

// One row beside one layer, at `width` columns of A.
void lora_row(const LoraBatch& batch, const LoraPair& pair, const LoraTarget& target, const void* x,
              std::int64_t x_at, std::int64_t y_at) {
  std::vector<float> t(static_cast<std::size_t>(pair.width));
  for (int r = 0; r < pair.width; ++r) {
    float sum = 0;
    for (int c = 0; c < target.in; ++c) {
      sum +=
          load(batch.type, x, x_at + c) * load(batch.type, pair.a, std::int64_t{r} * target.in + c);
    }
    t[static_cast<std::size_t>(r)] = sum;
  }
  for (int j = 0; j < target.out; ++j) {
    float sum = 0;
    for (int r = 0; r < pair.width; ++r) {
      sum += t[static_cast<std::size_t>(r)] *
             load(batch.type, pair.b, std::int64_t{j} * pair.width + r);
    }
    const std::int64_t at = y_at + j;
    ref::store(batch.y_type, target.y, at, load(batch.y_type, target.y, at) + pair.scale * sum);
  }
}

// Which slot a row has, as the kind of kernel finds it.
int slot_of(LoraKind kind, const LoraBatch& batch, int row) {
  if (kind != LoraKind::kSgmv) {
    const int slot = batch.slots[row];
    if (kind != LoraKind::kEinsum) return slot;
    const std::int32_t* const end = batch.distinct_slots + batch.distinct;
    return std::find(batch.distinct_slots, end, slot) != end ? slot : -1;
  }
  for (int s = 0; s < batch.segments; ++s) {
    if (row >= batch.segment_begin[s] && row < batch.segment_begin[s + 1]) {
      return batch.segment_slots[s];
    }
  }
  return -1;
}

void attend(const KvCache& cache, const AttentionBatch& batch, int heads, int sequence, int query,
            const void* q, std::int64_t q_at, void* out, std::int64_t out_at) {
  const int group = heads / cache.kv_heads;
  const int last = batch.contexts[sequence] + query;
  const auto at = [&](int position, int head, int i) {
    const std::int64_t block = batch.block_tables[std::int64_t{sequence} * batch.table_stride +
                                                  position / cache.block_tokens];
    return ((block * cache.kv_heads + head) * cache.block_tokens + position % cache.block_tokens) *
               cache.head_dim +
           i;
  };
  std::vector<float> scores(static_cast<std::size_t>(last + 1));
  for (int h = 0; h < heads; ++h) {
    float largest = -std::numeric_limits<float>::infinity();
    for (int p = 0; p <= last; ++p) {
      float score = 0;
      for (int i = 0; i < cache.head_dim; ++i) {
        score += load(cache.type, q, q_at + h * cache.head_dim + i) *
                 load(cache.type, cache.keys, at(p, h / group, i));
      }
      score /= std::sqrt(static_cast<float>(cache.head_dim));
      scores[static_cast<std::size_t>(p)] = score;
      largest = std::max(largest, score);
    }
    float sum = 0;
    for (float& score : scores) sum += score = std::exp(score - largest);
    for (int i = 0; i < cache.head_dim; ++i) {
      float value = 0;
      for (int p = 0; p <= last; ++p) {
        value += scores[static_cast<std::size_t>(p)] *
                 load(cache.type, cache.values, at(p, h / group, i));
      }
      ref::store(cache.type, out, out_at + h * cache.head_dim + i, value / sum);
    }
  }
}

}  // namespace

std::unique_ptr<Dense> make_dense(void* /*workspace*/, std::size_t /*bytes*/,
                                  DenseChoice /*choice*/) {
  return std::make_unique<NaiveDense>();
}

// --- LoRA ---

std::size_t lora_workspace(LoraKind /*kind*/, const LoraBatch& batch, int targets) {
  return static_cast<std::size_t>(batch.rows * batch.width * targets) * sizeof(float);
}

cudaError_t lora(LoraKind kind, const LoraBatch& batch, const LoraTarget* targets, int count,
                 const void* x, std::int64_t ldx, std::int64_t ldy, void* /*workspace*/,
                 std::size_t /*workspace_bytes*/, cudaStream_t stream) {
  for (const LoraTarget& target : std::vector<LoraTarget>(targets, targets + count)) {
    if (target.in % 8 != 0 || target.out % 8 != 0) return cudaErrorNotSupported;
    enqueue(stream, [=] {
      for (int row = 0; row < batch.rows; ++row) {
        const int slot = slot_of(kind, batch, row);
        if (slot < 0 || target.pairs[slot].rank == 0) continue;
        lora_row(batch, target.pairs[slot], target, x, row * ldx, row * ldy);
      }
    });
  }
  return cudaSuccess;
}

cudaError_t lora_merge(DType type, const LoraPair& pair, int out_rows, int in, const void* w,
                       void* out, cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (int i = 0; i < out_rows; ++i) {
      for (int c = 0; c < in; ++c) {
        float sum = 0;
        for (int r = 0; r < pair.width; ++r) {
          sum += load(type, pair.b, std::int64_t{i} * pair.width + r) *
                 load(type, pair.a, std::int64_t{r} * in + c);
        }
        const std::int64_t at = std::int64_t{i} * in + c;
        ref::store(type, out, at, load(type, w, at) + pair.scale * sum);
      }
    }
  });
}

// --- attention ---

int decode_splits(int sequences, int /*kv_heads*/, int max_length, int multiprocessors) {
  return std::clamp(multiprocessors / sequences, 1, 1 + max_length / 64);
}
std::size_t decode_workspace(int sequences, int heads, int head_dim, int splits) {
  return static_cast<std::size_t>(sequences * heads * (head_dim + 2) * splits) * sizeof(float);
}

cudaError_t decode_attention(const KvCache& cache, const AttentionBatch& batch, int heads,
                             const void* q, std::int64_t ldq, void* out, std::int64_t ldo,
                             int /*splits*/, void* /*workspace*/, cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (int s = 0; s < batch.sequences; ++s) {
      if (batch.contexts[s] >= 0) attend(cache, batch, heads, s, 0, q, s * ldq, out, s * ldo);
    }
  });
}

cudaError_t prefill_attention(const KvCache& cache, const AttentionBatch& batch, int heads,
                              const void* q, std::int64_t ldq, void* out, std::int64_t ldo,
                              cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (int s = 0; s < batch.sequences; ++s) {
      const int begin = batch.query_begin[s];
      for (int row = begin; row < batch.query_begin[s + 1]; ++row) {
        attend(cache, batch, heads, s, row - begin, q, row * ldq, out, row * ldo);
      }
    }
  });
}

// --- blocks ---

cudaError_t gather_blocks(const BlockPool& pool, const std::int32_t* blocks_of, int blocks,
                          void* packed, cudaStream_t stream) {
  return enqueue(stream, [=] {
    auto* to = static_cast<char*>(packed);
    for (int a = 0; a < pool.count; ++a) {
      for (int i = 0; i < blocks; ++i, to += pool.block_bytes) {
        std::memcpy(to, static_cast<char*>(pool.arrays[a]) + blocks_of[i] * pool.block_bytes,
                    static_cast<std::size_t>(pool.block_bytes));
      }
    }
  });
}

cudaError_t scatter_blocks(const BlockPool& pool, const std::int32_t* blocks_of, int blocks,
                           const void* packed, cudaStream_t stream) {
  return enqueue(stream, [=] {
    const auto* from = static_cast<const char*>(packed);
    for (int a = 0; a < pool.count; ++a) {
      for (int i = 0; i < blocks; ++i, from += pool.block_bytes) {
        std::memcpy(static_cast<char*>(pool.arrays[a]) + blocks_of[i] * pool.block_bytes, from,
                    static_cast<std::size_t>(pool.block_bytes));
      }
    }
  });
}

// --- rows ---

cudaError_t embed(DType type, const void* embedding, const std::int32_t* ids, int rows, int hidden,
                  float* x, cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (int i = 0; i < rows; ++i) {
      for (int c = 0; c < hidden; ++c) {
        x[std::int64_t{i} * hidden + c] =
            ids[i] < 0 ? 0 : load(type, embedding, std::int64_t{ids[i]} * hidden + c);
      }
    }
  });
}

cudaError_t rms_norm(const float* x, const float* weight, float eps, int n, DType type, void* out,
                     int rows, cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (int i = 0; i < rows; ++i) {
      const float* const row = x + std::int64_t{i} * n;
      float sum = 0;
      for (int c = 0; c < n; ++c) sum += row[c] * row[c];
      const float scale = 1 / std::sqrt(sum / static_cast<float>(n) + eps);
      for (int c = 0; c < n; ++c) {
        ref::store(type, out, std::int64_t{i} * n + c, row[c] * scale * weight[c]);
      }
    }
  });
}

cudaError_t rope_and_write_kv(const KvCache& cache, void* qkv, std::int64_t ld, int heads,
                              const float* bias, const std::int32_t* positions, const float* cos,
                              const float* sin, const std::int32_t* cache_rows, int rows,
                              cudaStream_t stream) {
  return enqueue(stream, [=] {
    const int d = cache.head_dim;
    const int columns = (heads + 2 * cache.kv_heads) * d;
    const DType type = cache.type;
    for (int row = 0; row < rows; ++row) {
      if (positions[row] < 0) continue;
      const std::int64_t first = row * ld;
      for (int c = 0; bias != nullptr && c < columns; ++c) {
        ref::store(type, qkv, first + c, load(type, qkv, first + c) + bias[c]);
      }
      for (int h = 0; h < heads + cache.kv_heads; ++h) {
        for (int i = 0; i < d / 2; ++i) {
          const std::int64_t at = first + h * d + i;
          const std::int64_t angle = std::int64_t{positions[row]} * (d / 2) + i;
          const float a = load(type, qkv, at);
          const float b = load(type, qkv, at + d / 2);
          ref::store(type, qkv, at, a * cos[angle] - b * sin[angle]);
          ref::store(type, qkv, at + d / 2, b * cos[angle] + a * sin[angle]);
        }
      }
      if (cache_rows[row] < 0) continue;
      const std::int64_t block = cache_rows[row] / cache.block_tokens;
      const std::int64_t offset = cache_rows[row] % cache.block_tokens;
      for (int h = 0; h < cache.kv_heads; ++h) {
        const std::int64_t to = ((block * cache.kv_heads + h) * cache.block_tokens + offset) * d;
        for (int i = 0; i < d; ++i) {
          ref::store(type, cache.keys, to + i, load(type, qkv, first + (heads + h) * d + i));
          ref::store(type, cache.values, to + i,
                     load(type, qkv, first + (heads + cache.kv_heads + h) * d + i));
        }
      }
    }
  });
}

cudaError_t swiglu(DType type, const void* gate_up, int n, void* out, int rows,
                   cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (int i = 0; i < rows; ++i) {
      for (int c = 0; c < n; ++c) {
        const float gate = load(type, gate_up, std::int64_t{i} * 2 * n + c);
        const float up = load(type, gate_up, std::int64_t{i} * 2 * n + n + c);
        ref::store(type, out, std::int64_t{i} * n + c, gate / (1 + std::exp(-gate)) * up);
      }
    }
  });
}

cudaError_t gather_rows(const float* x, const std::int32_t* rows_of, int count, int n, float* out,
                        cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (int i = 0; i < count; ++i) {
      float* const to = out + std::int64_t{i} * n;
      if (rows_of[i] < 0) {
        std::fill_n(to, n, 0.0f);
      } else {
        std::copy_n(x + std::int64_t{rows_of[i]} * n, n, to);
      }
    }
  });
}

cudaError_t fill_random(RandomKind kind, DType type, std::uint64_t key, float step,
                        std::int64_t first, void* out, std::int64_t count, cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = random_value(kind, key, static_cast<std::uint64_t>(first + i), step);
      ref::store(type, out, i, rounded(DType::kBf16, value));
    }
  });
}

// --- sampling ---

cudaError_t argmax(const float* logits, int rows, int n, std::int32_t* tokens,
                   cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (int i = 0; i < rows; ++i) tokens[i] = kernels::argmax(logits + std::int64_t{i} * n, n);
  });
}

cudaError_t sample_top_p(const float* logits, int rows, int n, float temperature, float top_p,
                         const double* uniforms, std::int32_t* tokens, cudaStream_t stream) {
  return enqueue(stream, [=] {
    std::vector<std::uint64_t> scratch(static_cast<std::size_t>(n));
    for (int i = 0; i < rows; ++i) {
      tokens[i] = kernels::sample_top_p(logits + std::int64_t{i} * n, n, temperature, top_p,
                                        uniforms[i], scratch.data());
    }
  });
}

}  // namespace servelab::kernels::cuda
