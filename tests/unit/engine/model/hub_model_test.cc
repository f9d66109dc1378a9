// Models as hubs lay them out: what they become, and what is refused. That every family becomes what it is as GGUF, bit
// for bit, is the test golden/hub_made.

#include "engine/model/hub_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/model/architecture.h"
#include "engine/model/architecture_table.h"
#include "engine/model/fingerprint.h"
#include "engine/model/hub_table.h"
#include "engine/model/model_path.h"
#include "engine/model/quantization.h"
#include "policies/status.h"
#include "tests/support/hub_folder.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"

namespace ebb {
namespace {

using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;

// Opens it and finds all weights; the first error.
absl::Status Use(HubFolder folder) {
  folder.Finish();
  EBB_ASSIGN(const GgufFile file, ReadHubModel("m", [&](const std::string& name) { return folder.Read(name); }));
  EBB_ASSIGN(const ModelConfig config, ReadConfig(file));
  return FindWeights(file, config).status();
}

absl::Status UseWith(const std::function<void(HubFolder&)>& change) {
  HubFolder folder;
  change(folder);
  return Use(std::move(folder));
}

void ExpectRefusal(const std::function<void(HubFolder&)>& change, absl::StatusCode code, const std::string& reason,
                   const std::string& message) {
  const absl::Status status = UseWith(change);
  EXPECT_THAT(status, IsRefusal(code, reason, "")) << message;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

std::vector<float> Floats(const TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.rows * view.cols));
  for (int64_t row = 0; row < view.rows; ++row) {
    DequantizeRow(view.type, view.data.data() + row * RowBytes(view.type, view.cols), view.cols,
                  values.data() + row * view.cols);
  }
  return values;
}

TEST(HubModel, EveryArchitectureHasARow) {
  for (const ArchitectureRow& row : Architectures()) {
    EXPECT_THAT(std::vector<HubFamily>(HubFamilies().begin(), HubFamilies().end()),
                Contains(Field(&HubFamily::architecture, row.name)));
  }
  for (const HubFamily& family : HubFamilies()) EXPECT_NE(FindArchitecture(family.architecture), nullptr);
}

TEST(HubModel, CopiesCanBeGivenBack) {
  HubFolder folder;
  folder.Finish();
  GgufFile file = ReadHubModel("m", [&](const std::string& name) { return folder.Read(name); }).value();
  EXPECT_EQ(file.copied_bytes(), 2 * (8 + 4) * 8 * 4);  // q and k of two layers
  const std::span<const std::byte> q = file.FindTensor("blk.1.attn_q.weight")->data;
  const std::array kept = {q.subspan(8), file.FindTensor("token_embd.weight")->data};
  file.DropCopies(kept);
  EXPECT_EQ(file.copied_bytes(), 8 * 8 * 4);
  EXPECT_EQ(file.FindTensor("blk.1.attn_q.weight")->data.data(), q.data());
  EXPECT_TRUE(file.FindTensor("blk.0.attn_q.weight")->data.empty());
  EXPECT_FALSE(file.FindTensor("blk.0.attn_v.weight")->data.empty());
}

TEST(HubModel, AFolderIsNamedAlikeByAllItsPaths) {
  const TemporaryFolder folder;
  const std::string whole = std::filesystem::canonical(folder.path()).string();
  std::filesystem::create_directory(folder.path() + "/below");
  EXPECT_EQ(PathBeside(folder.path() + "//", ".packed"), folder.path() + ".packed");
  EXPECT_EQ(PathBeside(folder.path() + "/.", ".packed"), whole + ".packed");
  EXPECT_EQ(PathBeside(folder.path() + "/below/../", ".packed"), whole + ".packed");
  EXPECT_EQ(FolderPath("nowhere/.."), "nowhere/..");
}

TEST(HubModel, ReadsNumbersAndTensors) {
  HubFolder folder;
  folder.Finish();
  const GgufFile file = ReadHubModel("m", [&](const std::string& name) { return folder.Read(name); }).value();
  const ModelConfig config = ReadConfig(file).value();
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.kv_heads, 1);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.vocab, 5);
  EXPECT_EQ(config.norm_eps, 1e-5F);
  EXPECT_EQ(file.GetInt("tokenizer.ggml.eos_token_id").value(), 2);
  const Weights weights = FindWeights(file, config).value();
  // Rows of a head 0, 1, 2, 3 become 0, 2, 1, 3: RoPE's pairs are neighbours.
  const auto stored = std::as_bytes(std::span(folder.tensors["model.layers.1.self_attn.k_proj.weight"].data));
  const TensorView k = weights.layers[1].k;
  for (const auto& [ours, theirs] : {std::pair(0, 0), {1, 2}, {2, 1}, {3, 3}}) {
    EXPECT_EQ(std::memcmp(k.data.data() + ours * 32, stored.data() + theirs * 32, 32), 0) << ours;
  }
}

