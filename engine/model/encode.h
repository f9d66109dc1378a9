// Rows of numbers as a type stores them, by the format's reference rounding: the same bytes as other converters.
//
//   F16, BF16   to nearest, ties to even
//   Q8_0        d = max|x| / 127, q = x / d to nearest, ties away from zero
//   Q4_0, Q5_0  d = x / -8, x / -16 for the x of largest magnitude (the first such); codes floor(x / d + 8.5), 16.5
//   Q4_1, Q5_1  m = min x, d = (max x - m) / 15, / 31; codes floor((x - m) / d + 0.5)
//
// Codes are made with the inverse of d in binary32, before d is rounded to binary16.

#ifndef EBB_ENGINE_MODEL_ENCODE_H_
#define EBB_ENGINE_MODEL_ENCODE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/tensor.h"

namespace ebb {

// The types that EncodeRow writes, F32 first.
std::span<const DType> EncodableTypes();

// Writes RowBytes(type, cols) bytes. REQUIRES: one of EncodableTypes(), whole blocks, finite numbers.
void EncodeRow(DType type, const float* row, int64_t cols, std::byte* out);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_ENCODE_H_
