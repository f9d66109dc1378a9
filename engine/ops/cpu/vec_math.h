// Exponential, sine and cosine, and the rounding to BF16 over vec.h: polynomials of our own, so that every instruction
// set and every C library gives the same bits.

#ifndef EBB_ENGINE_OPS_CPU_VEC_MATH_H_
#define EBB_ENGINE_OPS_CPU_VEC_MATH_H_

#include <cstdint>

#include "engine/ops/cpu/vec.h"

namespace ebb::cpu::EBB_KERNEL_ISA {

// e^x within 2 ulp for x in -87.33 .. 88; 0 below (and for -infinity), e^88 above. What is not a number stays so: of
// Max and Min it is the second argument.
//
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q minimax of degree 4; 2^n is put into the exponent. n
// is rounded by adding 1.5 * 2^23, which leaves it in the low bits of the sum.
EBB_INLINE Floats Exp(Floats x) {
  const Floats smallest = Splat(-87.33F);
  const Floats rounder = Splat(0x1.8p23F);
  const Floats in = Min(Splat(88.0F), Max(smallest, x));
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

// cap * tanh(a / cap), within 3e-7 cap: 1 - 2 / (e^(2 a / cap) + 1), and an odd polynomial where that would cancel.
// What is not a number stays so.
EBB_INLINE Floats Capped(Floats a, Floats cap) {
  const Floats t = a / cap;
  const Floats u = t * t;
  const Floats far = Splat(1.0F) - Splat(2.0F) / (Exp(t + t) + Splat(1.0F));
  Floats near = Fma(Splat(2.186949e-2F), u, Splat(-5.396825e-2F));
  near = Fma(near, u, Splat(1.333333e-1F));
  near = Fma(near, u, Splat(-3.333333e-1F));
  near = Fma(near * u, t, t);
  return Select(Less(u, Splat(0.04F)), near, far) * cap;
}

// An angle as `rest` half turns, |rest| <= 1/2, beside a whole number of them of which only the lowest bit is told: odd
// in bit 31.
struct HalfTurns {
  Floats rest;
  Ints odd;
};

// Below this a position times a number of half turns in -1 .. 1 leaves room to round in a float.
inline constexpr int32_t kNearPositions = 1 << 22;

// position * (high + low) half turns for position < kNearPositions; high + low is a number in -1 .. 1 to 48 bits.
// `rest` errs by less than 2^-25: two roundings at its own size, for adding 1.5 * 2^23 rounds to a whole number, which
// the sum keeps in its low bits, and a multiply-add takes it off before it rounds.
EBB_INLINE HalfTurns Near(Floats position, Floats high, Floats low) {
  const Floats rounder = Splat(0x1.8p23F);
  const Floats shifted = Fma(position, high, rounder);
  const Floats rest = Fma(position, low, Fma(position, high, rounder - shifted));
  return {rest, ShiftLeft<31>(Bits(shifted))};
}

// The same of an angle in units of 2^-32 turns.
EBB_INLINE HalfTurns FromPhase(Ints phase) {
  const Ints odd = (phase + Splat(1 << 30)) & Splat(INT32_MIN);
  return {ToFloats(phase - odd) * Splat(0x1p-31F), odd};
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

// Cosine and sine by minimax polynomials for sin(pi rest) (degree 9) and cos(pi rest) (degree 10); an odd half turn
// changes both signs. Absolute error below 2.5e-7, worst where the cosine vanishes: pi 2^-25 from Near, and as much
// again from rounding rest^2 (times pi^2) and the sum of the higher terms.
EBB_INLINE CosSin Turn(HalfTurns angle) {
  const Floats t = angle.rest;
  const Floats u = t * t;
  Floats s = Fma(Splat(7.643380761e-2F), u, Splat(-5.976253748e-1F));
  s = Fma(s, u, Splat(2.549957752F));
  s = Fma(s, u, Splat(-5.167702198F));
  s = Fma(s, u, Splat(3.141592503F)) * t;
  Floats c = Fma(Splat(-2.396387421e-2F), u, Splat(2.346837670e-1F));
  c = Fma(c, u, Splat(-1.335161567F));
  c = Fma(c, u, Splat(4.058705330F));
  c = Fma(c, u, Splat(-4.934802055F));
  c = Fma(c, u, Splat(1.0F));
  return {FromBits(Bits(c) ^ angle.odd), FromBits(Bits(s) ^ angle.odd)};
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
