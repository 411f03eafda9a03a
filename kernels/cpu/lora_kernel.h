// LoRA's shrink, expand and merge from the GEMM's tiles.
#ifndef SERVELAB_KERNELS_CPU_LORA_KERNEL_H_
#define SERVELAB_KERNELS_CPU_LORA_KERNEL_H_

#include "kernels/cpu/gemm_kernel.h"
#include "kernels/cpu/thread_buffer.h"
#include "kernels/lora.h"

namespace servelab::kernels {
namespace {

// Ranks that a kind computes with.
inline int lora_depth(LoraKind kind, const LoraPair& pair, int width) {
  if (!traits(kind).padded) return pair.rank;
  return width < pair.b.k ? width : pair.b.k;
}

// Rows that a kind computes together.
inline int lora_rows(LoraKind kind, int rows) { return traits(kind).by_row ? 1 : rows; }

template <class S>
void lora_shrink(LoraKind kind, const LoraRows& segment, int width, const void* x, std::int64_t ldx,
                 float* t, std::int64_t ldt) {
  Panels a = segment.pair->a;
  const int panels = (lora_depth(kind, *segment.pair, width) + kPanelColumns - 1) / kPanelColumns;
  a.n = panels * kPanelColumns;  // the panels' zeros are written too
  const std::int64_t element = a.type == DType::kF32 ? 4 : 2;
  const int together = lora_rows(kind, segment.rows);
  for (int row = segment.row; row < segment.row + segment.rows; row += together) {
    gemm<S>(a, static_cast<const char*>(x) + row * ldx * element, ldx, t + row * ldt, ldt, together,
            Store::kSet, 0, panels);
  }
}

// y += scale * t * B^T on one tile.
template <class S, class E>
struct ExpandTile {
  template <int R>
  static void run(const PanelView& b, int panel, Rows t, float scale, float* y, std::int64_t ldy,
                  int columns, Prefetch prefetch) {
    Tile<S, E, R, 1> tile;
    tile.clear();
    tile.multiply(b, panel, t, prefetch);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      // Padding would turn a sum of -0 (an underflow) into +0: so does this, for every kind.
      const auto sum = S::add(tile.sums[r][0], S::zero());
      float* to = y + r * ldy;
      if (columns == kPanelColumns) {
        S::store(to, S::fma(S::set(scale), sum, S::load(to)));
      } else {
        S::store(to, S::fma(S::set(scale), sum, S::load(to, columns)), columns);
      }
    }
  }
};

// Panels of B whose first `k` ranks are in use.
template <class S, class E>
void expand_panels(const PanelView& b, Rows t, float scale, float* y, std::int64_t ldy, int rows,
                   int column_begin, int column_end) {
  const int lines = b.k / E::kDepth < kChunk ? b.k / E::kDepth : kChunk;
  const auto ahead = kPrefetchAhead / b.stride + 1;
  for (int column = column_begin; column < column_end; column += kPanelColumns) {
    const int panel = column / kPanelColumns;
    const int left = column_end - column;
    const Prefetch prefetch{b.panel(panel) + ahead * b.stride, lines};
    for_rows<ExpandTile<S, E>, S::kTileRows>(rows, b, panel, t, scale, y + column, ldy,
                                             left < kPanelColumns ? left : kPanelColumns, prefetch);
  }
}

// Copies rows of t. The last vector is filled up with zeros.
template <class S, class E>
Rows stage_shrunk(const float* t, std::int64_t ldt, int rows, int ranks) {
  const std::ptrdiff_t stride = (ranks + 15) / 16 * 16;
  const std::size_t size = static_cast<std::size_t>(rows) * static_cast<std::size_t>(stride);
  auto* out = static_cast<float*>(thread_buffer(size * sizeof(float)));
  for (int row = 0; row < rows; ++row) {
    for_vectors(ranks, [&](std::int64_t i, int lanes) {
      stage_lanes<S, E>(out + row * stride, i, load_lanes<S>(t + row * ldt + i, lanes));
    });
  }
  return {out, stride};
}

template <class S, class E>
void expand_rows(const PanelView& b, int most, float scale, const LoraRows& segment, const float* t,
                 std::int64_t ldt, float* y, std::int64_t ldy, int column_begin, int column_end) {
  const int end = segment.row + segment.rows;
  for (int row = segment.row; row < end;) {
    const int rows = next_rows(end - row, most);
    expand_panels<S, E>(b, stage_shrunk<S, E>(t + row * ldt, ldt, rows, b.k), scale, y + row * ldy,
                        ldy, rows, column_begin, column_end);
    row += rows;
  }
}

template <class S>
void lora_expand(LoraKind kind, const LoraRows& segment, int width, const float* t,
                 std::int64_t ldt, float* y, std::int64_t ldy, int column_begin, int column_end) {
  const LoraPair& pair = *segment.pair;
  PanelView b = view(pair.b);
  b.k = lora_depth(kind, pair, width);
  auto* expand = pair.b.type == DType::kF32 ? expand_rows<S, typename S::F32>
                                            : expand_rows<S, typename S::Bf16>;
  expand(b, lora_rows(kind, S::kTileRows), pair.scale, segment, t, ldt, y, ldy, column_begin,
         column_end);
}

// Element [column][k] of panels, as a float.
inline float panel_element(DType type, const PanelView& w, int column, int k) {
  const char* panel = w.panel(column / kPanelColumns);
  const int at = column % kPanelColumns;
  if (type == DType::kF32) {
    return reinterpret_cast<const float*>(panel)[k * kPanelColumns + at];
  }
  const auto bits =
      reinterpret_cast<const std::uint16_t*>(panel)[(k / 2 * kPanelColumns + at) * 2 + k % 2];
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
}

// out = base + scale * sum over r of b[r] * a[r], for one row of n elements; a[ranks][n].
template <class S>
void merge_row(const float* a, const float* b, int ranks, float scale, const float* base,
               float* out, int n) {
  constexpr int kWide = 4;
  int i = 0;
  for (; i + kWide * kPanelColumns <= n; i += kWide * kPanelColumns) {
    typename S::Vec sums[kWide] = {S::zero(), S::zero(), S::zero(), S::zero()};
    for (int r = 0; r < ranks; ++r) {
      const float* row = a + static_cast<std::int64_t>(r) * n + i;
#pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) {
        sums[v] = S::fma(S::set(b[r]), S::load(row + v * kPanelColumns), sums[v]);
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) {
      const int at = i + v * kPanelColumns;
      S::store(out + at, S::fma(S::set(scale), sums[v], S::load(base + at)));
    }
  }
  for (; i < n; i += kPanelColumns) {
    const int left = n - i < kPanelColumns ? n - i : kPanelColumns;
    auto sum = S::zero();
    for (int r = 0; r < ranks; ++r) {
      const float* row = a + static_cast<std::int64_t>(r) * n + i;
      sum = S::fma(S::set(b[r]), S::load(row, left), sum);
    }
    S::store(out + i, S::fma(S::set(scale), sum, S::load(base + i, left)), left);
  }
}

template <class S>
void lora_merge(const LoraPair& pair, const float* base, float* out, int row_begin, int row_end) {
  const PanelView a = view(pair.a);
  const PanelView b = view(pair.b);
  const auto size = static_cast<std::size_t>(pair.rank) * static_cast<std::size_t>(a.k + 1);
  auto* rows_of_a = static_cast<float*>(thread_buffer(size * sizeof(float)));
  float* row_of_b = rows_of_a + size - pair.rank;
  for (int r = 0; r < pair.rank; ++r) {
    float* row = rows_of_a + static_cast<std::int64_t>(r) * a.k;
    for (int i = 0; i < a.k; ++i) row[i] = panel_element(pair.a.type, a, r, i);
  }
  for (int j = row_begin; j < row_end; ++j) {
    for (int r = 0; r < pair.rank; ++r) row_of_b[r] = panel_element(pair.b.type, b, j, r);
    const std::int64_t at = static_cast<std::int64_t>(j - row_begin) * a.k;
    merge_row<S>(rows_of_a, row_of_b, pair.rank, pair.scale, base + at, out + at, a.k);
  }
}

}  // namespace
}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_CPU_LORA_KERNEL_H_
