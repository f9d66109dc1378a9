// Conversions between element types, rows of eight elements, and the angles of RoPE.

#ifndef EBB_ENGINE_OPS_GPU_NUMBERS_H_
#define EBB_ENGINE_OPS_GPU_NUMBERS_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"

namespace ebb::gpu::EBB_GPU_TARGET {

EBB_DEVICE float FromBf16(uint32_t bits) { return FloatOf(bits << 16); }

// To nearest, ties to even; what is not a number stays so. PackBf16: two, the first in the lower half.
EBB_DEVICE uint16_t ToBf16(float x) {
#if defined(__CUDA_ARCH__)
  uint16_t rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(x));
  return rounded;
#else
  const uint32_t bits = BitsOf(x);
  if (x != x) return static_cast<uint16_t>(bits >> 16 | 0x40U);
  return static_cast<uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
#endif
}
EBB_DEVICE uint32_t PackBf16(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
#else
  return ToBf16(low) | static_cast<uint32_t>(ToBf16(high)) << 16;
#endif
}

// The sums of two pairs. REQUIRES: they are exact in BF16.
EBB_DEVICE uint32_t AddBf16Pairs(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(0x3F803F80U), "r"(b));  // times 1
  return sum;
#else
  return BitsOf(FloatOf(a << 16) + FloatOf(b << 16)) >> 16 |
         BitsOf(FloatOf(a & 0xFFFF0000U) + FloatOf(b & 0xFFFF0000U));
#endif
}

// Four bytes of eight, by a digit each of `which`.
EBB_DEVICE uint32_t PickBytes(uint32_t low, uint32_t high, uint32_t which) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(low, high, which);
#else
  const uint64_t all = static_cast<uint64_t>(high) << 32 | low;
  uint32_t picked = 0;
  EBB_UNROLL
  for (int32_t i = 0; i < 4; ++i)
    picked |= static_cast<uint32_t>(all >> (8 * (which >> (4 * i) & 7U)) & 0xFFU) << (8 * i);
  return picked;
#endif
}

// Some bits of a word, and others: one operation where the compiler would make it two for the sake of a constant.
EBB_DEVICE uint32_t BitsAnd(uint32_t word, uint32_t mask, uint32_t others) {
#if defined(__CUDA_ARCH__)
  uint32_t all;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(all) : "r"(word), "r"(mask), "r"(others));
  return all;
#else
  return (word & mask) | others;
#endif
}

// A small integer in the low bits of a BF16 of 128, whose last bit counts as 1, is 128 + it.
inline constexpr uint32_t k128 = 0x43004300U;
inline constexpr uint32_t kMinus128 = 0xC300C300U;
// Of four bytes as signed integers, 0 and 2, then 1 and 3. Of a byte, the low seven bits are a number; its sign makes
// the 128 that is taken off 256.
EBB_DEVICE uint32_t Bf16PairOfBytes(uint32_t word, int32_t first) {
  const uint32_t two = word >> (8 * first);
  return AddBf16Pairs(BitsAnd(two, 0x007F007FU, k128), BitsAnd(two, 0x00800080U, kMinus128));
}

#if defined(__CUDACC__)
EBB_DEVICE float FromF16(uint32_t bits) { return __half2float(__ushort_as_half(static_cast<uint16_t>(bits))); }
EBB_DEVICE uint16_t ToF16(float x) { return __half_as_ushort(__float2half_rn(x)); }
#elif defined(__HIPCC__)
EBB_DEVICE float FromF16(uint32_t bits) {
  return static_cast<float>(__builtin_bit_cast(_Float16, static_cast<uint16_t>(bits)));
}
EBB_DEVICE uint16_t ToF16(float x) { return __builtin_bit_cast(uint16_t, static_cast<_Float16>(x)); }
#else
// Exact: a subnormal is its integer times 2^-24.
EBB_DEVICE float FromF16(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000U) << 16;
  const uint32_t magnitude = bits & 0x7FFFU;
  if (magnitude < 0x400U) return FloatOf(BitsOf(static_cast<float>(magnitude) * 0x1p-24F) | sign);
  return FloatOf(((magnitude << 13) + (magnitude < 0x7C00U ? 0x38000000U : 0x70000000U)) | sign);
}
// To nearest, ties to even, by one addition whose rounding falls where binary16 ends.
EBB_DEVICE uint16_t ToF16(float x) {
  const uint32_t sign = BitsOf(x) >> 16 & 0x8000U;
  const uint32_t magnitude = BitsOf(x) & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<uint16_t>(sign | 0x7C00U);
  if (magnitude < 0x38800000U) {
    return static_cast<uint16_t>(sign | (BitsOf(FloatOf(magnitude) + 0.5F) - 0x3F000000U));
  }
  return static_cast<uint16_t>(sign | (magnitude - 0x38000000U + 0xFFFU + (magnitude >> 13 & 1U)) >> 13);
}
#endif

