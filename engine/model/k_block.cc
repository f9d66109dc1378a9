#include "engine/model/k_block.h"

#include <cstring>

#include "policies/check.h"

namespace ebb {
namespace {

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

// Codes of two bits in halves of 128 values.
void ReadPairs(const std::byte* pairs, KBlock& out) {
  for (size_t i = 0; i < out.code.size(); ++i) {
    out.code[i] = static_cast<int8_t>((Byte(pairs + i / 128 * 32 + i % 32) >> (2 * (i % 128 / 32))) & 3);
  }
}

void ReadQ2K(const std::byte* block, KBlock& out) {
  out.width = 16;
  for (size_t j = 0; j < out.scale.size(); ++j) {
    out.scale[j] = static_cast<int8_t>(Byte(block + j) & 15);
    out.minimum[j] = static_cast<uint8_t>(Byte(block + j) >> 4);
  }
  ReadPairs(block + 16, out);
  out.d = LoadU16(block + 80);
  out.dmin = LoadU16(block + 82);
}

void ReadQ3K(const std::byte* block, KBlock& out) {
  out.width = 16;
  ReadPairs(block + 32, out);
  for (size_t i = 0; i < out.code.size(); ++i) {
    const int third = (Byte(block + i % 32) >> (i / 32)) & 1;
    out.code[i] = static_cast<int8_t>((out.code[i] | (third << 2)) - 4);
  }
  const std::byte* const packed = block + 96;
  for (size_t j = 0; j < out.scale.size(); ++j) {
    const int low = j < 8 ? Byte(packed + j) & 15 : Byte(packed + j - 8) >> 4;
    const int upper = (Byte(packed + 8 + j % 4) >> (2 * (j / 4))) & 3;
    out.scale[j] = static_cast<int8_t>((low | (upper << 4)) - 32);
  }
  out.d = LoadU16(block + 108);
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
  } else if (type == DType::kQ2_K) {
    ReadQ2K(block, out);
  } else if (type == DType::kQ3_K) {
    ReadQ3K(block, out);
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

void WriteQ6KBlock(const KBlock& block, std::byte* to) {
  std::memset(to, 0, 192);
  for (size_t i = 0; i < block.code.size(); ++i) {
    const int code = block.code[i] + 32;
    const size_t half = i / 128;
    to[64 * half + i % 64] |= static_cast<std::byte>((code & 15) << (i % 128 < 64 ? 0 : 4));
    to[128 + 32 * half + i % 32] |= static_cast<std::byte>(code >> 4 << (2 * (i % 128 / 32)));
  }
  std::memcpy(to + 192, block.scale.data(), block.scale.size());
  std::memcpy(to + 208, &block.d, 2);
}

}  // namespace ebb
