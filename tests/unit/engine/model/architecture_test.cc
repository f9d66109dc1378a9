#include "engine/model/architecture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

#include "engine/model/quantization.h"
#include "policies/status.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/tiny_model.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A configuration without tensors but for the embedding, one key at a time to leave out or replace.
class ConfigFile {
 public:
  ConfigFile() {
    Set("general.architecture", "llama");
    Set("llama.context_length", uint32_t{128});
    Set("llama.embedding_length", uint32_t{64});
    Set("llama.block_count", uint32_t{2});
    Set("llama.feed_forward_length", uint32_t{96});
    Set("llama.attention.head_count", uint32_t{4});
    Set("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  }

  ConfigFile& Set(const std::string& key, const GgufScalar& value) {
    pairs_[key] = value;
    return *this;
  }
  ConfigFile& Drop(const std::string& key) {
    pairs_.erase(key);
    return *this;
  }
  ConfigFile& Embedding(uint64_t rows, uint64_t cols) {
    rows_ = rows;
    cols_ = cols;
    return *this;
  }
  ConfigFile& RopeFactors(const std::vector<float>& factors) {
    factors_ = factors;
    return *this;
  }

  absl::StatusOr<ModelConfig> Read() const {
    GgufWriter writer;
    for (const auto& [key, value] : pairs_) writer.Add(key, value);
    if (rows_ > 0) writer.AddRawTensor("token_embd.weight", 24, {cols_, rows_}, std::vector<std::byte>(rows_ * cols_));
    if (!factors_.empty())
      writer.AddTensor("rope_freqs.weight", DType::kF32, 0, static_cast<int64_t>(factors_.size()), factors_);
    const std::vector<std::byte> bytes = writer.Bytes();
    EBB_ASSIGN(const GgufFile file, GgufFile::Parse("config.gguf", bytes));
    return ReadConfig(file);
  }

 private:
  std::map<std::string, GgufScalar> pairs_ = {};
  uint64_t rows_ = 10;
  uint64_t cols_ = 64;
  std::vector<float> factors_ = {};
};

TEST(ReadConfig, FillsInWhatAFileMayLeaveOut) {
  const ModelConfig config = ConfigFile().Read().value();
  EXPECT_EQ(config.name, "");
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rotary_dims, 16);
  EXPECT_EQ(config.vocab, 10);
  ASSERT_THAT(config.rope_frequencies, SizeIs(8));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(config.rope_frequencies[i], std::pow(10000.0, -2.0 * i / 16));
}

TEST(ReadConfig, TakesWhatAFileStates) {
  const ModelConfig config = ConfigFile()
                                 .Set("general.name", "a name")
                                 .Set("llama.attention.head_count_kv", uint32_t{2})
                                 .Set("llama.attention.key_length", uint32_t{32})
                                 .Set("llama.attention.value_length", uint32_t{32})
                                 .Set("llama.rope.dimension_count", uint32_t{8})
                                 .Set("llama.rope.freq_base", 500000.0F)
                                 .Set("llama.rope.scaling.type", "linear")
                                 .Set("llama.rope.scaling.factor", 2.0F)
                                 .RopeFactors({1, 2, 4, 8})
                                 .Read()
                                 .value();
  EXPECT_EQ(config.name, "a name");
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.group(), 2);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.rotary_dims, 8);
  ASSERT_THAT(config.rope_frequencies, SizeIs(4));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(config.rope_frequencies[i], std::pow(500000.0, -2.0 * i / 8) / (2.0 * (1 << i)));
  }
}

TEST(ReadConfig, RefusesArchitecturesItDoesNotKnowNamingThoseItDoes) {
  const absl::Status status = ConfigFile().Set("general.architecture", "mamba").Read().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetRefusal(status).reason, "UNSUPPORTED_ARCHITECTURE");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("config.gguf: architecture \"mamba\" is not supported; known: llama, qwen2, qwen3"));
}

