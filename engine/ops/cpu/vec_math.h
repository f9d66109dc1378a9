// Exponential, sine and cosine, and the rounding to BF16 over vec.h: polynomials of our own, so that every instruction
// set and every C library gives the same bits.

#ifndef EBB_ENGINE_OPS_CPU_VEC_MATH_H_
#define EBB_ENGINE_OPS_CPU_VEC_MATH_H_

#include <cstdint>

#include "engine/ops/cpu/vec.h"

namespace ebb::cpu::EBB_KERNEL_ISA {

// e^x within 2 ulp for x in -87.33 .. 88; 0 below (and for -infinity), e^88 above.
//
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q minimax of degree 4; 2^n is put into the exponent. n
// is rounded by adding 1.5 * 2^23, which leaves it in the low bits of the sum.
EBB_INLINE Floats Exp(Floats x) {
  const Floats smallest = Splat(-87.33F);
  const Floats rounder = Splat(0x1.8p23F);
  const Floats in = Min(Max(x, smallest), Splat(88.0F));
  const Floats shifted = Fma(in, Splat(1.44269504F), rounder);
  const Floats n = shifted - rounder;
  Floats r = Fnma(n, Splat(0.693359375F), in);  // ln 2 in two parts; n times the first is exact
  r = Fma(n, Splat(2.12194440e-4F), r);
  Floats q = Fma(Splat(1.381464760e-3F), r, Splat(8.368704034e-3F));
  q = Fma(q, r, Splat(4.166838611e-2F));
  q = Fma(q, r, Splat(0.1666652076F));
  q = Fma(q, r, Splat(0.4999999346F));
  const Floats e = Fma(r * r, q, r) + Splat(1.0F);
  const Floats power = FromBits(ShiftLeft<23>(Bits(shifted)) + Splat(0x3F800000));
  return Select(Less(x, smallest), Zero(), e * power);
}

// Bits 32..63 of position * turns: the angle as a fraction of a turn in units of 2^-32. Exact modulo one turn for any
// position >= 0.
EBB_INLINE Ints Phase(Ints position, uint64_t turns) {
  const Ints low = Splat(static_cast<int32_t>(static_cast<uint32_t>(turns)));
  const Ints high = Splat(static_cast<int32_t>(static_cast<uint32_t>(turns >> 32)));
  return MulHighUnsigned(position, low) + MulLow(position, high);
}

struct CosSin {
  Floats cos, sin;
};

// Cosine and sine of `phase` turns * 2^-32, absolute error below 1.2e-7.
//
// The nearest quarter turn is split off exactly; the rest, t in [-1, 1] eighths of a turn, goes through minimax
// polynomials for sin(pi/4 t) (degree 7) and cos(pi/4 t) (degree 8).
EBB_INLINE CosSin Turn(Ints phase) {
  const Ints quarter = ShiftRight<30>(phase + Splat(1 << 29));
  const Floats t = ToFloats(phase - ShiftLeft<30>(quarter)) * Splat(0x1p-29F);
  const Floats u = t * t;
  Floats s = Fma(Splat(-3.595450779e-5F), u, Splat(2.490007127e-3F));
  s = Fma(s, u, Splat(-8.074543483e-2F));
  s = Fma(s, u, Splat(0.7853981610F)) * t;
  Floats c = Fma(Splat(3.531372640e-6F), u, Splat(-3.259420861e-4F));
  c = Fma(c, u, Splat(1.585432780e-2F));
  c = Fma(c, u, Splat(-0.3084251358F));
  c = Fma(c, u, Splat(1.0F));
  const Mask straight = Equal(quarter & Splat(1), Splat(0));
  const Ints flip_sin = ShiftLeft<30>(quarter & Splat(2));
  const Ints flip_cos = ShiftLeft<30>((quarter + Splat(1)) & Splat(2));
  return {FromBits(Bits(Select(straight, c, s)) ^ flip_cos), FromBits(Bits(Select(straight, s, c)) ^ flip_sin)};
}

// Rounds to nearest even so that the upper 16 bits of each lane are the BF16 value; what is not a number stays so.
EBB_INLINE Ints RoundBf16(Floats a) {
  const Ints bits = Bits(a);
  const Ints rounded = bits + Splat(0x7FFF) + (ShiftRight<16>(bits) & Splat(1));
  const Ints magnitude = bits & Splat(0x7FFFFFFF);
  const Ints quiet = (bits & Splat(static_cast<int32_t>(0xFFBFFFFFU))) + Splat(0x400000);
  return Select(Greater(magnitude, Splat(0x7F800000)), quiet, rounded);
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA

#endif  // EBB_ENGINE_OPS_CPU_VEC_MATH_H_
