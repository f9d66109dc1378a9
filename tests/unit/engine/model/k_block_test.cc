// The K types: numbers that another program decoded, and refusals.

#include "engine/model/k_block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/model/ggml_types.h"
#include "engine/model/gguf.h"
#include "engine/model/quantization.h"
#include "tests/support/decoded_values.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// Of BlockOf(type).
const std::vector<DecodedValues>& DecodedKBlocks() {
  static const auto& table =
      *new std::vector<DecodedValues>{{.type = DType::kQ4_K,
                                       .values = {{0, 0x1.afba58p+3F},
                                                  {1, 0x1.67d42cp+4F},
                                                  {31, 0x1.1fd8acp+4F},
                                                  {32, 0x1.cb8014p+3F},
                                                  {64, 0x1.2bcb2p+0F},
                                                  {127, 0x1.87aa2ep+5F},
                                                  {128, 0x1.2f4fb4p+4F},
                                                  {145, -0x1.3a97p-5F},
                                                  {160, 0x1.dfdcacp+5F},
                                                  {191, 0x1.bfd956p+4F},
                                                  {223, 0x1.179d74p+2F},
                                                  {255, 0x1.32c006p+2F}},
                                       .sum = 43194298138925},
                                      {.type = DType::kQ5_K,
                                       .values = {{0, 0x1.dfccacp+4F},
                                                  {1, 0x1.43e116p+5F},
                                                  {31, 0x1.7f3d6p+1F},
                                                  {32, 0x1.3c6d04p+5F},
                                                  {64, 0x1.7c3d9p+1F},
                                                  {127, 0x1.41cd38p+6F},
                                                  {128, 0x1.a84468p+3F},
                                                  {145, 0x1.6c675ap+5F},
                                                  {160, -0x1.554p-9F},
                                                  {191, 0x1.7fd2acp+3F},
                                                  {223, 0x1.c8dae8p+1F},
                                                  {255, 0x1.996802p+4F}},
                                       .sum = 39197729203563},
                                      {.type = DType::kQ6_K,
                                       .values = {{0, 0x1.bf174p+6F},
                                                  {1, -0x1.7a4ecp+7F},
                                                  {31, -0x1.4652p+5F},
                                                  {32, -0x1.bfe4p+5F},
                                                  {64, -0.0F},
                                                  {127, 0x1.63e9cp+6F},
                                                  {128, -0x1.2bed4p+8F},
                                                  {145, 0x1.b1182p+7F},
                                                  {160, 0x1.17ee8p+7F},
                                                  {191, -0x1.2987p+6F},
                                                  {223, 0x1.998p+3F},
                                                  {255, 0x1.1b218p+4F}},
                                       .sum = 68615469589180},
                                      {.type = DType::kQ2_K,
                                       .values = {{0, 0x1.4cb8p+0F},
                                                  {1, 0x1.f314p+1F},
                                                  {31, -0x1.aa9p-9F},
                                                  {32, 0x1.97d57p+0F},
                                                  {64, -0x1.554p-9F},
                                                  {127, 0x1.31202p-1F},
                                                  {128, -0x1.ffep-8F},
                                                  {145, 0x1.cc3008p+0F},
                                                  {160, 0x1.31757p+0F},
                                                  {191, -0x1.554p-10F},
                                                  {223, 0x1.98d56p+0F},
                                                  {255, -0x1.7fe8p-8F}},
                                       .sum = 60042103457524},
                                      {.type = DType::kQ3_K,
                                       .values = {{0, 0x1.665p+2F},
                                                  {1, -0x1.0cbcp+3F},
                                                  {31, -0x1.998p+2F},
                                                  {32, -0x1.998p+1F},
                                                  {64, 0x0.0p+0F},
                                                  {127, -0x1.998p+1F},
                                                  {128, -0x0.0p+0F},
                                                  {145, -0x1.332p+0F},
                                                  {160, -0x1.332p+0F},
                                                  {191, 0x1.332p+0F},
                                                  {223, 0x1.4cb8p+2F},
                                                  {255, -0x0.0p+0F}},
                                       .sum = 63010184741120}};
  return table;
}

// Where d lies in a block; dmin, where there is one, comes next.
size_t PlaceOfScale(DType type) {
  if (type == DType::kQ2_K) return 80;
  if (type == DType::kQ3_K) return 108;
  return type == DType::kQ6_K ? 208 : 0;
}

// Bytes without a pattern, and scales of about 0.1 and 0.0007: the differences of Q2_K, Q4_K and Q5_K must round.
std::vector<std::byte> BlockOf(DType type) {
  std::vector<std::byte> block;
  for (int64_t i = 0; i < BlockBytes(type); ++i)
    block.push_back(static_cast<std::byte>((i * i * i / 7 + i * 77 + 13) % 251));
  const size_t d = PlaceOfScale(type);
  block[d] = std::byte{0x66};
  block[d + 1] = std::byte{0x2E};
  if (type != DType::kQ3_K && type != DType::kQ6_K) block[d + 2] = std::byte{0x55}, block[d + 3] = std::byte{0x11};
  return block;
}

