#include "tests/support/tiny_model.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/model/architecture.h"
#include "engine/model/calibration_file.h"
#include "engine/model/fingerprint.h"
#include "engine/model/gguf.h"
#include "policies/check.h"
#include "policies/hash_random.h"
#include "tests/support/random_calibration.h"

namespace ebb {
namespace {

constexpr int32_t kNormalToken = 1;
constexpr int32_t kControlToken = 3;
constexpr float kPeak = 1.5F;  // standard deviation of query and key components
constexpr float kCap = 4;      // of scores and of logits, which reach it

constexpr char kChatTemplate[] =
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}<|assistant|>{% else %}<|user|>"
    "{% endif %}{{ message['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

std::string Utf8(uint32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

// GPT-2's character for each byte: printing bytes are themselves, the others follow from U+0100.
std::vector<std::string> ByteTokens() {
  std::vector<std::string> tokens;
  uint32_t spare = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    tokens.push_back(Utf8(prints ? byte : spare++));
  }
  return tokens;
}

void AddTokenizer(GgufWriter& writer, const TinyModel& model) {
  std::vector<std::string> tokens = ByteTokens();
  for (const char* const special : {"<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|end|>"})
    tokens.emplace_back(special);
  std::vector<int32_t> kinds(256, kNormalToken);
  kinds.resize(tokens.size(), kControlToken);
  for (char a = 'a'; a <= 'z'; ++a) {
    for (char b = 'a'; b <= 'z'; ++b) tokens.push_back({a, b});
  }
  EBB_CHECK(model.vocab > kTinyEnd);
  EBB_CHECK(model.vocab <= static_cast<int32_t>(tokens.size()));
  tokens.resize(static_cast<size_t>(model.vocab));
  kinds.resize(tokens.size(), kNormalToken);
  writer.Add("tokenizer.ggml.model", "gpt2");
  writer.Add("tokenizer.ggml.pre", "gpt-2");
  writer.AddArray("tokenizer.ggml.tokens", tokens);
  writer.AddArray("tokenizer.ggml.token_type", kinds);
  writer.AddArray("tokenizer.ggml.merges", std::vector<std::string>());
  writer.Add("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(kTinyBos));
  writer.Add("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(kTinyEos));
  writer.Add("tokenizer.ggml.eot_token_id", static_cast<uint32_t>(kTinyEnd));
  writer.Add("tokenizer.ggml.add_bos_token", true);
  if (model.without_chat_template) return;
  writer.Add("tokenizer.chat_template", model.chat_template.empty() ? kChatTemplate : model.chat_template);
}

bool HasHeadNorms(const TinyModel& model) {
  return model.architecture.starts_with("qwen3") || model.architecture == "gemma3";
}
bool HasExperts(const TinyModel& model) { return model.architecture == "qwen3moe"; }
bool HasPostNorms(const TinyModel& model) { return model.architecture.starts_with("gemma"); }

void AddConfig(GgufWriter& writer, const TinyModel& model) {
  const std::string& architecture = model.architecture;
  const auto number = [&](const std::string& key, int32_t value) {
    writer.Add(architecture + "." + key, static_cast<uint32_t>(value));
  };
  const auto real = [&](const std::string& key, float value) { writer.Add(architecture + "." + key, value); };
  writer.Add("general.architecture", architecture);
  writer.Add("general.name", "tiny");
  number("context_length", model.context);
  number("embedding_length", model.dim);
  number("block_count", model.layers);
  number(HasExperts(model) ? "expert_feed_forward_length" : "feed_forward_length", model.ffn_dim);
  number("attention.head_count", model.heads);
  number("attention.head_count_kv", model.kv_heads);
  number("attention.key_length", model.head_dim);
  number("attention.value_length", model.head_dim);
  real("attention.layer_norm_rms_epsilon", 1e-5F);
  number("rope.dimension_count", model.rotary_dims > 0 ? model.rotary_dims : model.head_dim);
  real("rope.freq_base", 10000.0F);
  if (architecture == "gemma2") {
    real("attn_logit_softcapping", kCap);
    real("final_logit_softcapping", kCap);
  }
  if (HasExperts(model)) {
    number("expert_count", model.experts);
    number("expert_used_count", model.experts_used);
  }
  if (model.window == 0) return;
  if (architecture == "gemma3") real("rope.freq_base_swa", 1000.0F);
  number("attention.sliding_window", model.window);
  number("attention.sliding_window_pattern", model.window_pattern);
}

// Adds random tensors, each with its own stream of numbers.
class RandomTensors {
 public:
  RandomTensors(GgufWriter& writer, const TinyModel& model) : writer_(writer), model_(model) {}

  void Matrix(const std::string& name, int64_t rows, int64_t cols, float deviation) {
    writer_.AddTensor(name, model_.type, rows, cols, Draw(rows * cols, 0, deviation));
  }

  // Keeps unit variance, times `gain`.
  void Projection(const std::string& name, int64_t rows, int64_t cols, float gain) {
    Matrix(name, rows, cols, gain / std::sqrt(static_cast<float>(cols)));
  }

  // What chooses among them is F32 in files of every type.
  void Router(const std::string& name, int64_t rows, int64_t cols) {
    const float deviation = kPeak / std::sqrt(static_cast<float>(cols));
    writer_.AddTensor(name, DType::kF32, rows, cols, Draw(rows * cols, 0, deviation));
  }

  void Norm(const std::string& name) { Norm(name, model_.dim, 1); }
  void Norm(const std::string& name, int64_t size, float mean) {
    writer_.AddTensor(name, DType::kF32, 0, size, Draw(size, mean, 0.1F));
  }

  void Bias(const std::string& name, int64_t size) {
    writer_.AddTensor(name, DType::kF32, 0, size, Draw(size, 0, 0.1F));
  }

 private:
  // Uniform, which serves as well as normal here.
  std::vector<float> Draw(int64_t count, float mean, float deviation) {
    HashRandom random(model_.seed, tensors_++);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = mean + deviation * std::sqrt(3.0F) * (2 * random.UniformFloat() - 1);
    return values;
  }

  GgufWriter& writer_;
  const TinyModel& model_;
  uint64_t tensors_ = 0;
};

void Calibrate(const std::string& model_path) {
  const GgufFile file = GgufFile::Open(model_path).value();
  ModelConfig config = ReadConfig(file).value();
  config.fingerprint = ModelFingerprint(file, config);
  const std::vector<Feature> features = {Feature::kKeyLength, Feature::kKeyLikeness, Feature::kValueLength,
                                         Feature::kAttention, Feature::kAge};
  const Calibration calibration = RandomCalibration(7, config.layers, config.kv_heads);
  EBB_CHECK(WriteCalibration(CalibrationPath(model_path), config, features, "chance", calibration).ok());
}

// Families with layer norms, and a feed-forward part without a gate. All are biased, but for some in attention.
struct LayerNormFamily {
  std::string_view architecture = {};
  bool learns_positions = false;
  bool norms_embedding = false;
  bool rotates = false;
  bool fuses_qkv = false;
  bool biases_attention = true;
  bool has_ffn_norm = true;
  bool biases_output = false;
};
constexpr LayerNormFamily kLayerNormFamilies[] = {
    {.architecture = "opt", .learns_positions = true},
    {.architecture = "gpt2", .learns_positions = true, .fuses_qkv = true},
    {.architecture = "gptneox", .rotates = true, .fuses_qkv = true},
    {.architecture = "gptj", .rotates = true, .biases_attention = false, .has_ffn_norm = false, .biases_output = true},
    {.architecture = "bloom", .norms_embedding = true, .fuses_qkv = true}};
const LayerNormFamily* FindLayerNormFamily(const std::string& architecture) {
  const auto* const found = std::ranges::find(kLayerNormFamilies, architecture, &LayerNormFamily::architecture);
  return found == std::end(kLayerNormFamilies) ? nullptr : found;
}

GgufWriter MakeTinyLayerNorm(const TinyModel& model, const LayerNormFamily& family) {
  EBB_CHECK(model.kv_heads == model.heads);
  EBB_CHECK(model.head_dim * model.heads == model.dim);
  GgufWriter writer;
  writer.Add("general.architecture", model.architecture);
  writer.Add("general.name", "tiny");
  const auto number = [&](const char* key, int32_t value) {
    writer.Add(model.architecture + "." + key, static_cast<uint32_t>(value));
  };
  number("context_length", model.context);
  number("embedding_length", model.dim);
  number("block_count", model.layers);
  number("feed_forward_length", model.ffn_dim);
  number("attention.head_count", model.heads);
  if (family.rotates) number("rope.dimension_count", model.rotary_dims > 0 ? model.rotary_dims : model.head_dim);
  writer.Add(model.architecture + ".attention.layer_norm_epsilon", 1e-5F);
  RandomTensors tensors(writer, model);
  const int64_t dim = model.dim;
  const auto norm = [&](const std::string& name) {
    tensors.Norm(name + ".weight");
    tensors.Bias(name + ".bias", dim);
  };
  const auto linear = [&](const std::string& name, int64_t rows, int64_t cols, float gain, bool is_biased = true) {
    tensors.Projection(name + ".weight", rows, cols, gain);
    if (is_biased) tensors.Bias(name + ".bias", rows);
  };
  const float deviation = 1 / std::sqrt(static_cast<float>(dim));
  tensors.Matrix("token_embd.weight", model.vocab, dim, 2 * deviation);
  if (family.learns_positions) tensors.Matrix("position_embd.weight", model.context, dim, deviation);
  if (family.norms_embedding) norm("token_embd_norm");
  for (int32_t layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    norm(prefix + "attn_norm");
    if (family.fuses_qkv) {
      linear(prefix + "attn_qkv", 3 * dim, dim, kPeak, family.biases_attention);
    } else {
      linear(prefix + "attn_q", dim, dim, kPeak, family.biases_attention);
      linear(prefix + "attn_k", dim, dim, kPeak, family.biases_attention);
      linear(prefix + "attn_v", dim, dim, 1, family.biases_attention);
    }
    linear(prefix + "attn_output", dim, dim, 1.5F, family.biases_attention);
    if (family.has_ffn_norm) norm(prefix + "ffn_norm");
    linear(prefix + "ffn_up", model.ffn_dim, dim, 1);
    linear(prefix + "ffn_down", dim, model.ffn_dim, 1);
  }
  norm("output_norm");
  if (family.biases_output) tensors.Bias("output.bias", model.vocab);
  return writer;
}

}  // namespace

GgufWriter MakeTinyTransformer(const TinyModel& model) {
  if (const LayerNormFamily* const family = FindLayerNormFamily(model.architecture); family != nullptr) {
    return MakeTinyLayerNorm(model, *family);
  }
  GgufWriter writer;
  AddConfig(writer, model);
  RandomTensors tensors(writer, model);
  const int64_t q_dim = int64_t{model.heads} * model.head_dim;
  const int64_t kv_dim = int64_t{model.kv_heads} * model.head_dim;
  const float head_deviation = 2 / std::sqrt(static_cast<float>(model.dim));
  // A tied embedding must be small, or every token would predict itself.
  tensors.Matrix("token_embd.weight", model.vocab, model.dim, model.tied_head ? head_deviation : 1.0F);
  for (int32_t layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    tensors.Norm(prefix + "attn_norm.weight");
    tensors.Projection(prefix + "attn_q.weight", q_dim, model.dim, kPeak);
    tensors.Projection(prefix + "attn_k.weight", kv_dim, model.dim, kPeak);
    tensors.Projection(prefix + "attn_v.weight", kv_dim, model.dim, 1);
    if (HasHeadNorms(model)) {
      tensors.Norm(prefix + "attn_q_norm.weight", model.head_dim, kPeak);
      tensors.Norm(prefix + "attn_k_norm.weight", model.head_dim, kPeak);
    }
    tensors.Projection(prefix + "attn_output.weight", model.dim, q_dim, 1.5F);
    if (HasPostNorms(model)) tensors.Norm(prefix + "post_attention_norm.weight");
    tensors.Norm(prefix + "ffn_norm.weight");
    if (HasExperts(model)) {
      const int64_t experts = model.experts;
      tensors.Router(prefix + "ffn_gate_inp.weight", experts, model.dim);
      tensors.Projection(prefix + "ffn_gate_exps.weight", experts * model.ffn_dim, model.dim, 1);
      tensors.Projection(prefix + "ffn_up_exps.weight", experts * model.ffn_dim, model.dim, 1);
      tensors.Projection(prefix + "ffn_down_exps.weight", experts * model.dim, model.ffn_dim, 1);
    } else {
      tensors.Projection(prefix + "ffn_gate.weight", model.ffn_dim, model.dim, 1);
      tensors.Projection(prefix + "ffn_up.weight", model.ffn_dim, model.dim, 1);
      tensors.Projection(prefix + "ffn_down.weight", model.dim, model.ffn_dim, 1);
    }
    if (HasPostNorms(model)) tensors.Norm(prefix + "post_ffw_norm.weight");
  }
  tensors.Norm("output_norm.weight");
  if (!model.tied_head) tensors.Matrix("output.weight", model.vocab, model.dim, head_deviation);
  return writer;
}

GgufWriter MakeTinyModel(const TinyModel& model) {
  GgufWriter writer = MakeTinyTransformer(model);
  AddTokenizer(writer, model);
  return writer;
}

TinyModelFile::TinyModelFile(const TinyModel& model)
    : path_((std::filesystem::temp_directory_path() / "ebb-tiny-XXXXXX").string()) {
  const int file = mkstemp(path_.data());
  EBB_CHECK(file >= 0);
  close(file);
  MakeTinyModel(model).Write(path_);
  if (model.calibrated) Calibrate(path_);
}

TinyModelFile::~TinyModelFile() {
  std::filesystem::remove(path_);
  std::filesystem::remove(CalibrationPath(path_));
}

}  // namespace ebb
