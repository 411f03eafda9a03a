#include "engine/backend/cuda/convert.h"

#include <cstring>

namespace servelab::cuda {
namespace {

using kernels::Bf16;
using kernels::DType;
using kernels::F16;

float widened(float value) { return value; }
float widened(Bf16 value) { return kernels::to_float(value); }
float widened(F16 value) { return kernels::to_float(value); }
void narrow(float value, float* out) { *out = value; }
void narrow(float value, Bf16* out) { *out = kernels::to_bf16(value); }
void narrow(float value, F16* out) { *out = kernels::to_f16(value); }

template <class From, class To>
void convert_all(const void* from, void* out, std::size_t count) {
  const auto* source = static_cast<const std::byte*>(from);
  auto* const to = static_cast<To*>(out);
  for (std::size_t i = 0; i < count; ++i) {
    From value;  // a file's tensors need not be aligned
    std::memcpy(&value, source + i * sizeof(From), sizeof(From));
    narrow(widened(value), &to[i]);
  }
}

template <class From>
void convert_from(const void* from, DType type, void* out, std::size_t count) {
  switch (type) {
    case DType::kF32:
      return convert_all<From, float>(from, out, count);
    case DType::kBf16:
      return convert_all<From, Bf16>(from, out, count);
    case DType::kF16:
      return convert_all<From, F16>(from, out, count);
  }
}

}  // namespace

void convert(DType from_type, const void* from, DType type, void* out, std::size_t count) {
  if (from_type == type) {
    std::memcpy(out, from, count * kernels::bytes_of(type));
    return;
  }
  switch (from_type) {
    case DType::kF32:
      return convert_from<float>(from, type, out, count);
    case DType::kBf16:
      return convert_from<Bf16>(from, type, out, count);
    case DType::kF16:
      return convert_from<F16>(from, type, out, count);
  }
}

}  // namespace servelab::cuda
