#include "engine/model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "policies/status.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// One of each: every scalar type, arrays of what we read and of arrays, and tensors of three kinds.
std::vector<std::byte> SampleFile(uint32_t version) {
  GgufWriter writer(version);
  writer.Add("u8", uint8_t{200});
  writer.Add("i8", int8_t{-100});
  writer.Add("u16", uint16_t{60000});
  writer.Add("i16", int16_t{-30000});
  writer.Add("u32", uint32_t{4000000000});
  writer.Add("i32", int32_t{-2000000000});
  writer.Add("f32", 0.5F);
  writer.Add("yes", true);
  writer.Add("text", "caf\xC3\xA9");
  writer.Add("empty", "");
  writer.Add("u64", uint64_t{1} << 40);
  writer.Add("huge", ~uint64_t{0});
  writer.Add("i64", -(int64_t{1} << 40));
  writer.Add("f64", 1e300);
  writer.AddArray("words", std::vector<std::string>{"a", "", "ccc"});
  writer.AddArray("reals", std::vector<float>{1.5F, -2.5F});
  writer.AddArray("ints", std::vector<int32_t>{7, -8});
  std::vector<std::byte> nested;  // [[1], [true, false]]
  AppendBytes(nested, static_cast<uint32_t>(GgufType::kArray));
  AppendBytes(nested, uint64_t{2});
  AppendBytes(nested, static_cast<uint32_t>(GgufType::kUint8));
  AppendBytes(nested, uint64_t{1});
  AppendBytes(nested, uint8_t{1});
  AppendBytes(nested, static_cast<uint32_t>(GgufType::kBool));
  AppendBytes(nested, uint64_t{2});
  AppendBytes(nested, uint8_t{1});
  AppendBytes(nested, uint8_t{0});
  writer.AddRaw("nested", GgufType::kArray, nested);
  writer.AddTensor("matrix", DType::kF32, 2, 3, std::vector<float>{1, 2, 3, 4, 5, 6});
  writer.AddTensor("blocks", DType::kQ8_0, 1, 32, std::vector<float>(32, 127.0F));
  writer.AddTensor("vector", DType::kF16, 0, 2, std::vector<float>{0.25F, -1});
  writer.AddRawTensor("foreign", 19, {256, 2}, std::vector<std::byte>(100));  // IQ1_S
  writer.AddRawTensor("unheard", 77, {5}, std::vector<std::byte>(3));
  return writer.Bytes();
}

class GgufVersions : public testing::TestWithParam<uint32_t> {
 protected:
  std::vector<std::byte> bytes_ = SampleFile(GetParam());
  GgufFile file_ = GgufFile::Parse("sample.gguf", bytes_).value();
};

INSTANTIATE_TEST_SUITE_P(Both, GgufVersions, testing::Values(2, 3));

TEST_P(GgufVersions, ReadEveryScalarType) {
  EXPECT_EQ(file_.version(), GetParam());
  const std::map<std::string, int64_t> ints = {{"u8", 200},        {"i8", -100},         {"u16", 60000},
                                               {"i16", -30000},    {"u32", 4000000000},  {"i32", -2000000000},
                                               {"u64", 1LL << 40}, {"i64", -(1LL << 40)}};
  for (const auto& [key, number] : ints) {
    SCOPED_TRACE(key);
    EXPECT_EQ(file_.GetInt(key).value(), number);
    EXPECT_EQ(file_.GetDouble(key).value(), static_cast<double>(number));
  }
  EXPECT_EQ(file_.GetDouble("f32").value(), 0.5);
  EXPECT_EQ(file_.GetDouble("f64").value(), 1e300);
  EXPECT_TRUE(file_.GetBool("yes").value());
  EXPECT_EQ(file_.GetString("text").value(), "caf\xC3\xA9");
  EXPECT_EQ(file_.GetString("empty").value(), "");
}

