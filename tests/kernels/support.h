// What the kernel tests share: buffers between sentinels, random contents, and one parameter per
// {instruction set, element type}.
#ifndef SERVELAB_TESTS_KERNELS_SUPPORT_H_
#define SERVELAB_TESTS_KERNELS_SUPPORT_H_

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/ops.h"
#include "kernels/ref/ref.h"

namespace servelab::kernels {

// `bytes` of memory, 64-byte aligned, with a pattern on both sides and within that check() looks
// for. The content starts as the pattern too: as bf16 and f32 it is a NaN.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes)
      : bytes_(bytes), all_(bytes + 2 * kGuard + 64, static_cast<char>(kPattern)) {
    const auto address = reinterpret_cast<std::uintptr_t>(all_.data() + kGuard);
    begin_ = kGuard + (64 - address % 64) % 64;
  }
  void* data() { return all_.data() + begin_; }
  float* floats() { return static_cast<float*>(data()); }

  // Whether every byte outside the buffer is untouched.
  bool intact() const {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      const bool outside = i < begin_ || i >= begin_ + bytes_;
      if (outside && static_cast<unsigned char>(all_[i]) != kPattern) return false;
    }
    return true;
  }
  static bool untouched(float value) { return std::bit_cast<std::uint32_t>(value) == 0xffffffffu; }

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr unsigned char kPattern = 0xff;
  std::size_t bytes_;
  std::size_t begin_ = 0;
  std::vector<char> all_;
};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int whole(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  float real(float scale = 1) {
    return std::uniform_real_distribution<float>(-scale, scale)(engine_);
  }
  double fraction() { return std::uniform_real_distribution<double>(0, 1)(engine_); }
  std::vector<float> reals(std::size_t n, float scale = 1) {
    std::vector<float> result(n);
    for (float& x : result) x = real(scale);
    return result;
  }
  std::mt19937& engine() { return engine_; }

 private:
  std::mt19937 engine_;
};

// rows x width values of `type`, `ld` elements apart; what lies between is NaN.
inline void fill(Guarded& buffer, DType type, int rows, int width, std::int64_t ld, Random& random,
                 float scale = 1) {
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < width; ++j) ref::store(type, buffer.data(), i * ld + j, random.real(scale));
  }
}

// A random packed matrix and the memory behind it.
struct Packed {
  Packed(DType type, int n, int k, Random& random, float scale = 1)
      : buffer(packed_bytes(type, n, k)) {
    const std::vector<float> rows =
        random.reals(static_cast<std::size_t>(n) * static_cast<std::size_t>(k), scale);
    pack_panels(DType::kF32, rows.data(), k, n, k, type, buffer.data(), 0, panels_of(n));
    panels = {type, n, k, buffer.data()};
  }
  Guarded buffer;
  Panels panels;
};

// Whether a result that sums `terms` products of magnitude up to `scale` is near enough.
inline ::testing::AssertionResult near(float got, float expected, DType type, int terms,
                                       float scale = 1) {
  // Sums differ in order and in fused roundings; dpbf16 also rounds each pair.
  const float unit = type == DType::kBf16 ? 1e-6f : 4e-7f;
  const float tolerance = scale * (1e-6f + unit * std::sqrt(static_cast<float>(terms)) * 4);
  if (std::fabs(got - expected) <= tolerance * (1 + std::fabs(expected))) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << got << " instead of " << expected;
}

inline bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

inline std::string isa_name(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return "reference";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
    case Isa::kAvx512Bf16Dot:
      return "avx512bf16dot";
  }
  return "unknown";
}

// Runs over {instruction set} x {element type}; skips, saying so, what this processor lacks.
class KernelTest : public ::testing::TestWithParam<std::tuple<Isa, DType>> {
 protected:
  void SetUp() override {
    if (!supported(isa())) GTEST_SKIP() << "this processor lacks " << isa_name(isa());
  }
  Isa isa() const { return std::get<0>(GetParam()); }
  DType type() const { return std::get<1>(GetParam()); }
  const Ops& ops() const { return kernels::ops(isa()); }
};

inline auto every_isa_and_type() {
  return ::testing::Combine(::testing::ValuesIn(kIsas),
                            ::testing::Values(DType::kF32, DType::kBf16));
}
inline std::string parameter_name(const ::testing::TestParamInfo<std::tuple<Isa, DType>>& info) {
  return isa_name(std::get<0>(info.param)) + "_" + name(std::get<1>(info.param));
}

}  // namespace servelab::kernels

#endif  // SERVELAB_TESTS_KERNELS_SUPPORT_H_
