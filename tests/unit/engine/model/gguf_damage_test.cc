// Damaged files: whatever the damage, one error that names file, byte, what was expected and what was found.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "engine/model/architecture.h"
#include "engine/model/gguf.h"
#include "policies/status.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tiny_model.h"

namespace ebb {
namespace {

using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::StartsWith;

using Bytes = std::vector<std::byte>;

// Opens the file and does everything one does with a model; the first error, or OK.
absl::Status UseModel(std::span<const std::byte> bytes) {
  EBB_ASSIGN(const GgufFile file, GgufFile::Parse("m.gguf", bytes));
  for (const GgufValue& value : file.metadata()) FormatValue(value);
  EBB_ASSIGN(const ModelConfig config, ReadConfig(file));
  EBB_TRY(FindWeights(file, config).status());
  EBB_TRY(file.GetStrings("tokenizer.ggml.tokens").status());
  return file.GetInts("tokenizer.ggml.token_type").status();
}

Bytes SmallModel() {
  return MakeTinyModel({.layers = 1,
                        .dim = 32,
                        .heads = 2,
                        .kv_heads = 1,
                        .ffn_dim = 32,
                        .type = DType::kQ8_0,
                        .tied_head = true})
      .Bytes();
}

TEST(DamagedGguf, TruncatedAnywhereIsAnError) {
  const Bytes whole = SmallModel();
  ASSERT_THAT(UseModel(whole), IsOk());
  for (size_t size = 0; size < whole.size(); ++size) {
    // A copy of its own, so that the sanitizer sees a byte read past the end.
    const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    const auto file = GgufFile::Parse("m.gguf", part);
    ASSERT_THAT(file, IsRefusal(absl::StatusCode::kDataLoss, "MODEL_DAMAGED", "")) << "after " << size << " bytes";
    ASSERT_THAT(std::string(file.status().message()), StartsWith("m.gguf: byte "));
  }
}

TEST(DamagedGguf, AFlippedHeaderByteIsReadOrRefused) {
  Bytes file = SmallModel();
  const size_t header = GgufFile::Parse("m.gguf", file).value().tensors().front().data_offset;
  int refused = 0;
  for (size_t at = 0; at < header; ++at) {
    for (const uint8_t flip : {0x01, 0x80, 0xFF}) {
      const std::byte sound = file[at];
      file[at] ^= std::byte{flip};
      const absl::Status status = UseModel(file);
      file[at] = sound;
      if (status.ok()) continue;
      ++refused;
      ASSERT_THAT(status.code(), AnyOf(Eq(absl::StatusCode::kDataLoss), Eq(absl::StatusCode::kFailedPrecondition)))
          << "byte " << at << " flipped by " << int{flip} << ": " << status;
      ASSERT_THAT(std::string(status.message()), StartsWith("m.gguf: "));
    }
  }
  EXPECT_GT(refused, 1000);
}

// One string, one bool, one tensor [2, 3] of F32. Its bytes:
//    0 "GGUF"   4 version   8 tensors = 1   16 pairs = 2
//   24 length 3   32 "key"   35 type   39 length 5   47 "value"
//   52 length 4   60 "flag"   64 type   68 true
//   69 length 1   77 "t"   78 dims = 2   82 shape[0] = 3   90 shape[1] = 2   98 type   102 offset   110 padding
//  128 data   152 end
GgufWriter Sound() {
  GgufWriter writer;
  writer.Add("key", "value");
  writer.Add("flag", true);
  writer.AddTensor("t", DType::kF32, 2, 3, std::vector<float>(6));
  return writer;
}

template <typename T>
Bytes Patched(size_t offset, T value) {
  Bytes file = Sound().Bytes();
  std::memcpy(file.data() + offset, &value, sizeof(value));
  return file;
}

Bytes With(const std::string& key, const GgufScalar& value) {
  GgufWriter writer = Sound();
  writer.Add(key, value);
  return writer.Bytes();
}

struct DamagedFile {
  Bytes file = {};
  std::string message = {};
};

void ExpectDamage(const std::vector<DamagedFile>& cases) {
  ASSERT_EQ(Sound().Bytes().size(), 152U);
  ASSERT_THAT(GgufFile::Parse("m.gguf", Sound().Bytes()), IsOk());
  for (const DamagedFile& c : cases) {
    SCOPED_TRACE(c.message);
    const auto file = GgufFile::Parse("m.gguf", c.file);
    EXPECT_THAT(file, IsRefusal(absl::StatusCode::kDataLoss, "MODEL_DAMAGED", ""));
    EXPECT_EQ(std::string(file.status().message()), "m.gguf: byte " + c.message);
    EXPECT_EQ(GetRefusal(file.status()).metadata.at("file"), "m.gguf");
  }
}

TEST(DamagedGguf, HeaderIsNamed) {
  ExpectDamage({
      {{}, "0: expected a GGUF header of 24 bytes, found a file of 0 bytes"},
      {Patched(0, 'X'), "0: expected the magic \"GGUF\", found \"XGUF\""},
      {Patched(8, uint64_t{1} << 60),
       "8: expected a tensor count of at most 4, as the file has 136 bytes left, found 1152921504606846976"},
      {Patched(8, uint64_t{5}), "8: expected a tensor count of at most 4, as the file has 136 bytes left, found 5"},
      {Patched(16, ~uint64_t{0}),
       "16: expected a metadata count of at most 9, as the file has 128 bytes left, found 18446744073709551615"},
  });
}

TEST(DamagedGguf, MetadataIsNamed) {
  ExpectDamage({
      {Patched(24, uint64_t{0}), "24: expected a metadata key of 1 to 65535 bytes, found a length of 0"},
      {Patched(24, uint64_t{65536}), "24: expected a metadata key of 1 to 65535 bytes, found a length of 65536"},
      {Patched(24, uint64_t{200}),
       "24: expected a metadata key of at most the 120 bytes left in the file, found a length of 200"},
      {Patched(35, uint32_t{13}), "35: expected a metadata type from 0 to 12, found 13"},
      {Patched(39, uint64_t{1} << 62),
       "39: expected a string of at most the 105 bytes left in the file, found a length of 4611686018427387904"},
      {Patched(68, uint8_t{2}), "68: expected a bool of 0 or 1, found 2"},
      {With("key", uint8_t{1}), "69: expected each metadata key once, found key again"},
  });
}

// The array begins at byte 69: length 8, "a" at 77, type at 78, its head at 82.
Bytes WithArray(GgufType element, uint64_t count, const Bytes& elements) {
  Bytes encoded;
  AppendBytes(encoded, static_cast<uint32_t>(element));
  AppendBytes(encoded, count);
  encoded.insert(encoded.end(), elements.begin(), elements.end());
  GgufWriter writer = Sound();
  writer.AddRaw("a", GgufType::kArray, encoded);
  return writer.Bytes();
}

TEST(DamagedGguf, ArraysAreNamed) {
  Bytes deep;
  for (int i = 0; i < 3; ++i) {
    AppendBytes(deep, static_cast<uint32_t>(GgufType::kArray));
    AppendBytes(deep, uint64_t{1});
  }
  Bytes deepest = deep;
  AppendBytes(deepest, static_cast<uint32_t>(GgufType::kUint8));
  AppendBytes(deepest, uint64_t{1});
  AppendBytes(deepest, uint8_t{1});
  Bytes flags = {std::byte{1}, std::byte{0}, std::byte{9}};
  ExpectDamage({
      {WithArray(static_cast<GgufType>(13), 0, {}), "82: expected an array's element type from 0 to 12, found 13"},
      {WithArray(GgufType::kUint64, 1000, {}),
       "86: expected an array's length of at most 11, as the file has 90 bytes left, found 1000"},
      {WithArray(GgufType::kString, 1, {std::byte{200}, {}, {}, {}, {}, {}, {}, {}}),
       "94: expected a string of at most the 82 bytes left in the file, found a length of 200"},
      {WithArray(GgufType::kBool, 3, flags), "96: expected a bool of 0 or 1, found 9"},
      {WithArray(GgufType::kArray, 1, deepest), "130: expected arrays nested at most 4 deep, found a deeper one"},
  });
}

TEST(DamagedGguf, DirectoryIsNamed) {
  GgufWriter twice = Sound();
  twice.AddTensor("t", DType::kF32, 0, 1, std::vector<float>(1));
  ExpectDamage({
      {Patched(69, uint64_t{0}), "69: expected a tensor name of 1 to 255 bytes, found a length of 0"},
      {Patched(78, uint32_t{0}), "78: expected 1 to 4 dimensions of tensor t, found 0"},
      {Patched(78, uint32_t{5}), "78: expected 1 to 4 dimensions of tensor t, found 5"},
      {Patched(82, int64_t{0}), "82: expected extents of tensor t from 1 and with a product below 2^63, found 0"},
      {Patched(82, int64_t{-3}), "82: expected extents of tensor t from 1 and with a product below 2^63, found -3"},
      {Patched(90, int64_t{1} << 62),
       "90: expected extents of tensor t from 1 and with a product below 2^63, found 4611686018427387904"},
      {twice.Bytes(), "110: expected each tensor name once, found t again"},
  });
}

TEST(DamagedGguf, PlacesOfTensorsAreNamed) {
  GgufWriter both = Sound();  // the second entry begins at 110 and ends with its offset at 135
  both.AddTensor("u", DType::kF32, 0, 1, std::vector<float>(1));
  Bytes overlap = both.Bytes();
  std::memset(overlap.data() + 135, 0, sizeof(uint64_t));
  GgufWriter touching;  // 33 bytes from 96 on, and the next tensor at the last of them
  touching.AddRawTensor("a", 24, {33}, std::vector<std::byte>(33));
  touching.AddRawTensor("b", 24, {33}, std::vector<std::byte>(33));
  Bytes touch = touching.Bytes();
  touch[24 + 33 + 25] = std::byte{32};  // the offset of b, which was 64
  ExpectDamage({
      {Patched(102, uint64_t{8}), "69: expected an offset of tensor t that is a multiple of 32 up to 24, found 8"},
      {Patched(102, uint64_t{1} << 63),
       "69: expected an offset of tensor t that is a multiple of 32 up to 24, found 9223372036854775808"},
      {Patched(90, int64_t{3}),
       "69: expected tensor t to fit the 24 bytes from its offset 128 to the end of the file, found 9 blocks of 4 "
       "bytes"},
      {Patched(90, int64_t{1} << 60),
       "69: expected tensor t to fit the 24 bytes from its offset 128 to the end of the "
       "file, found 3458764513820540928 blocks of 4 bytes"},
      {Patched(98, uint32_t{8}), "69: expected rows of Q8_0 tensor t to be a multiple of 32 long, found 3"},
      {overlap, "110: expected data of tensor u from byte 184, where that of t ends, found byte 160"},
      {touch, "57: expected data of tensor b from byte 129, where that of a ends, found byte 128"},
  });
}

TEST(DamagedGguf, AlignmentIsNamed) {
  // The pair begins at 69, its value at 69 + 8 + 17 + 4 = 98.
  ExpectDamage({
      {With("general.alignment", uint32_t{0}), "98: expected general.alignment, a power of two from 8, found 0"},
      {With("general.alignment", uint32_t{4}), "98: expected general.alignment, a power of two from 8, found 4"},
      {With("general.alignment", uint32_t{48}), "98: expected general.alignment, a power of two from 8, found 48"},
      {With("general.alignment", uint64_t{1} << 40),
       "98: expected general.alignment, a power of two from 8, found 1099511627776"},
      {With("general.alignment", uint32_t{1} << 31),
       "143: expected tensor data from byte 2147483648, found a file of 184 bytes"},
      {With("general.alignment", true),
       "98: expected an integer below 2^63 in metadata key general.alignment, found bool true"},
  });
}

TEST(DamagedGguf, OtherVersionsAndByteOrdersAreRefusedByName) {
  for (const auto& [version, message] : std::vector<std::pair<uint32_t, std::string>>{
           {1, "m.gguf: byte 4: GGUF version 1 is not read; versions 2 and 3 are"},
           {4, "m.gguf: byte 4: GGUF version 4 is not read; versions 2 and 3 are"},
           {0x03000000, "m.gguf: byte 4: the file is big-endian; only little-endian GGUF is read"},
       }) {
    SCOPED_TRACE(message);
    const auto file = GgufFile::Parse("m.gguf", Patched(4, version));
    EXPECT_THAT(file, IsRefusal(absl::StatusCode::kFailedPrecondition, "UNSUPPORTED_MODEL_FORMAT", ""));
    EXPECT_EQ(std::string(file.status().message()), message);
  }
}

TEST(DamagedGguf, NamesInMessagesAreEscapedAndCut) {
  GgufWriter writer;
  const std::string hostile = "\x1B[31m" + std::string(1000, 'x');
  writer.Add(hostile, uint8_t{1});
  writer.Add(hostile, uint8_t{1});
  const Bytes bytes = writer.Bytes();
  const auto file = GgufFile::Parse("m.gguf", bytes);
  EXPECT_EQ(std::string(file.status().message()),
            "m.gguf: byte 1042: expected each metadata key once, found \\x1b[31m" + std::string(75, 'x') + "... again");
}

}  // namespace
}  // namespace ebb
