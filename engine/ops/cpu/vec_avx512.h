// vec.h in AVX-512 (F, BW, DQ, VL) with FMA and F16C; see there.

#ifndef EBB_ENGINE_OPS_CPU_VEC_AVX512_H_
#define EBB_ENGINE_OPS_CPU_VEC_AVX512_H_

#include <immintrin.h>

#include <cstdint>

namespace ebb::cpu::EBB_KERNEL_ISA {

// Tiles of sums that stay in registers: up to this many rows of activations, and for so many rows the number of vectors
// of outputs (or of slots) beside each other. 24 sums of 32 registers; a single row has 4 sums in flight.
inline constexpr int kTileRows = 6;
constexpr int TileVectors(int /*rows*/) { return 4; }
// The same for linear layers, which keep two sums per output (linear_tiles.h): panels beside each other.
constexpr int LinearPanels(int /*rows*/) { return 2; }
// The same for values, whose vectors come in pairs, and the rows whose sums leave room for turning keys beside them.
inline constexpr int kPairRows = 8;
constexpr int PairVectors(int rows) { return rows <= 6 ? 4 : 2; }
inline constexpr int kFusedRows = 8;

struct Floats {
  __m512 v;
};
struct Ints {
  __m512i v;
};
struct FloatPair {
  Floats low, high;
};
struct Mask {
  __mmask16 v;
};

EBB_INLINE __mmask16 First(int n) { return static_cast<__mmask16>((1U << n) - 1U); }

EBB_INLINE Floats Zero() { return {_mm512_setzero_ps()}; }
EBB_INLINE Floats Splat(float a) { return {_mm512_set1_ps(a)}; }
EBB_INLINE Ints Splat(int32_t a) { return {_mm512_set1_epi32(a)}; }

EBB_INLINE Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
EBB_INLINE Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
EBB_INLINE Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
EBB_INLINE Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
EBB_INLINE Floats Fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
EBB_INLINE Floats Fnma(Floats a, Floats b, Floats c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
EBB_INLINE Floats Max(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
EBB_INLINE Floats Min(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
EBB_INLINE Floats Sqrt(Floats a) { return {_mm512_sqrt_ps(a.v)}; }

EBB_INLINE Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
EBB_INLINE Ints operator-(Ints a, Ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
EBB_INLINE Ints operator&(Ints a, Ints b) { return {_mm512_and_si512(a.v, b.v)}; }
EBB_INLINE Ints operator^(Ints a, Ints b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int kBits>
EBB_INLINE Ints ShiftLeft(Ints a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
EBB_INLINE Ints ShiftRight(Ints a) {  // fills with zeros
  return {_mm512_srli_epi32(a.v, kBits)};
}
EBB_INLINE Ints ShiftRight(Ints a, int bits) {
  return {__builtin_bit_cast(__m512i, __builtin_bit_cast(__v16su, a.v) >> bits)};
}
template <int kBits>
EBB_INLINE Ints ShiftRightSigned(Ints a) {  // fills with the sign
  return {_mm512_srai_epi32(a.v, kBits)};
}
EBB_INLINE Ints MulLow(Ints a, Ints b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
EBB_INLINE Ints MulHighUnsigned(Ints a, Ints b) {
  const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(a.v, b.v), 32);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
  return {_mm512_mask_blend_epi32(0xAAAA, even, odd)};
}

EBB_INLINE Floats ToFloats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
EBB_INLINE Ints Bits(Floats a) { return {_mm512_castps_si512(a.v)}; }
EBB_INLINE Floats FromBits(Ints a) { return {_mm512_castsi512_ps(a.v)}; }

EBB_INLINE Mask Greater(Ints a, Ints b) { return {_mm512_cmpgt_epi32_mask(a.v, b.v)}; }
EBB_INLINE Mask Equal(Ints a, Ints b) { return {_mm512_cmpeq_epi32_mask(a.v, b.v)}; }
EBB_INLINE Mask Less(Floats a, Floats b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
EBB_INLINE Mask AndNot(Mask a, Mask b) { return {static_cast<__mmask16>(a.v & ~b.v)}; }
EBB_INLINE Floats Select(Mask m, Floats a, Floats b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
EBB_INLINE Ints Select(Mask m, Ints a, Ints b) { return {_mm512_mask_blend_epi32(m.v, b.v, a.v)}; }

EBB_INLINE Floats Load(const float* p) { return {_mm512_loadu_ps(p)}; }
EBB_INLINE Floats LoadFirst(const float* p, int n) { return {_mm512_maskz_loadu_ps(First(n), p)}; }
EBB_INLINE Ints Load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
EBB_INLINE void Store(Floats a, float* p) { _mm512_storeu_ps(p, a.v); }
EBB_INLINE void StoreFirst(Floats a, float* p, int n) { _mm512_mask_storeu_ps(p, First(n), a.v); }
EBB_INLINE void Store(Ints a, int32_t* p) { _mm512_storeu_si512(p, a.v); }

EBB_INLINE Floats FromBf16(__m256i a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(a), 16))}; }
EBB_INLINE Floats LoadBf16(const uint16_t* p) {
  return FromBf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
EBB_INLINE Floats LoadBf16First(const uint16_t* p, int n) { return FromBf16(_mm256_maskz_loadu_epi16(First(n), p)); }
// 32 elements: those at even places and those at odd ones.
EBB_INLINE FloatPair LoadBf16Alternate(const uint16_t* p) {
  const __m512i words = _mm512_loadu_si512(p);
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(words, 16))},
          {_mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-65536)))}};
}
// Puts what LoadBf16Alternate took apart back in order.
EBB_INLINE void StoreAlternate(FloatPair a, float* p) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  _mm512_storeu_ps(p, _mm512_permutex2var_ps(a.low.v, low, a.high.v));
  _mm512_storeu_ps(p + 16, _mm512_permutex2var_ps(a.low.v, high, a.high.v));
}
EBB_INLINE Floats LoadF16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
EBB_INLINE Floats LoadF16First(const uint16_t* p, int n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(First(n), p))};
}
EBB_INLINE void StoreBf16(Ints rounded, uint16_t* p) {  // the upper halves; see vec_math.h
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded.v, 16)));
}
EBB_INLINE void StoreF16(Floats a, uint16_t* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
EBB_INLINE Floats LoadInt8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// 2^-8 of E4M3: the upper bits of a binary16, below a zero. 32 of them as LoadBf16Alternate takes them.
EBB_INLINE Floats LoadE4M3(const uint8_t* p) {
  const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(words, 7), _mm256_set1_epi16(-0x4080)))};
}
EBB_INLINE FloatPair LoadE4M3Alternate(const uint8_t* p) {
  const __m256i two = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i bits = _mm256_set1_epi16(-0x4080);
  return {{_mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(two, 8), 1), bits))},
          {_mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(two, 1), bits))}};
}
EBB_INLINE Ints LoadBytes(const void* p) { return {_mm512_loadu_si512(p)}; }
EBB_INLINE void StoreLowBytes(Ints a, void* p) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