TEST(ReadConfig, RefusesWhatItWouldComputeWrong) {
  struct Case {
    std::string key;
    GgufScalar value;
  };
  const std::vector<Case> cases = {
      {"llama.expert_count", uint32_t{8}},   {"llama.attention.causal", false},
      {"llama.attention.scale", 0.25F},      {"llama.attn_logit_softcapping", 50.0F},
      {"llama.use_parallel_residual", true}, {"llama.logit_scale", 0.5F},
      {"llama.rope.scaling.type", "yarn"},   {"llama.attention.value_length", uint32_t{8}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.key);
    const absl::Status status = ConfigFile().Set(c.key, c.value).Read().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(GetRefusal(status).reason, "UNSUPPORTED_MODEL_FEATURE");
    EXPECT_THAT(std::string(status.message()), HasSubstr("config.gguf: "));
  }
  EXPECT_TRUE(ConfigFile().Set("llama.expert_count", uint32_t{0}).Set("llama.attention.causal", true).Read().ok());
}

TEST(ReadConfig, BoundsEveryNumber) {
  struct Case {
    std::string key;
    GgufScalar value;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {"llama.block_count", uint32_t{0}, "llama.block_count from 1 to 1024, found 0"},
      {"llama.block_count", uint32_t{1025}, "llama.block_count from 1 to 1024, found 1025"},
      {"llama.block_count", int32_t{-1}, "llama.block_count from 1 to 1024, found -1"},
      {"llama.block_count", "two", "an integer below 2^63 in metadata key llama.block_count, found string \"two\""},
      {"llama.embedding_length", ~uint64_t{0},
       "an integer below 2^63 in metadata key llama.embedding_length, found uint64"},
      {"llama.embedding_length", uint32_t{(1 << 20) + 1}, "llama.embedding_length from 1 to 1048576"},
      {"llama.embedding_length", uint32_t{65}, "a divisor of the dimension 65, found 4"},
      {"llama.embedding_length", uint32_t{128},
       "tensor token_embd.weight of shape [1 to 1048576, 128], found [10, 64]"},
      {"llama.feed_forward_length", uint32_t{0}, "llama.feed_forward_length from 1 to"},
      {"llama.context_length", uint32_t{0}, "llama.context_length from 1 to"},
      {"llama.attention.head_count", uint32_t{0}, "llama.attention.head_count from 1 to"},
      {"llama.attention.head_count_kv", uint32_t{3}, "a divisor of the 4 heads, found 3"},
      {"llama.attention.head_count_kv", uint32_t{5}, "llama.attention.head_count_kv from 1 to 4, found 5"},
      {"llama.attention.key_length", uint32_t{1 << 15}, "llama.attention.key_length from 1 to 16384"},
      {"llama.attention.layer_norm_rms_epsilon", 0.0F, "rms_epsilon from 0 to 1, found 0"},
      {"llama.attention.layer_norm_rms_epsilon", std::nanf(""), "rms_epsilon from 0 to 1, found nan"},
      {"llama.rope.dimension_count", uint32_t{15}, "an even number of rotated components, found 15"},
      {"llama.rope.dimension_count", uint32_t{18}, "llama.rope.dimension_count from 0 to 16, found 18"},
      {"llama.rope.freq_base", 0.0F, "llama.rope.freq_base from 1 to 1e+12, found 0"},
      {"llama.rope.freq_base", -1.0F, "llama.rope.freq_base from 1 to 1e+12, found -1"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.expected);
    const absl::Status status = ConfigFile().Set(c.key, c.value).Read().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(GetRefusal(status).reason, "MODEL_DAMAGED");
    EXPECT_THAT(std::string(status.message()), HasSubstr("config.gguf: byte "));
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.expected));
  }
}

// A configuration of another family than llama's, by its keys behind the name.
ConfigFile FileOf(const std::string& family, const std::map<std::string, GgufScalar>& keys) {
  ConfigFile file;
  file.Set("general.architecture", family);
  for (const auto& [key, value] : std::map<std::string, GgufScalar>{{"context_length", uint32_t{128}},
                                                                    {"embedding_length", uint32_t{64}},
                                                                    {"block_count", uint32_t{6}},
                                                                    {"feed_forward_length", uint32_t{96}},
                                                                    {"attention.head_count", uint32_t{4}},
                                                                    {"attention.layer_norm_rms_epsilon", 1e-5F},
                                                                    {"attention.layer_norm_epsilon", 1e-5F}}) {
    file.Set(family + "." + key, value);
  }
  for (const auto& [key, value] : keys) file.Set(family + "." + key, value);
  return file;
}

