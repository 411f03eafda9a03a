// y = x W^T (+ y) on panels, from tiles.
#ifndef SERVELAB_KERNELS_CPU_GEMM_KERNEL_H_
#define SERVELAB_KERNELS_CPU_GEMM_KERNEL_H_

#include "kernels/cpu/elementwise_kernel.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/thread_buffer.h"
#include "kernels/gemm.h"

namespace servelab::kernels {
namespace {

// Lines between the weights in use and those asked for, when they stream from memory.
constexpr std::size_t kPrefetchAhead = 48 * kLine;

// Bytes of staged x that all panels pass by for. As floats they stay in the L2 cache. Pairs may
// fill a core's share of the L3 cache, from which tiles take no more than 4 bytes a cycle, so that
// weights pass by less often: with a quarter of it, 512 rows and k = 11008 took a tenth longer.
template <class E>
constexpr int kBlockBytes = kPairs<E> ? 1 << 21 : 1 << 20;

// Rows from which on widening panels pays: every tile of rows saves a tenth of its time, and the
// widening costs about that of one tile.
constexpr int kRowsToWiden = 96;

template <class S, class E, int P>
struct GemmTile {
  template <int R>
  static void run(const PanelView& w, int panel, Rows x, float* y, std::int64_t ldy, Store store,
                  Prefetch prefetch) {
    Tile<S, E, R, P> tile;
    const int last = w.columns_of(panel + P - 1);  // only the last panel can be narrow
    if (store == Store::kAdd) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
          const float* from = y + r * ldy + p * kPanelColumns;
          tile.sums[r][p] = p + 1 < P ? S::load(from) : S::load(from, last);
        }
      }
    } else {
      tile.clear();
    }
    tile.multiply(w, panel, x, prefetch);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        float* to = y + r * ldy + p * kPanelColumns;
        p + 1 < P ? S::store(to, tile.sums[r][p]) : S::store(to, tile.sums[r][p], last);
      }
    }
  }
};

// Few rows of floats: the weights stream through once, a panel at a time. (Pairs go by groups: a
// single panel would have its additions wait for each other.)
template <class S, class E>
void gemm_stream(const PanelView& w, Rows x, float* y, std::int64_t ldy, int m, Store store,
                 int panel_begin, int panel_end) {
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    for_rows<GemmTile<S, E, 1>, S::kTileRows>(m, w, panel, x, y + panel * kPanelColumns, ldy, store,
                                              Prefetch{w.panel(panel) + kPrefetchAhead, kChunk});
  }
}

// Rows of one block with P panels; meanwhile fetches the P panels that follow.
template <class S, class E, int P>
void gemm_group(const PanelView& w, Rows x, float* y, std::int64_t ldy, int m, Store store,
                int panel, int panel_end) {
  const int passes = (m + S::kTileRows - 1) / S::kTileRows;
  Prefetch prefetch;
  if (panel + P < panel_end) prefetch = {w.panel(panel + P), (kChunk * P + passes - 1) / passes};
  const int chunks = w.k / E::kDepth / kChunk;
  y += panel * kPanelColumns;
  for (int row = 0; row < m;) {
    const int rows = next_rows(m - row, S::kTileRows);
    for_rows<GemmTile<S, E, P>, S::kTileRows>(rows, w, panel, x.from(row), y + row * ldy, ldy,
                                              store, prefetch);
    prefetch.at += static_cast<std::size_t>(chunks * prefetch.lines) * kLine;
    row += rows;
  }
}

