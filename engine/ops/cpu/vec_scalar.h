// vec.h in plain C++: the definition that the other two must equal, and the only one on other processors.
//
// Fma goes through the compiler's builtin, a library call where the processor has no such instruction: slow and exact.

#ifndef EBB_ENGINE_OPS_CPU_VEC_SCALAR_H_
#define EBB_ENGINE_OPS_CPU_VEC_SCALAR_H_

#include <cstdint>

namespace ebb::cpu::EBB_KERNEL_ISA {

// Tiles of sums as in the other two; here there is nothing to keep in registers.
inline constexpr int kTileRows = 2;
constexpr int TileVectors(int /*rows*/) { return 1; }
constexpr int LinearPanels(int /*rows*/) { return 1; }
inline constexpr int kPairRows = 2;
constexpr int PairVectors(int /*rows*/) { return 2; }
inline constexpr int kFusedRows = 2;

struct Floats {
  float v[16];
};
struct Ints {
  int32_t v[16];
};
struct FloatPair {
  Floats low, high;
};
struct Mask {
  bool v[16];
};

// Applies an expression in i to the sixteen lanes of a result of type T.
#define EBB_LANES(T, expression)                        \
  T out;                                                \
  for (int i = 0; i < 16; ++i) out.v[i] = (expression); \
  return out

EBB_INLINE int32_t BitsOf(float a) { return __builtin_bit_cast(int32_t, a); }
EBB_INLINE float FloatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }
EBB_INLINE uint32_t Unsigned(int32_t a) { return static_cast<uint32_t>(a); }
EBB_INLINE int32_t Signed(uint32_t a) { return static_cast<int32_t>(a); }

EBB_INLINE Floats Zero() { EBB_LANES(Floats, 0.0F); }
EBB_INLINE Floats Splat(float a) { EBB_LANES(Floats, a); }
EBB_INLINE Ints Splat(int32_t a) { EBB_LANES(Ints, a); }

