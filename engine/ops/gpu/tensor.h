// A product of small tiles by a team of 32, which tensor cores do where the compiler reaches them: nvcc, from sm_80 on.
// Elsewhere the team does it by exchanging registers, in the same layout: slow, and not the same bits. Tensor cores add
// sixteen terms and the sum so far in an order of their own, and may cut off what a float would round.

#ifndef EBB_ENGINE_OPS_GPU_TENSOR_H_
#define EBB_ENGINE_OPS_GPU_TENSOR_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/numbers.h"

namespace ebb::gpu::EBB_GPU_TARGET {

// What a word has two of.
enum class Half { kBf16, kF16 };
template <Half kHalf>
EBB_DEVICE float NumberOf(uint32_t bits) {
  return kHalf == Half::kBf16 ? FromBf16(bits) : FromF16(bits);
}

// C [16][8] += A [16][16] B [16][8]; A and B are numbers of kHalf, two to a word, the lower index in the lower half; C
// is float. As PTX lays them out (mma.m16n8k16), thread 4 g + t of the team has
//
//   a   A[g][2t, 2t + 1]    A[g + 8][2t, 2t + 1]    A[g][2t + 8, 2t + 9]    A[g + 8][2t + 8, 2t + 9]
//   b   B[2t, 2t + 1][g]    B[2t + 8, 2t + 9][g]
//   c   C[g][2t]   C[g][2t + 1]   C[g + 8][2t]   C[g + 8][2t + 1]
template <Half kHalf = Half::kBf16>
EBB_DEVICE void MultiplySmallTile(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&c)[4]) {
#if defined(__CUDACC__)
#if defined(__CUDA_ARCH__)
  if constexpr (kHalf == Half::kBf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#endif
#else
  const int32_t lane = ThreadIndex() % kTeam;
  const int32_t g = lane / 4;
  const int32_t t = lane % 4;
  const TeamWords<6> team({a[0], a[1], a[2], a[3], b[0], b[1]});
  EBB_UNROLL
  for (int32_t upper = 0; upper < 2; ++upper) {
    EBB_ROLLED
    for (int32_t owner = 0; owner < 4; ++owner) {  // columns 8 upper + 2 owner and the next one
      const uint32_t rows[2] = {team.Of(2 * upper, 4 * g + owner), team.Of(2 * upper + 1, 4 * g + owner)};
      const uint32_t columns[2] = {team.Of(4 + upper, 8 * t + owner), team.Of(4 + upper, 8 * t + 4 + owner)};
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        const uint32_t x = rows[i / 2];
        const uint32_t y = columns[i % 2];
        c[i] = MultiplyAdd(NumberOf<kHalf>(x & 0xFFFFU), NumberOf<kHalf>(y & 0xFFFFU), c[i]);
        c[i] = MultiplyAdd(NumberOf<kHalf>(x >> 16), NumberOf<kHalf>(y >> 16), c[i]);
      }
    }
  }
#endif
}

// C = A B: the same with a C of zeros.
EBB_DEVICE void MultiplySmallTileAnew(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&c)[4]) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, "
      "%10, %10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0F));
#else
  EBB_UNROLL
  for (int32_t i = 0; i < 4; ++i) c[i] = 0;
  MultiplySmallTile(a, b, c);
#endif
}

// Four tiles of 8 x 8 BF16 in shared memory, row r of tile m at row(m, r), a SharedAt of 16 bytes that are aligned so.
// Thread 4 g + t of the team gets of each tile numbers 2 t and 2 t + 1 of row g; or, transposed, number g of rows 2 t
// and 2 t + 1.
template <bool kTransposed, typename Row>
EBB_DEVICE void LoadTiles(const Row& row, uint32_t (&to)[4]) {
  const int32_t lane = ThreadIndex() % kTeam;
#if defined(__CUDA_ARCH__)
  const SharedAt from = row(lane / 8, lane % 8);
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  }
#else
  EBB_UNROLL
  for (int32_t m = 0; m < 4; ++m) {
    if constexpr (kTransposed) {
      const auto* const low = reinterpret_cast<const uint16_t*>(row(m, 2 * (lane % 4)));
      const auto* const high = reinterpret_cast<const uint16_t*>(row(m, 2 * (lane % 4) + 1));
      to[m] = low[lane / 4] | static_cast<uint32_t>(high[lane / 4]) << 16;
    } else {
      to[m] = reinterpret_cast<const uint32_t*>(row(m, lane / 4))[lane % 4];
    }
  }
#endif
}

// Two floats as a word of two BF16, cut off, not rounded; what was cut off is left in them. Three words in turn hold
// all 24 bits of both.
EBB_DEVICE uint32_t TakeBf16(float& low, float& high) {
  const uint32_t first = BitsOf(low) & 0xFFFF0000U;
  const uint32_t second = BitsOf(high) & 0xFFFF0000U;
  low -= FloatOf(first);
  high -= FloatOf(second);
  return first >> 16 | second;
}
inline constexpr int32_t kBf16Terms = 3;

// Two numbers as two words of two BF16: each rounded, and what that left, rounded, too; within
// 2^-17 of them. REQUIRES: both are finite in BF16; else they become NaN.
struct Terms {
  uint32_t first, second;
};
EBB_DEVICE Terms TermsOf(float low, float high) {
  const uint32_t first = PackBf16(low, high);
  return {first, PackBf16(low - FloatOf(first << 16), high - FloatOf(first & 0xFFFF0000U))};
}
// The same in F16: within 2^-22 of numbers that are normal in it, and 2^-25 of 1 of others. REQUIRES: both are finite
// in F16.
EBB_DEVICE Terms HalfTermsOf(float low, float high) {
  const uint32_t first = PackF16(low, high);
  return {first, PackF16(low - FromF16(first & 0xFFFFU), high - FromF16(first >> 16))};
}
// TermsOf, of any: what is infinite in BF16 is so in the first term, and leaves nothing.
EBB_DEVICE Terms TermsOfAny(float low, float high) {
  const uint32_t first = PackBf16(low, high);
  const auto left = [](float x, float rounded) {
    return rounded == Infinity() || rounded == MinusInfinity() ? 0.0F : x - rounded;
  };
  return {first, PackBf16(left(low, FloatOf(first << 16)), left(high, FloatOf(first & 0xFFFF0000U)))};
}

// The next of a number's kTerms words: one is rounded, of more each is what the former left.
template <int32_t kTerms>
EBB_DEVICE uint32_t TakeTerm(float& low, float& high) {
  if constexpr (kTerms == 1) return PackBf16(low, high);
  return TakeBf16(low, high);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_TENSOR_H_
