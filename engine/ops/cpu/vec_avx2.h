// vec.h in AVX2 with FMA and F16C, as pairs of eight lanes; see there.

#ifndef EBB_ENGINE_OPS_CPU_VEC_AVX2_H_
#define EBB_ENGINE_OPS_CPU_VEC_AVX2_H_

#include <immintrin.h>

#include <cstdint>

namespace ebb::cpu::EBB_KERNEL_ISA {

// Tiles of sums that stay in registers: up to this many rows of activations, and for so many rows the number of vectors
// of outputs (or of slots) beside each other. 12 sums of 16 registers; a single row has 8 sums in flight.
inline constexpr int kTileRows = 6;
constexpr int TileVectors(int rows) { return rows == 1 ? 4 : (rows == 2 ? 2 : 1); }
// The same for linear layers (linear_tiles.h): panels beside each other.
constexpr int LinearPanels(int rows) { return rows == 1 ? 2 : 1; }
// The same for values, whose vectors come in pairs, and the rows whose sums leave room for turning keys beside them.
inline constexpr int kPairRows = 3;
constexpr int PairVectors(int rows) { return rows == 1 ? 4 : 2; }
inline constexpr int kFusedRows = 4;

struct Floats {
  __m256 lo, hi;
};
struct Ints {
  __m256i lo, hi;
};
struct FloatPair {
  Floats low, high;
};
struct Mask {
  __m256 lo, hi;  // all ones or all zeros per lane
};

EBB_INLINE Floats Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
EBB_INLINE Floats Splat(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
EBB_INLINE Ints Splat(int32_t a) { return {_mm256_set1_epi32(a), _mm256_set1_epi32(a)}; }

EBB_INLINE Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
EBB_INLINE Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
EBB_INLINE Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
EBB_INLINE Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
EBB_INLINE Floats Fma(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
EBB_INLINE Floats Fnma(Floats a, Floats b, Floats c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
EBB_INLINE Floats Max(Floats a, Floats b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
EBB_INLINE Floats Min(Floats a, Floats b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
EBB_INLINE Floats Sqrt(Floats a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }

EBB_INLINE Ints operator+(Ints a, Ints b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
EBB_INLINE Ints operator-(Ints a, Ints b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
EBB_INLINE Ints operator&(Ints a, Ints b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
EBB_INLINE Ints operator^(Ints a, Ints b) { return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)}; }
template <int kBits>
EBB_INLINE Ints ShiftLeft(Ints a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
EBB_INLINE Ints ShiftRight(Ints a) {  // fills with zeros
  return {_mm256_srli_epi32(a.lo, kBits), _mm256_srli_epi32(a.hi, kBits)};
}
EBB_INLINE Ints ShiftRight(Ints a, int bits) {
  return {__builtin_bit_cast(__m256i, __builtin_bit_cast(__v8su, a.lo) >> bits),
          __builtin_bit_cast(__m256i, __builtin_bit_cast(__v8su, a.hi) >> bits)};
}
template <int kBits>
EBB_INLINE Ints ShiftRightSigned(Ints a) {  // fills with the sign
  return {_mm256_srai_epi32(a.lo, kBits), _mm256_srai_epi32(a.hi, kBits)};
}
EBB_INLINE Ints MulLow(Ints a, Ints b) { return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)}; }
EBB_INLINE __m256i MulHighUnsigned(__m256i a, __m256i b) {
  const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(a, b), 32);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
  return _mm256_blend_epi32(even, odd, 0xAA);
}
EBB_INLINE Ints MulHighUnsigned(Ints a, Ints b) { return {MulHighUnsigned(a.lo, b.lo), MulHighUnsigned(a.hi, b.hi)}; }

EBB_INLINE Floats ToFloats(Ints a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
EBB_INLINE Ints Bits(Floats a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
EBB_INLINE Floats FromBits(Ints a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }

EBB_INLINE Mask Greater(Ints a, Ints b) {
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(a.lo, b.lo)), _mm256_castsi256_ps(_mm256_cmpgt_epi32(a.hi, b.hi))};
}
EBB_INLINE Mask Equal(Ints a, Ints b) {
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(a.lo, b.lo)), _mm256_castsi256_ps(_mm256_cmpeq_epi32(a.hi, b.hi))};
}
EBB_INLINE Mask Less(Floats a, Floats b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
EBB_INLINE Mask AndNot(Mask a, Mask b) { return {_mm256_andnot_ps(b.lo, a.lo), _mm256_andnot_ps(b.hi, a.hi)}; }
EBB_INLINE Floats Select(Mask m, Floats a, Floats b) {
  return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}
EBB_INLINE Ints Select(Mask m, Ints a, Ints b) { return Bits(Select(m, FromBits(a), FromBits(b))); }

EBB_INLINE __m256i First(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

EBB_INLINE Floats Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
EBB_INLINE Floats LoadFirst(const float* p, int n) {
  return {_mm256_maskload_ps(p, First(n)), _mm256_maskload_ps(p + 8, First(n - 8))};
}
EBB_INLINE Ints Load(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
EBB_INLINE void Store(Floats a, float* p) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
EBB_INLINE void StoreFirst(Floats a, float* p, int n) {
  _mm256_maskstore_ps(p, First(n), a.lo);
  _mm256_maskstore_ps(p + 8, First(n - 8), a.hi);
}
EBB_INLINE void Store(Ints a, int32_t* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}

EBB_INLINE __m128i LoadEight(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
EBB_INLINE __m256 FromBf16(__m128i a) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a), 16)); }
EBB_INLINE Floats LoadBf16(const uint16_t* p) { return {FromBf16(LoadEight(p)), FromBf16(LoadEight(p + 8))}; }
// 32 elements: those at even places and those at odd ones.
EBB_INLINE FloatPair LoadBf16Alternate(const uint16_t* p) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  const __m256i upper = _mm256_set1_epi32(-65536);
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(a, upper)), _mm256_castsi256_ps(_mm256_and_si256(b, upper))}};
}
// Puts what LoadBf16Alternate took apart back in order.
EBB_INLINE void StoreAlternate(__m256 even, __m256 odd, float* p) {
  const __m256 low = _mm256_unpacklo_ps(even, odd);  // 0-3 8-11 of the sixteen
  const __m256 high = _mm256_unpackhi_ps(even, odd);
  _mm256_storeu_ps(p, _mm256_permute2f128_ps(low, high, 0x20));
  _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(low, high, 0x31));
}
EBB_INLINE void StoreAlternate(FloatPair a, float* p) {
  StoreAlternate(a.low.lo, a.high.lo, p);
  StoreAlternate(a.low.hi, a.high.hi, p + 16);
}
EBB_INLINE Floats LoadF16(const uint16_t* p) {
  return {_mm256_cvtph_ps(LoadEight(p)), _mm256_cvtph_ps(LoadEight(p + 8))};
}
struct Halves {  // room for a partial load of 16-bit elements, which AVX2 has no instruction for
  uint16_t lane[16];
};
EBB_INLINE Halves CopyFirst(const uint16_t* p, int n) {
  Halves copy = {};
  for (int i = 0; i < n; ++i) copy.lane[i] = p[i];
  return copy;
}
EBB_INLINE Floats LoadBf16First(const uint16_t* p, int n) { return LoadBf16(CopyFirst(p, n).lane); }
EBB_INLINE Floats LoadF16First(const uint16_t* p, int n) { return LoadF16(CopyFirst(p, n).lane); }
EBB_INLINE void StoreBf16(Ints rounded, uint16_t* p) {  // the upper halves; see vec_math.h
  // packus works within 128-bit halves: 0-3 8-11 | 4-7 12-15, which the permutation puts in order.
  const __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(rounded.lo, 16), _mm256_srli_epi32(rounded.hi, 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}
EBB_INLINE void StoreF16(Floats a, uint16_t* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
EBB_INLINE __m256 FromInt8(__m128i a) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(a)); }
EBB_INLINE Floats LoadInt8(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {FromInt8(bytes), FromInt8(_mm_srli_si128(bytes, 8))};
}
// 2^-8 of E4M3: the upper bits of a binary16, below a zero. 32 of them as LoadBf16Alternate takes them.
EBB_INLINE Floats FromHalves(__m256i a) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(a)), _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))};
}
EBB_INLINE Floats LoadE4M3(const uint8_t* p) {
  const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return FromHalves(_mm256_and_si256(_mm256_slli_epi16(words, 7), _mm256_set1_epi16(-0x4080)));
}
EBB_INLINE FloatPair LoadE4M3Alternate(const uint8_t* p) {
  const __m256i two = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i bits = _mm256_set1_epi16(-0x4080);
  return {FromHalves(_mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(two, 8), 1), bits)),
          FromHalves(_mm256_and_si256(_mm256_srai_epi16(two, 1), bits))};
}
EBB_INLINE Ints LoadBytes(const void* p) {
  const auto* half = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(half), _mm256_loadu_si256(half + 1)};
}
EBB_INLINE void StoreLowBytes(Ints a, void* p) {
  const __m256i low = _mm256_set1_epi32(255);
  // packus works within 128-bit halves: 0-3 8-11 | 4-7 12-15, which the permutation puts in order.
  const __m256i words = _mm256_packus_epi32(_mm256_and_si256(a.lo, low), _mm256_and_si256(a.hi, low));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xD8);
  _mm_storeu_si128(static_cast<__m128i*>(p),
                   _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}

