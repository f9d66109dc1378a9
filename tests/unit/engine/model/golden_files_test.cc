// The model files of the golden folder open, and every family is configured and finds its weights.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "engine/model/architecture.h"
#include "engine/model/gguf.h"
#include "tests/support/golden_folder.h"

namespace ebb {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class GoldenFiles : public testing::Test {
 protected:
  void SetUp() override {
    if (folder_.empty()) GTEST_SKIP() << "no golden folder; set EBB_GOLDEN";
  }
  GgufFile Open(const std::string& name) const { return GgufFile::Open(folder_ + "/" + name).value(); }

  const std::string folder_ = GoldenFolder();
};

TEST_F(GoldenFiles, AllAreRead) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.path().extension() != ".gguf") continue;
    SCOPED_TRACE(entry.path());
    const auto file = GgufFile::Open(entry.path());
    ASSERT_TRUE(file.ok()) << file.status();
    const auto config = ReadConfig(*file);
    ASSERT_TRUE(config.ok()) << config.status();
    const auto weights = FindWeights(*file, *config);
    EXPECT_TRUE(weights.ok()) << weights.status();
    ++files;
  }
  EXPECT_GE(files, 21);
}

TEST_F(GoldenFiles, LlamaHasTheShapeItWasMadeWith) {
  const GgufFile file = Open("llama.f32.gguf");
  const ModelConfig config = ReadConfig(file).value();
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.dim, 64);
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.group(), 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.ffn_dim, 192);
  EXPECT_EQ(config.vocab, 352);
  EXPECT_EQ(config.context, 512);
  EXPECT_EQ(config.norm_eps, 1e-5F);
  EXPECT_EQ(config.rope_pairs, RopePairs::kNeighbours);
  EXPECT_EQ(config.rotary_dims, 16);
  ASSERT_THAT(config.rope_frequencies, SizeIs(8));
  EXPECT_EQ(config.rope_frequencies[0], 1.0);
  EXPECT_THAT(config.rope_frequencies[4], DoubleNear(0.01, 1e-15));

  const Weights weights = FindWeights(file, config).value();
  ASSERT_THAT(weights.layers, SizeIs(2));
  EXPECT_EQ(weights.layers[1].k.name, "blk.1.attn_k.weight");
  EXPECT_EQ(weights.layers[1].k.rows, 32);
  EXPECT_EQ(weights.layers[1].k.cols, 64);
  EXPECT_EQ(weights.output.name, "output.weight");
}

TEST_F(GoldenFiles, Llama3DividesFrequenciesByItsFactorsAndTiesTheHead) {
  const GgufFile file = Open("llama3.f32.gguf");
  const ModelConfig config = ReadConfig(file).value();
  ASSERT_EQ(config.rotary_dims, 32);
  // Factor 8 beyond a wavelength of 256 positions, none below 64: the first and the last pair are clear.
  EXPECT_EQ(config.rope_frequencies.front(), 1.0);
  EXPECT_THAT(config.rope_frequencies.back() * 8 / std::pow(500000.0, -30.0 / 32), DoubleNear(1, 1e-7));
  EXPECT_EQ(FindWeights(file, config).value().output.name, "token_embd.weight");
}

TEST_F(GoldenFiles, LinearScalingDividesEveryFrequency) {
  const auto plain = ReadConfig(Open("llama.f32.gguf")).value().rope_frequencies;
  const auto scaled = ReadConfig(Open("llama-linear.f32.gguf")).value().rope_frequencies;
  ASSERT_EQ(plain.size(), scaled.size());
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(scaled[i], plain[i] / 4);
}

TEST_F(GoldenFiles, AMixedFileKeepsEachTensorsType) {
  const GgufFile file = Open("llama-k.q4_k_m.gguf");
  const Weights weights = FindWeights(file, ReadConfig(file).value()).value();
  EXPECT_EQ(weights.layers[0].q.type, DType::kQ4_K);
  EXPECT_EQ(weights.layers[1].v.type, DType::kQ6_K);
  EXPECT_EQ(weights.layers[1].down.type, DType::kQ6_K);
  EXPECT_EQ(weights.output.type, DType::kQ6_K);
}

TEST_F(GoldenFiles, TokenizersGiveTheirVocabularies) {
  const GgufFile file = Open("tokenizer/spm.gguf");
  const auto tokens = file.GetStrings("tokenizer.ggml.tokens").value();
  ASSERT_GT(tokens.size(), 259U);
  EXPECT_EQ(tokens[1], "<s>");
  EXPECT_THAT(file.GetInts("tokenizer.ggml.token_type").value(), SizeIs(tokens.size()));
  EXPECT_THAT(file.GetFloats("tokenizer.ggml.scores").value(), SizeIs(tokens.size()));
}

}  // namespace
}  // namespace ebb