// As f32, behind the rows of x in this thread's buffer: P panels that a block of many rows uses.
// Widening them once leaves the tiles nothing but multiply-adds; the products are the same, so are
// their sums.
template <class S, int P>
PanelView widen_panels(const PanelView& w, int panel, float* wide) {
  const int steps = (w.k + 1) / 2;
  for (int p = 0; p < P; ++p) {
    const char* lines = w.panel(panel + p);
    float* out = wide + static_cast<std::ptrdiff_t>(p * steps) * 2 * kPanelColumns;
    for (int i = 0; i < steps; ++i, out += 2 * kPanelColumns) {
      typename S::Vec parts[2];
      S::Bf16::split(lines + static_cast<std::size_t>(i) * kLine, parts);
      S::store(out, parts[0]);
      S::store(out + kPanelColumns, parts[1]);
    }
  }
  return {reinterpret_cast<const char*>(wide), static_cast<std::size_t>(steps) * 2 * kLine,
          w.columns - panel * kPanelColumns, w.k};
}

// One block of many rows with bf16 panels, by way of f32 ones.
template <class S>
void gemm_widened(const PanelView& w, Rows x, float* y, std::int64_t ldy, int m, Store store,
                  int panel_begin, int panel_end, float* wide) {
  constexpr int kPanels = S::kTilePanels;
  const int passes = (m + S::kTileRows - 1) / S::kTileRows;
  const int chunks = w.k / kChunk;
  int panel = panel_begin;
  while (panel + kPanels <= panel_end) {
    const PanelView group = widen_panels<S, kPanels>(w, panel, wide);
    Prefetch prefetch;
    const int next = panel + kPanels;
    if (next < panel_end) {  // its bf16 lines are half as many as the steps of the tiles
      prefetch = {w.panel(next), (kChunk / 2 * kPanels + passes - 1) / passes};
    }
    for (int row = 0; row < m;) {
      const int rows = next_rows(m - row, S::kTileRows);
      for_rows<GemmTile<S, typename S::F32, kPanels>, S::kTileRows>(
          rows, group, 0, x.from(row), y + row * ldy + panel * kPanelColumns, ldy, store, prefetch);
      prefetch.at += static_cast<std::size_t>(chunks * prefetch.lines) * kLine;
      row += rows;
    }
    panel = next;
  }
  for (; panel < panel_end; ++panel) {
    gemm_group<S, typename S::Bf16, 1>(w, x, y, ldy, m, store, panel, panel_end);
  }
}

// Very few rows take four panels at once, so that no addition waits for the one before, and leave
// fetching to the hardware. Returns the first panel that is left.
template <class S, class E>
int gemm_wide(const PanelView& w, Rows x, float* y, std::int64_t ldy, int m, Store store, int panel,
              int panel_end) {
  constexpr int kWide = 4;
  for (; panel + kWide <= panel_end; panel += kWide) {
    for_rows<GemmTile<S, E, kWide>, S::kWideRows>(m, w, panel, x, y + panel * kPanelColumns, ldy,
                                                  store, Prefetch{});
  }
  return panel;
}

template <class S, class E>
void gemm_rows(const PanelView& w, Rows x, float* y, std::int64_t ldy, int m, Store store,
               int panel_begin, int panel_end) {
  if (m <= 0) return;
  if (kPairs<E> && m <= S::kWideRows) {
    panel_begin = gemm_wide<S, E>(w, x, y, ldy, m, store, panel_begin, panel_end);
  }
  if (!kPairs<E> && m <= S::kTileRows) {
    gemm_stream<S, E>(w, x, y, ldy, m, store, panel_begin, panel_end);
    return;
  }
  constexpr int kPanels = S::kTilePanels;
  int panel = panel_begin;
  for (; panel + kPanels <= panel_end; panel += kPanels) {
    gemm_group<S, E, kPanels>(w, x, y, ldy, m, store, panel, panel_end);
  }
  for (; panel < panel_end; ++panel) {
    gemm_group<S, E, 1>(w, x, y, ldy, m, store, panel, panel_end);
  }
}

// The same for weights that are in cache already.
template <class S, class E>
void gemm_cached(const PanelView& w, Rows x, float* y, std::int64_t ldy, int m, Store store,
                 int panel_end) {
  const int wide = m <= S::kWideRows ? gemm_wide<S, E>(w, x, y, ldy, m, store, 0, panel_end) : 0;
  if (wide < panel_end) gemm_rows<S, E>(w, x, y, ldy, m, store, wide, panel_end);
}

