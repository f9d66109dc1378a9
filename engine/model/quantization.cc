#include "engine/model/quantization.h"

#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "engine/model/k_block.h"
#include "policies/check.h"

namespace ebb {
namespace {

static_assert(std::endian::native == std::endian::little, "model files are little-endian and read in place");

constexpr int64_t kQuantBlock = 32;

struct TypeRow {
  std::string_view name = {};
  int64_t values = 0;
  int64_t bytes = 0;
};

// In the order of DType.
constexpr std::array<TypeRow, 15> kTypes = {{
    {.name = "F32", .values = 1, .bytes = 4},
    {.name = "F16", .values = 1, .bytes = 2},
    {.name = "BF16", .values = 1, .bytes = 2},
    {.name = "Q8_0", .values = kQuantBlock, .bytes = 34},
    {.name = "Q4_0", .values = kQuantBlock, .bytes = 18},
    {.name = "Q4_K", .values = kSuperBlock, .bytes = 144},
    {.name = "Q5_K", .values = kSuperBlock, .bytes = 176},
    {.name = "Q6_K", .values = kSuperBlock, .bytes = 210},
    {.name = "Q4_1", .values = kQuantBlock, .bytes = 20},
    {.name = "Q5_0", .values = kQuantBlock, .bytes = 22},
    {.name = "Q5_1", .values = kQuantBlock, .bytes = 24},
    {.name = "Q2_K", .values = kSuperBlock, .bytes = 84},
    {.name = "Q3_K", .values = kSuperBlock, .bytes = 110},
    {.name = "IQ4_NL", .values = kQuantBlock, .bytes = 18},
    {.name = "MXFP4", .values = kQuantBlock, .bytes = 17},
}};

const TypeRow& Row(DType type) {
  const auto index = static_cast<size_t>(type);
  EBB_CHECK(index < kTypes.size());
  return kTypes[index];
}

// `q` holds the block's 32 signed bytes.
void DequantizeQ8(const std::byte* block, float* out) {
  const float d = FloatFromF16(LoadU16(block));
  for (int64_t i = 0; i < kQuantBlock; ++i) {
    out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
  }
}

void DequantizeQ4(const std::byte* block, float* out) {
  const float d = FloatFromF16(LoadU16(block));
  for (int64_t i = 0; i < kQuantBlock / 2; ++i) {
    const int pair = std::to_integer<int>(block[2 + i]);
    out[i] = d * static_cast<float>((pair & 15) - 8);
    out[i + kQuantBlock / 2] = d * static_cast<float>((pair >> 4) - 8);
  }
}

using Codes = std::array<int8_t, kQuantBlock>;

// 16 bytes: byte j has code j (low) and j + 16 (high).
Codes Nibbles(const std::byte* at) {
  Codes codes;
  for (size_t i = 0; i < kQuantBlock / 2; ++i) {
    const int pair = std::to_integer<int>(at[i]);
    codes[i] = static_cast<int8_t>(pair & 15);
    codes[i + kQuantBlock / 2] = static_cast<int8_t>(pair >> 4);
  }
  return codes;
}

// The same, with the fifth bits in the four bytes before them.
Codes FiveBits(const std::byte* at) {
  Codes codes = Nibbles(at + 4);
  for (size_t i = 0; i < codes.size(); ++i) {
    const int fifth = (std::to_integer<int>(at[i / 8]) >> (i % 8)) & 1;
    codes[i] = static_cast<int8_t>(codes[i] | (fifth << 4));
  }
  return codes;
}

// Of IQ4_NL: closer to each other near 0, as weights are.
constexpr std::array<int8_t, 16> kNonLinear = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
constexpr std::array<int8_t, 16> kE2M1Twice = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// What a block of signed codes with one scale holds: Q5_0, IQ4_NL.
Codes SignedCodes(DType type, const std::byte* block) {
  Codes codes;
  if (type == DType::kQ5_0) {
    codes = FiveBits(block + 2);
    for (int8_t& code : codes) code = static_cast<int8_t>(code - 16);
  } else {
    codes = Nibbles(block + 2);
    for (int8_t& code : codes) code = kNonLinear[static_cast<size_t>(code)];
  }
  return codes;
}

void DequantizeSigned(DType type, const std::byte* block, float* out) {
  const float d = FloatFromF16(LoadU16(block));
  for (const int8_t code : SignedCodes(type, block)) *out++ = d * static_cast<float>(code);
}

// The product is exact, 11 bits of d and 5 of a code; the sum rounds.
void DequantizeAffine(DType type, const std::byte* block, float* out) {
  const float d = FloatFromF16(LoadU16(block));
  const float m = FloatFromF16(LoadU16(block + 2));
  for (const int8_t code : type == DType::kQ4_1 ? Nibbles(block + 4) : FiveBits(block + 4)) {
    *out++ = d * static_cast<float>(code) + m;
  }
}

// 2^(e - 128), which is a subnormal for the two smallest e.
float HalfOfE8M0(std::byte e) {
  const auto bits = std::to_integer<uint32_t>(e);
  return std::bit_cast<float>(bits < 2 ? 0x00200000U << bits : (bits - 1) << 23);
}

void DequantizeMxfp4(const std::byte* block, float* out) {
  const float half = HalfOfE8M0(block[0]);
  for (const int8_t code : Nibbles(block + 1)) {
    *out++ = half * static_cast<float>(kE2M1Twice[static_cast<size_t>(code)]);
  }
}

// Both products are exact: 11 bits of d, 7 of a scale and 6 of a code; only their difference rounds.
void DequantizeK(DType type, const std::byte* block, float* out) {
  const KBlock k = ReadKBlock(type, block);
  const float d = FloatFromF16(k.d);
  const float dmin = FloatFromF16(k.dmin);
  for (int32_t i = 0; i < kSuperBlock; ++i) {
    const auto sub = static_cast<size_t>(i / k.width);
    const float scale = d * static_cast<float>(k.scale[sub]);
    out[i] = scale * static_cast<float>(k.code[static_cast<size_t>(i)]) - dmin * static_cast<float>(k.minimum[sub]);
  }
}

// `use(block, i)` for each block of a row, which begins with value i.
template <typename Use>
void EachBlock(DType type, const std::byte* row, int64_t cols, const Use& use) {
  for (int64_t i = 0; i < cols; i += BlockValues(type), row += BlockBytes(type)) use(row, i);
}

}  // namespace

std::string_view TypeName(DType type) { return Row(type).name; }
int64_t BlockValues(DType type) { return Row(type).values; }
int64_t BlockBytes(DType type) { return Row(type).bytes; }

int64_t RowBytes(DType type, int64_t cols) {
  const TypeRow& row = Row(type);
  EBB_CHECK(cols >= 0);
  EBB_CHECK(cols % row.values == 0);
  return cols / row.values * row.bytes;
}

void DequantizeRow(DType type, const std::byte* row, int64_t cols, float* out) {
  const int64_t bytes = RowBytes(type, cols);
  switch (type) {
    case DType::kF32:
      if (bytes > 0) std::memcpy(out, row, static_cast<size_t>(bytes));
      return;
    case DType::kF16:
      for (int64_t i = 0; i < cols; ++i) out[i] = FloatFromF16(LoadU16(row + 2 * i));
      return;
    case DType::kBf16:
      for (int64_t i = 0; i < cols; ++i) out[i] = FloatFromBf16(LoadU16(row + 2 * i));
      return;
    case DType::kQ8_0:
      for (int64_t i = 0; i < cols; i += kQuantBlock) DequantizeQ8(row + i / kQuantBlock * 34, out + i);
      return;
    case DType::kQ4_0:
      for (int64_t i = 0; i < cols; i += kQuantBlock) DequantizeQ4(row + i / kQuantBlock * 18, out + i);
      return;
    case DType::kQ4_1:
    case DType::kQ5_1:
      return EachBlock(type, row, cols,
                       [&](const std::byte* block, int64_t i) { DequantizeAffine(type, block, out + i); });
    case DType::kQ5_0:
    case DType::kIq4Nl:
      return EachBlock(type, row, cols,
                       [&](const std::byte* block, int64_t i) { DequantizeSigned(type, block, out + i); });
    case DType::kMxfp4:
      return EachBlock(type, row, cols, [&](const std::byte* block, int64_t i) { DequantizeMxfp4(block, out + i); });
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
      return EachBlock(type, row, cols, [&](const std::byte* block, int64_t i) { DequantizeK(type, block, out + i); });
  }
}

DType WidenedType(DType type) {
  switch (type) {
    case DType::kQ5_0:
    case DType::kIq4Nl:
      return DType::kQ8_0;
    case DType::kQ3_K:
      return DType::kQ6_K;
    case DType::kMxfp4:
      return DType::kBf16;
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ2_K:
      return DType::kF32;
    default:
      return type;
  }
}

void WidenRow(DType type, const std::byte* row, int64_t cols, std::byte* out) {
  const DType wide = WidenedType(type);
  if (wide == type) {
    std::memcpy(out, row, static_cast<size_t>(RowBytes(type, cols)));
  } else if (wide == DType::kQ8_0) {
    EachBlock(type, row, cols, [&](const std::byte* block, int64_t i) {
      std::byte* const to = out + RowBytes(wide, i);
      const Codes codes = SignedCodes(type, block);
      std::memcpy(to, block, 2);
      std::memcpy(to + 2, codes.data(), codes.size());
    });
  } else if (wide == DType::kQ6_K) {
    EachBlock(type, row, cols, [&](const std::byte* block, int64_t i) {
      WriteQ6KBlock(ReadKBlock(type, block), out + RowBytes(wide, i));
    });
  } else {
    std::vector<float> values(static_cast<size_t>(cols));
    DequantizeRow(type, row, cols, values.data());
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t upper = Bf16FromFloat(values[i]);
      if (wide == DType::kBf16) std::memcpy(out + 2 * i, &upper, 2);
      if (wide == DType::kF32) std::memcpy(out + 4 * i, &values[i], 4);
    }
  }
}

uint16_t Bf16FromFloat(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  if (nan) return static_cast<uint16_t>((bits >> 16) | 0x0040U);  // its payload may lie in the lower half alone
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

float FloatFromBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t F16FromFloat(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x01FFU));
  if (magnitude >= 0x47800000U) return static_cast<uint16_t>(sign | 0x7C00U);  // 2^16 and more, infinity included
  if (magnitude < 0x38800000U) {  // below 2^-14: subnormal, a multiple of 2^-24, which is the last bit of 0.5 + x
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000U));
  }
  // The bias goes from 127 to 15; a carry out of the mantissa raises the exponent, up to infinity.
  const uint32_t rebiased = magnitude - (112U << 23);
  return static_cast<uint16_t>(sign | ((rebiased + 0x0FFFU + ((rebiased >> 13) & 1U)) >> 13));
}

float FloatFromF16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1FU;
  const uint32_t mantissa = bits & 0x03FFU;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const auto magnitude = std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24F);
    return std::bit_cast<float>(sign | magnitude);
  }
  const uint32_t rebased = exponent == 0x1F ? 0xFFU : exponent + 112U;
  return std::bit_cast<float>(sign | (rebased << 23) | (mantissa << 13));
}

}  // namespace ebb
