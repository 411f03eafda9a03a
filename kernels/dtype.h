// Element types of kernels, and exact or correctly rounded conversions between them.
#ifndef SERVELAB_KERNELS_DTYPE_H_
#define SERVELAB_KERNELS_DTYPE_H_

#include <bit>
#include <cstddef>
#include <cstdint>

namespace servelab::kernels {

enum class DType : std::uint8_t { kF32, kBf16, kF16 };

// The upper half of a float.
struct Bf16 {
  std::uint16_t bits = 0;
};

// IEEE 754 binary16.
struct F16 {
  std::uint16_t bits = 0;
};

constexpr std::size_t bytes_of(DType type) { return type == DType::kF32 ? 4 : 2; }
const char* name(DType type);  // "f32", "bf16", "f16"

constexpr float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// Rounds to nearest, ties to even. A NaN stays a (quiet) NaN.
constexpr Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return Bf16{static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  }
  return Bf16{static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

float to_float(F16 value);
F16 to_f16(float value);  // rounds to nearest even; overflow becomes infinity

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_DTYPE_H_
