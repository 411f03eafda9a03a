// The values of random tensors: element i of a tensor is a function of its key and of i alone,
// through integer arithmetic and one rounded multiplication. The same on every machine and device.
#ifndef SERVELAB_KERNELS_RANDOM_H_
#define SERVELAB_KERNELS_RANDOM_H_

#include <cstdint>

namespace servelab::kernels {

enum class RandomKind : std::uint8_t {
  kBell,     // the sum of four uniform values: never beyond 3.5 deviations
  kUniform,  // in (-bound, bound)
};

// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014) on a counter.
constexpr std::uint64_t random_bits(std::uint64_t key, std::uint64_t i) {
  std::uint64_t x = key + (i + 1) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// What random_value() multiplies with: for a standard deviation (kBell) or a bound (kUniform).
constexpr float random_step(RandomKind kind, double scale) {
  // Each of four 16-bit uniforms has mean 65535 / 2 and variance 65536^2 / 12.
  return kind == RandomKind::kBell ? static_cast<float>(scale / (65536 * 0.5773502691896258))
                                   : static_cast<float>(scale / 8388608);  // 2^23
}

// Element i in f32; tensors hold it rounded to bf16.
constexpr float random_value(RandomKind kind, std::uint64_t key, std::uint64_t i, float step) {
  const std::uint64_t x = random_bits(key, i);
  if (kind == RandomKind::kUniform) {
    return static_cast<float>(static_cast<std::int32_t>(x >> 40) - 8388608) * step;
  }
  // Two sums of two lanes at once, then the sum of the two.
  const std::uint64_t pairs = (x & 0x0000ffff0000ffffull) + ((x >> 16) & 0x0000ffff0000ffffull);
  const auto sum = static_cast<std::int32_t>((pairs & 0xffffffffu) + (pairs >> 32)) - 2 * 65535;
  return static_cast<float>(sum) * step;
}

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_RANDOM_H_
