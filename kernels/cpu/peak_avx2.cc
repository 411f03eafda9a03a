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

std::uint64_t read_all_avx2(const char* data, std::size_t bytes) {
  __m256i sums[2] = {};
  for (std::size_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(data + i + 8192, 0, 2);
    for (int j = 0; j < 2; ++j) {
      const auto* from = reinterpret_cast<const __m256i*>(data + i + 32 * j);
      sums[j] = _mm256_add_epi64(sums[j], _mm256_load_si256(from));
    }
  }
  const __m256i sum = _mm256_add_epi64(sums[0], sums[1]);
  return static_cast<std::uint64_t>(_mm256_extract_epi64(sum, 0)) +
         static_cast<std::uint64_t>(_mm256_extract_epi64(sum, 1)) +
         static_cast<std::uint64_t>(_mm256_extract_epi64(sum, 2)) +
         static_cast<std::uint64_t>(_mm256_extract_epi64(sum, 3));
}

}  // namespace servelab::kernels
