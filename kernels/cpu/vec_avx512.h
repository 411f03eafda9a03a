// Sixteen float lanes on AVX-512 with BF16. The templates beside this file (gemm_tile.h and so on)
// are written against this interface, which vec_avx2.h has too.
//
// Only ops_avx512.cc may include this. Everything is in an anonymous namespace, so that no function
// compiled for this processor can replace one of the same name in portable code.
#ifndef SERVELAB_KERNELS_CPU_VEC_AVX512_H_
#define SERVELAB_KERNELS_CPU_VEC_AVX512_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace servelab::kernels {
namespace {

struct Avx512 {
  // Sixteen floats; a class, since a template argument of type __m512 would lose its alignment.
  struct Vec {
    __m512 v;
  };

  // Rows and panels of a GEMM tile: 12 x 2 accumulators, 4 vectors of weights and an input take 29
  // of 32 registers.
  static constexpr int kTileRows = 12;
  static constexpr int kTilePanels = 2;
  static constexpr int kWideRows = 5;  // of a tile with four panels

  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }

  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec set(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
  static void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
  static void store(float* p, Vec a, int n) { _mm512_mask_storeu_ps(p, first(n), a.v); }

  static Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
  static Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
  static Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  // Where one of the two is NaN, b.
  static Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
  static Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
  // The first n lanes of a, the others of b.
  static Vec select(int n, Vec a, Vec b) { return {_mm512_mask_mov_ps(b.v, first(n), a.v)}; }
  static Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, 0)}; }  // to integers, ties to even
  static Vec times_power_of_2(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }
  static float sum(Vec a) { return _mm512_reduce_add_ps(a.v); }
  static float largest(Vec a) { return _mm512_reduce_max_ps(a.v); }

  // bf16 to nearest even, exact for subnormals too and quiet for NaN.
  static __m256i round_bf16(Vec a) {
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    const __m512i rounded =
        _mm512_mask_or_epi32(_mm512_add_epi32(bits, bias), nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
  }
  static Vec load_bf16(const std::uint16_t* p) {
    return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Vec load_bf16(const std::uint16_t* p, int n) {
    return widen_bf16(_mm256_maskz_loadu_epi16(first(n), p));
  }
  static void store_bf16(std::uint16_t* p, Vec a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_bf16(a));
  }
  static void store_bf16(std::uint16_t* p, Vec a, int n) {
    _mm256_mask_storeu_epi16(p, first(n), round_bf16(a));
  }
  static Vec load_f16(const std::uint16_t* p, int n) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p))};
  }
  static void store_f16(std::uint16_t* p, Vec a, int n) {
    _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
  }
  // Rounds to bf16 and back. Subnormals become zero.
  static Vec through_bf16(Vec a) { return widen_bf16((__m256i)_mm512_cvtneps_pbh(a.v)); }

  // A line of a panel is 64 bytes: 16 columns of kDepth neighbouring k, here as kWords vectors,
  // each for one word of x. bf16 is widened and multiplied as f32, which is exact; Avx512Dot does
  // not.
  struct F32 {
    static constexpr int kDepth = 1;
    static constexpr int kWords = 1;
    static constexpr int kBytes = 4;
    static void split(const char* line, Vec (&parts)[1]) { parts[0] = {_mm512_load_ps(line)}; }
  };
  struct Bf16 {
    static constexpr int kDepth = 2;
    static constexpr int kWords = 2;
    static constexpr int kBytes = 2;
    static void split(const char* line, Vec (&parts)[2]) {
      const __m512i pairs = _mm512_load_si512(line);
      parts[0] = {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))};
      parts[1] = {_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)))};
    }
  };

  // Writes the transpose of 16 rows of `words` (at most 16) 4-byte words: line w holds word w of
  // every row. A null row counts as zeros.
  static void transpose(const char* const* rows, std::size_t offset, int words, char* out) {
    __m512i a[16];
    __m512i b[16];
    for (int i = 0; i < 16; ++i) {
      a[i] = rows[i] == nullptr ? _mm512_setzero_si512()
                                : _mm512_maskz_loadu_epi32(first(words), rows[i] + offset);
    }
    for (int i = 0; i < 16; i += 2) {  // 2 x 2 words
      b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {  // 4 x 4 words
      a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
      a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
      a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
      a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {  // 4 x 4 blocks of 4 x 4 words
      const __m512i low02 = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
      const __m512i low13 = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
      const __m512i high02 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
      const __m512i high13 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
      b[i] = _mm512_shuffle_i32x4(low02, high02, 0x88);
      b[i + 4] = _mm512_shuffle_i32x4(low13, high13, 0x88);
      b[i + 8] = _mm512_shuffle_i32x4(low02, high02, 0xdd);
      b[i + 12] = _mm512_shuffle_i32x4(low13, high13, 0xdd);
    }
    for (int i = 0; i < words; ++i) _mm512_store_si512(out + i * 64, b[i]);
  }

  // One line of 16 pairs (a[i], b[i]); a null b counts as zeros.
  static Vec pairs(const char* a, const char* b) {
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)a));
    const __m512i high = b == nullptr
                             ? _mm512_setzero_si512()
                             : _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)b));
    return {_mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)))};
  }
  static void interleave(const char* a, const char* b, char* out) {
    _mm512_store_ps(out, pairs(a, b).v);
  }

 private:
  static Vec widen_bf16(__m256i x) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))};
  }
};

// The same, with bf16 multiplied in pairs: a line is one vector, and vdpbf16ps adds the products of
// the second k, then those of the first, each with one rounding. It takes subnormal numbers for
// zero and returns none.
struct Avx512Dot : Avx512 {
  struct Bf16 {
    static constexpr int kDepth = 2;
    static constexpr int kWords = 1;
    static constexpr int kBytes = 2;
    static void split(const char* line, Vec (&parts)[1]) { parts[0] = {_mm512_load_ps(line)}; }
  };
  static Vec dot(Vec w, Vec x, Vec sum) {
    return {_mm512_dpbf16_ps(sum.v, (__m512bh)w.v, (__m512bh)x.v)};
  }
  static Vec first_of_pairs(Vec a) {
    return {
        _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0xffff)))};
  }
  static void store_pairs(std::uint16_t* p, Vec a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(a.v));
  }
};

}  // namespace
}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_CPU_VEC_AVX512_H_
