// The inner loop of every product with panels: a tile of R rows of x with P neighbouring panels, in
// registers, over all of k. The panels' elements are E: S::F32 or S::Bf16. Of x they take words of
// 4 bytes, E::kWords for each line: f32, or pairs of bf16 where lines are multiplied as pairs (one
// word for a line of two k; gemm_kernel.h stages them). Written once for the instruction sets (S:
// Avx512, Avx512Dot or Avx2).
#ifndef SERVELAB_KERNELS_CPU_GEMM_TILE_H_
#define SERVELAB_KERNELS_CPU_GEMM_TILE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/panels.h"

namespace servelab::kernels {
namespace {

constexpr std::size_t kLine = 64;  // bytes: 16 columns of one step of k, and a cache line

// A packed matrix as the kernels see it: panels of `stride` bytes, of which the first k are used.
struct PanelView {
  const char* data;
  std::size_t stride;
  int columns;
  int k;

  const char* panel(int index) const { return data + static_cast<std::size_t>(index) * stride; }
  int columns_of(int index) const {
    const int left = columns - index * kPanelColumns;
    return left < kPanelColumns ? left : kPanelColumns;
  }
};

inline PanelView view(const Panels& w) {
  const std::size_t element = w.type == DType::kF32 ? 4 : 2;
  return {static_cast<const char*>(w.data),
          static_cast<std::size_t>((w.k + 1) / 2 * 2) * kPanelColumns * element, w.n, w.k};
}

// Rows of x, `stride` words apart. A pair's bits are no float: they are only loaded.
struct Rows {
  const float* data;
  std::ptrdiff_t stride;

  Rows from(int row) const { return {data + row * stride, stride}; }
};

// Whether a word of x is a pair of bf16.
template <class E>
constexpr bool kPairs = E::kWords < E::kDepth;

// Words of x over k. An odd k is filled up: a pair with a zero.
template <class E>
constexpr int words_of(int k) {
  return kPairs<E> ? (k + 1) / 2 : k;
}

// Weights to fetch while a tile computes: the next `lines` lines at `at` in every kChunk steps.
// What a core reads from memory is bounded by how many lines it has asked for, and the hardware
// alone asks for too few, since it stops at each page. Floats' lines wait in the L2 cache; pairs
// are used up so fast that 8 rows took a sixth longer so, and go to L1.
struct Prefetch {
  const char* at = nullptr;
  int lines = 0;
};
constexpr int kChunk = 8;

template <class S, class E, int R, int P>
struct Tile {
  using Vec = typename S::Vec;
  Vec sums[R][P];

  void clear() {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) sums[r][p] = S::zero();
    }
  }

  // sums[r][p] += x[r] * panel p, k ascending.
  void multiply(const PanelView& w, int panel, Rows x, Prefetch prefetch) {
    const int steps = w.k / E::kDepth;
    const char* lines = w.panel(panel);
    const float* rows[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) rows[r] = x.data + r * x.stride;
    int i = 0;
    for (; i + kChunk <= steps; i += kChunk) {
      for (int line = 0; line < prefetch.lines; ++line, prefetch.at += kLine) {
        __builtin_prefetch(prefetch.at, 0, kPairs<E> ? 3 : 2);
      }
      for (int j = 0; j < kChunk; ++j) step<false>(lines, w.stride, rows, i + j);
    }
    for (; i < steps; ++i) step<false>(lines, w.stride, rows, i);
    if constexpr (E::kDepth == 2) {
      if (w.k % 2 != 0) step<true>(lines, w.stride, rows, i);
    }
  }

 private:
  // One line or, with `Half`, the first of its two k: what it holds of the second does not matter.
  template <bool Half>
  __attribute__((always_inline)) void step(const char* lines, std::size_t stride,
                                           const float* const (&rows)[R], int i) {
    Vec w[P][E::kWords];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      E::split(lines + static_cast<std::size_t>(p) * stride + static_cast<std::size_t>(i) * kLine,
               w[p]);
      if constexpr (Half && kPairs<E>) w[p][0] = S::first_of_pairs(w[p][0]);
    }
#pragma GCC unroll 2
    for (int d = 0; d < (Half ? 1 : E::kWords); ++d) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Vec x = S::set(rows[r][i * E::kWords + d]);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
          if constexpr (kPairs<E>) {
            sums[r][p] = S::dot(w[p][d], x, sums[r][p]);
          } else {
            sums[r][p] = S::fma(w[p][d], x, sums[r][p]);
          }
        }
      }
    }
  }
};

// Calls Body::run<R>(args...) for `rows` in 1 .. Max.
template <class Body, int Max, class... Args>
void for_rows(int rows, Args&&... args) {
  if constexpr (Max > 1) {
    if (rows < Max) {
      for_rows<Body, Max - 1>(rows, args...);
      return;
    }
  }
  Body::template run<Max>(args...);
}

// Rows of the next of the nearly equal blocks that `left` rows are cut into.
inline int next_rows(int left, int largest) {
  const int blocks = (left + largest - 1) / largest;
  return (left + blocks - 1) / blocks;
}

}  // namespace
}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_CPU_GEMM_TILE_H_
