// Models written in another type, in one file or several.

#include "engine/model/convert_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/architecture.h"
#include "engine/model/encode.h"
#include "engine/model/fingerprint.h"
#include "engine/model/hub_tokenizer.h"
#include "engine/model/quantization.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A tiny model in memory, and a folder to write to.
struct Source {
  explicit Source(const TinyModel& model) : bytes(MakeTinyModel(model).Bytes()) {}
  std::vector<std::byte> bytes;
  GgufFile file = GgufFile::Parse("source.gguf", bytes).value();
  TemporaryFolder folder = {};
  std::string path(const std::string& name) const { return folder.path() + "/" + name; }
};

size_t FilesIn(const std::string& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

TEST(ConvertModel, TheSameTypeIsTheSameModel) {
  const Source source({.type = DType::kQ8_0});
  int64_t done = 0;
  const auto converted = ConvertModel(source.file, {.output = source.path("m.gguf"), .type = DType::kQ8_0},
                                      [&](int64_t bytes, std::string_view) { done += bytes; });
  ASSERT_THAT(converted, IsOk());
  EXPECT_THAT(converted->files, ElementsAre(source.path("m.gguf")));
  const GgufFile made = GgufFile::Open(source.path("m.gguf")).value();
  EXPECT_EQ(converted->bytes, made.file_bytes());
  const ModelConfig config = ReadConfig(made).value();
  EXPECT_EQ(ModelFingerprint(made, config), ModelFingerprint(source.file, ReadConfig(source.file).value()));
  int64_t all = 0;
  for (const GgufTensor& tensor : source.file.tensors()) {
    EXPECT_TRUE(std::ranges::equal(made.FindTensor(tensor.name)->data, tensor.data)) << tensor.name;
    all += static_cast<int64_t>(tensor.data.size());
  }
  EXPECT_EQ(done, all);
  EXPECT_EQ(made.GetStrings("tokenizer.ggml.tokens").value().size(), static_cast<size_t>(config.vocab));
}

TEST(ConvertModel, EveryTypeHoldsWhatItsEncoderMakes) {
  const Source source({.type = DType::kF32});
  for (const DType type : EncodableTypes()) {
    SCOPED_TRACE(TypeName(type));
    ASSERT_THAT(ConvertModel(source.file, {.output = source.path("m.gguf"), .type = type}, {}), IsOk());
    const GgufFile made = GgufFile::Open(source.path("m.gguf")).value();
    EXPECT_THAT(FindWeights(made, ReadConfig(made).value()), IsOk());
    for (const GgufTensor& tensor : source.file.tensors()) {
      const TensorView from = source.file.GetTensor(tensor.name).value();
      const TensorView to = made.GetTensor(tensor.name).value();
      ASSERT_EQ(to.type, tensor.dims == 1 ? DType::kF32 : type) << tensor.name;
      std::vector<float> values(static_cast<size_t>(from.cols));
      std::vector<std::byte> row(static_cast<size_t>(RowBytes(to.type, to.cols)));
      for (int64_t r = 0; r < from.rows; ++r) {
        DequantizeRow(from.type, from.data.data() + r * RowBytes(from.type, from.cols), from.cols, values.data());
        EncodeRow(to.type, values.data(), to.cols, row.data());
        ASSERT_TRUE(std::ranges::equal(row, to.data.subspan(static_cast<size_t>(r) * row.size(), row.size())));
      }
    }
  }
}

TEST(ConvertModel, WritesPartsThatAreOneModel) {
  const Source source({.type = DType::kF32});
  const ConvertOptions options = {.output = source.path("m.gguf"), .type = DType::kF16, .part_bytes = 20000};
  const Converted converted = ConvertModel(source.file, options, {}).value();
  ASSERT_GT(converted.files.size(), 2U);
  EXPECT_EQ(FilesIn(source.folder.path()), converted.files.size());
  const GgufFile made = GgufFile::Open(converted.files.front()).value();
  EXPECT_EQ(made.parts().size(), converted.files.size());
  EXPECT_EQ(made.tensors().size(), source.file.tensors().size());
  EXPECT_THAT(FindWeights(made, ReadConfig(made).value()), IsOk());
}

TEST(ConvertModel, RowsOfNoWholeBlocksAreF16) {
  GgufWriter writer;
  writer.Add("general.architecture", "llama");
  writer.AddTensor("odd", DType::kF32, 2, 33, std::vector<float>(66, 0.5F));
  const std::vector<std::byte> bytes = writer.Bytes();
  const GgufFile file = GgufFile::Parse("odd.gguf", bytes).value();
  const TemporaryFolder folder;
  const Converted converted =
      ConvertModel(file, {.output = folder.path() + "/m.gguf", .type = DType::kQ4_0}, {}).value();
  EXPECT_THAT(converted.kept, ElementsAre("odd"));
  EXPECT_EQ(GgufFile::Open(folder.path() + "/m.gguf").value().GetTensor("odd").value().type, DType::kF16);
}

// Whatever goes wrong, there is nothing in the folder that was not there before.
TEST(ConvertModel, AnErrorLeavesNothing) {
  GgufWriter writer;
  writer.AddTensor("good", DType::kF32, 2, 32, std::vector<float>(64, 0.5F));
  std::vector<float> values(64, 0.5F);
  values[40] = std::numeric_limits<float>::quiet_NaN();
  writer.AddTensor("bad", DType::kF32, 2, 32, values);
  const std::vector<std::byte> bytes = writer.Bytes();
  const GgufFile file = GgufFile::Parse("bad.gguf", bytes).value();
  const TemporaryFolder folder;
  const auto converted =
      ConvertModel(file, {.output = folder.path() + "/m.gguf", .type = DType::kQ8_0, .part_bytes = 1}, {});
  EXPECT_THAT(converted, IsRefusal(absl::StatusCode::kDataLoss, "MODEL_DAMAGED", ""));
  EXPECT_THAT(std::string(converted.status().message()),
              HasSubstr("expected finite numbers in tensor bad, found another in row 1"));
  EXPECT_EQ(FilesIn(folder.path()), 0U);
  const auto nowhere = ConvertModel(file, {.output = folder.path() + "/none/m.gguf"}, {});
  EXPECT_THAT(std::string(nowhere.status().message()), HasSubstr("cannot be written: No such file or directory"));
}

TEST(ConvertModel, TakesAnotherTokenizer) {
  const Source source({.vocab = 261});
  GgufWriter writer;
  writer.Add("tokenizer.ggml.model", "other");
  writer.AddArray("tokenizer.ggml.tokens", std::vector<std::string>(261, "other"));
  writer.Add("tokenizer.ggml.eos_token_id", uint32_t{7});
  const std::vector<std::byte> bytes = writer.Bytes();
  const GgufFile tokenizer = GgufFile::Parse("t.gguf", bytes).value();
  ASSERT_THAT(ConvertModel(source.file, {.output = source.path("m.gguf"), .tokenizer = &tokenizer}, {}), IsOk());
  const GgufFile made = GgufFile::Open(source.path("m.gguf")).value();
  EXPECT_EQ(made.GetString("tokenizer.ggml.model").value(), "other");
  EXPECT_EQ(made.FindValue("tokenizer.ggml.merges"), nullptr);
  // What begins and ends a text is of both, first what the tokenizer says.
  const HubEnds ends = ReadEnds(made).value();
  EXPECT_EQ(ends.bos, kTinyBos);
  EXPECT_THAT(ends.eos, ElementsAre(7, kTinyEos, kTinyEnd));
}

TEST(ConvertModel, RefusesATokenizerOfAnotherSizeBeforeItWrites) {
  const Source source({.vocab = 261});
  GgufWriter writer;
  writer.AddArray("tokenizer.ggml.tokens", std::vector<std::string>(260, "other"));
  const std::vector<std::byte> bytes = writer.Bytes();
  const GgufFile tokenizer = GgufFile::Parse("t.gguf", bytes).value();
  const auto converted = ConvertModel(source.file, {.output = source.path("m.gguf"), .tokenizer = &tokenizer}, {});
  EXPECT_EQ(converted.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(converted.status().message()),
              HasSubstr("t.gguf: has 260 tokens; the embedding of source.gguf has 261 rows"));
  EXPECT_EQ(FilesIn(source.folder.path()), 0U);
}

// A folder's tokenizer often names fewer tokens than the model has rows, and not all that end a text.
TEST(ConvertModel, AFoldersTokenizerBecomesOneForTheModel) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/tokenizer.json")
      << R"({"model": {"type": "BPE", "vocab": {"a": 0, "<e>": 1}, "merges": []}})";
  std::ofstream(folder.path() + "/tokenizer_config.json") << R"({"eos_token": "<e>", "add_bos_token": true})";
  const GgufFile tokenizer = OpenTokenizerFile(folder.path() + "/", 5, {.bos = 2, .eos = {3, 1}}).value();
  EXPECT_EQ(tokenizer.name(), folder.path());
  EXPECT_EQ(tokenizer.GetStrings("tokenizer.ggml.tokens").value().size(), 5U);
  EXPECT_THAT(ReadEnds(tokenizer).value().eos, ElementsAre(1, 3));
  EXPECT_TRUE(tokenizer.GetBool("tokenizer.ggml.add_bos_token").value());
}

}  // namespace
}  // namespace ebb