// sum + the products of four bytes of each lane of w, less 128, with the four signed bytes x. DotStart is what the sum
// begins with, given -128 times the sum of all x: the instruction takes w as it is.
#ifdef __AVX512VNNI__
EBB_INLINE Ints DotStart(int32_t offset) { return Splat(offset); }
EBB_INLINE Ints DotBytes(Ints sum, Ints w, int32_t x) {
  return {_mm512_dpbusd_epi32(sum.v, w.v, _mm512_set1_epi32(x))};
}
#else
// |w| times x with the sign of w: two products of at most 128 * 127 fit into 16 bits.
EBB_INLINE Ints DotStart(int32_t /*offset*/) { return Splat(0); }
EBB_INLINE Ints DotBytes(Ints sum, Ints w, int32_t x) {
  const __m512i value = _mm512_xor_si512(w.v, _mm512_set1_epi8(-128));
  const __m512i bytes = _mm512_set1_epi32(x);
  const __m512i turned = _mm512_mask_sub_epi8(bytes, _mm512_movepi8_mask(value), _mm512_setzero_si512(), bytes);
  const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(value), turned);
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
}
#endif

// sum + w.second * x.second, then + w.first * x.first, each rounded once: lanes are pairs of BF16, the first one lower.
// x is pair `step` of a chunk as StoreForPairs leaves it.
#ifdef __AVX512BF16__
EBB_INLINE void StoreForPairs(Ints rounded, int first, float* chunk) {
  StoreBf16(rounded, reinterpret_cast<uint16_t*>(chunk) + first);
}
EBB_INLINE Floats DotPairs(Floats sum, Ints w, const float* x, int step) {
  const __m512i pair = _mm512_castps_si512(_mm512_set1_ps(x[step]));
  return {_mm512_dpbf16_ps(sum.v, __builtin_bit_cast(__m512bh, w.v), __builtin_bit_cast(__m512bh, pair))};
}
#else
EBB_INLINE void StoreForPairs(Ints rounded, int first, float* chunk) {
  Store(FromBits(rounded & Splat(-65536)), chunk + first);
}
EBB_INLINE Floats DotPairs(Floats sum, Ints w, const float* x, int step) {
  const Floats second = Fma(FromBits(w & Splat(-65536)), Splat(x[2 * step + 1]), sum);
  return Fma(FromBits(ShiftLeft<16>(w)), Splat(x[2 * step]), second);
}
#endif

