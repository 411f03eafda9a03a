// LoRA beside the base weights: y += scale * (x * A^T) * B^T for each row with its own adapter, in
// two halves: shrink t = x * A^T, expand y += scale * t * B^T (Punica 4, S-LoRA 4).
//
// Batch invariant like the GEMM: all four kinds give the same bits for a row.
#ifndef SERVELAB_KERNELS_LORA_H_
#define SERVELAB_KERNELS_LORA_H_

#include <cstdint>

#include "kernels/lora_kind.h"
#include "kernels/panels.h"

namespace servelab::kernels {

// One adapter's pair for one linear layer. Held at `rank` columns or padded with zeros up to
// a.n == b.k == the width of its slot.
struct LoraPair {
  Panels a;  // A[width, in]
  Panels b;  // B[out, width]
  int rank = 0;
  float scale = 0;  // lora_alpha / r, or lora_alpha / sqrt(r)
};

// Rows [row, row + rows) of x, t and y belong to one adapter; null: to the base model.
struct LoraRows {
  int row = 0;
  int rows = 0;
  const LoraPair* pair = nullptr;
};

// The widest row of t that `shrink` writes, in floats: width rounded up to whole panels.
constexpr int shrink_stride(int width) { return panels_of(width) * kPanelColumns; }

// t[rows, shrink_stride(..)] (f32, row stride ldt) = x * A^T. Computes for the segment's rank
// (kSgmv, kMbgmv) or for `width` columns (kBgmv, kEinsum: at most those of the slot), in whole
// panels. Panels of A beyond that are not read. `x` has A's type. kEinsum is as kBgmv here, but all
// rows at once.
using LoraShrinkFn = void(LoraKind kind, const LoraRows& segment, int width, const void* x,
                          std::int64_t ldx, float* t, std::int64_t ldt);

// y[rows, column_begin .. column_end) += scale * t * B^T; column_begin is a multiple of 16. With
// bf16, t is rounded to bf16 first. y: f32, row stride ldy, starting at this layer's column 0.
using LoraExpandFn = void(LoraKind kind, const LoraRows& segment, int width, const float* t,
                          std::int64_t ldt, float* y, std::int64_t ldy, int column_begin,
                          int column_end);

// The batch's segments in one go: what serving code and benchmarks call. Segments are disjoint and
// may leave rows out. `width`: the largest rank of the batch (used by kBgmv and kEinsum). kEinsum
// computes every distinct pair over rows [0, m) and keeps a row's own; `scratch` then holds
// m * shrink_stride(width) floats for each thread.
struct LoraBatch {
  LoraKind kind = LoraKind::kSgmv;
  const LoraRows* segments = nullptr;
  int count = 0;
  int rows = 0;  // m
  int width = 0;
};

struct Ops;

// This thread's share (part of parts) of the shrink of a batch; shares are (segment, row, panel)
// pieces of about equal bytes. No thread may expand before all have shrunk.
void lora_shrink(const Ops& ops, const LoraBatch& batch, const void* x, std::int64_t ldx, float* t,
                 std::int64_t ldt, float* scratch, int part, int parts);

// Expands rows [row_begin, row_end) and columns [column_begin, column_end) of y.
void lora_expand(const Ops& ops, const LoraBatch& batch, const float* t, std::int64_t ldt, float* y,
                 std::int64_t ldy, int row_begin, int row_end, int column_begin, int column_end);

// --- merging ---

// Row-major f32 rows [row_begin, row_end) of W + scale * B * A, where `base` holds those rows of W
// (row stride k); `out` may be `base`. r ascends, so the result does not depend on the range.
// Restoring is not a computation: keep the base weights and return to them, which is exact.
using LoraMergeFn = void(const LoraPair& pair, const float* base, float* out, int row_begin,
                         int row_end);

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_LORA_H_