// Words between staged rows. It keeps rows of a power of two apart in the cache, which holds only
// 12 lines of the same address modulo 4096.
inline std::ptrdiff_t staged_stride(int words) { return (words + 15) / 16 * 16 + 16; }

// Copies rows of x, of the type of E, into `out` as words.
template <class S, class E>
Rows stage_rows(const void* x, std::int64_t ldx, int rows, int k, float* out) {
  const std::ptrdiff_t stride = staged_stride(words_of<E>(k));
  for (int row = 0; row < rows; ++row) {
    const char* from = static_cast<const char*>(x) + row * ldx * E::kBytes;
    if constexpr (kPairs<E>) {
      out[row * stride + k / 2] = 0;
      __builtin_memcpy(out + row * stride, from, static_cast<std::size_t>(k) * E::kBytes);
    } else {
      widen<S>(E::kBytes == 2 ? DType::kBf16 : DType::kF32, from, out + row * stride, k);
    }
  }
  return {out, stride};
}

// Stores 16 values from element i of a row of words on: as f32 or as pairs, and as the type of E
// rounds them. Subnormal numbers may become zero.
template <class S, class E>
void stage_lanes(float* row, std::int64_t i, typename S::Vec value) {
  if constexpr (kPairs<E>) {
    S::store_pairs(reinterpret_cast<std::uint16_t*>(row) + i, value);
  } else {
    S::store(row + i, E::kBytes == 2 ? S::through_bf16(value) : value);
  }
}

// `wide` has room for kTilePanels widened panels, where E is widened.
template <class S, class E>
void gemm_block(const PanelView& w, Rows x, float* y, std::int64_t ldy, int m, Store store,
                int panel_begin, int panel_end, float* wide) {
  if constexpr (E::kWords > 1) {
    if (m >= kRowsToWiden) {
      gemm_widened<S>(w, x, y, ldy, m, store, panel_begin, panel_end, wide);
      return;
    }
  }
  gemm_rows<S, E>(w, x, y, ldy, m, store, panel_begin, panel_end);
}

template <class S, class E>
void gemm_typed(const Panels& w, const void* x, std::int64_t ldx, float* y, std::int64_t ldy, int m,
                Store store, int panel_begin, int panel_end) {
  const std::ptrdiff_t stride = staged_stride(words_of<E>(w.k));
  const auto tiles = static_cast<int>(kBlockBytes<E> / 4 / stride / S::kTileRows);
  const int block = (tiles < 1 ? 1 : tiles) * S::kTileRows;
  const std::int64_t staged = next_rows(m, block) * stride;
  const std::int64_t widened =
      E::kWords > 1 ? std::int64_t{S::kTilePanels} * (w.k + 1) * kPanelColumns : 0;
  auto* const buffer = static_cast<float*>(
      thread_buffer(static_cast<std::size_t>(staged + widened) * sizeof(float)));
  for (int row = 0; row < m;) {
    const int rows = next_rows(m - row, block);
    const Rows in = stage_rows<S, E>(static_cast<const char*>(x) + row * ldx * E::kBytes, ldx, rows,
                                     w.k, buffer);
    gemm_block<S, E>(view(w), in, y + row * ldy, ldy, rows, store, panel_begin, panel_end,
                     buffer + staged);
    row += rows;
  }
}

template <class S>
void gemm(const Panels& w, const void* x, std::int64_t ldx, float* y, std::int64_t ldy, int m,
          Store store, int panel_begin, int panel_end) {
  if (m <= 0) return;
  auto* product =
      w.type == DType::kF32 ? gemm_typed<S, typename S::F32> : gemm_typed<S, typename S::Bf16>;
  product(w, x, ldx, y, ldy, m, store, panel_begin, panel_end);
}

}  // namespace
}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_CPU_GEMM_KERNEL_H_
