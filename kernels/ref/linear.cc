// GEMM and LoRA.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ref/ref.h"

namespace servelab::kernels::ref {
namespace {

// Columns of A, and of B's k, that a kind computes with.
int depth(LoraKind kind, const LoraPair& pair, int width) {
  return traits(kind).padded ? std::min(width, pair.b.k) : pair.rank;
}

float flushed(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

// sum + a * b with one rounding, without subnormal numbers.
float add_product(float a, float b, float sum) {
  return flushed(std::fma(flushed(a), flushed(b), flushed(sum)));
}

}  // namespace

void gemm(const Panels& w, const void* x, std::int64_t ldx, float* y, std::int64_t ldy, int m,
          Store store, int panel_begin, int panel_end) {
  const int end = std::min(w.n, panel_end * kPanelColumns);
  for (int i = 0; i < m; ++i) {
    for (int j = panel_begin * kPanelColumns; j < end; ++j) {
      float sum = store == Store::kAdd ? y[i * ldy + j] : 0;
      for (int k = 0; k < w.k; ++k) sum += load(w.type, x, i * ldx + k) * at(w, j, k);
      y[i * ldy + j] = sum;
    }
  }
}

void gemm_pairs(const Panels& w, const void* x, std::int64_t ldx, float* y, std::int64_t ldy, int m,
                Store store, int panel_begin, int panel_end) {
  const int end = std::min(w.n, panel_end * kPanelColumns);
  for (int i = 0; i < m; ++i) {
    for (int j = panel_begin * kPanelColumns; j < end; ++j) {
      float sum = store == Store::kAdd ? y[i * ldy + j] : 0;
      for (int k = 0; k < w.k; k += 2) {
        const bool pair = k + 1 < w.k;
        sum = add_product(pair ? load(w.type, x, i * ldx + k + 1) : 0, pair ? at(w, j, k + 1) : 0,
                          sum);
        sum = add_product(load(w.type, x, i * ldx + k), at(w, j, k), sum);
      }
      y[i * ldy + j] = sum;
    }
  }
}

void lora_shrink(LoraKind kind, const LoraRows& segment, int width, const void* x, std::int64_t ldx,
                 float* t, std::int64_t ldt) {
  const Panels& a = segment.pair->a;
  const int columns = shrink_stride(depth(kind, *segment.pair, width));
  for (int i = segment.row; i < segment.row + segment.rows; ++i) {
    for (int r = 0; r < columns; ++r) {
      float sum = 0;
      for (int k = 0; k < a.k; ++k) sum += load(a.type, x, i * ldx + k) * at(a, r, k);
      t[i * ldt + r] = sum;
    }
  }
}

void lora_expand(LoraKind kind, const LoraRows& segment, int width, const float* t,
                 std::int64_t ldt, float* y, std::int64_t ldy, int column_begin, int column_end) {
  const LoraPair& pair = *segment.pair;
  const int ranks = depth(kind, pair, width);
  for (int i = segment.row; i < segment.row + segment.rows; ++i) {
    for (int j = column_begin; j < column_end; ++j) {
      float sum = 0;
      for (int r = 0; r < ranks; ++r) {
        const float value = t[i * ldt + r];
        sum += (pair.b.type == DType::kBf16 ? to_float(to_bf16(value)) : value) * at(pair.b, j, r);
      }
      y[i * ldy + j] += pair.scale * (sum + 0.0f);  // -0 becomes +0, as padding would make it
    }
  }
}

void lora_merge(const LoraPair& pair, const float* base, float* out, int row_begin, int row_end) {
  const int k = pair.a.k;
  for (int j = row_begin; j < row_end; ++j) {
    for (int i = 0; i < k; ++i) {
      const std::int64_t index = std::int64_t{j - row_begin} * k + i;
      float sum = 0;
      for (int r = 0; r < pair.rank; ++r) sum += at(pair.b, j, r) * at(pair.a, r, i);
      out[index] = base[index] + pair.scale * sum;
    }
  }
}

}  // namespace servelab::kernels::ref
