// Attention as two GEMMs with packed tiles of 64 keys, and an online softmax between them.
//
// A tile's keys and values are gathered from their slots into panels once per block of query rows;
// then every row that sees the tile gets scores (keys as weights), exponentials, and its share of
// the output (values as weights). A row's arithmetic is a function of its position alone: tiles
// start at multiples of 64, and in the last tile the row takes only keys up to its own.
//
// A few rows, as a decode has, read the tile from memory faster than they could pack its values:
// they take them straight from the cache, in the same order and so with the same bits, while the
// next tile is being fetched.
#ifndef SERVELAB_KERNELS_CPU_ATTENTION_KERNEL_H_
#define SERVELAB_KERNELS_CPU_ATTENTION_KERNEL_H_

#include "kernels/attention.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/elementwise_kernel.h"
#include "kernels/cpu/gemm_kernel.h"

namespace servelab::kernels {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// Element index of the first of a head's elements at `position`.
inline std::int64_t element_of(const KvCache& cache, const AttentionTask& task, int position,
                               int kv_head) {
  const std::int64_t block = task.blocks[position / cache.block_tokens];
  return ((block * cache.kv_heads + kv_head) * cache.block_tokens + position % cache.block_tokens) *
         cache.head_dim;
}

// Where a tile's keys and values lie; null beyond its end.
struct TileRows {
  const char* keys[kKeyTile];
  const char* values[kKeyTile];
  int count;
};

// Most rows that do not pack values.
constexpr int kFewRows = 4;

// One block of query rows: row = query * group + head within the group.
template <class S, class E>
class AttentionBlock {
 public:
  AttentionBlock(const KvCache& cache, const AttentionTask& task, int kv_head, int group,
                 void* scratch)
      : cache_(cache),
        task_(task),
        kv_head_(kv_head),
        group_(group),
        factor_(kLog2E / __builtin_sqrtf(static_cast<float>(cache.head_dim))) {
    const AttentionScratch layout = layout_attention_scratch(cache.type, cache.head_dim, group);
    char* base = static_cast<char*>(scratch);
    keys_ = base + layout.keys;
    values_ = base + layout.values;
    q_ = reinterpret_cast<float*>(base + layout.q);
    scores_ = reinterpret_cast<float*>(base + layout.scores);
    out_ = reinterpret_cast<float*>(base + layout.out);
    maxima_ = reinterpret_cast<float*>(base + layout.maxima);
    sums_ = reinterpret_cast<float*>(base + layout.sums);
  }

  // Queries [begin, end) of the task.
  void run(const float* q, std::int64_t ldq, void* out, std::int64_t ldo, int begin, int end) {
    begin_ = begin;
    end_ = end;
    load_queries(q, ldq);
    const int keys = task_.context + end;
    few_ = row_of(end_) <= kFewRows;
    TileRows rows[2];
    locate(0, keys, &rows[0]);
    for (int tile = 0; tile < keys; tile += kKeyTile) {
      tile_ = &rows[tile / kKeyTile % 2];
      pack_keys();
      if (!few_) pack_values();
      const int next = tile + kKeyTile;
      if (next < keys) locate(next, keys, &rows[next / kKeyTile % 2]);
      visit(tile);
    }
    store(out, ldo);
  }

 private:
  // Keys of the tile that query sees, were the tile endless.
  int visible(int query, int tile) const { return task_.context + query + 1 - tile; }
  int row_of(int query) const { return (query - begin_) * group_; }

  void load_queries(const float* q, std::int64_t ldq) {
    const int d = cache_.head_dim;
    for (int query = begin_; query < end_; ++query) {
      const float* from = q + query * ldq + static_cast<std::int64_t>(kv_head_) * group_ * d;
      const std::int64_t to = static_cast<std::int64_t>(row_of(query)) * d;
      for (int i = 0; i < group_ * d; i += kLanes) {
        stage_lanes<S, E>(q_, to + i, S::load(from + i));
        S::store(out_ + to + i, S::zero());
      }
    }
    for (int row = 0; row < row_of(end_); ++row) {
      maxima_[row] = kMinusInfinity;
      S::store(sums_ + row * kLanes, S::zero());
    }
  }

