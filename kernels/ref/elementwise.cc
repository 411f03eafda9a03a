#include <cmath>

#include "kernels/ref/ref.h"

namespace servelab::kernels::ref {

float load(DType type, const void* data, std::int64_t i) {
  switch (type) {
    case DType::kF32:
      return static_cast<const float*>(data)[i];
    case DType::kBf16:
      return to_float(static_cast<const Bf16*>(data)[i]);
    case DType::kF16:
      return to_float(static_cast<const F16*>(data)[i]);
  }
  return 0;
}

void store(DType type, void* data, std::int64_t i, float value) {
  switch (type) {
    case DType::kF32:
      static_cast<float*>(data)[i] = value;
      break;
    case DType::kBf16:
      static_cast<Bf16*>(data)[i] = to_bf16(value);
      break;
    case DType::kF16:
      static_cast<F16*>(data)[i] = to_f16(value);
      break;
  }
}

float at(const Panels& w, int column, int k) {
  const int depth = w.type == DType::kBf16 ? 2 : 1;
  const std::int64_t panel_size = std::int64_t{padded_k(w.k)} * kPanelColumns;
  const std::int64_t line = (k / depth) * kPanelColumns + column % kPanelColumns;
  return load(w.type, w.data, column / kPanelColumns * panel_size + line * depth + k % depth);
}

void rms_norm(const float* x, std::int64_t ldx, const float* weight, float eps, int n, DType type,
              void* out, std::int64_t ldo, int rows) {
  for (int row = 0; row < rows; ++row) {
    float sum = 0;
    for (int i = 0; i < n; ++i) sum += x[row * ldx + i] * x[row * ldx + i];
    const float scale = 1 / std::sqrt(sum / static_cast<float>(n) + eps);
    for (int i = 0; i < n; ++i) {
      store(type, out, row * ldo + i, x[row * ldx + i] * scale * weight[i]);
    }
  }
}

void rope(float* x, std::int64_t ldx, const std::int32_t* positions, const float* cos,
          const float* sin, int heads, int head_dim, int rows) {
  const int half = head_dim / 2;
  for (int row = 0; row < rows; ++row) {
    const std::int64_t table = std::int64_t{positions[row]} * half;
    for (int head = 0; head < heads; ++head) {
      float* first = x + row * ldx + head * head_dim;
      float* second = first + half;
      for (int i = 0; i < half; ++i) {
        const float a = first[i];
        const float b = second[i];
        first[i] = a * cos[table + i] - b * sin[table + i];
        second[i] = b * cos[table + i] + a * sin[table + i];
      }
    }
  }
}

void swiglu(const float* gate, const float* up, std::int64_t ld, int n, DType type, void* out,
            std::int64_t ldo, int rows) {
  for (int row = 0; row < rows; ++row) {
    for (int i = 0; i < n; ++i) {
      const float g = gate[row * ld + i];
      store(type, out, row * ldo + i, g / (1 + std::exp(-g)) * up[row * ld + i]);
    }
  }
}

void widen(DType type, const void* x, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = load(type, x, i);
}

void narrow(const float* x, DType type, void* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) store(type, out, i, x[i]);
}

void add_scaled(float scale, const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += scale * x[i];
}

}  // namespace servelab::kernels::ref
