// Normalisation, rotary embedding, gating and conversions, a vector at a time.
#ifndef SERVELAB_KERNELS_CPU_ELEMENTWISE_KERNEL_H_
#define SERVELAB_KERNELS_CPU_ELEMENTWISE_KERNEL_H_

#include <cstdint>

#include "kernels/cpu/exp.h"
#include "kernels/elementwise.h"

namespace servelab::kernels {
namespace {

constexpr int kLanes = 16;

// Calls body(i, lanes) over [0, n): whole vectors, then what is left.
template <class Body>
void for_vectors(std::int64_t n, Body body) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
  if (i < n) body(i, static_cast<int>(n - i));
}

template <class S>
typename S::Vec load_lanes(const float* p, int lanes) {
  return lanes == kLanes ? S::load(p) : S::load(p, lanes);
}

// Stores at element i of `out`, which is f32 or bf16.
template <class S>
void store_lanes(DType type, void* out, std::int64_t i, typename S::Vec value, int lanes) {
  if (type == DType::kF32) {
    float* p = static_cast<float*>(out) + i;
    lanes == kLanes ? S::store(p, value) : S::store(p, value, lanes);
  } else {
    std::uint16_t* p = static_cast<std::uint16_t*>(out) + i;
    lanes == kLanes ? S::store_bf16(p, value) : S::store_bf16(p, value, lanes);
  }
}

template <class S>
void rms_norm(const float* x, std::int64_t ldx, const float* weight, float eps, int n, DType type,
              void* out, std::int64_t ldo, int rows) {
  for (int row = 0; row < rows; ++row) {
    const float* in = x + row * ldx;
    auto squares = S::zero();
    for_vectors(n, [&](std::int64_t i, int lanes) {
      const auto v = load_lanes<S>(in + i, lanes);
      squares = S::fma(v, v, squares);
    });
    const float mean = S::sum(squares) / static_cast<float>(n);
    const auto scale = S::set(1 / __builtin_sqrtf(mean + eps));
    for_vectors(n, [&](std::int64_t i, int lanes) {
      const auto v = S::mul(load_lanes<S>(in + i, lanes), scale);
      store_lanes<S>(type, out, row * ldo + i, S::mul(v, load_lanes<S>(weight + i, lanes)), lanes);
    });
  }
}

template <class S>
void rope(float* x, std::int64_t ldx, const std::int32_t* positions, const float* cos,
          const float* sin, int heads, int head_dim, int rows) {
  const int half = head_dim / 2;
  for (int row = 0; row < rows; ++row) {
    const std::int64_t table = static_cast<std::int64_t>(positions[row]) * half;
    for (int head = 0; head < heads; ++head) {
      float* first = x + row * ldx + head * head_dim;
      float* second = first + half;
      for_vectors(half, [&](std::int64_t i, int lanes) {
        const auto a = load_lanes<S>(first + i, lanes);
        const auto b = load_lanes<S>(second + i, lanes);
        const auto c = load_lanes<S>(cos + table + i, lanes);
        const auto s = load_lanes<S>(sin + table + i, lanes);
        S::store(first + i, S::sub(S::mul(a, c), S::mul(b, s)), lanes);
        S::store(second + i, S::add(S::mul(b, c), S::mul(a, s)), lanes);
      });
    }
  }
}

template <class S>
void swiglu(const float* gate, const float* up, std::int64_t ld, int n, DType type, void* out,
            std::int64_t ldo, int rows) {
  for (int row = 0; row < rows; ++row) {
    for_vectors(n, [&](std::int64_t i, int lanes) {
      const auto g = load_lanes<S>(gate + row * ld + i, lanes);
      const auto u = load_lanes<S>(up + row * ld + i, lanes);
      const auto decay = exp2<S>(S::mul(g, S::set(-kLog2E)));
      const auto silu = S::div(g, S::add(S::set(1), decay));
      store_lanes<S>(type, out, row * ldo + i, S::mul(silu, u), lanes);
    });
  }
}

template <class S>
void widen(DType type, const void* x, float* out, std::int64_t n) {
  const auto* narrow = static_cast<const std::uint16_t*>(x);
  for_vectors(n, [&](std::int64_t i, int lanes) {
    if (type == DType::kF32) {
      S::store(out + i, S::load(static_cast<const float*>(x) + i, lanes), lanes);
    } else if (type == DType::kBf16) {
      S::store(out + i, S::load_bf16(narrow + i, lanes), lanes);
    } else {
      S::store(out + i, S::load_f16(narrow + i, lanes), lanes);
    }
  });
}

template <class S>
void narrow(const float* x, DType type, void* out, std::int64_t n) {
  for_vectors(n, [&](std::int64_t i, int lanes) {
    const auto value = S::load(x + i, lanes);
    if (type == DType::kF16) {
      S::store_f16(static_cast<std::uint16_t*>(out) + i, value, lanes);
    } else {
      store_lanes<S>(type, out, i, value, lanes);
    }
  });
}

template <class S>
void add_scaled(float scale, const float* x, float* y, std::int64_t n) {
  for_vectors(n, [&](std::int64_t i, int lanes) {
    const auto sum = S::fma(S::set(scale), S::load(x + i, lanes), S::load(y + i, lanes));
    S::store(y + i, sum, lanes);
  });
}

}  // namespace
}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_CPU_ELEMENTWISE_KERNEL_H_
