// The K types' blocks of 256 values, taken apart into whole numbers: what the decoder and the packing of weights share.
//
//   value i = d * scale[i / width] * code[i] - dmin * minimum[i / width]
//
// In the file (byte ranges; all six-bit numbers are unsigned):
//
//   Q4_K  144 bytes, width 32, codes 0..15
//     0..1 d   2..3 dmin   binary16
//     4..15    scales and minima of six bits: byte j < 4 holds scale j, byte j + 4 minimum j, both in the low six bits;
//              byte j + 8 holds the low halves of scale j + 4 (low) and of minimum j + 4 (high), whose upper two bits
//              are those of bytes j and j + 4
//     16..143  runs of 64 values in 32 bytes: byte j holds codes j (low nibble) and j + 32 (high) of its run
//   Q5_K  176 bytes, width 32, codes 0..31
//     0..15    as Q4_K
//     16..47   byte j holds the fifth bits of codes j, j + 32, j + 64, ..., lowest first
//     48..175  as Q4_K's runs
//   Q6_K  210 bytes, width 16, codes -32..31, no minima
//     0..127   halves of 128 values in 64 bytes: byte j holds the low four bits of codes j (low nibble) and j + 64
//     (high) 128..191 halves of 128 values in 32 bytes: byte j holds the upper two bits of codes j, j + 32, j + 64 and
//     j + 96,
//              lowest first; a code is its six bits less 32
//     192..207 scales, int8
//     208..209 d
//   Q2_K  84 bytes, width 16, codes 0..3
//     0..15    byte j holds scale j (low nibble) and minimum j (high)
//     16..79   halves of 128 values in 32 bytes: byte j holds codes j, j + 32, j + 64 and j + 96, lowest bits first
//     80..81 d   82..83 dmin
//   Q3_K  110 bytes, width 16, codes -4..3, no minima
//     0..31    byte j holds the third bits of codes j, j + 32, j + 64, ..., lowest first; a code is its bits less 4
//     32..95   the lower two bits, as the codes of Q2_K
//
//     96..107  scales of six bits, less 32: byte j < 8 holds the low halves of scale j (low) and of scale j + 8 (high);
//              byte j + 8, j < 4, the upper two bits of scales j, j + 4, j + 8 and j + 12, lowest first
//
//     108..109 d

#ifndef EBB_ENGINE_MODEL_K_BLOCK_H_
#define EBB_ENGINE_MODEL_K_BLOCK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/tensor.h"

namespace ebb {

// Two bytes at any address, as they lie in a file on a little-endian machine.
inline uint16_t LoadU16(const std::byte* at) {
  uint16_t value = 0;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

inline constexpr int64_t kSuperBlock = 256;

constexpr bool IsKType(DType type) {
  return type == DType::kQ2_K || type == DType::kQ3_K || type == DType::kQ4_K || type == DType::kQ5_K ||
         type == DType::kQ6_K;
}

struct KBlock {
  uint16_t d = 0;                        // binary16
  uint16_t dmin = 0;                     // binary16; 0 in Q3_K and Q6_K
  int32_t width = 0;                     // values that share a scale: 32, in Q2_K, Q3_K and Q6_K 16
  std::array<int8_t, 16> scale = {};     // [256 / width]
  std::array<uint8_t, 16> minimum = {};  // [256 / width]; 0 in Q3_K and Q6_K
  std::array<int8_t, kSuperBlock> code = {};
};

// `block` holds BlockBytes(type) bytes and needs no alignment. REQUIRES: IsKType(type).
KBlock ReadKBlock(DType type, const std::byte* block);

// Writes a block of Q6_K, 210 bytes. REQUIRES: width 16, codes -32..31, no minima.
void WriteQ6KBlock(const KBlock& block, std::byte* to);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_K_BLOCK_H_
