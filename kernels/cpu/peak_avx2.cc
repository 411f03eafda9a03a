#include <immintrin.h>

#include "kernels/cpu/peak.h"

namespace servelab::kernels {

double spend_flops_avx2(int rounds) {
  constexpr int kChains = 12;
  __m256 chains[kChains];
  const __m256 half = _mm256_set1_ps(0.5f);
  for (auto& chain : chains) chain = _mm256_setzero_ps();
  for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (auto& chain : chains) chain = _mm256_fmadd_ps(chain, half, half);
  }
  __m256 sum = chains[0];
  for (const auto& chain : chains) sum = _mm256_add_ps(sum, chain);
  volatile float keep = _mm256_cvtss_f32(sum);
  static_cast<void>(keep);
  return 2.0 * 8 * kChains * rounds;
}

}  // namespace servelab::kernels