// One file or several, the bytes are the same.
TEST(HubModel, ReadsSeveralFilesByTheirIndex) {
  HubFolder one;
  one.Finish();
  HubFolder many;
  std::map<std::string, HubTensorBytes> parts[2];
  nlohmann::json map;
  for (const auto& [name, tensor] : many.tensors) {
    const size_t part = name.size() % 2;
    parts[part][name] = tensor;
    map[name] = part == 0 ? "a.safetensors" : "b.safetensors";
  }
  many.files["a.safetensors"] = MakeSafetensors(parts[0]);
  many.files["b.safetensors"] = MakeSafetensors(parts[1]);
  const auto set_index = [&](const nlohmann::json& weight_map) {
    const std::string text = nlohmann::json{{"weight_map", weight_map}}.dump();
    const auto bytes = std::as_bytes(std::span(text));
    many.files["model.safetensors.index.json"] = {bytes.begin(), bytes.end()};
  };
  set_index(map);
  EXPECT_THAT(Use(many), IsOk());
  const auto open = [](HubFolder folder) {
    folder.Finish();
    const GgufFile file = ReadHubModel("m", [&](const std::string& name) { return folder.Read(name); }).value();
    return ModelFingerprint(file, ReadConfig(file).value());
  };
  EXPECT_EQ(open(many), open(one));

  const auto expect = [&](const nlohmann::json& weight_map, const std::string& message) {
    set_index(weight_map);
    EXPECT_THAT(std::string(Use(many).message()), HasSubstr(message));
  };
  auto wrong = map;
  wrong["lm_head.weight"] = "../b.safetensors";
  expect(wrong,
         "index.json: tensor lm_head.weight: expected the name of a safetensors file, found \"../b.safetensors\"");
  wrong["lm_head.weight"] = "c.safetensors";
  expect(wrong, "m/a.safetensors: tensor lm_head.weight: expected it in c.safetensors, found it here");
  wrong.erase("lm_head.weight");
  expect(wrong, "expected no tensor that model.safetensors.index.json lacks, found it here");
  wrong = map;
  wrong["more"] = "a.safetensors";
  expect(wrong, "m/a.safetensors: expected tensor more, found none");
  set_index(map);
  many.files.erase("b.safetensors");
  EXPECT_THAT(Use(many), IsRefusal(absl::StatusCode::kNotFound, "FILE_UNREADABLE", ""));
}

TEST(HubModel, HalfTypesStayInMatricesAndBecomeF32InVectors) {
  HubFolder folder;
  for (auto& [name, tensor] : folder.tensors) {
    std::vector<std::byte> halves;
    for (size_t i = 0; i < tensor.data.size(); i += 4) {
      float value = 0;
      std::memcpy(&value, tensor.data.data() + i, 4);
      const uint16_t half = Bf16FromFloat(value);
      const auto bytes = std::as_bytes(std::span(&half, 1));
      halves.insert(halves.end(), bytes.begin(), bytes.end());
    }
    tensor = {.dtype = "BF16", .shape = tensor.shape, .data = halves};
  }
  folder.Finish();
  const GgufFile file = ReadHubModel("m", [&](const std::string& name) { return folder.Read(name); }).value();
  const Weights weights = FindWeights(file, ReadConfig(file).value()).value();
  EXPECT_EQ(weights.layers[0].q.type, DType::kBf16);
  EXPECT_EQ(weights.layers[0].attn_norm.type, DType::kF32);
  const std::vector<std::byte>& stored = folder.tensors["model.norm.weight"].data;
  uint16_t first = 0;
  std::memcpy(&first, stored.data(), 2);
  EXPECT_EQ(Floats(weights.output_norm)[0], FloatFromBf16(first));
}