  // Finds the rows of the tile's keys before `keys`, and has them fetched where they will be read
  // only once.
  void locate(int tile, int keys, TileRows* rows) const {
    const std::int64_t row_bytes = std::int64_t{cache_.head_dim} * E::kBytes;
    rows->count = keys - tile < kKeyTile ? keys - tile : kKeyTile;
    int left = 0;  // of the block at hand
    std::int64_t at = 0;
    for (int i = 0; i < kKeyTile; ++i, --left, at += row_bytes) {
      if (i >= rows->count) {
        rows->keys[i] = rows->values[i] = nullptr;
        continue;
      }
      if (left == 0) {
        at = element_of(cache_, task_, tile + i, kv_head_) * E::kBytes;
        left = cache_.block_tokens - (tile + i) % cache_.block_tokens;
      }
      rows->keys[i] = static_cast<const char*>(cache_.keys) + at;
      rows->values[i] = static_cast<const char*>(cache_.values) + at;
      if (!few_) continue;
      for (std::int64_t line = 0; line < row_bytes; line += kLine) {
        __builtin_prefetch(rows->keys[i] + line);
        __builtin_prefetch(rows->values[i] + line);
      }
    }
  }

  // Gathers the tile's keys, and its values, into panels. Slots beyond are not read.
  void pack_keys() {
    const int steps = cache_.head_dim / E::kDepth;
    for (int panel = 0; panel * kPanelColumns < tile_->count; ++panel) {
      char* lines = keys_ + static_cast<std::size_t>(panel * steps) * kLine;
      for (int step = 0; step < steps; step += 16) {
        S::transpose(tile_->keys + panel * kPanelColumns, static_cast<std::size_t>(step) * 4,
                     steps - step < 16 ? steps - step : 16,
                     lines + static_cast<std::size_t>(step) * kLine);
      }
    }
  }

  void pack_values() {
    for (int i = 0; i < tile_->count; i += E::kDepth) {
      for (int panel = 0; panel * kPanelColumns < cache_.head_dim; ++panel) {
        const int line = panel * (kKeyTile / E::kDepth) + i / E::kDepth;
        pack_line(tile_->values + i, panel * kPanelColumns * E::kBytes,
                  values_ + static_cast<std::size_t>(line) * kLine);
      }
    }
  }

  static void pack_line(const char* const* rows, int offset, char* line) {
    if constexpr (E::kDepth == 2) {
      S::interleave(rows[0] + offset, rows[1] == nullptr ? nullptr : rows[1] + offset, line);
    } else {
      S::store(reinterpret_cast<float*>(line),
               S::load(reinterpret_cast<const float*>(rows[0] + offset)));
    }
  }

  // Folds a packed tile into all rows that see any of it.
  void visit(int tile) {
    const int d = cache_.head_dim;
    const int first = visible(begin_, tile) > 0 ? begin_ : tile - task_.context;
    const int row = row_of(first);
    const int last_visible = visible(end_ - 1, tile);
    const int panels =
        last_visible < kKeyTile ? (last_visible + kPanelColumns - 1) / kPanelColumns : 4;
    const PanelView keys{keys_, static_cast<std::size_t>(d / E::kDepth) * kLine, kKeyTile, d};
    gemm_cached<S, E>(keys, Rows{q_, words_of<E>(d)}.from(row), scores_ + row * kKeyTile, kKeyTile,
                      row_of(end_) - row, Store::kSet, panels);
    for (int query = first; query < end_; ++query) {
      const int count = visible(query, tile) < kKeyTile ? visible(query, tile) : kKeyTile;
      for (int head = 0; head < group_; ++head) soften(row_of(query) + head, count);
    }
    int query = first;
    if (few_) {
      for (; query < end_; ++query) {
        const int count = visible(query, tile) < kKeyTile ? visible(query, tile) : kKeyTile;
        for (int head = 0; head < group_; ++head) accumulate_unpacked(row_of(query) + head, count);
      }
      return;
    }
    while (query < end_ && visible(query, tile) < kKeyTile) query = accumulate_some(query, tile);
    if (query < end_) accumulate(row_of(query), row_of(end_) - row_of(query), 0, kKeyTile);
  }

  // out += weights * values over the tile's first `count` keys, in order.
  void accumulate_unpacked(int row, int count) {
    constexpr int kWide = 4;
    const int d = cache_.head_dim;
    const float* weights = scores_ + row * kKeyTile;
    for (int i = 0; i < d; i += kWide * kLanes) {
      const int vectors = d - i < kWide * kLanes ? (d - i) / kLanes : kWide;
      float* out = out_ + static_cast<std::int64_t>(row) * d + i;
      if (vectors == kWide) {
        accumulate_columns<kWide>(weights, count, i, out);
      } else {
        for (int v = 0; v < vectors; ++v) {
          accumulate_columns<1>(weights, count, i + v * kLanes, out + v * kLanes);
        }
      }
    }
  }