// Two, the first in the lower half; what is larger than F16 has becomes infinite.
EBB_DEVICE uint32_t PackF16(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
#else
  return ToF16(low) | static_cast<uint32_t>(ToF16(high)) << 16;
#endif
}

// Sixteen bytes, read at once.
struct alignas(16) Vector16 {
  uint32_t word[4];
};

struct alignas(8) Vector8 {
  uint32_t word[2];
};

// Elements of K and V. ReadEight: eight neighbours, the first aligned as a vector of them. kScaled: what it and Read
// tell is in units of the slot's scale, and Convert takes what makes +-kLargest of the largest; kUnit times that is the
// scale.
struct KvF32 {
  static constexpr Element kElement = Element::kF32;
  static constexpr bool kScaled = false;
  using Type = float;
  static EBB_DEVICE void ReadEight(const float* from, float* to) {
    const Vector16 low = *reinterpret_cast<const Vector16*>(from);
    const Vector16 high = *reinterpret_cast<const Vector16*>(from + 4);
    EBB_UNROLL
    for (int i = 0; i < 4; ++i) {
      to[i] = FloatOf(low.word[i]);
      to[4 + i] = FloatOf(high.word[i]);
    }
  }
  static EBB_DEVICE float Convert(float x) { return x; }
  static EBB_DEVICE float Read(float x) { return x; }
};
struct KvBf16 {
  static constexpr Element kElement = Element::kBf16;
  static constexpr bool kScaled = false;
  using Type = uint16_t;
  static EBB_DEVICE void ReadEight(const uint16_t* from, float* to) {
    const Vector16 row = *reinterpret_cast<const Vector16*>(from);
    EBB_UNROLL
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = FloatOf(row.word[i] << 16);
      to[2 * i + 1] = FloatOf(row.word[i] & 0xFFFF0000U);
    }
  }
  static EBB_DEVICE uint16_t Convert(float x) { return ToBf16(x); }
  static EBB_DEVICE float Read(uint16_t x) { return FromBf16(x); }
};
struct KvF16 {
  static constexpr Element kElement = Element::kF16;
  static constexpr bool kScaled = false;
  using Type = uint16_t;
  static EBB_DEVICE void ReadEight(const uint16_t* from, float* to) {
    const Vector16 row = *reinterpret_cast<const Vector16*>(from);
    EBB_UNROLL
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = FromF16(row.word[i] & 0xFFFFU);
      to[2 * i + 1] = FromF16(row.word[i] >> 16);
    }
  }
  static EBB_DEVICE uint16_t Convert(float x) { return ToF16(x); }
  static EBB_DEVICE float Read(uint16_t x) { return FromF16(x); }
};

struct KvInt8 {
  static constexpr Element kElement = Element::kQ8;
  static constexpr bool kScaled = true;
  static constexpr float kLargest = 127;
  static constexpr float kUnit = 1.0F / 127.0F;
  using Type = int8_t;
  static EBB_DEVICE void ReadEight(const int8_t* from, float* to) {
    const uint32_t* const words = reinterpret_cast<const uint32_t*>(from);
    const uint32_t word[2] = {words[0], words[1]};
    EBB_UNROLL
    for (int i = 0; i < 8; ++i) {
      to[i] = static_cast<float>(static_cast<int8_t>(word[i / 4] >> (8 * (i % 4)) & 0xFFU));
    }
  }
  // The nearest integer, ties to even, of x * units, which is within +-127: adding 1.5 * 2^23 leaves it in the low
  // bits.
  static EBB_DEVICE int8_t Convert(float x, float units) {
    return static_cast<int8_t>(BitsOf(MultiplyAdd(x, units, 12582912.0F)) & 0xFFU);
  }
  static EBB_DEVICE float Read(int8_t x) { return static_cast<float>(x); }
  // What Read tells of bytes `first` and `first` + 2 of four, 0 or 1, as a pair of BF16.
  static EBB_DEVICE uint32_t PairOf(uint32_t bytes, int32_t first) { return Bf16PairOfBytes(bytes, first); }
};