// sum + the products of four bytes of each lane of w, less 128, with the four signed bytes x. DotStart is what the sum
// begins with, given -128 times the sum of all x: the instruction takes w as it is.
#ifdef __AVXVNNI__
EBB_INLINE Ints DotStart(int32_t offset) { return Splat(offset); }
EBB_INLINE Ints DotBytes(Ints sum, Ints w, int32_t x) {
  const __m256i bytes = _mm256_set1_epi32(x);
  return {_mm256_dpbusd_avx_epi32(sum.lo, w.lo, bytes), _mm256_dpbusd_avx_epi32(sum.hi, w.hi, bytes)};
}
#else
// |w| times x with the sign of w: two products of at most 128 * 127 fit into 16 bits.
EBB_INLINE Ints DotStart(int32_t /*offset*/) { return Splat(0); }
EBB_INLINE __m256i DotBytes(__m256i sum, __m256i w, __m256i x) {
  const __m256i value = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(value), _mm256_sign_epi8(x, value));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
EBB_INLINE Ints DotBytes(Ints sum, Ints w, int32_t x) {
  const __m256i bytes = _mm256_set1_epi32(x);
  return {DotBytes(sum.lo, w.lo, bytes), DotBytes(sum.hi, w.hi, bytes)};
}
#endif

