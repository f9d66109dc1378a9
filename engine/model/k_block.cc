#include "engine/model/k_block.h"

#include <cstring>

#include "policies/check.h"

namespace ebb {
namespace {

uint16_t LoadU16(const std::byte* at) {
  uint16_t value = 0;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

int Byte(const std::byte* at) { return std::to_integer<int>(*at); }

// `head` is d, dmin and the twelve bytes of scales and minima.
void ReadAffineHead(const std::byte* head, KBlock& out) {
  out.d = LoadU16(head);
  out.dmin = LoadU16(head + 2);
  out.width = 32;
  const std::byte* const packed = head + 4;
  for (size_t j = 0; j < 4; ++j) {
    const int low = Byte(packed + j);
    const int mid = Byte(packed + 4 + j);
    const int halves = Byte(packed + 8 + j);
    out.scale[j] = static_cast<int8_t>(low & 63);
    out.minimum[j] = static_cast<uint8_t>(mid & 63);
    out.scale[j + 4] = static_cast<int8_t>((halves & 15) | (low >> 6 << 4));
    out.minimum[j + 4] = static_cast<uint8_t>((halves >> 4) | (mid >> 6 << 4));
  }
}

// Codes in runs of 2 * `stride`, low nibbles first.
void ReadNibbles(const std::byte* nibbles, size_t stride, KBlock& out) {
  for (size_t i = 0; i < out.code.size(); ++i) {
    const size_t run = i / (2 * stride);
    const bool high = i % (2 * stride) >= stride;
    const int pair = Byte(nibbles + run * stride + i % stride);
    out.code[i] = static_cast<int8_t>(high ? pair >> 4 : pair & 15);
  }
}

}  // namespace

KBlock ReadKBlock(DType type, const std::byte* block) {
  EBB_CHECK(IsKType(type));
  KBlock out;
  if (type == DType::kQ4_K) {
    ReadAffineHead(block, out);
    ReadNibbles(block + 16, 32, out);
  } else if (type == DType::kQ5_K) {
    ReadAffineHead(block, out);
    ReadNibbles(block + 48, 32, out);
    for (size_t i = 0; i < out.code.size(); ++i) {
      const int fifth = (Byte(block + 16 + i % 32) >> (i / 32)) & 1;
      out.code[i] = static_cast<int8_t>(out.code[i] | (fifth << 4));
    }
  } else {
    out.width = 16;
    ReadNibbles(block, 64, out);
    for (size_t i = 0; i < out.code.size(); ++i) {
      const int upper = (Byte(block + 128 + i / 128 * 32 + i % 32) >> (2 * (i % 128 / 32))) & 3;
      out.code[i] = static_cast<int8_t>((out.code[i] | (upper << 4)) - 32);
    }
    std::memcpy(out.scale.data(), block + 192, out.scale.size());
    out.d = LoadU16(block + 208);
  }
  return out;
}

}  // namespace ebb
