#include "engine/model/random_tensor.h"

#include <cstddef>
#include <memory>

#include "engine/core/digest.h"
#include "kernels/random.h"

namespace servelab {
namespace {

using kernels::Bf16;
using kernels::RandomKind;

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
  return kernels::random_bits(hash.value(), 0);
}

Tensor random_bell(int rows, int columns, double deviation, std::uint64_t key) {
  return filled(rows, columns,
                [key, step = kernels::random_step(RandomKind::kBell, deviation)](std::size_t i) {
                  return kernels::to_bf16(kernels::random_value(RandomKind::kBell, key, i, step));
                });
}

Tensor random_uniform(int rows, int columns, double bound, std::uint64_t key) {
  return filled(
      rows, columns,
      [key, step = kernels::random_step(RandomKind::kUniform, bound)](std::size_t i) {
        return kernels::to_bf16(kernels::random_value(RandomKind::kUniform, key, i, step));
      });
}

Tensor constant_vector(int columns, float value) {
  return filled(1, columns, [value](std::size_t) { return kernels::to_bf16(value); });
}

}  // namespace servelab