// sum + w.second * x.second, then + w.first * x.first, each rounded once: lanes are pairs of BF16, the first one lower.
// x is pair `step` of a chunk as StoreForPairs leaves it.
EBB_INLINE void StoreForPairs(Ints rounded, int first, float* chunk) {
  Store(FromBits(rounded & Splat(-65536)), chunk + first);
}
EBB_INLINE Floats DotPairs(Floats sum, Ints w, const float* x, int step) {
  const Floats second = Fma(FromBits(w & Splat(-65536)), Splat(x[2 * step + 1]), sum);
  return Fma(FromBits(ShiftLeft<16>(w)), Splat(x[2 * step]), second);
}

EBB_INLINE void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
EBB_INLINE void PrefetchFar(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// Lane j of row i becomes lane i of row j.
EBB_INLINE void Transpose(__m256 (&rows)[8]) {
  __m256d two[8];
  for (int i = 0; i < 8; i += 2) {
    two[i] = _mm256_castps_pd(_mm256_unpacklo_ps(rows[i], rows[i + 1]));
    two[i + 1] = _mm256_castps_pd(_mm256_unpackhi_ps(rows[i], rows[i + 1]));
  }
  for (int j = 0; j < 2; ++j) {  // columns 2 j, 2 j + 1 and those four further on
    const __m256 a = _mm256_castpd_ps(_mm256_unpacklo_pd(two[j], two[2 + j]));
    const __m256 b = _mm256_castpd_ps(_mm256_unpackhi_pd(two[j], two[2 + j]));
    const __m256 c = _mm256_castpd_ps(_mm256_unpacklo_pd(two[4 + j], two[6 + j]));
    const __m256 d = _mm256_castpd_ps(_mm256_unpackhi_pd(two[4 + j], two[6 + j]));
    rows[2 * j] = _mm256_permute2f128_ps(a, c, 0x20);
    rows[2 * j + 1] = _mm256_permute2f128_ps(b, d, 0x20);
    rows[2 * j + 4] = _mm256_permute2f128_ps(a, c, 0x31);
    rows[2 * j + 5] = _mm256_permute2f128_ps(b, d, 0x31);
  }
}
EBB_INLINE void Transpose(Floats (&rows)[16]) {
  __m256 corner[4][8];  // rows 0-7 and 8-15 of columns 0-7, then of columns 8-15
  for (int i = 0; i < 8; ++i) {
    corner[0][i] = rows[i].lo;
    corner[1][i] = rows[8 + i].lo;
    corner[2][i] = rows[i].hi;
    corner[3][i] = rows[8 + i].hi;
  }
  for (auto& part : corner) Transpose(part);
  for (int i = 0; i < 8; ++i) {
    rows[i] = {corner[0][i], corner[1][i]};
    rows[8 + i] = {corner[2][i], corner[3][i]};
  }
}

// The one tree of every instruction set: lane i + lane i+8, then +4, +2, +1.
EBB_INLINE float Sum(Floats a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
EBB_INLINE float Largest(Floats a) {
  const __m256 eight = _mm256_max_ps(a.lo, a.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA

#endif  // EBB_ENGINE_OPS_CPU_VEC_AVX2_H_