EBB_INLINE void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
EBB_INLINE void PrefetchFar(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// Lane j of row i becomes lane i of row j.
EBB_INLINE void Transpose(Floats (&rows)[16]) {
  __m512 two[16];  // columns of two rows, then of four, in every quarter of a vector
  for (int i = 0; i < 16; i += 2) {
    two[i] = _mm512_unpacklo_ps(rows[i].v, rows[i + 1].v);
    two[i + 1] = _mm512_unpackhi_ps(rows[i].v, rows[i + 1].v);
  }
  __m512d four[16];
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      const __m512d a = _mm512_castps_pd(two[i + j]);
      const __m512d b = _mm512_castps_pd(two[i + j + 2]);
      four[i + 2 * j] = _mm512_unpacklo_pd(a, b);
      four[i + 2 * j + 1] = _mm512_unpackhi_pd(a, b);
    }
  }
  for (int j = 0; j < 4; ++j) {  // quarter L of four[i + j] is column 4 L + j of rows i .. i + 3
    const __m512 a = _mm512_castpd_ps(four[j]);
    const __m512 b = _mm512_castpd_ps(four[4 + j]);
    const __m512 c = _mm512_castpd_ps(four[8 + j]);
    const __m512 d = _mm512_castpd_ps(four[12 + j]);
    const __m512 ab_low = _mm512_shuffle_f32x4(a, b, 0x44);
    const __m512 ab_high = _mm512_shuffle_f32x4(a, b, 0xEE);
    const __m512 cd_low = _mm512_shuffle_f32x4(c, d, 0x44);
    const __m512 cd_high = _mm512_shuffle_f32x4(c, d, 0xEE);
    rows[j].v = _mm512_shuffle_f32x4(ab_low, cd_low, 0x88);
    rows[4 + j].v = _mm512_shuffle_f32x4(ab_low, cd_low, 0xDD);
    rows[8 + j].v = _mm512_shuffle_f32x4(ab_high, cd_high, 0x88);
    rows[12 + j].v = _mm512_shuffle_f32x4(ab_high, cd_high, 0xDD);
  }
}

// The one tree of every instruction set: lane i + lane i+8, then +4, +2, +1.
EBB_INLINE float Sum(Floats a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
EBB_INLINE float Largest(Floats a) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA

#endif  // EBB_ENGINE_OPS_CPU_VEC_AVX512_H_
