#include "kernels/cpu/peak.h"

#include <cstring>

namespace servelab::kernels {
namespace {

// Sixteen chains of scalar or compiler-made vector arithmetic.
double spend_flops_portable(int rounds) {
  float chains[16] = {};
  for (int i = 0; i < rounds; ++i) {
    for (float& chain : chains) chain = chain * 0.5f + 1.0f;
  }
  float sum = 0;
  for (const float chain : chains) sum += chain;
  volatile float keep = sum;
  static_cast<void>(keep);
  return 2.0 * 16 * rounds;
}

// Asks for lines well before their turn.
std::uint64_t read_all_portable(const char* data, std::size_t bytes) {
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(data + i + 3072, 0, 2);
    std::uint64_t words[8];
    std::memcpy(words, data + i, sizeof(words));
    for (int j = 0; j < 8; ++j) sums[j] += words[j];
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t s : sums) sum += s;
  return sum;
}

}  // namespace

double spend_flops(Isa isa, DType type, int rounds) {
#ifdef SERVELAB_HAVE_X86
  if (isa == Isa::kAvx512Bf16 || isa == Isa::kAvx512Bf16Dot) {
    return spend_flops_avx512(type, rounds);
  }
  if (isa == Isa::kAvx2) return spend_flops_avx2(rounds);
#endif
  static_cast<void>(isa);
  static_cast<void>(type);
  return spend_flops_portable(rounds);
}

std::uint64_t read_all(Isa isa, const char* data, std::size_t bytes) {
#ifdef SERVELAB_HAVE_X86
  if (isa == Isa::kAvx512Bf16 || isa == Isa::kAvx512Bf16Dot) return read_all_avx512(data, bytes);
  if (isa == Isa::kAvx2) return read_all_avx2(data, bytes);
#endif
  static_cast<void>(isa);
  return read_all_portable(data, bytes);
}

}  // namespace servelab::kernels
