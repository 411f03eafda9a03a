#include "kernels/cpu/peak.h"

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

}  // namespace servelab::kernels
