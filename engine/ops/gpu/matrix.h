// How a device holds weights: what kernels multiply by, and what uploads lay out (engine/gpu/device_matrix.h).

#ifndef EBB_ENGINE_OPS_GPU_MATRIX_H_
#define EBB_ENGINE_OPS_GPU_MATRIX_H_

#include <cstdint>

namespace ebb::gpu {

// kFp8 is the cache's alone.
enum class Element : int32_t { kF32, kF16, kBf16, kQ8, kQ4, kQ4K, kQ5K, kQ6K, kFp8 };

// Columns come in whole blocks of as many; what shares a scale, in quantised types.
inline constexpr int32_t kWeightBlock = 32;
inline constexpr int32_t kSuperBlock = 256;  // the same of K types, whose scales have a scale

// W [rows][cols] on the device, row after row; cols is a multiple of kWeightBlock.
//
//   F32, F16, BF16   values [rows][cols]
//   Q8_0             values [rows][cols] int8                      scales [rows][cols / 32] binary16
//   Q4_0             values [rows][cols / 16][8] bytes: byte j of 16 columns holds code j (low nibble) and code j + 8
//                    (high), code = value + 8                      scales alike
//   Q4_K             values as Q4_0, code = 0 .. 15
//                    scales [rows][cols / 32]: scale (low byte), minimum (high)
//                    supers [rows][cols / 256]: binary16 d (low half), dmin (high)
//                    value = d * scale * code - dmin * minimum
//   Q5_K             as Q4_K, code = 0 .. 31, of which values have the low four bits
//                    upper [rows][cols / 32] words: the fifth bits of 32 codes, that of column 16 a + 8 b + 4 c + 2 d +
//                    e at 16 d + 8 a + 4 c + 2 b + e, where linear_rows_small.cc takes them two at a time
//   Q6_K             values as Q4_0, the low four bits of code + 32
//                    upper [rows][cols / 16] words: the other two bits of sixteen codes, the first lowest
//                    scales [rows][cols / 32]: int8 of the first 16 columns (low byte) and of the others (high)
//                    supers: d                                value = d * scale * code
//
// Scales lie apart from codes so that both are read in whole vectors; the file's blocks of 34, 18, 144, 176 and 210
// bytes are not aligned to anything.
struct Matrix {
  Element type = Element::kF32;
  int32_t rows = 0;
  int32_t cols = 0;
  const void* values = nullptr;
  const uint16_t* scales = nullptr;
  const uint32_t* supers = nullptr;
  const uint32_t* upper = nullptr;
};

}  // namespace ebb::gpu

#endif  // EBB_ENGINE_OPS_GPU_MATRIX_H_
