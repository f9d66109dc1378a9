// Types with blocks of 32, and what tensors of types that no kernel knows are kept as: numbers that another program
// decoded.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "engine/model/ggml_types.h"
#include "engine/model/quantization.h"
#include "policies/hash_random.h"
#include "tests/support/decoded_values.h"

namespace ebb {
namespace {

constexpr int64_t kValues = 256;

// Of RowOf(type).
const std::vector<DecodedValues>& DecodedSmallBlocks() {
  static const auto& table =
      *new std::vector<DecodedValues>{{.type = DType::kQ4_1,
                                       .values = {{0, 0x1.8012a8p+0F},
                                                  {1, 0x1.9a2aap-2F},
                                                  {31, 0x1.334aa8p+0F},
                                                  {32, 0x1.33755p-1F},
                                                  {64, 0x1.9ad54p-3F},
                                                  {127, 0x1.00455p-1F},
                                                  {128, 0x1.334aa8p+0F},
                                                  {145, 0x1.66a55p-1F},
                                                  {160, 0x1.00455p-1F},
                                                  {191, 0x1.99d55p-1F},
                                                  {223, 0x1.001aa8p+0F},
                                                  {255, 0x1.99d55p-1F}},
                                       .sum = 34656055935540},
                                      {.type = DType::kQ5_0,
                                       .values = {{0, -0x1.4cb8p+0F},
                                                  {1, -0x1.4cb8p+0F},
                                                  {31, 0x1.332p+0F},
                                                  {32, 0x1.332p+0F},
                                                  {64, -0x1.332p-1F},
                                                  {127, -0x1.665p-1F},
                                                  {128, 0x1.998p-1F},
                                                  {145, -0x1.998p+0F},
                                                  {160, -0x1.332p-1F},
                                                  {191, -0x1.332p-1F},
                                                  {223, -0x1.332p+0F},
                                                  {255, -0x1.998p-4F}},
                                       .sum = 71815065985024},
                                      {.type = DType::kQ5_1,
                                       .values = {{0, 0x1.333554p+1F},
                                                  {1, 0x1.400154p+1F},
                                                  {31, 0x1.554p-11F},
                                                  {32, 0x1.9a2aap-2F},
                                                  {64, 0x1.9a2aap-2F},
                                                  {127, 0x1.cd055p-1F},
                                                  {128, 0x1.9ad54p-3F},
                                                  {145, 0x1.334aa8p+0F},
                                                  {160, 0x1.333554p+1F},
                                                  {191, 0x1.cd055p-1F},
                                                  {223, 0x1.33caap-2F},
                                                  {255, 0x1.e672a8p+0F}},
                                       .sum = 34949753515752},
                                      {.type = DType::kIq4Nl,
                                       .values = {{0, 0x1.998p-4F},
                                                  {1, -0x1.ffep-1F},
                                                  {31, -0x1.964dp+3F},
                                                  {32, -0x1.9fe6p+2F},
                                                  {64, -0x1.3986p+2F},
                                                  {127, 0x1.1cbbp+3F},
                                                  {128, 0x1.6983p+3F},
                                                  {145, 0x1.1cbbp+3F},
                                                  {160, -0x1.1988p+1F},
                                                  {191, -0x1.9fe6p+2F},
                                                  {223, -0x1.1988p+1F},
                                                  {255, 0x1.1cbbp+3F}},
                                       .sum = 71713711332992},
                                      {.type = DType::kMxfp4,
                                       .values = {{0, -0x1p-9F},
                                                  {1, 0x0.0p+0F},
                                                  {31, 0x1p-8F},
                                                  {32, -0x1.8p-8F},
                                                  {64, -0x1p-7F},
                                                  {127, -0x1.8p-5F},
                                                  {128, -0x1p-5F},
                                                  {145, -0x1p-3F},
                                                  {160, 0x1.8p-4F},
                                                  {191, 0x0.0p+0F},
                                                  {223, -0x1.8p-1F},
                                                  {255, -0x1.8p+0F}},
                                       .sum = 55333527486464}};
  return table;
}

// Eight blocks without a pattern. Scales of about 0.1 and 0.0007, so that the sums of Q4_1 and Q5_1 round; of MXFP4
// powers of two from 2^-9.
std::vector<std::byte> RowOf(DType type) {
  std::vector<std::byte> row;
  for (int64_t block = 0; block < kValues / 32; ++block) {
    const size_t at = row.size();
    for (int64_t i = block * 37; i < block * 37 + BlockBytes(type); ++i) {
      row.push_back(static_cast<std::byte>((i * i * i / 7 + i * 77 + 13) % 251));
    }
    if (type == DType::kMxfp4) {
      row[at] = static_cast<std::byte>(118 + block);
      continue;
    }
    row[at] = std::byte{0x66}, row[at + 1] = std::byte{0x2E};
    if (type != DType::kQ4_1 && type != DType::kQ5_1) continue;
    row[at + 2] = std::byte{0x55}, row[at + 3] = std::byte{0x11};
  }
  return row;
}

std::vector<float> Dequantize(DType type, const std::byte* row) {
  std::vector<float> out(kValues);
  DequantizeRow(type, row, kValues, out.data());
  return out;
}

TEST(DequantizeRow, ReadsSmallBlocksAsAnotherProgramDoes) {
  for (const DecodedValues& decoded : DecodedSmallBlocks()) {
    SCOPED_TRACE(TypeName(decoded.type));
    std::vector<std::byte> row = RowOf(decoded.type);
    row.insert(row.begin(), std::byte{0});  // at an odd address
    ExpectDecoded(Dequantize(decoded.type, row.data() + 1), decoded);
  }
}

TEST(DequantizeRow, ReadsEveryPowerOfTwoOfMxfp4) {
  for (int e = 0; e < 255; ++e) {
    std::vector<std::byte> row(17 * kValues / 32);
    for (size_t block = 0; block < row.size(); block += 17) row[block] = static_cast<std::byte>(e);
    row[1] = std::byte{0x91};  // a half, and minus a half
    const std::vector<float> values = Dequantize(DType::kMxfp4, row.data());
    EXPECT_EQ(values[0], std::ldexp(0.5, e - 127)) << e;
    EXPECT_EQ(values[16], -std::ldexp(0.5, e - 127)) << e;
  }
}

TEST(WidenRow, KeepsEveryValueBitForBit) {
  for (const GgmlType& type : GgmlTypes()) {
    if (!type.type) continue;
    SCOPED_TRACE(type.name);
    const DType wide = WidenedType(*type.type);
    EXPECT_EQ(WidenedType(wide), wide);
    HashRandom random(3, 1);
    std::vector<std::byte> row(static_cast<size_t>(RowBytes(*type.type, kValues)));
    for (std::byte& byte : row) byte = static_cast<std::byte>(random.Next64() & 0x37);  // no scale is infinite
    std::vector<std::byte> widened(static_cast<size_t>(RowBytes(wide, kValues)), std::byte{0xFF});
    WidenRow(*type.type, row.data(), kValues, widened.data());
    const std::vector<float> expected = Dequantize(*type.type, row.data());
    const std::vector<float> found = Dequantize(wide, widened.data());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(expected[i])) << i;
    }
  }
}

TEST(SmallBlocks, HaveTheSizesOfTheFilesTypeTable) {
  for (const GgmlType& type : GgmlTypes()) {
    if (!type.type) continue;
    EXPECT_EQ(type.name, TypeName(*type.type));
    EXPECT_EQ(type.values, BlockValues(*type.type));
    EXPECT_EQ(type.bytes, BlockBytes(*type.type));
  }
}

}  // namespace
}  // namespace ebb
