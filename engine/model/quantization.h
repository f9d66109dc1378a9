// How the elements of a tensor rest in memory: block sizes, exact decoding, and conversions of single numbers.
//
//   type  values  bytes  value of element i
//   F32        1      4  IEEE binary32
//   F16        1      2  IEEE binary16
//   BF16       1      2  the upper half of a binary32
//   Q8_0      32     34  d * q[i]            d: binary16, then 32 x int8
//   Q4_0      32     18  d * (n[i] - 8)      d: binary16, then 16 bytes; byte j holds n[j] (low) and n[j + 16] (high)
//   Q4_K     256    144  d * s[j] * n[i] - dmin * m[j], j = i / 32, n in 0..15
//   Q5_K     256    176  the same, n in 0..31
//   Q6_K     256    210  d * s[i / 16] * n[i], n in -32..31
//   Q2_K     256     84  d * s[j] * n[i] - dmin * m[j], j = i / 16, n in 0..3
//   Q3_K     256    110  d * s[i / 16] * n[i], n in -4..3        k_block.h says how the five K types lie
//   Q4_1      32     20  d * n[i] + m            d, m: binary16, then nibbles as in Q4_0
//   Q5_0      32     22  d * (n[i] - 16)         d; 4 bytes with the fifth bits, bit i that of n[i]; nibbles as in Q4_0
//   Q5_1      32     24  d * n[i] + m            d, m; fifth bits; nibbles
//   IQ4_NL    32     18  d * c[n[i]]             d; nibbles as in Q4_0; c: sixteen whole numbers, -127 to 113
//   MXFP4     32     17  2^(e - 128) * f[n[i]]   e: one byte; nibbles as in Q4_0; f: 0 1 2 3 4 6 8 12 and the same
//                                                below 0, twice an E2M1 (OCP Microscaling Formats 1.0, 5.3.3)
//
// Decoding is exact: every one of these values is a binary32, but for those of Q4_1, Q5_1, Q2_K, Q4_K and Q5_K, whose
// sum of exact terms is rounded once. All numbers rest little-endian. Not for inner loops of kernels, which decode in
// registers (ops/cpu).

#ifndef EBB_ENGINE_MODEL_QUANTIZATION_H_
#define EBB_ENGINE_MODEL_QUANTIZATION_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/tensor.h"

namespace ebb {

// As GGUF spells it: "F32", "Q8_0".
std::string_view TypeName(DType type);

// Elements that share one block, 1, 32 or 256, and the bytes of that block.
int64_t BlockValues(DType type);
int64_t BlockBytes(DType type);

// Bytes of a row of `cols` elements. REQUIRES: cols is a multiple of BlockValues(type), 0 <= cols < 2^60.
int64_t RowBytes(DType type, int64_t cols);

// Writes the row's elements to `out` [cols]. `row` holds RowBytes(type, cols) bytes and needs no alignment.
void DequantizeRow(DType type, const std::byte* row, int64_t cols, float* out);

// Kernels know a few types; tensors of the others are kept in memory as one of these, in which every value is what it
// was: Q5_0 and IQ4_NL as Q8_0, Q3_K as Q6_K, MXFP4 as BF16; Q4_1, Q5_1 and Q2_K, whose minima no other type has, as
// F32.
DType WidenedType(DType type);

// Writes the row as WidenedType(type) has it, RowBytes of that type.
void WidenRow(DType type, const std::byte* row, int64_t cols, std::byte* out);

// To nearest, ties to even; what is too large becomes infinite, and a NaN stays a NaN (made quiet).
uint16_t Bf16FromFloat(float value);
uint16_t F16FromFloat(float value);

// Exact, subnormals included.
float FloatFromBf16(uint16_t bits);
float FloatFromF16(uint16_t bits);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_QUANTIZATION_H_
