// Encoders against the formats' reference rounding, written out another way, and against the decoders.

#include "engine/model/encode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/model/quantization.h"
#include "policies/hash_random.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;

std::vector<std::byte> Encode(DType type, const std::vector<float>& values) {
  std::vector<std::byte> bytes(static_cast<size_t>(RowBytes(type, static_cast<int64_t>(values.size()))));
  EncodeRow(type, values.data(), static_cast<int64_t>(values.size()), bytes.data());
  return bytes;
}

std::vector<float> Decode(DType type, const std::vector<std::byte>& bytes, size_t count) {
  std::vector<float> values(count);
  DequantizeRow(type, bytes.data(), static_cast<int64_t>(count), values.data());
  return values;
}

std::vector<float> Random(uint64_t seed, size_t count) {
  HashRandom random(seed, 2);
  std::vector<float> values(count);
  for (float& value : values) value = 3 * (2 * random.UniformFloat() - 1);
  return values;
}

// What a block decodes to by the definition: codes from the unrounded scale, the value from the scale in binary16.
std::vector<float> Definition(DType type, const std::vector<float>& x) {
  std::vector<float> out;
  for (size_t first = 0; first < x.size(); first += 32) {
    const std::span<const float> block(x.data() + first, 32);
    const auto [low, high] = std::ranges::minmax(block);
    float peak = 0;
    for (const float value : block) peak = std::fabs(value) > std::fabs(peak) ? value : peak;
    const auto put = [&](float d, float offset, float m, int most, float zero) {
      const float inverse = d == 0 ? 0 : 1 / d;
      for (const float value : block) {
        const float code = std::min(std::trunc((value - offset) * inverse + (zero + 0.5F)), static_cast<float>(most));
        out.push_back(FloatFromF16(F16FromFloat(d)) * (code - zero) + m);
      }
    };
    const float m = FloatFromF16(F16FromFloat(low));
    if (type == DType::kQ4_0) put(peak / -8, 0, 0, 15, 8);
    if (type == DType::kQ5_0) put(peak / -16, 0, 0, 31, 16);
    if (type == DType::kQ4_1) put((high - low) / 15, low, m, 15, 0);
    if (type == DType::kQ5_1) put((high - low) / 31, low, m, 31, 0);
    if (type == DType::kQ8_0) {
      const float d = std::fabs(peak) / 127;
      const float inverse = d == 0 ? 0 : 1 / d;
      for (const float value : block) out.push_back(FloatFromF16(F16FromFloat(d)) * std::round(value * inverse));
    }
  }
  return out;
}

TEST(EncodeRow, DecodesToWhatTheFormatDefines) {
  for (const DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1}) {
    SCOPED_TRACE(TypeName(type));
    std::vector<float> values = Random(7, 512);
    std::fill(values.begin() + 64, values.begin() + 96, 0.0F);   // nothing to divide by
    std::fill(values.begin() + 96, values.begin() + 128, 2.5F);  // one value
    std::fill(values.begin() + 128, values.begin() + 160, -2.5F);
    EXPECT_THAT(Decode(type, Encode(type, values), values.size()), ElementsAreArray(Definition(type, values)));
  }
}

TEST(EncodeRow, TiesOfQ8GoAwayFromZero) {
  std::vector<float> values(32, 0.0F);
  values[0] = 127;
  values[1] = 2.5F;
  values[2] = -2.5F;
  const std::vector<float> decoded = Decode(DType::kQ8_0, Encode(DType::kQ8_0, values), 32);
  EXPECT_EQ(decoded[1], 3);
  EXPECT_EQ(decoded[2], -3);
}

// What a format can hold comes back as it was.
TEST(EncodeRow, WhatWasDecodedIsEncodedAlike) {
  for (const DType type : EncodableTypes()) {
    SCOPED_TRACE(TypeName(type));
    const std::vector<float> values = Random(9, 256);
    const std::vector<float> once = Decode(type, Encode(type, values), values.size());
    if (type == DType::kF32 || type == DType::kF16 || type == DType::kBf16) {
      EXPECT_EQ(Encode(type, once), Encode(type, values));
    }
    float worst = 0;
    for (size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::fabs(values[i] - once[i]));
    EXPECT_LT(worst, 3 * 2.01F / 15);  // no code is further than a step of the coarsest
  }
}

}  // namespace
}  // namespace ebb
