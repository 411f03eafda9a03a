// The layout of every prepacked matrix: weights of linear layers, and A and B of LoRA adapters. The
// same for every instruction set, so that one packing serves all of them.
//
// W[n, k] is cut into panels of 16 output columns (rows of W); the last is filled up with zeros. k
// is filled up to an even number.
//   bf16  [n / 16][k / 2][16][2]   one 64-byte line holds 16 columns of two neighbouring k
//   f32   [n / 16][k][16]
// Panels are contiguous, so a column range is a contiguous stretch of memory.
#ifndef SERVELAB_KERNELS_PANELS_H_
#define SERVELAB_KERNELS_PANELS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace servelab::kernels {

inline constexpr int kPanelColumns = 16;

constexpr int panels_of(int n) { return (n + kPanelColumns - 1) / kPanelColumns; }
constexpr int padded_k(int k) { return (k + 1) / 2 * 2; }

// A packed matrix that someone else owns; 64-byte aligned. `type` is kF32 or kBf16.
struct Panels {
  DType type = DType::kF32;
  int n = 0;
  int k = 0;
  const void* data = nullptr;

  std::size_t panel_bytes() const {
    return static_cast<std::size_t>(padded_k(k)) * kPanelColumns * bytes_of(type);
  }
};

constexpr std::size_t packed_bytes(DType type, int n, int k) {
  return static_cast<std::size_t>(panels_of(n)) * static_cast<std::size_t>(padded_k(k)) *
         kPanelColumns * bytes_of(type);
}

// Packs panels [panel_begin, panel_end) of the row-major W[n, k] in `source` (row stride `ld`
// elements, any DType) into `packed`, which has packed_bytes(type, n, k). Conversion to bf16 rounds
// to nearest even.
void pack_panels(DType source_type, const void* source, std::int64_t ld, int n, int k, DType type,
                 void* packed, int panel_begin, int panel_end);

// The inverse, into row-major f32 with row stride `ld`. Exact.
void unpack_panels(const Panels& packed, float* out, std::int64_t ld, int panel_begin,
                   int panel_end);

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_PANELS_H_