TEST(HubModel, EndsComeFromTheGenerationConfigFirst) {
  HubFolder folder;
  const std::string text = R"({"eos_token_id":[4,3]})";
  const auto bytes = std::as_bytes(std::span(text));
  folder.files["generation_config.json"] = {bytes.begin(), bytes.end()};
  folder.Finish();
  const GgufFile file = ReadHubModel("m", [&](const std::string& name) { return folder.Read(name); }).value();
  EXPECT_EQ(file.GetInt("tokenizer.ggml.eos_token_id").value(), 4);
  EXPECT_EQ(file.GetInt("tokenizer.ggml.eot_token_id").value(), 3);
}

TEST(HubModel, ATiedHeadIsTheEmbedding) {
  const auto tie = [](HubFolder& folder) {
    folder.config["tie_word_embeddings"] = true;
    folder.tensors.erase("lm_head.weight");
  };
  EXPECT_THAT(UseWith(tie), IsOk());
  EXPECT_THAT(UseWith([](HubFolder& folder) { folder.config["tie_word_embeddings"] = true; }), IsOk());
  ExpectRefusal([](HubFolder& folder) { folder.tensors.erase("lm_head.weight"); }, absl::StatusCode::kDataLoss,
                "MODEL_DAMAGED", "m: expected tensor model.lm_head.weight, found none");
}

TEST(HubModel, RefusesWhatWouldBeAnotherModel) {
  constexpr auto kCode = absl::StatusCode::kFailedPrecondition;
  const auto set = [](const char* key, const nlohmann::json& value) {
    return [=](HubFolder& folder) { folder.config[key] = value; };
  };
  ExpectRefusal(set("model_type", "mamba"), kCode, "UNSUPPORTED_ARCHITECTURE",
                "m/config.json: model_type \"mamba\" is not supported; known: llama, mistral, qwen2");
  const std::string feature = "UNSUPPORTED_MODEL_FEATURE";
  ExpectRefusal(set("hidden_act", "gelu"), kCode, feature, "hidden_act is \"gelu\"; only silu is supported");
  ExpectRefusal(set("rope_scaling", {{"rope_type", "yarn"}}), kCode, feature, "only linear or llama3 is supported");
  ExpectRefusal(set("rope_parameters", nlohmann::json::object()), kCode, feature, "rope_parameters is {}");
  ExpectRefusal(set("eos_token_id", {1, 2, 3, 4}), kCode, feature, "eos_token_id is [1,2,3,4]");
  ExpectRefusal(set("layer_types", {"full_attention", "sliding_attention"}), kCode, feature, "layer_types");
  ExpectRefusal([](HubFolder& f) { f.tensors["model.layers.0.self_attn.q_proj.bias"] = RandomHubTensor({8}, 9); },
                kCode, feature,
                "tensor model.layers.0.self_attn.q_proj.bias has no place in model_type llama with 2 layers");
  ExpectRefusal([](HubFolder& f) { f.tensors["model.norm.weight"].dtype = "I32"; }, kCode, "UNSUPPORTED_TENSOR_TYPE",
                "tensor model.norm.weight has type I32; F32, F16 and BF16 are read");
}

