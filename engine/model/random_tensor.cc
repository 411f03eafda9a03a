#include "engine/model/random_tensor.h"

#include <cstddef>
#include <memory>

#include "engine/core/digest.h"

namespace servelab {
namespace {

using kernels::Bf16;

// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014) on a counter.
inline std::uint64_t mixed(std::uint64_t key, std::uint64_t i) {
  std::uint64_t x = key + (i + 1) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

template <class Value>
Tensor filled(int rows, int columns, const Value& value) {
  const auto count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  // Not value-initialised: every element is written below.
  std::shared_ptr<Bf16[]> data(new Bf16[count]);
  for (std::size_t i = 0; i < count; ++i) data[i] = value(i);
  return {kernels::DType::kBf16, rows, columns, data.get(), data};
}

}  // namespace

std::uint64_t random_key(std::initializer_list<std::uint64_t> words) {
  StreamHash hash;
  for (const std::uint64_t word : words) hash.add(word);
  return mixed(hash.value(), 0);
}

// Each of four 16-bit uniforms has mean 65535 / 2 and variance 65536^2 / 12.
float bell_step(double deviation) {
  return static_cast<float>(deviation / (65536 * 0.5773502691896258));
}

Tensor random_bell(int rows, int columns, double deviation, std::uint64_t key) {
  const float step = bell_step(deviation);
  return filled(rows, columns, [key, step](std::size_t i) {
    const std::uint64_t x = mixed(key, i);
    // Two sums of two lanes at once, then the sum of the two.
    const std::uint64_t pairs = (x & 0x0000ffff0000ffffull) + ((x >> 16) & 0x0000ffff0000ffffull);
    const auto sum = static_cast<std::int32_t>((pairs & 0xffffffffu) + (pairs >> 32)) - 2 * 65535;
    return kernels::to_bf16(static_cast<float>(sum) * step);
  });
}

Tensor random_uniform(int rows, int columns, double bound, std::uint64_t key) {
  const auto step = static_cast<float>(bound / 8388608);  // 2^23
  return filled(rows, columns, [key, step](std::size_t i) {
    const auto centred = static_cast<std::int32_t>(mixed(key, i) >> 40) - 8388608;
    return kernels::to_bf16(static_cast<float>(centred) * step);
  });
}

Tensor constant_vector(int columns, float value) {
  return filled(1, columns, [value](std::size_t) { return kernels::to_bf16(value); });
}

}  // namespace servelab
