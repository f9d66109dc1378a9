#include "engine/model/quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/model/ggml_types.h"
#include "policies/hash_random.h"
#include "tests/support/gguf_writer.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::array<DType, 5> kAllTypes = {DType::kF32, DType::kF16, DType::kBf16, DType::kQ8_0, DType::kQ4_0};

std::vector<float> Dequantize(DType type, std::span<const std::byte> row, int64_t cols) {
  std::vector<float> out(static_cast<size_t>(cols));
  DequantizeRow(type, row.data(), cols, out.data());
  return out;
}

std::vector<std::byte> Bytes(const std::vector<int>& values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

// What the format's definition says, in double: sign * mantissa * 2^exponent.
double DefinitionOfF16(uint16_t bits) {
  const double sign = bits >> 15 != 0 ? -1 : 1;
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

TEST(FloatFromF16, IsExactForEveryNumber) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7C00) == 0x7C00) continue;
    const auto half = static_cast<uint16_t>(bits);
    ASSERT_EQ(FloatFromF16(half), DefinitionOfF16(half)) << bits;
    ASSERT_EQ(std::signbit(FloatFromF16(half)), bits >> 15 != 0) << bits;
    ASSERT_EQ(F16FromFloat(FloatFromF16(half)), half) << bits;
  }
}

TEST(F16FromFloat, RoundsToNearestEven) {
  for (uint16_t low = 0; low < 0x7BFF; ++low) {  // every pair of neighbours, subnormals included
    const auto high = static_cast<uint16_t>(low + 1);
    const float middle = (FloatFromF16(low) + FloatFromF16(high)) / 2;  // exact: one bit more
    const uint16_t even = low % 2 == 0 ? low : high;
    ASSERT_EQ(F16FromFloat(middle), even) << low;
    ASSERT_EQ(F16FromFloat(std::nextafter(middle, 0.0F)), low) << low;
    ASSERT_EQ(F16FromFloat(std::nextafter(middle, kInfinity)), high) << low;
    ASSERT_EQ(F16FromFloat(-middle), even | 0x8000) << low;
  }
}