TEST(HubModel, NamesWhatIsDamaged) {
  const auto expect = [](const std::function<void(HubFolder&)>& change, const std::string& message) {
    ExpectRefusal(change, absl::StatusCode::kDataLoss, "MODEL_DAMAGED", message);
  };
  const auto set = [](const char* key, const nlohmann::json& value) {
    return [=](HubFolder& folder) { folder.config[key] = value; };
  };
  expect(set("hidden_size", "8"), "m/config.json: hidden_size: expected a whole number from 0 that fits 31 bits");
  expect(set("num_attention_heads", 0), "m/config.json: expected heads from 1, found 0");
  expect(set("rms_norm_eps", true), "m/config.json: rms_norm_eps: expected a number, found true");
  expect(set("rope_scaling", 3), "m/config.json: rope_scaling: expected an object, found 3");
  expect(set("rope_scaling", {{"type", "llama3"}}),
         "m/config.json: rope_scaling: factor: expected a number, found none");
  expect(set("eos_token_id", -1), "m/config.json: eos_token_id: expected ids of tokens, found -1");
  expect([](HubFolder& f) { f.config.erase("hidden_size"); }, "hidden_size: expected a whole number");
  expect([](HubFolder& f) { f.tensors.erase("model.layers.1.mlp.up_proj.weight"); },
         "m: expected tensor model.layers.1.mlp.up_proj.weight, found none");
  expect(set("num_hidden_layers", 3), "m: expected tensor model.layers.2.input_layernorm.weight, found none");
  expect(
      [](HubFolder& f) {
        f.tensors["model.layers.0.self_attn.k_proj.weight"] = RandomHubTensor({3, 8}, 1);
      },
      "tensor model.layers.0.self_attn.k_proj.weight: expected a multiple of 2 rows, found 3");
  expect(
      [](HubFolder& f) {
        f.tensors["model.norm.weight"] = RandomHubTensor({2, 2, 2}, 1);
      },
      "tensor model.norm.weight: expected a vector or a matrix, found 3 dimensions");
  expect([](HubFolder& f) { f.tensors["model.norm.weight"] = RandomHubTensor({7}, 1); },
         "m: expected tensor output_norm.weight of shape [8], found [1, 7]");
  expect([](HubFolder& f) { f.files["config.json"] = std::vector<std::byte>(3, std::byte{'{'}); },
         "m/config.json: byte 1: expected JSON");
}

TEST(HubModel, OpensAFolder) {
  const TemporaryFolder folder;
  HubFolder model;
  model.Finish();
  EXPECT_THAT(OpenModel(folder.path()), IsRefusal(absl::StatusCode::kNotFound, "FILE_UNREADABLE", ""));
  for (const auto& [name, bytes] : model.files) {
    std::ofstream(folder.path() + "/" + name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  const GgufFile file = OpenModel(folder.path() + "/").value();
  EXPECT_EQ(file.name(), folder.path());
  EXPECT_THAT(std::vector<std::string>(file.parts().begin(), file.parts().end()),
              Contains(folder.path() + "/model.safetensors"));
  EXPECT_GT(file.file_bytes(), static_cast<int64_t>(model.files["model.safetensors"].size()));
  EXPECT_THAT(FindWeights(file, ReadConfig(file).value()), IsOk());
}

TEST(HubModel, AVectorIsNotTransposed) {
  HubFolder folder;
  folder.config = {{"model_type", "gpt2"}, {"n_embd", 8}, {"n_layer", 1},
                   {"n_positions", 16},    {"n_head", 2}, {"activation_function", "gelu_new"}};
  folder.tensors.clear();
  folder.tensors["wte.weight"] = RandomHubTensor({5, 8}, 1);
  folder.tensors["wpe.weight"] = RandomHubTensor({16, 8}, 2);
  for (const char* const name : {"ln_f.weight", "ln_f.bias", "h.0.ln_1.weight", "h.0.ln_1.bias"}) {
    folder.tensors[name] = RandomHubTensor({8}, 3);
  }
  folder.tensors["h.0.attn.c_attn.weight"] = RandomHubTensor({24}, 4);
  EXPECT_THAT(std::string(Use(folder).message()),
              HasSubstr("tensor h.0.attn.c_attn.weight: expected a matrix, found a vector"));
}

}  // namespace
}  // namespace ebb
