// Sixteen float lanes as two registers of AVX2, with FMA and F16C; see vec_avx512.h.
//
// Only ops_avx2.cc may include this.
#ifndef SERVELAB_KERNELS_CPU_VEC_AVX2_H_
#define SERVELAB_KERNELS_CPU_VEC_AVX2_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace servelab::kernels {
namespace {

struct Avx2 {
  struct Vec {
    __m256 lo, hi;
  };

  static constexpr int kTileRows = 4;  // 8 accumulators and 4 halves of weights of 16 registers
  static constexpr int kTilePanels = 1;
  static constexpr int kWideRows = 1;

  // All ones in the first n of 8 lanes; n may be out of 0 .. 8.
  static __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  static Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Vec set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static Vec load(const float* p, int n) {
    return {_mm256_maskload_ps(p, first(n)), _mm256_maskload_ps(p + 8, first(n - 8))};
  }
  static void store(float* p, Vec a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
  }
  static void store(float* p, Vec a, int n) {
    _mm256_maskstore_ps(p, first(n), a.lo);
    _mm256_maskstore_ps(p + 8, first(n - 8), a.hi);
  }

  static Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  static Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  static Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  static Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  static Vec fma(Vec a, Vec b, Vec c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  static Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static Vec select(int n, Vec a, Vec b) {
    return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(first(n))),
            _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(first(n - 8)))};
  }
  static Vec round(Vec a) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, kNearest), _mm256_round_ps(a.hi, kNearest)};
  }
  // n in -126 .. 128, where the factor becomes infinity.
  static Vec times_power_of_2(Vec a, Vec n) {
    return {_mm256_mul_ps(a.lo, power_of_2(n.lo)), _mm256_mul_ps(a.hi, power_of_2(n.hi))};
  }
  static float sum(Vec a) {
    const __m256 eight = _mm256_add_ps(a.lo, a.hi);
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
  }
  static float largest(Vec a) {
    const __m256 eight = _mm256_max_ps(a.lo, a.hi);
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
  }

  static __m256i round_bf16(Vec a) {
    const __m256i packed = _mm256_packus_epi32(round_half(a.lo), round_half(a.hi));
    return _mm256_permute4x64_epi64(packed, 0xd8);  // packus works within 128-bit lanes
  }
  static Vec load_bf16(const std::uint16_t* p) {
    return {widen_half(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            widen_half(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  static Vec load_bf16(const std::uint16_t* p, int n) {
    alignas(32) std::uint16_t all[16] = {};
    __builtin_memcpy(all, p, static_cast<std::size_t>(n) * 2);
    return load_bf16(all);
  }
  static void store_bf16(std::uint16_t* p, Vec a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_bf16(a));
  }
  static void store_bf16(std::uint16_t* p, Vec a, int n) {
    alignas(32) std::uint16_t all[16];
    store_bf16(all, a);
    __builtin_memcpy(p, all, static_cast<std::size_t>(n) * 2);
  }
  static Vec load_f16(const std::uint16_t* p, int n) {
    alignas(32) std::uint16_t all[16] = {};
    __builtin_memcpy(all, p, static_cast<std::size_t>(n) * 2);
    return {_mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(all))),
            _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(all + 8)))};
  }
  static void store_f16(std::uint16_t* p, Vec a, int n) {
    alignas(32) std::uint16_t all[16];
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT;
    _mm_store_si128(reinterpret_cast<__m128i*>(all), _mm256_cvtps_ph(a.lo, kNearest));
    _mm_store_si128(reinterpret_cast<__m128i*>(all + 8), _mm256_cvtps_ph(a.hi, kNearest));
    __builtin_memcpy(p, all, static_cast<std::size_t>(n) * 2);
  }
  static Vec through_bf16(Vec a) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(round_half(a.lo), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(round_half(a.hi), 16))};
  }

  struct F32 {
    static constexpr int kDepth = 1;
    static constexpr int kWords = 1;
    static constexpr int kBytes = 4;
    static void split(const char* line, Vec (&parts)[1]) {
      parts[0] = load(reinterpret_cast<const float*>(line));
    }
  };
  struct Bf16 {
    static constexpr int kDepth = 2;
    static constexpr int kWords = 2;
    static constexpr int kBytes = 2;
    static void split(const char* line, Vec (&parts)[2]) {
      const __m256i lo = _mm256_load_si256(reinterpret_cast<const __m256i*>(line));
      const __m256i hi = _mm256_load_si256(reinterpret_cast<const __m256i*>(line + 32));
      parts[0] = {even(lo), even(hi)};
      parts[1] = {odd(lo), odd(hi)};
    }

   private:
    static __m256 even(__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
    static __m256 odd(__m256i x) {
      return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(-0x10000)));
    }
  };

  static void transpose(const char* const* rows, std::size_t offset, int words, char* out) {
    for (int half = 0; half < 2; ++half) {
      for (int from = 0; from < words; from += 8) {
        const int count = words - from < 8 ? words - from : 8;
        transpose_8(rows + half * 8, offset + static_cast<std::size_t>(from) * 4, count,
                    out + from * 64 + half * 32);
      }
    }
  }

  static void interleave(const char* a, const char* b, char* out) {
    for (int half = 0; half < 2; ++half) {
      const __m256i low = widen_bits(a + half * 16);
      const __m256i high = b == nullptr ? _mm256_setzero_si256() : widen_bits(b + half * 16);
      _mm256_store_si256(reinterpret_cast<__m256i*>(out + half * 32),
                         _mm256_or_si256(low, _mm256_slli_epi32(high, 16)));
    }
  }

 private:
  static __m256 power_of_2(__m256 n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  }
  static __m256i widen_bits(const char* p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static __m256 widen_half(__m128i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  static __m256i round_half(__m256 a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  }

  // Eight rows of `words` (at most 8) words; lines of `out` are 64 bytes apart.
  static void transpose_8(const char* const* rows, std::size_t offset, int words, char* out) {
    __m256 a[8];
    __m256 b[8];
    for (int i = 0; i < 8; ++i) {
      a[i] =
          rows[i] == nullptr
              ? _mm256_setzero_ps()
              : _mm256_maskload_ps(reinterpret_cast<const float*>(rows[i] + offset), first(words));
    }
    for (int i = 0; i < 8; i += 2) {
      b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
      a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
      a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
      a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      b[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
      b[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
    }
    for (int i = 0; i < words; ++i) _mm256_store_ps(reinterpret_cast<float*>(out + i * 64), b[i]);
  }
};

}  // namespace
}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_CPU_VEC_AVX2_H_