TEST(ReadConfig, GivesWindowsToTheLayersThatHaveThem) {
  const auto windows = [](const std::string& family, const std::map<std::string, GgufScalar>& keys) {
    return FileOf(family, keys).Read().value().windows;
  };
  const GgufScalar window = uint32_t{32};
  EXPECT_THAT(windows("llama", {}), IsEmpty());
  EXPECT_THAT(windows("llama", {{"attention.sliding_window", window}}), ElementsAre(32, 32, 32, 32, 32, 32));
  EXPECT_THAT(windows("gemma3", {{"attention.sliding_window", window}}), ElementsAre(32, 32, 32, 32, 32, 0));
  EXPECT_THAT(
      windows("gemma3", {{"attention.sliding_window", window}, {"attention.sliding_window_pattern", uint32_t{2}}}),
      ElementsAre(32, 0, 32, 0, 32, 0));
  const std::map<std::string, GgufScalar> caps = {
      {"attn_logit_softcapping", 50.0F}, {"final_logit_softcapping", 30.0F}, {"attention.sliding_window", window}};
  EXPECT_THAT(windows("gemma2", caps), ElementsAre(32, 0, 32, 0, 32, 0));
  const absl::Status status = FileOf("qwen2", {{"attention.sliding_window", window}}).Read().status();
  EXPECT_EQ(GetRefusal(status).reason, "UNSUPPORTED_MODEL_FEATURE");
}

TEST(ReadConfig, StretchesTheFrequenciesOfLayersWithoutAWindow) {
  const ModelConfig config = FileOf("gemma3", {{"attention.sliding_window", uint32_t{32}},
                                               {"rope.freq_base", 1e6F},
                                               {"rope.scaling.type", "linear"},
                                               {"rope.scaling.factor", 8.0F}})
                                 .Read()
                                 .value();
  EXPECT_EQ(config.rope_frequencies[0], 1.0 / 8);
  EXPECT_EQ(config.window_rope_frequencies[0], 1.0);
  EXPECT_EQ(config.window_rope_frequencies[1], std::pow(10000.0, -2.0 / 16));
}

TEST(ReadConfig, BoundsWhatOnlySomeFamiliesHave) {
  const auto message = [](const std::string& family, const std::map<std::string, GgufScalar>& keys) {
    return std::string(FileOf(family, keys).Read().status().message());
  };
  EXPECT_THAT(message("gemma2", {{"attn_logit_softcapping", std::nanf("")}, {"final_logit_softcapping", 30.0F}}),
              HasSubstr("gemma2.attn_logit_softcapping from 0.001 to 1e+06, found nan"));
  EXPECT_THAT(message("gemma2", {{"attn_logit_softcapping", 50.0F}, {"final_logit_softcapping", 0.0F}}),
              HasSubstr("gemma2.final_logit_softcapping from 0.001 to 1e+06, found 0"));
  EXPECT_THAT(message("gemma2", {}), HasSubstr("gemma2.attn_logit_softcapping"));
  EXPECT_THAT(message("llama", {{"attention.sliding_window", int32_t{-1}}}),
              HasSubstr("llama.attention.sliding_window from 0 to"));
  EXPECT_THAT(message("qwen3moe", {{"expert_count", uint32_t{4}}, {"expert_used_count", uint32_t{5}}}),
              HasSubstr("qwen3moe.expert_used_count from 1 to 4, found 5"));
  EXPECT_THAT(message("qwen3moe", {{"expert_count", uint32_t{0}}}),
              HasSubstr("qwen3moe.expert_count from 1 to 1024, found 0"));
}

TEST(ReadConfig, BoundsHeadsTogether) {
  const absl::Status status = ConfigFile()
                                  .Set("llama.attention.head_count", uint32_t{1 << 10})
                                  .Set("llama.attention.key_length", uint32_t{(1 << 10) + 2})
                                  .Read()
                                  .status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("expected heads of 1026 of at most 1048576 in all, found 1024 heads"));
}

TEST(ReadConfig, NamesAMissingKey) {
  for (const std::string key :
       {"general.architecture", "llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
        "llama.context_length", "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon"}) {
    SCOPED_TRACE(key);
    const absl::Status status = ConfigFile().Drop(key).Read().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("expected metadata key " + key + " ("));
    EXPECT_THAT(std::string(status.message()), HasSubstr("found the end of the metadata"));
  }
}