std::vector<float> Dequantize(DType type, const std::byte* row, int64_t cols) {
  std::vector<float> out(static_cast<size_t>(cols));
  DequantizeRow(type, row, cols, out.data());
  return out;
}

TEST(DequantizeRow, ReadsKTypesAsAnotherProgramDoes) {
  for (const DecodedValues& decoded : DecodedKBlocks()) {
    SCOPED_TRACE(TypeName(decoded.type));
    ExpectDecoded(Dequantize(decoded.type, BlockOf(decoded.type).data(), kSuperBlock), decoded);
  }
}

TEST(DequantizeRow, ReadsARowOfKBlocksOneAfterAnotherAtAnyAddress) {
  for (const DecodedValues& decoded : DecodedKBlocks()) {
    SCOPED_TRACE(TypeName(decoded.type));
    const std::vector<std::byte> block = BlockOf(decoded.type);
    std::vector<std::byte> row(1);
    row.insert(row.end(), block.size(), std::byte{0});
    row.insert(row.end(), block.begin(), block.end());
    std::vector<float> expected(kSuperBlock);
    const std::vector<float> second = Dequantize(decoded.type, block.data(), kSuperBlock);
    expected.insert(expected.end(), second.begin(), second.end());
    EXPECT_THAT(Dequantize(decoded.type, row.data() + 1, 2 * kSuperBlock), ElementsAreArray(expected));
  }
}

TEST(WriteQ6KBlock, IsReadBackAsItWas) {
  for (const DType type : {DType::kQ3_K, DType::kQ6_K}) {
    const KBlock block = ReadKBlock(type, BlockOf(type).data());
    std::vector<std::byte> bytes(static_cast<size_t>(BlockBytes(DType::kQ6_K)), std::byte{0xFF});
    WriteQ6KBlock(block, bytes.data());
    const KBlock again = ReadKBlock(DType::kQ6_K, bytes.data());
    EXPECT_EQ(again.d, block.d);
    EXPECT_EQ(again.scale, block.scale);
    EXPECT_EQ(again.code, block.code);
  }
}

TEST(KTypes, HaveTheSizesOfTheFilesTypeTable) {
  for (const DecodedValues& decoded : DecodedKBlocks()) {
    const GgmlType* const row = FindGgmlType(GgmlTypeId(decoded.type));
    ASSERT_NE(row, nullptr);
    EXPECT_EQ(row->name, TypeName(decoded.type));
    EXPECT_EQ(row->values, BlockValues(decoded.type));
    EXPECT_EQ(row->bytes, BlockBytes(decoded.type));
  }
}

TEST(KTypes, AreReadFromAFile) {
  GgufWriter writer;
  for (const DecodedValues& decoded : DecodedKBlocks()) {
    std::vector<std::byte> rows = BlockOf(decoded.type);
    rows.insert(rows.end(), rows.begin(), rows.begin() + BlockBytes(decoded.type));
    writer.AddRawTensor(std::string(TypeName(decoded.type)), GgmlTypeId(decoded.type), {256, 2}, rows);
  }
  const std::vector<std::byte> bytes = writer.Bytes();
  const GgufFile file = GgufFile::Parse("k.gguf", bytes).value();
  for (const DecodedValues& decoded : DecodedKBlocks()) {
    const auto tensor = file.GetTensor(TypeName(decoded.type));
    ASSERT_THAT(tensor, IsOk());
    EXPECT_EQ(tensor->type, decoded.type);
    EXPECT_EQ(tensor->rows, 2);
    EXPECT_EQ(static_cast<int64_t>(tensor->data.size()), 2 * RowBytes(decoded.type, 256));
  }
}

TEST(KTypes, ARowThatEndsInsideABlockIsRefusedByName) {
  for (const DecodedValues& decoded : DecodedKBlocks()) {
    GgufWriter writer;
    writer.AddRawTensor("w", GgmlTypeId(decoded.type), {320, 4}, std::vector<std::byte>(2000));
    const std::vector<std::byte> bytes = writer.Bytes();
    const auto file = GgufFile::Parse("k.gguf", bytes);
    EXPECT_THAT(file, IsRefusal(absl::StatusCode::kDataLoss, "MODEL_DAMAGED", ""));
    EXPECT_THAT(std::string(file.status().message()),
                HasSubstr("expected rows of " + std::string(TypeName(decoded.type)) +
                          " tensor w to be a multiple of 256 long, found 320"));
  }
}

}  // namespace
}  // namespace ebb
