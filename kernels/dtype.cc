#include "kernels/dtype.h"

namespace servelab::kernels {

const char* name(DType type) {
  switch (type) {
    case DType::kF32:
      return "f32";
    case DType::kBf16:
      return "bf16";
    case DType::kF16:
      return "f16";
  }
  return "?";
}

float to_float(F16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t rest = value.bits & 0x7fffu;
  if (rest >= 0x7c00u) {  // infinity, or a NaN made quiet
    const std::uint32_t quiet = rest > 0x7c00u ? 0x400000u : 0;
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | (rest & 0x3ffu) << 13);
  }
  if (rest < 0x400u) {  // zero or subnormal: a small multiple of 2^-24
    const float magnitude = static_cast<float>(rest) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((rest << 13) + ((127u - 15u) << 23)));
}

F16 to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t result = 0;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and more round to infinity
    result = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: the addition rounds to a multiple of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    result = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5f);
  } else {
    const std::uint32_t odd = (magnitude >> 13) & 1u;
    result = (magnitude - ((127u - 15u) << 23) + 0xfffu + odd) >> 13;
  }
  return F16{static_cast<std::uint16_t>(sign | result)};
}

}  // namespace servelab::kernels