  template <int N>
  void accumulate_columns(const float* weights, int count, int column, float* out) const {
    typename S::Vec sums[N];
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) sums[v] = S::load(out + v * kLanes);
    const std::ptrdiff_t offset = static_cast<std::ptrdiff_t>(column) * E::kBytes;
    if constexpr (kPairs<E>) {
      for (int key = 0; key < count; key += 2) {
        const char* row = tile_->values[key] + offset;
        const char* next = key + 1 < count ? tile_->values[key + 1] + offset : nullptr;
        const auto weight = S::set(weights[key / 2]);
#pragma GCC unroll 4
        for (int v = 0; v < N; ++v) {
          const int lanes = v * kLanes * E::kBytes;
          const auto pairs = S::pairs(row + lanes, next == nullptr ? nullptr : next + lanes);
          sums[v] = S::dot(pairs, weight, sums[v]);
        }
      }
    } else {
      for (int key = 0; key < count; ++key) {
        const char* row = tile_->values[key] + offset;
        const auto weight = S::set(weights[key]);
#pragma GCC unroll 4
        for (int v = 0; v < N; ++v) sums[v] = S::fma(value_lanes(row, v), weight, sums[v]);
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) S::store(out + v * kLanes, sums[v]);
  }

  static typename S::Vec value_lanes(const char* row, int v) {
    if constexpr (E::kBytes == 2) {
      return S::load_bf16(reinterpret_cast<const std::uint16_t*>(row) + v * kLanes);
    } else {
      return S::load(reinterpret_cast<const float*>(row) + v * kLanes);
    }
  }

  // Values for some queries from `query` on that see a part of the tile: first the keys that all of
  // them see, then each query's own. Returns the query after them.
  int accumulate_some(int query, int tile) {
    int next = query + 1;
    while (next < end_ && (next + 1 - query) * group_ <= S::kTileRows &&
           visible(next, tile) < kKeyTile) {
      ++next;
    }
    int common = visible(query, tile);
    if (next > query + 1) common = common / E::kDepth * E::kDepth;  // a whole number of lines
    accumulate(row_of(query), row_of(next) - row_of(query), 0, common);
    for (; query < next; ++query) {
      if (visible(query, tile) > common) {
        accumulate(row_of(query), group_, common, visible(query, tile));
      }
    }
    return next;
  }

  // Turns a row's first `count` scores into weights exp(score - maximum) and zeros, as words, and
  // scales what the row has gathered so far to the new maximum. Works in powers of two.
  void soften(int row, int count) {
    constexpr int kVectors = kKeyTile / kLanes;
    float* scores = scores_ + row * kKeyTile;
    typename S::Vec s[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      s[v] = S::mul(S::load(scores + v * kLanes), S::set(factor_));
    }
    if (count < kKeyTile) keep_lanes(s, count, kMinusInfinity);
    const auto most = S::max(S::max(s[0], s[1]), S::max(s[2], s[3]));
    const float largest = S::largest(most);
    if (largest > maxima_[row]) rescale(row, largest);
    const auto maximum = S::set(maxima_[row]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) s[v] = rounded(exp2<S>(S::sub(s[v], maximum)));
    if (count < kKeyTile) keep_lanes(s, count, 0);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) stage_lanes<S, E>(scores, v * kLanes, s[v]);
    // The sums are of weights as rounded, so that the normaliser matches what it divides.
    const auto total = S::add(S::add(s[0], s[1]), S::add(s[2], s[3]));
    float* sums = sums_ + row * kLanes;
    S::store(sums, S::add(S::load(sums), total));
  }

  // Replaces all but the first `count` of a tile's lanes.
  static void keep_lanes(typename S::Vec (&s)[kKeyTile / kLanes], int count, float other) {
#pragma GCC unroll 4
    for (int v = 0; v < kKeyTile / kLanes; ++v) {
      const int n = count - v * kLanes;
      s[v] = S::select(n < 0 ? 0 : n < kLanes ? n : kLanes, s[v], S::set(other));
    }
  }