TEST(F16FromFloat, KeepsInfinityAndNan) {
  EXPECT_EQ(F16FromFloat(65504.0F), 0x7BFF);
  EXPECT_EQ(F16FromFloat(65519.996F), 0x7BFF);
  EXPECT_EQ(F16FromFloat(65520.0F), 0x7C00);
  EXPECT_EQ(F16FromFloat(65536.0F), 0x7C00);
  EXPECT_EQ(F16FromFloat(-1e30F), 0xFC00);
  EXPECT_EQ(F16FromFloat(kInfinity), 0x7C00);
  EXPECT_EQ(F16FromFloat(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(FloatFromF16(0x7C00), kInfinity);
  EXPECT_EQ(FloatFromF16(0xFC00), -kInfinity);
  EXPECT_TRUE(std::isnan(FloatFromF16(0x7C01)));
  for (const uint32_t nan : {0x7F800001U, 0x7FC00000U, 0xFF800001U, 0x7FFFFFFFU}) {  // payloads in either half
    SCOPED_TRACE(nan);
    EXPECT_TRUE(std::isnan(FloatFromF16(F16FromFloat(std::bit_cast<float>(nan)))));
    EXPECT_TRUE(std::isnan(FloatFromBf16(Bf16FromFloat(std::bit_cast<float>(nan)))));
    EXPECT_EQ(F16FromFloat(std::bit_cast<float>(nan)) >> 15, nan >> 31);
    EXPECT_EQ(Bf16FromFloat(std::bit_cast<float>(nan)) >> 15, nan >> 31);
  }
}

TEST(Bf16FromFloat, RoundsToNearestEven) {
  for (uint32_t low = 0; low < 0x7F7F; ++low) {  // every pair of neighbours up to the largest finite one
    const float middle = std::bit_cast<float>(low << 16 | 0x8000);
    const uint32_t even = low + low % 2;
    ASSERT_EQ(Bf16FromFloat(middle), even) << low;
    ASSERT_EQ(Bf16FromFloat(std::bit_cast<float>(low << 16 | 0x7FFF)), low) << low;
    ASSERT_EQ(Bf16FromFloat(std::bit_cast<float>(low << 16 | 0x8001)), low + 1) << low;
    ASSERT_EQ(Bf16FromFloat(-middle), even | 0x8000) << low;
    ASSERT_EQ(Bf16FromFloat(FloatFromBf16(static_cast<uint16_t>(low))), low) << low;
  }
  EXPECT_EQ(Bf16FromFloat(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(Bf16FromFloat(-kInfinity), 0xFF80);
  EXPECT_EQ(FloatFromBf16(0x3FC0), 1.5F);
}

// The numbers come from tools/reference.py's formula, evaluated in Python with its own half floats.
TEST(DequantizeRow, ReadsQ4) {
  const auto block = Bytes(
      {0x66, 0x2E, 0x0B, 0x30, 0x55, 0x7A, 0x9F, 0xC4, 0xE9, 0x0E, 0x33, 0x58, 0x7D, 0xA2, 0xC7, 0xEC, 0x11, 0x36});
  const std::vector<float> expected = {
      0.2999267578125F,  -0.7998046875F,    -0.2999267578125F, 0.199951171875F,   0.6998291015625F,
      -0.39990234375F,   0.0999755859375F,  0.599853515625F,   -0.4998779296875F, 0.0F,
      0.4998779296875F,  -0.599853515625F,  -0.0999755859375F, 0.39990234375F,    -0.6998291015625F,
      -0.199951171875F,  -0.7998046875F,    -0.4998779296875F, -0.2999267578125F, -0.0999755859375F,
      0.0999755859375F,  0.39990234375F,    0.599853515625F,   -0.7998046875F,    -0.4998779296875F,
      -0.2999267578125F, -0.0999755859375F, 0.199951171875F,   0.39990234375F,    0.599853515625F,
      -0.6998291015625F, -0.4998779296875F};
  EXPECT_THAT(Dequantize(DType::kQ4_0, block, 32), ElementsAreArray(expected));
}

TEST(DequantizeRow, ReadsQ8) {
  std::vector<int> bytes = {0x00, 0xB8};  // d = -0.5
  std::vector<float> expected;
  for (int i = 0; i < 32; ++i) {
    const int q = std::array{-128, -1, 0, 1, 2, 64, 100, 127}[i % 8];
    bytes.push_back(q & 255);
    expected.push_back(std::array{64.0F, 0.5F, -0.0F, -0.5F, -1.0F, -32.0F, -50.0F, -63.5F}[i % 8]);
  }
  EXPECT_THAT(Dequantize(DType::kQ8_0, Bytes(bytes), 32), ElementsAreArray(expected));
}

TEST(DequantizeRow, KeepsASubnormalScaleExact) {
  std::vector<int> bytes = {0x01, 0x80};  // d = -2^-24, the smallest there is
  for (int i = 0; i < 32; ++i) bytes.push_back(i);
  const std::vector<float> values = Dequantize(DType::kQ8_0, Bytes(bytes), 32);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(values[i], -std::ldexp(static_cast<float>(i), -24));
}

TEST(DequantizeRow, ReadsPlainTypes) {
  EXPECT_THAT(Dequantize(DType::kF32, Bytes({0, 0, 0xC0, 0x3F, 0, 0, 0, 0xC0}), 2), ElementsAreArray({1.5F, -2.0F}));
  EXPECT_THAT(Dequantize(DType::kF16, Bytes({0, 0x3E, 0, 0xC0}), 2), ElementsAreArray({1.5F, -2.0F}));
  EXPECT_THAT(Dequantize(DType::kBf16, Bytes({0xC0, 0x3F, 0, 0xC0}), 2), ElementsAreArray({1.5F, -2.0F}));
}

TEST(DequantizeRow, NeedsNoAlignmentAndWritesNothingForAnEmptyRow) {
  for (const DType type : kAllTypes) {
    SCOPED_TRACE(TypeName(type));
    std::vector<float> values(64);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) - 20;
    std::vector<std::byte> row = EncodeValues(type, values);
    const std::vector<float> aligned = Dequantize(type, row, 64);
    row.insert(row.begin(), std::byte{0});
    EXPECT_THAT(Dequantize(type, std::span(row).subspan(1), 64), ElementsAreArray(aligned));
    float untouched = 7;
    DequantizeRow(type, row.data(), 0, &untouched);
    EXPECT_EQ(untouched, 7);
  }
}

// Half a step of the type is the most that rounding may cost; the scale itself is rounded to 11 bits.
TEST(EncodeValues, LosesAtMostHalfAStep) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    std::vector<float> values(32);
    for (float& value : values) value = 4 * random.UniformFloat() - 2;
    float peak = 0;
    for (const float value : values) peak = std::max(peak, std::fabs(value));
    const std::array<float, 5> limit = {0, peak / 2048, peak / 256, peak / 254 + peak / 2048, peak / 8 + peak / 1024};
    for (size_t t = 0; t < kAllTypes.size(); ++t) {
      SCOPED_TRACE(TypeName(kAllTypes[t]));
      const std::vector<float> back = Dequantize(kAllTypes[t], EncodeValues(kAllTypes[t], values), 32);
      for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(back[i], values[i], limit[t]);
    }
  }
}

TEST(RowBytes, AgreesWithTheFilesTypeTable) {
  for (const DType type : kAllTypes) {
    SCOPED_TRACE(TypeName(type));
    const GgmlType* const row = FindGgmlType(GgmlTypeId(type));
    ASSERT_NE(row, nullptr);
    EXPECT_EQ(row->name, TypeName(type));
    EXPECT_EQ(row->values, BlockValues(type));
    EXPECT_EQ(row->bytes, BlockBytes(type));
    EXPECT_EQ(RowBytes(type, 3 * row->values), 3 * row->bytes);
  }
  EXPECT_EQ(GgmlTypeName(14), "Q6_K");
  EXPECT_EQ(GgmlTypeName(77), "type 77");
}

}  // namespace
}  // namespace ebb
