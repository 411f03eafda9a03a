#include <immintrin.h>

#include "kernels/cpu/peak.h"

namespace servelab::kernels {
namespace {

constexpr int kChains = 16;

template <class Step>
void chains_of(int rounds, Step step) {
  __m512 chains[kChains];
  for (auto& chain : chains) chain = _mm512_setzero_ps();
  for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (auto& chain : chains) chain = step(chain);
  }
  __m512 sum = chains[0];
  for (const auto& chain : chains) sum = _mm512_add_ps(sum, chain);
  volatile float keep = _mm512_cvtss_f32(sum);
  static_cast<void>(keep);
}

}  // namespace

double spend_flops_avx512(DType type, int rounds) {
  if (type == DType::kBf16) {
    const auto pairs = (__m512bh)_mm512_set1_epi32(0x3e003e00);  // 1/8
    chains_of(rounds, [&](__m512 x) { return _mm512_dpbf16_ps(x, pairs, pairs); });
    return 4.0 * 16 * kChains * rounds;
  }
  const __m512 half = _mm512_set1_ps(0.5f);
  chains_of(rounds, [&](__m512 x) { return _mm512_fmadd_ps(x, half, half); });
  return 2.0 * 16 * kChains * rounds;
}

// Whole lines at a time: by smaller words a core does not get all that memory gives. (On Zen 5 SSE
// reads 30 of 39 GB/s.)
std::uint64_t read_all_avx512(const char* data, std::size_t bytes) {
  __m512i sums[4] = {};
  std::size_t i = 0;
  for (; i + 256 <= bytes; i += 256) {
    for (int j = 0; j < 4; ++j) {
      __builtin_prefetch(data + i + 64 * j + 8192, 0, 2);
      sums[j] = _mm512_add_epi64(sums[j], _mm512_load_si512(data + i + 64 * j));
    }
  }
  for (; i < bytes; i += 64) sums[0] = _mm512_add_epi64(sums[0], _mm512_load_si512(data + i));
  const __m512i sum =
      _mm512_add_epi64(_mm512_add_epi64(sums[0], sums[1]), _mm512_add_epi64(sums[2], sums[3]));
  return static_cast<std::uint64_t>(_mm512_reduce_add_epi64(sum));
}

}  // namespace servelab::kernels