  // As the cache's type would round it.
  static typename S::Vec rounded(typename S::Vec value) {
    return E::kBytes == 2 ? S::through_bf16(value) : value;
  }

  void rescale(int row, float maximum) {
    const int d = cache_.head_dim;
    const auto factor = exp2<S>(S::set(maxima_[row] - maximum));
    float* out = out_ + static_cast<std::int64_t>(row) * d;
    for (int i = 0; i < d; i += kLanes) S::store(out + i, S::mul(S::load(out + i), factor));
    float* sums = sums_ + row * kLanes;
    S::store(sums, S::mul(S::load(sums), factor));
    maxima_[row] = maximum;
  }

  // out += weights * values over keys [first, end) of the tile, in order.
  void accumulate(int row, int rows, int first, int end) {
    const int d = cache_.head_dim;
    const char* lines = values_ + static_cast<std::size_t>(first / E::kDepth) * kLine;
    const PanelView values{lines, kKeyTile / E::kDepth * kLine, d, end - first};
    gemm_cached<S, E>(values, Rows{scores_ + words_of<E>(first), kKeyTile}.from(row),
                      out_ + static_cast<std::int64_t>(row) * d, d, rows, Store::kAdd,
                      d / kPanelColumns);
  }

  void store(void* out, std::int64_t ldo) {
    const int d = cache_.head_dim;
    for (int query = begin_; query < end_; ++query) {
      const std::int64_t to = query * ldo + static_cast<std::int64_t>(kv_head_) * group_ * d;
      for (int head = 0; head < group_; ++head) {
        const int row = row_of(query) + head;
        const auto total = S::set(S::sum(S::load(sums_ + row * kLanes)));
        const float* from = out_ + static_cast<std::int64_t>(row) * d;
        for (int i = 0; i < d; i += kLanes) {
          store_lanes<S>(cache_.type, out, to + head * d + i, S::div(S::load(from + i), total),
                         kLanes);
        }
      }
    }
  }

  const KvCache& cache_;
  const AttentionTask& task_;
  int kv_head_;
  int group_;
  float factor_;  // from a product to the power of two that is its weight
  int begin_ = 0;
  int end_ = 0;
  bool few_ = false;
  const TileRows* tile_ = nullptr;
  char* keys_;
  char* values_;
  float* q_;
  float* scores_;
  float* out_;
  float* maxima_;
  float* sums_;
};

template <class S, class E>
void attention_typed(const KvCache& cache, const AttentionTask& task, int kv_head, int group,
                     const float* q, std::int64_t ldq, void* out, std::int64_t ldo, int query_begin,
                     int query_end, void* scratch) {
  AttentionBlock<S, E> block(cache, task, kv_head, group, scratch);
  const int queries = layout_attention_scratch(cache.type, cache.head_dim, group).queries;
  for (int begin = query_begin; begin < query_end; begin += queries) {
    const int end = query_end - begin < queries ? query_end : begin + queries;
    block.run(q, ldq, out, ldo, begin, end);
  }
}

template <class S>
void attention(const KvCache& cache, const AttentionTask& task, int kv_head, int group,
               const float* q, std::int64_t ldq, void* out, std::int64_t ldo, int query_begin,
               int query_end, void* scratch) {
  auto* typed = cache.type == DType::kBf16 ? attention_typed<S, typename S::Bf16>
                                           : attention_typed<S, typename S::F32>;
  typed(cache, task, kv_head, group, q, ldq, out, ldo, query_begin, query_end, scratch);
}

template <class S>
void kv_write(const KvCache& cache, const AttentionTask& task, const float* k, std::int64_t ldk,
              const float* v, std::int64_t ldv, int head_begin, int head_end) {
  const std::int64_t d = cache.head_dim;
  for (int token = 0; token < task.tokens; ++token) {
    for (int head = head_begin; head < head_end; ++head) {
      const std::int64_t to = element_of(cache, task, task.context + token, head);
      for (std::int64_t i = 0; i < d; i += kLanes) {
        const std::int64_t from = head * d + i;
        store_lanes<S>(cache.type, cache.keys, to + i, S::load(k + token * ldk + from), kLanes);
        store_lanes<S>(cache.type, cache.values, to + i, S::load(v + token * ldv + from), kLanes);
      }
    }
  }
}

}  // namespace
}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_CPU_ATTENTION_KERNEL_H_