TEST(ReadConfig, ChecksRopeFactors) {
  const absl::Status wrong_length = ConfigFile().RopeFactors({1, 1, 1}).Read().status();
  EXPECT_THAT(std::string(wrong_length.message()),
              HasSubstr("expected tensor rope_freqs.weight of type F32 and shape [8], found F32 [1, 3]"));
  const absl::Status wrong_value = ConfigFile().RopeFactors({1, 1, 1, 0, 1, 1, 1, 1}).Read().status();
  EXPECT_EQ(wrong_value.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(wrong_value.message()),
              HasSubstr("factors of tensor rope_freqs.weight from 0.5 to 1e+06, found 0"));
}

TEST(ReadConfig, TakesAFactorWithoutATypeAsLinear) {
  const ModelConfig config = ConfigFile().Set("llama.rope.scaling.factor", 4.0F).Read().value();
  EXPECT_EQ(config.rope_frequencies[0], 0.25);
  const ModelConfig none =
      ConfigFile().Set("llama.rope.scaling.factor", 4.0F).Set("llama.rope.scaling.type", "none").Read().value();
  EXPECT_EQ(none.rope_frequencies[0], 1.0);
}

TEST(ReadConfig, WantsAsManyTokensAsTheEmbeddingHasRows) {
  GgufWriter writer = MakeTinyTransformer({.vocab = 5});
  writer.AddArray("tokenizer.ggml.tokens", std::vector<std::string>(6, "t"));
  const std::vector<std::byte> bytes = writer.Bytes();
  const absl::Status status = ReadConfig(GgufFile::Parse("config.gguf", bytes).value()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("expected tokenizer.ggml.tokens for the 5 rows of tensor token_embd.weight, found 6"));
}

TEST(ReadConfig, RefusesNumbersPerLayer) {
  GgufWriter writer;
  writer.Add("general.architecture", "llama");
  writer.Add("llama.block_count", uint32_t{2});
  writer.Add("llama.embedding_length", uint32_t{64});
  writer.AddArray("llama.feed_forward_length", std::vector<int32_t>{96, 128});
  const std::vector<std::byte> bytes = writer.Bytes();
  const absl::Status status = ReadConfig(GgufFile::Parse("config.gguf", bytes).value()).status();
  EXPECT_EQ(GetRefusal(status).reason, "UNSUPPORTED_MODEL_FEATURE");
  EXPECT_EQ(status.message(), "config.gguf: llama.feed_forward_length differs between layers, which is not supported");
}

// A tiny model, parsed; `change` adds to its file.
struct OpenedModel {
  explicit OpenedModel(const TinyModel& model, const std::function<void(GgufWriter&)>& change = {}) {
    GgufWriter writer = MakeTinyModel(model);
    if (change) change(writer);
    bytes = writer.Bytes();
  }
  GgufFile Parse() const { return GgufFile::Parse("tiny.gguf", bytes).value(); }
  absl::Status FindStatus() const {
    const GgufFile file = Parse();
    return FindWeights(file, ReadConfig(file).value()).status();
  }
  std::vector<std::byte> bytes = {};
};

TEST(FindWeights, FindsEveryTensorOfEveryType) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBf16, DType::kQ8_0, DType::kQ4_0}) {
    SCOPED_TRACE(TypeName(type));
    const OpenedModel model({.type = type});
    const GgufFile file = model.Parse();
    const ModelConfig config = ReadConfig(file).value();
    const auto weights = FindWeights(file, config);
    ASSERT_TRUE(weights.ok()) << weights.status();
    ASSERT_THAT(weights->layers, SizeIs(2));
    for (const LayerWeights& layer : weights->layers) {
      for (const TensorView* const view :
           {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
        EXPECT_EQ(view->type, type);
        EXPECT_THAT(view->data, SizeIs(view->rows * RowBytes(type, view->cols)));
      }
      EXPECT_EQ(layer.attn_norm.type, DType::kF32);
      EXPECT_EQ(layer.down.rows, config.dim);
      EXPECT_EQ(layer.down.cols, config.ffn_dim);
    }
    EXPECT_EQ(weights->output.name, "output.weight");
  }
}

TEST(FindWeights, TiesTheHeadToTheEmbeddingWhereThereIsNoOutput) {
  const OpenedModel model({.tied_head = true});
  const GgufFile file = model.Parse();
  const Weights weights = FindWeights(file, ReadConfig(file).value()).value();
  EXPECT_EQ(weights.output.data.data(), weights.embedding.data.data());
}