EBB_INLINE Floats operator+(Floats a, Floats b) { EBB_LANES(Floats, a.v[i] + b.v[i]); }
EBB_INLINE Floats operator-(Floats a, Floats b) { EBB_LANES(Floats, a.v[i] - b.v[i]); }
EBB_INLINE Floats operator*(Floats a, Floats b) { EBB_LANES(Floats, a.v[i] * b.v[i]); }
EBB_INLINE Floats operator/(Floats a, Floats b) { EBB_LANES(Floats, a.v[i] / b.v[i]); }
EBB_INLINE Floats Fma(Floats a, Floats b, Floats c) { EBB_LANES(Floats, __builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
EBB_INLINE Floats Fnma(Floats a, Floats b, Floats c) { EBB_LANES(Floats, __builtin_fmaf(-a.v[i], b.v[i], c.v[i])); }
// Where a lane is not a number the second argument wins, as in the instructions.
EBB_INLINE Floats Max(Floats a, Floats b) { EBB_LANES(Floats, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
EBB_INLINE Floats Min(Floats a, Floats b) { EBB_LANES(Floats, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
EBB_INLINE Floats Sqrt(Floats a) { EBB_LANES(Floats, __builtin_sqrtf(a.v[i])); }

EBB_INLINE Ints operator+(Ints a, Ints b) { EBB_LANES(Ints, Signed(Unsigned(a.v[i]) + Unsigned(b.v[i]))); }
EBB_INLINE Ints operator-(Ints a, Ints b) { EBB_LANES(Ints, Signed(Unsigned(a.v[i]) - Unsigned(b.v[i]))); }
EBB_INLINE Ints operator&(Ints a, Ints b) { EBB_LANES(Ints, a.v[i] & b.v[i]); }
EBB_INLINE Ints operator^(Ints a, Ints b) { EBB_LANES(Ints, a.v[i] ^ b.v[i]); }
template <int kBits>
EBB_INLINE Ints ShiftLeft(Ints a) {
  EBB_LANES(Ints, Signed(Unsigned(a.v[i]) << kBits));
}
template <int kBits>
EBB_INLINE Ints ShiftRight(Ints a) {  // fills with zeros
  EBB_LANES(Ints, Signed(Unsigned(a.v[i]) >> kBits));
}
EBB_INLINE Ints ShiftRight(Ints a, int bits) { EBB_LANES(Ints, Signed(Unsigned(a.v[i]) >> bits)); }
template <int kBits>
EBB_INLINE Ints ShiftRightSigned(Ints a) {  // fills with the sign
  EBB_LANES(Ints, a.v[i] >> kBits);
}
EBB_INLINE Ints MulLow(Ints a, Ints b) { EBB_LANES(Ints, Signed(Unsigned(a.v[i]) * Unsigned(b.v[i]))); }
EBB_INLINE Ints MulHighUnsigned(Ints a, Ints b) {
  EBB_LANES(Ints, static_cast<int32_t>((uint64_t{Unsigned(a.v[i])} * Unsigned(b.v[i])) >> 32));
}

EBB_INLINE Floats ToFloats(Ints a) { EBB_LANES(Floats, static_cast<float>(a.v[i])); }
EBB_INLINE Ints Bits(Floats a) { EBB_LANES(Ints, BitsOf(a.v[i])); }
EBB_INLINE Floats FromBits(Ints a) { EBB_LANES(Floats, FloatOf(Unsigned(a.v[i]))); }

EBB_INLINE Mask Greater(Ints a, Ints b) { EBB_LANES(Mask, a.v[i] > b.v[i]); }
EBB_INLINE Mask Equal(Ints a, Ints b) { EBB_LANES(Mask, a.v[i] == b.v[i]); }
EBB_INLINE Mask Less(Floats a, Floats b) { EBB_LANES(Mask, a.v[i] < b.v[i]); }
EBB_INLINE Mask AndNot(Mask a, Mask b) { EBB_LANES(Mask, a.v[i] && !b.v[i]); }
EBB_INLINE Floats Select(Mask m, Floats a, Floats b) { EBB_LANES(Floats, m.v[i] ? a.v[i] : b.v[i]); }
EBB_INLINE Ints Select(Mask m, Ints a, Ints b) { EBB_LANES(Ints, m.v[i] ? a.v[i] : b.v[i]); }

EBB_INLINE Floats Load(const float* p) { EBB_LANES(Floats, p[i]); }
EBB_INLINE Floats LoadFirst(const float* p, int n) { EBB_LANES(Floats, i < n ? p[i] : 0.0F); }
EBB_INLINE Ints Load(const int32_t* p) { EBB_LANES(Ints, p[i]); }
EBB_INLINE void Store(Floats a, float* p) {
  for (int i = 0; i < 16; ++i) p[i] = a.v[i];
}
EBB_INLINE void StoreFirst(Floats a, float* p, int n) {
  for (int i = 0; i < n; ++i) p[i] = a.v[i];
}
EBB_INLINE void Store(Ints a, int32_t* p) {
  for (int i = 0; i < 16; ++i) p[i] = a.v[i];
}

EBB_INLINE float WidenF16(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000U} << 16;
  const uint32_t magnitude = half & 0x7FFFU;
  if (magnitude >= 0x7C00) {  // infinity, or not a number: keeps its payload, becomes quiet
    return FloatOf(sign | 0x7F800000U | (magnitude << 13 & 0x7FFFFFU) | (magnitude > 0x7C00 ? 0x400000U : 0U));
  }
  // Normal: rebias the exponent by 112. Subnormal: a multiple of 2^-24.
  const float value = magnitude >= 0x400 ? FloatOf((magnitude << 13) + 0x38000000U)
                                         : static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24F;
  return FloatOf(Unsigned(BitsOf(value)) | sign);
}

// Nearest even; above the largest half becomes infinity.
EBB_INLINE uint16_t NarrowF16(float a) {
  const uint32_t bits = Unsigned(BitsOf(a));
  const uint32_t sign = bits >> 16 & 0x8000U;
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  uint32_t half;
  if (magnitude > 0x7F800000U) {
    half = 0x7E00U | (magnitude >> 13 & 0x3FFU);
  } else if (magnitude >= 0x47800000U) {  // 2^16 and more
    half = 0x7C00U;
  } else if (magnitude >= 0x38800000U) {  // normal, 2^-14 and more; rounding may carry into the exponent
    half = (magnitude - 0x38000000U + 0xFFFU + (magnitude >> 13 & 1U)) >> 13;
  } else {  // adding 1/2 leaves a multiple of 2^-24 in the low bits, rounded by the addition itself
    half = Unsigned(BitsOf(FloatOf(magnitude) + 0.5F)) - 0x3F000000U;
  }
  return static_cast<uint16_t>(sign | half);
}

EBB_INLINE Floats LoadBf16(const uint16_t* p) { EBB_LANES(Floats, FloatOf(uint32_t{p[i]} << 16)); }
EBB_INLINE Floats LoadBf16First(const uint16_t* p, int n) {
  EBB_LANES(Floats, i < n ? FloatOf(uint32_t{p[i]} << 16) : 0.0F);
}
EBB_INLINE Floats LoadF16(const uint16_t* p) { EBB_LANES(Floats, WidenF16(p[i])); }
EBB_INLINE Floats LoadF16First(const uint16_t* p, int n) { EBB_LANES(Floats, i < n ? WidenF16(p[i]) : 0.0F); }
// 32 elements: those at even places and those at odd ones.
EBB_INLINE FloatPair LoadBf16Alternate(const uint16_t* p) {
  FloatPair out;
  for (int i = 0; i < 16; ++i) {
    out.low.v[i] = FloatOf(uint32_t{p[2 * i]} << 16);
    out.high.v[i] = FloatOf(uint32_t{p[2 * i + 1]} << 16);
  }
  return out;
}
// Puts what LoadBf16Alternate took apart back in order.
EBB_INLINE void StoreAlternate(FloatPair a, float* p) {
  for (int i = 0; i < 16; ++i) {
    p[2 * i] = a.low.v[i];
    p[2 * i + 1] = a.high.v[i];
  }
}
EBB_INLINE void StoreBf16(Ints rounded, uint16_t* p) {  // the upper halves; see vec_math.h
  for (int i = 0; i < 16; ++i) p[i] = static_cast<uint16_t>(Unsigned(rounded.v[i]) >> 16);
}
EBB_INLINE void StoreF16(Floats a, uint16_t* p) {
  for (int i = 0; i < 16; ++i) p[i] = NarrowF16(a.v[i]);
}
EBB_INLINE Floats LoadInt8(const int8_t* p) { EBB_LANES(Floats, static_cast<float>(p[i])); }
// 2^-8 of E4M3: the upper bits of a binary16, below a zero. 32 of them as LoadBf16Alternate takes them.
EBB_INLINE float FromE4M3(uint32_t code) {
  return WidenF16(static_cast<uint16_t>((code & 0x80U) << 8 | (code & 0x7FU) << 7));
}
EBB_INLINE Floats LoadE4M3(const uint8_t* p) { EBB_LANES(Floats, FromE4M3(p[i])); }
EBB_INLINE FloatPair LoadE4M3Alternate(const uint8_t* p) {
  FloatPair out;
  for (int i = 0; i < 16; ++i) {
    out.low.v[i] = FromE4M3(p[2 * i]);
    out.high.v[i] = FromE4M3(p[2 * i + 1]);
  }
  return out;
}
EBB_INLINE Ints LoadBytes(const void* p) {
  Ints out;
  __builtin_memcpy(out.v, p, sizeof(out.v));
  return out;
}
EBB_INLINE void StoreLowBytes(Ints a, void* p) {
  for (int i = 0; i < 16; ++i) static_cast<uint8_t*>(p)[i] = static_cast<uint8_t>(a.v[i]);
}

// sum + the products of four bytes of each lane of w, less 128, with the four signed bytes x. DotStart is what the sum
// begins with, given -128 times the sum of all x, where an instruction takes w as it is; here nothing.
EBB_INLINE Ints DotStart(int32_t /*offset*/) { return Splat(0); }
EBB_INLINE int32_t DotBytes(uint32_t w, uint32_t x) {
  int32_t sum = 0;
  for (int byte = 0; byte < 32; byte += 8) {
    sum += (static_cast<int32_t>(w >> byte & 255U) - 128) * static_cast<int8_t>(x >> byte & 255U);
  }
  return sum;
}
EBB_INLINE Ints DotBytes(Ints sum, Ints w, int32_t x) {
  EBB_LANES(Ints, sum.v[i] + DotBytes(Unsigned(w.v[i]), Unsigned(x)));
}

// sum + w.second * x.second, then + w.first * x.first, each rounded once: lanes are pairs of BF16, the first one lower.
// x is pair `step` of a chunk as StoreForPairs leaves it.
EBB_INLINE void StoreForPairs(Ints rounded, int first, float* chunk) {
  Store(FromBits(rounded & Splat(-65536)), chunk + first);
}
EBB_INLINE Floats DotPairs(Floats sum, Ints w, const float* x, int step) {
  const Floats second = Fma(FromBits(w & Splat(-65536)), Splat(x[2 * step + 1]), sum);
  return Fma(FromBits(ShiftLeft<16>(w)), Splat(x[2 * step]), second);
}

EBB_INLINE void Prefetch(const void* p) { __builtin_prefetch(p); }
EBB_INLINE void PrefetchFar(const void* p) { __builtin_prefetch(p, 0, 2); }

// Lane j of row i becomes lane i of row j.
EBB_INLINE void Transpose(Floats (&rows)[16]) {
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < i; ++j) {
      const float kept = rows[i].v[j];
      rows[i].v[j] = rows[j].v[i];
      rows[j].v[i] = kept;
    }
  }
}

// The one tree of every instruction set: lane i + lane i+8, then +4, +2, +1.
EBB_INLINE float Sum(Floats a) {
  for (int step = 8; step >= 1; step /= 2) {
    for (int i = 0; i < step; ++i) a.v[i] = a.v[i] + a.v[i + step];
  }
  return a.v[0];
}
EBB_INLINE float Largest(Floats a) {
  for (int step = 8; step >= 1; step /= 2) {
    for (int i = 0; i < step; ++i) a.v[i] = a.v[i] > a.v[i + step] ? a.v[i] : a.v[i + step];
  }
  return a.v[0];
}

#undef EBB_LANES

}  // namespace ebb::cpu::EBB_KERNEL_ISA

#endif  // EBB_ENGINE_OPS_CPU_VEC_SCALAR_H_