TEST_P(GgufVersions, ReadArrays) {
  EXPECT_THAT(file_.GetStrings("words").value(), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(file_.GetFloats("reals").value(), ElementsAre(1.5F, -2.5F));
  EXPECT_THAT(file_.GetInts("ints").value(), ElementsAre(7, -8));
}

TEST_P(GgufVersions, ReadTensorsInPlace) {
  const TensorView matrix = file_.GetTensor("matrix").value();
  EXPECT_EQ(matrix.name, "matrix");
  EXPECT_EQ(matrix.type, DType::kF32);
  EXPECT_EQ(matrix.rows, 2);
  EXPECT_EQ(matrix.cols, 3);
  const std::vector<float> expected = {1, 2, 3, 4, 5, 6};
  EXPECT_THAT(matrix.data, testing::ElementsAreArray(std::as_bytes(std::span(expected))));
  EXPECT_GE(matrix.data.data(), bytes_.data());
  const TensorView vector = file_.GetTensor("vector").value();
  EXPECT_EQ(vector.rows, 1);
  EXPECT_EQ(vector.cols, 2);
  EXPECT_THAT(vector.data, SizeIs(4));
}

TEST_P(GgufVersions, KeepFileOrder) {
  EXPECT_THAT(file_.metadata(), SizeIs(18));
  EXPECT_EQ(file_.metadata().front().key, "u8");
  EXPECT_EQ(file_.metadata().back().key, "nested");
  EXPECT_EQ(file_.tensors().front().name, "matrix");
  EXPECT_EQ(file_.tensors().back().name, "unheard");
}

TEST_P(GgufVersions, ListTensorsOfTypesThatAreNotRead) {
  const GgufTensor* const foreign = file_.FindTensor("foreign");
  ASSERT_NE(foreign, nullptr);
  EXPECT_EQ(foreign->type_id, 19U);
  EXPECT_FALSE(foreign->type.has_value());
  EXPECT_THAT(foreign->data, SizeIs(100));
  const GgufTensor* const unheard = file_.FindTensor("unheard");
  ASSERT_NE(unheard, nullptr);
  EXPECT_THAT(unheard->data, IsEmpty());

  const absl::Status refusal = file_.GetTensor("foreign").status();
  EXPECT_EQ(refusal.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetRefusal(refusal).reason, "UNSUPPORTED_TENSOR_TYPE");
  EXPECT_THAT(std::string(refusal.message()),
              HasSubstr("sample.gguf: tensor foreign has type IQ1_S, which is not read; F32, F16, Q4_0, "));
}

TEST(GgufFile, SaysWhatAKeyShouldHaveBeen) {
  const std::vector<std::byte> bytes = SampleFile(3);
  const GgufFile file = GgufFile::Parse("sample.gguf", bytes).value();
  struct Case {
    absl::Status status;
    std::string message;
  };
  const std::vector<Case> cases = {
      {file.GetInt("none").status(), "expected metadata key none (an integer), found the end of the metadata"},
      {file.GetString("none").status(), "expected metadata key none (a string), found the end of the metadata"},
      {file.GetStrings("none").status(), "expected metadata key none (an array of strings), found the end of"},
      {file.GetInt("f32").status(), "expected an integer below 2^63 in metadata key f32, found float32 0.5"},
      {file.GetInt("huge").status(),
       "expected an integer below 2^63 in metadata key huge, found uint64 18446744073709"},
      {file.GetDouble("text").status(), "expected a number in metadata key text, found string \"caf\\xc3\\xa9\""},
      {file.GetBool("u8").status(), "expected a bool in metadata key u8, found uint8 200"},
      {file.GetString("yes").status(), "expected a string in metadata key yes, found bool true"},
      {file.GetStrings("ints").status(),
       "expected an array of strings in metadata key ints, found array of int32 [2 x"},
      {file.GetFloats("ints").status(), "expected an array of float32 in metadata key ints, found array of int32 [2 x"},
      {file.GetInts("words").status(), "expected an array of integers in metadata key words, found array of string [3"},
      {file.GetTensor("none").status(),
       "expected tensor none (any type that is read), found the end of the tensor dir"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    EXPECT_THAT(c.status, IsRefusal(absl::StatusCode::kDataLoss, "MODEL_DAMAGED", ""));
    EXPECT_THAT(std::string(c.status.message()), HasSubstr("sample.gguf: byte "));
    EXPECT_THAT(std::string(c.status.message()), HasSubstr(c.message));
  }
}

TEST(GgufFile, GivesTheFallbackForAMissingKeyOnly) {
  const std::vector<std::byte> bytes = SampleFile(3);
  const GgufFile file = GgufFile::Parse("sample.gguf", bytes).value();
  EXPECT_EQ(file.GetInt("none", 5).value(), 5);
  EXPECT_EQ(file.GetInt("u8", 5).value(), 200);
  EXPECT_EQ(file.GetDouble("none", 0.25).value(), 0.25);
  EXPECT_EQ(file.GetBool("none", true).value(), true);
  EXPECT_EQ(file.GetString("none", "fallback").value(), "fallback");
  EXPECT_FALSE(file.GetInt("text", 5).ok());
}

TEST(GgufFile, RefusesArrayElementsBeyond32Bits) {
  std::vector<std::byte> encoded;
  AppendBytes(encoded, static_cast<uint32_t>(GgufType::kUint32));
  AppendBytes(encoded, uint64_t{2});
  AppendBytes(encoded, uint32_t{1});
  AppendBytes(encoded, uint32_t{1} << 31);
  GgufWriter writer;
  writer.AddRaw("ids", GgufType::kArray, encoded);
  const std::vector<std::byte> bytes = writer.Bytes();
  const absl::Status status = GgufFile::Parse("ids.gguf", bytes).value().GetInts("ids").status();
  EXPECT_EQ(std::string(status.message()),
            "ids.gguf: byte 55: expected elements of ids to fit 32 bits, found 2147483648");
}

TEST(GgufFile, PlacesDataByTheAlignmentOfTheFile) {
  GgufWriter writer;
  writer.set_alignment(256);
  writer.Add("general.alignment", uint32_t{256});
  writer.AddTensor("first", DType::kF32, 0, 1, std::vector<float>{1});
  writer.AddTensor("second", DType::kF32, 0, 1, std::vector<float>{2});
  const std::vector<std::byte> bytes = writer.Bytes();
  const GgufFile file = GgufFile::Parse("aligned.gguf", bytes).value();
  EXPECT_EQ(file.alignment(), 256);
  EXPECT_EQ(file.FindTensor("first")->data_offset, 256U);
  EXPECT_EQ(file.FindTensor("second")->data_offset, 512U);
}

TEST(GgufFile, ReadsAFileOfMetadataAlone) {
  GgufWriter writer;
  writer.Add("only", uint8_t{1});
  const std::vector<std::byte> bytes = writer.Bytes();
  const GgufFile file = GgufFile::Parse("only.gguf", bytes).value();
  EXPECT_THAT(file.tensors(), IsEmpty());
  EXPECT_EQ(file.GetInt("only").value(), 1);
}

TEST(GgufFile, KeepsItsViewsWhenItIsMoved) {
  const std::string path = testing::TempDir() + "ebb_gguf_test_" + std::to_string(getpid()) + ".gguf";
  GgufWriter writer;
  writer.Add("text", "here");
  writer.AddTensor("t", DType::kF32, 0, 1, std::vector<float>{3});
  writer.Write(path);
  GgufFile first = GgufFile::Open(path).value();
  const std::string_view text = first.GetString("text").value();
  const GgufFile second = std::move(first);
  std::filesystem::remove(path);
  EXPECT_EQ(text, "here");
  EXPECT_EQ(second.GetString("text").value().data(), text.data());
  EXPECT_EQ(second.FindTensor("t")->name, "t");
  EXPECT_EQ(second.name(), path);
}

TEST(GgufFile, PassesOnWhyAFileCannotBeOpened) {
  EXPECT_THAT(GgufFile::Open("no/such/file.gguf"), IsRefusal(absl::StatusCode::kNotFound, "FILE_UNREADABLE", ""));
}

TEST(FormatValue, ShowsValuesOnOneLine) {
  const std::vector<std::byte> bytes = SampleFile(3);
  const GgufFile file = GgufFile::Parse("sample.gguf", bytes).value();
  const std::map<std::string, std::string> expected = {
      {"u8", "200"},
      {"i8", "-100"},
      {"f32", "0.5"},
      {"f64", "1e+300"},
      {"yes", "true"},
      {"huge", "18446744073709551615"},
      {"empty", "\"\""},
      {"text", "\"caf\\xc3\\xa9\""},
      {"words", "[3 x string: \"a\", \"\", \"ccc\"]"},
      {"reals", "[2 x float32: 1.5, -2.5]"},
      {"nested", "[2 x array]"},
  };
  for (const auto& [key, text] : expected) EXPECT_EQ(FormatValue(*file.FindValue(key)), text) << key;
}

TEST(FormatValue, CutsLongArrays) {
  GgufWriter writer;
  writer.AddArray("many", std::vector<int32_t>(100, 7));
  const std::vector<std::byte> bytes = writer.Bytes();
  const GgufFile file = GgufFile::Parse("many.gguf", bytes).value();
  EXPECT_EQ(FormatValue(*file.FindValue("many")), "[100 x int32: 7, 7, 7, 7, 7, 7, 7, 7, ...]");
  EXPECT_EQ(GgufTypeName(*file.FindValue("many")), "array of int32");
}

}  // namespace
}  // namespace ebb