TEST(FindWeights, NamesAMissingTensorAndItsShape) {
  const OpenedModel model({.layers = 1});
  std::string bytes(reinterpret_cast<const char*>(model.bytes.data()), model.bytes.size());
  bytes.replace(bytes.find("attn_k.weight"), 13, "attn_z.weight");
  const GgufFile file = GgufFile::Parse("tiny.gguf", std::as_bytes(std::span(bytes))).value();
  const absl::Status status = FindWeights(file, ReadConfig(file).value()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("expected tensor blk.0.attn_k.weight ([32, 64]), found the end of the tensor directory"));
}

TEST(FindWeights, ChecksShapes) {
  const OpenedModel model({});
  const GgufFile file = model.Parse();
  ModelConfig config = ReadConfig(file).value();
  config.ffn_dim = 128;
  const absl::Status status = FindWeights(file, config).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("expected tensor blk.0.ffn_gate.weight of shape [128, 64], found [96, 64]"));
}

TEST(FindWeights, RefusesTensorsThatHaveNoPlace) {
  for (const std::string name :
       {"blk.0.attn_q.bias", "blk.2.attn_q.weight", "blk.0.ffn_gate_inp.weight", "output.bias"}) {
    SCOPED_TRACE(name);
    const OpenedModel model(
        {}, [&](GgufWriter& writer) { writer.AddTensor(name, DType::kF32, 0, 1, std::vector<float>(1)); });
    const absl::Status status = model.FindStatus();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(GetRefusal(status).reason, "UNSUPPORTED_MODEL_FEATURE");
    EXPECT_EQ(status.message(), "tiny.gguf: tensor " + name + " has no place in architecture llama with 2 layers");
  }
}

TEST(FindWeights, IgnoresFrequenciesThatOldConvertersStored) {
  const OpenedModel model({}, [](GgufWriter& writer) {
    writer.AddTensor("blk.0.attn_rot_embd.weight", DType::kF32, 0, 8, std::vector<float>(8, 1.0F));
  });
  EXPECT_TRUE(model.FindStatus().ok()) << model.FindStatus();
}

TEST(FindWeights, ReadsNormsAsF32Only) {
  const OpenedModel model({.layers = 1});
  std::string bytes(reinterpret_cast<const char*>(model.bytes.data()), model.bytes.size());
  const size_t entry = bytes.find("output_norm.weight");
  bytes[entry + 18 + 4 + 8] = 1;  // behind name, dimensions and extent stands the type: F16
  const GgufFile file = GgufFile::Parse("tiny.gguf", std::as_bytes(std::span(bytes))).value();
  const absl::Status status = FindWeights(file, ReadConfig(file).value()).status();
  EXPECT_EQ(GetRefusal(status).reason, "UNSUPPORTED_TENSOR_TYPE");
  EXPECT_EQ(status.message(), "tiny.gguf: tensor output_norm.weight has type F16; vectors are read as F32 only");
}

TEST(FindWeights, ReadsTheBuiltInModel) {
  const GgufFile file = GgufFile::Open("models/ebb-tiny-q8_0.gguf").value();
  const ModelConfig config = ReadConfig(file).value();
  EXPECT_EQ(config.layers, 6);
  EXPECT_EQ(config.dim, 256);
  EXPECT_EQ(config.heads, 8);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.ffn_dim, 704);
  EXPECT_EQ(config.vocab, 2048);
  EXPECT_EQ(config.context, 1024);
  const Weights weights = FindWeights(file, config).value();
  EXPECT_EQ(weights.output.name, "token_embd.weight");
  EXPECT_EQ(weights.layers.back().q.type, DType::kQ8_0);
}

TEST(TinyModelFile, IsAFileUntilItIsDestroyed) {
  std::string path;
  {
    const TinyModelFile tiny({.vocab = 300, .type = DType::kQ8_0});
    path = tiny.path();
    const GgufFile file = GgufFile::Open(path).value();
    EXPECT_EQ(ReadConfig(file).value().vocab, 300);
    EXPECT_THAT(file.GetStrings("tokenizer.ggml.tokens").value(), SizeIs(300));
    EXPECT_THAT(file.GetInts("tokenizer.ggml.token_type").value(), SizeIs(300));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(MakeTinyModel, GivesTheSameBytesForTheSameSeedOnly) {
  EXPECT_EQ(MakeTinyModel({.seed = 5}).Bytes(), MakeTinyModel({.seed = 5}).Bytes());
  EXPECT_NE(MakeTinyModel({.seed = 5}).Bytes(), MakeTinyModel({.seed = 6}).Bytes());
}

}  // namespace
}  // namespace ebb
