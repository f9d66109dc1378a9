// Rounding of a row of activations to bytes, as kernels.h (RoundedRows) defines it.

#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/vec.h"

namespace ebb::cpu::EBB_KERNEL_ISA {
namespace {

EBB_INLINE Floats At(const float* x, int32_t first, int32_t k) {
  const int32_t left = k - first;
  return left >= 16 ? Load(x + first) : left > 0 ? LoadFirst(x + first, left) : Zero();
}

EBB_INLINE Floats Magnitude(Floats a) { return FromBits(Bits(a) & Splat(0x7FFFFFFF)); }

}  // namespace

void RoundToBytes(const float* x, int32_t k, const RoundedRows& row) {
  const Floats rounder = Splat(0x1.8p23F);  // leaves the nearest integer, ties to even, in the low bits
  const int32_t padded = (k + kChunk - 1) / kChunk * kChunk;
  for (int32_t first = 0; first < k; first += kRoundedBlock) {
    const int32_t end = padded - first < kRoundedBlock ? padded : first + kRoundedBlock;
    Floats largest = Zero();
    Floats doubt = Zero();  // not a number where anything is not finite
    for (int32_t i = first; i < end; i += 16) {
      const Floats a = At(x, i, k);
      largest = Max(Magnitude(a), largest);
      doubt = Fma(a, Zero(), doubt);
    }
    const float most = Largest(largest);
    row.scales[first / kRoundedBlock] = most * (1.0F / 127.0F) + Sum(doubt);
    const Floats units = Splat(most > 0x1p-100F ? 127.0F / most : 0.0F);  // below, the quotient could overflow
    for (int32_t chunk = first; chunk < end; chunk += kChunk) {
      Ints sum = Splat(0);
      Ints half = Splat(0);
      for (int32_t i = chunk; i < chunk + kChunk; i += 16) {
        const Ints value = ShiftRightSigned<24>(ShiftLeft<24>(Bits(Fma(At(x, i, k), units, rounder))));
        StoreLowBytes(value, row.bytes + i);
        half = sum;
        sum = sum + value;
      }
      row.halves[chunk / kChunk] = -128 * static_cast<int32_t>(Sum(ToFloats(half)));
      row.offsets[chunk / kChunk] = -128 * static_cast<int32_t>(Sum(ToFloats(sum)));
    }
  }
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