struct KvFp8 {
  static constexpr Element kElement = Element::kFp8;
  static constexpr bool kScaled = true;
  static constexpr float kLargest = 448;
  static constexpr float kUnit = 0x1p8F / 448.0F;  // Read tells 2^-8 of what E4M3 is
  using Type = uint8_t;
  // Of codes in the low bytes of both halves, what they are as binary16.
  static EBB_DEVICE uint32_t HalvesOf(uint32_t codes) {
    return (codes & 0x00800080U) << 8 | (codes & 0x007F007FU) << 7;
  }
  static EBB_DEVICE void ReadEight(const uint8_t* from, float* to) {
    const uint32_t* const words = reinterpret_cast<const uint32_t*>(from);
    EBB_UNROLL
    for (int i = 0; i < 4; ++i) {  // columns 0 and 2, 1 and 3, then those four further on
      const uint32_t halves = HalvesOf(words[i / 2] >> (8 * (i % 2)));
      to[4 * (i / 2) + i % 2] = FromF16(halves & 0xFFFFU);
      to[4 * (i / 2) + i % 2 + 2] = FromF16(halves >> 16);
    }
  }
  // To nearest, ties to even, of x * units: bit for bit as the CPU has it, and by the same means (ops/cpu/kv.h).
  static EBB_DEVICE uint8_t Convert(float x, float units) {
    float size = FloatOf(BitsOf(x * units) & 0x7FFFFFFFU);
    size = size < kLargest ? size : kLargest;
    const uint32_t exponent = BitsOf(size) & 0x7F800000U;
    const uint32_t power = exponent > BitsOf(0x1p-6F) ? exponent : BitsOf(0x1p-6F);
    const uint32_t above = power + (20U << 23);
    const uint32_t count = BitsOf(size + FloatOf(above)) - above;
    return static_cast<uint8_t>((BitsOf(x) >> 31 << 7) + count + (power >> 20) - ((127U - 6U) << 3));
  }
  static EBB_DEVICE float Read(uint8_t x) { return FromF16(HalvesOf(x)); }
  static EBB_DEVICE uint32_t PairOf(uint32_t bytes, int32_t first) {  // exact: three bits, and few powers
    const uint32_t halves = HalvesOf(bytes >> (8 * first));
    return PickBytes(BitsOf(FromF16(halves & 0xFFFFU)), BitsOf(FromF16(halves >> 16)), 0x7632U);
  }
};

// Eight neighbours as the numbers that they are.
template <typename E>
EBB_DEVICE void ReadNumbers(const typename E::Type* from, float scale, float (&to)[8]) {
  E::ReadEight(from, to);
  if constexpr (E::kScaled) {
    EBB_UNROLL
    for (int32_t i = 0; i < 8; ++i) to[i] *= scale;
  }
}

// cap * tanh(x / cap), within 2^-23 cap; x where the cap is 0.
EBB_DEVICE float Capped(float x, float cap) { return cap > 0 ? cap - 2 * cap / (Exp(2 * x / cap) + 1.0F) : x; }

// What slopes leave of a query head's logit, at a distance in positions (AttendArgs).
EBB_DEVICE float Lowered(float logit, float slope, int32_t distance) {
  return MultiplyAdd(-slope, static_cast<float>(distance), logit);
}

struct CosSin {
  float cos, sin;
};

// Of position * turns * 2^-64 turns; exact modulo one turn at any position >= 0. No table: a position's angles cost a
// few operations where they are used, and no byte of memory.
//
// NVIDIA's devices have both functions as instructions, good to 1e-6 where integers took off the whole turns. Elsewhere
// they take off the whole half turns, so |rest| <= 1/2, and an odd one changes both signs; the polynomials, of degree 9
// and 10, are minimax for sin(pi rest) and cos(pi rest); absolute error below 2.5e-7.
EBB_DEVICE CosSin Turn(int32_t position, uint64_t turns) {
  const auto at = static_cast<uint32_t>(position);
  const uint64_t low = static_cast<uint64_t>(at) * static_cast<uint32_t>(turns);
  const uint32_t phase = at * static_cast<uint32_t>(turns >> 32) + static_cast<uint32_t>(low >> 32);
#if defined(__CUDA_ARCH__)
  const float angle = static_cast<float>(static_cast<int32_t>(phase)) * 1.4629180792671596e-9F;  // 2 pi 2^-32
  return {__cosf(angle), __sinf(angle)};
#else
  const uint32_t odd = (phase + 0x40000000U) & 0x80000000U;
  const float t = static_cast<float>(static_cast<int32_t>(phase - odd)) * 4.656612873077393e-10F;  // 2^-31
  const float u = t * t;
  float s = MultiplyAdd(7.643380761e-2F, u, -5.976253748e-1F);
  s = MultiplyAdd(s, u, 2.549957752F);
  s = MultiplyAdd(s, u, -5.167702198F);
  s = MultiplyAdd(s, u, 3.141592503F) * t;
  float c = MultiplyAdd(-2.396387421e-2F, u, 2.346837670e-1F);
  c = MultiplyAdd(c, u, -1.335161567F);
  c = MultiplyAdd(c, u, 4.058705330F);
  c = MultiplyAdd(c, u, -4.934802055F);
  c = MultiplyAdd(c, u, 1.0F);
  return {FloatOf(BitsOf(c) ^ odd), FloatOf(BitsOf(s) ^ odd)};
#endif
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_NUMBERS_H_
