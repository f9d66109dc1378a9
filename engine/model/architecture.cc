#include "engine/model/architecture.h"

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <unordered_set>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/model/architecture_table.h"
#include "engine/model/quantization.h"
#include "policies/check.h"
#include "policies/shortest.h"
#include "policies/status.h"

namespace ebb {
namespace {

// Bounds that no real model reaches, so that nothing downstream can overflow: every product of two of these fits int64,
// every tensor's row count fits int32.
constexpr int64_t kLayersMax = 1024;
constexpr int64_t kDimMax = 1 << 20;  // also ffn_dim, vocab and heads * head_dim
constexpr int64_t kHeadDimMax = 1 << 14;
constexpr int64_t kContextMax = 1 << 24;
constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr int64_t kExpertsMax = 1024;
constexpr double kRopeBaseMax = 1e12;
// Of caps: none that bites is smaller, none beyond does anything.
constexpr double kCapMin = 1e-3;
constexpr double kCapMax = 1e6;
// Divisors of RoPE's frequencies. Two of the smallest leave every frequency below one turn per position.
constexpr double kRopeFactorMin = 0.5;
constexpr double kRopeFactorMax = 1e6;

absl::Status UnsupportedFeature(const GgufFile& file, const std::string& what) {
  return Refuse(absl::StatusCode::kFailedPrecondition, absl::StrFormat("%s: %s", file.name(), what),
                {.reason = "UNSUPPORTED_MODEL_FEATURE", .metadata = {{"file", file.name()}}});
}

absl::Status UnsupportedArchitecture(const GgufFile& file, std::string_view name) {
  std::vector<std::string> known;
  for (const ArchitectureRow& row : Architectures()) known.emplace_back(row.name);
  return Refuse(
      absl::StatusCode::kFailedPrecondition,
      absl::StrFormat("%s: architecture \"%s\" is not supported; known: %s", file.name(), Printable(name),
                      absl::StrJoin(known, ", ")),
      {.reason = "UNSUPPORTED_ARCHITECTURE", .metadata = {{"file", file.name()}, {"architecture", Printable(name)}}});
}

// Reads the keys of one architecture, "llama.block_count" by its part "block_count".
class ConfigReader {
 public:
  ConfigReader(const GgufFile& file, const ArchitectureRow& row) : file_(file), row_(row) {}

  std::string Key(std::string_view part) const { return absl::StrFormat("%s.%s", row_.name, part); }

  // REQUIRES of a given fallback: it lies in the range, or the key is there.
  absl::StatusOr<int32_t> Int(std::string_view part, int64_t min, int64_t max,
                              std::optional<int64_t> fallback = {}) const {
    const std::string key = Key(part);
    const GgufValue* const value = file_.FindValue(key);
    if (value == nullptr && !fallback)
      return file_.MissingKey(key, absl::StrFormat("an integer from %d to %d", min, max));
    if (value != nullptr && value->type == GgufType::kArray) {
      return UnsupportedFeature(file_, absl::StrFormat("%s differs between layers, which is not supported", key));
    }
    EBB_ASSIGN(const int64_t number, value == nullptr ? absl::StatusOr<int64_t>(*fallback) : file_.GetInt(key));
    if (number < min || number > max) {
      return OutOfRange(key, absl::StrFormat("%s from %d to %d", key, min, max), absl::StrFormat("%d", number));
    }
    return static_cast<int32_t>(number);
  }

  // (0, max] or, with `min` > 0, [min, max]; never NaN.
  absl::StatusOr<double> Real(std::string_view part, double min, double max,
                              std::optional<double> fallback = {}) const {
    const std::string key = Key(part);
    if (file_.FindValue(key) == nullptr && fallback) return *fallback;
    EBB_ASSIGN(const double number, file_.GetDouble(key));
    if (!(number >= min && number <= max && number > 0)) {
      return OutOfRange(key, absl::StrFormat("%s from %g to %g", key, min, max), FormatValue(*file_.FindValue(key)));
    }
    return number;
  }

  // Where a number is wrong that came from `key`, or from what stands in for it.
  absl::Status OutOfRange(const std::string& key, const std::string& expected, const std::string& found) const {
    const GgufValue* const value = file_.FindValue(key);
    return value == nullptr ? file_.MissingKey(key, expected) : file_.Damaged(value->offset, expected, found);
  }

  absl::Status RefuseForeignKeys() const {
    for (const RefusedKey& refused : row_.refused_keys) {
      if (row_.Reads(refused.key)) continue;
      const std::string key = Key(refused.key);
      const GgufValue* const value = file_.FindValue(key);
      if (value == nullptr) continue;
      double number = std::numeric_limits<double>::quiet_NaN();
      if (const auto flag = file_.GetBool(key); flag.ok()) number = *flag ? 1 : 0;
      if (const auto plain = file_.GetDouble(key); plain.ok()) number = *plain;
      if (number != refused.neutral) {
        return UnsupportedFeature(
            file_, absl::StrFormat("%s is %s; only %g is supported", key, FormatValue(*value), refused.neutral));
      }
    }
    return absl::OkStatus();
  }

 private:
  const GgufFile& file_;
  const ArchitectureRow& row_;
};

absl::Status ReadHeads(const GgufFile& file, const ConfigReader& reader, ModelConfig& config) {
  EBB_ASSIGN(config.heads, reader.Int("attention.head_count", 1, kDimMax));
  EBB_ASSIGN(config.kv_heads, reader.Int("attention.head_count_kv", 1, config.heads, config.heads));
  if (config.heads % config.kv_heads != 0) {
    return reader.OutOfRange(reader.Key("attention.head_count_kv"),
                             absl::StrFormat("a divisor of the %d heads", config.heads),
                             absl::StrFormat("%d", config.kv_heads));
  }
  const bool stated = file.FindValue(reader.Key("attention.key_length")) != nullptr;
  if (!stated && config.dim % config.heads != 0) {
    return reader.OutOfRange(reader.Key("attention.head_count"),
                             absl::StrFormat("a divisor of the dimension %d", config.dim),
                             absl::StrFormat("%d", config.heads));
  }
  EBB_ASSIGN(config.head_dim, reader.Int("attention.key_length", 1, kHeadDimMax, config.dim / config.heads));
  if (int64_t{config.heads} * config.head_dim > kDimMax) {
    return reader.OutOfRange(reader.Key("attention.head_count"),
                             absl::StrFormat("heads of %d of at most %d in all", config.head_dim, kDimMax),
                             absl::StrFormat("%d heads", config.heads));
  }
  EBB_ASSIGN(const int32_t value_dim, reader.Int("attention.value_length", 1, kHeadDimMax, config.head_dim));
  if (value_dim != config.head_dim) {
    return UnsupportedFeature(
        file, absl::StrFormat("values of %d beside keys of %d per head are not supported", value_dim, config.head_dim));
  }
  return absl::OkStatus();
}

// The divisors of the frequencies that the file gives as a tensor, or ones.
absl::StatusOr<std::vector<float>> ReadRopeFactors(const GgufFile& file, int32_t pairs) {
  std::vector<float> factors(static_cast<size_t>(pairs), 1.0F);
  const GgufTensor* const tensor = file.FindTensor(kRopeFactorsTensor);
  if (tensor == nullptr) return factors;
  EBB_ASSIGN(const TensorView view, file.GetTensor(kRopeFactorsTensor));
  if (view.rows != 1 || view.cols != pairs || view.type != DType::kF32) {
    return file.Damaged(*tensor, absl::StrFormat("tensor %s of type F32 and shape [%d]", kRopeFactorsTensor, pairs),
                        absl::StrFormat("%s [%d, %d]", TypeName(view.type), view.rows, view.cols));
  }
  DequantizeRow(view.type, view.data.data(), view.cols, factors.data());
  for (size_t i = 0; i < factors.size(); ++i) {
    if (!(factors[i] >= kRopeFactorMin && factors[i] <= kRopeFactorMax)) {
      return file.Damaged(
          tensor->data_offset + i * sizeof(float),
          absl::StrFormat("factors of tensor %s from %g to %g", kRopeFactorsTensor, kRopeFactorMin, kRopeFactorMax),
          Shortest(factors[i]));
    }
  }
  return factors;
}

absl::Status ReadRope(const GgufFile& file, const ArchitectureRow& row, const ConfigReader& reader,
                      ModelConfig& config) {
  if (row.positions != PositionKind::kRope) return absl::OkStatus();
  EBB_ASSIGN(config.rotary_dims, reader.Int("rope.dimension_count", 0, config.head_dim, config.head_dim));
  if (config.rotary_dims % 2 != 0) {
    return reader.OutOfRange(reader.Key("rope.dimension_count"), "an even number of rotated components",
                             absl::StrFormat("%d", config.rotary_dims));
  }
  EBB_ASSIGN(const double base, reader.Real("rope.freq_base", 1, kRopeBaseMax, 10000.0));
  const std::string type_key = reader.Key("rope.scaling.type");
  const std::string factor_key = reader.Key("rope.scaling.factor");
  // A factor without a type is a linear one, as other engines read it.
  EBB_ASSIGN(const std::string_view scaling,
             file.GetString(type_key, file.FindValue(factor_key) == nullptr ? "none" : "linear"));
  double linear = 1;
  if (scaling == "linear") {
    EBB_ASSIGN(linear, reader.Real("rope.scaling.factor", kRopeFactorMin, kRopeFactorMax));
  } else if (scaling != "none") {
    return UnsupportedFeature(
        file, absl::StrFormat("%s is \"%s\"; none and linear are supported", type_key, Printable(scaling)));
  }
  const int32_t pairs = config.rotary_dims / 2;
  EBB_ASSIGN(const std::vector<float> factors, ReadRopeFactors(file, pairs));
  for (int32_t i = 0; i < pairs; ++i) {
    config.rope_frequencies.push_back(std::pow(base, -2.0 * i / config.rotary_dims) /
                                      (linear * static_cast<double>(factors[i])));
  }
  if (config.windows.empty() || row.window_rope_base == 0) return absl::OkStatus();
  // These were never stretched.
  EBB_ASSIGN(const double near_base, reader.Real("rope.freq_base_swa", 1, kRopeBaseMax, row.window_rope_base));
  for (int32_t i = 0; i < pairs; ++i) {
    config.window_rope_frequencies.push_back(std::pow(near_base, -2.0 * i / config.rotary_dims));
  }
  return absl::OkStatus();
}

// Which layers see the newest tokens alone.
absl::Status ReadWindows(const ArchitectureRow& row, const ConfigReader& reader, ModelConfig& config) {
  if (!row.Reads(kWindowKey)) return absl::OkStatus();
  EBB_ASSIGN(const int32_t window, reader.Int(kWindowKey, 0, kContextMax, 0));
  if (window == 0) return absl::OkStatus();
  EBB_ASSIGN(const int32_t pattern, reader.Int("attention.sliding_window_pattern", 0, kLayersMax, row.window_pattern));
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    config.windows.push_back(pattern == 0 || layer % pattern < pattern - 1 ? window : 0);
  }
  return absl::OkStatus();
}

// What scores and logits are multiplied with, and cut to.
absl::Status ReadScales(const ArchitectureRow& row, const ConfigReader& reader, ModelConfig& config) {
  if (row.scales_embedding) config.embedding_scale = std::sqrt(static_cast<float>(config.dim));
  if (row.layers_scaled_by_width > 0 && config.layers == row.layers_scaled_by_width) {
    config.attention_scale = 1.0F / std::sqrt(static_cast<float>(config.dim) / static_cast<float>(config.heads));
  }
  if (row.Reads(kAttentionCapKey)) {
    EBB_ASSIGN(config.attention_cap, reader.Real(kAttentionCapKey, kCapMin, kCapMax));
  }
  if (row.Reads(kLogitCapKey)) {
    EBB_ASSIGN(config.logit_cap, reader.Real(kLogitCapKey, kCapMin, kCapMax));
  }
  return absl::OkStatus();
}

// A mixture of experts has feed-forward parts of another size, and says so with another key.
absl::Status ReadFeedForward(const ArchitectureRow& row, const ConfigReader& reader, ModelConfig& config) {
  if (!row.Reads(kExpertsKey)) {
    EBB_ASSIGN(config.ffn_dim, reader.Int("feed_forward_length", 1, kDimMax));
    return absl::OkStatus();
  }
  EBB_ASSIGN(config.experts, reader.Int(kExpertsKey, 1, kExpertsMax));
  EBB_ASSIGN(config.experts_used, reader.Int("expert_used_count", 1, config.experts));
  EBB_ASSIGN(config.ffn_dim, reader.Int("expert_feed_forward_length", 1, kDimMax));
  return absl::OkStatus();
}

// The vocabulary is as long as the embedding, and the tokenizer, if there is one, agrees: no token can index past it.
absl::Status ReadVocab(const GgufFile& file, ModelConfig& config) {
  const GgufTensor* const embedding = file.FindTensor(kEmbeddingTensor);
  if (embedding == nullptr) return file.MissingTensor(kEmbeddingTensor, absl::StrFormat("[vocab, %d]", config.dim));
  if (embedding->dims != 2 || embedding->cols() != config.dim || embedding->rows() > kDimMax) {
    return file.Damaged(*embedding,
                        absl::StrFormat("tensor %s of shape [1 to %d, %d]", kEmbeddingTensor, kDimMax, config.dim),
                        absl::StrFormat("[%d, %d]", embedding->rows(), embedding->cols()));
  }
  config.vocab = static_cast<int32_t>(embedding->rows());
  const GgufValue* const tokens = file.FindValue(kTokensKey);
  if (tokens != nullptr && tokens->count != static_cast<uint64_t>(config.vocab)) {
    return file.Damaged(tokens->offset,
                        absl::StrFormat("%s for the %d rows of tensor %s", kTokensKey, config.vocab, kEmbeddingTensor),
                        absl::StrFormat("%d", tokens->count));
  }
  return absl::OkStatus();
}

int64_t Extent(Side side, const ModelConfig& config) {
  switch (side) {
    case Side::kOne:
      return 1;
    case Side::kDim:
      return config.dim;
    case Side::kVocab:
      return config.vocab;
    case Side::kContext:
      return config.context;
    case Side::kHead:
      return config.head_dim;
    case Side::kExperts:
      return config.experts;
    case Side::kExpertsFfn:
      return int64_t{config.experts} * config.ffn_dim;
    case Side::kExpertsDim:
      return int64_t{config.experts} * config.dim;
    case Side::kQueries:
      return int64_t{config.heads} * config.head_dim;
    case Side::kKeys:
      return int64_t{config.kv_heads} * config.head_dim;
    case Side::kFfn:
      return config.ffn_dim;
  }
  return 0;
}

// Finds tensors by name, checks them, and remembers which ones the model uses.
class WeightFinder {
 public:
  WeightFinder(const GgufFile& file, const ModelConfig& config) : file_(file), config_(config) {}

  absl::StatusOr<TensorView> Find(const std::string& name, Side rows_side, Side cols_side) {
    return FindShape(name, Extent(rows_side, config_), Extent(cols_side, config_), rows_side == Side::kOne);
  }

  bool Has(const std::string& name) const { return file_.FindTensor(name) != nullptr; }

  // The parts of one tensor, each into its member.
  absl::Status FindParts(const std::string& name, const FusedTensor& fused, LayerWeights& layer) {
    int64_t whole = 0;
    for (const FusedTensor::Part& part : fused.parts) whole += Extent(part.rows, config_);
    const bool vector = fused.cols == Side::kOne;
    EBB_ASSIGN(const TensorView view,
               FindShape(name, vector ? 1 : whole, vector ? whole : Extent(fused.cols, config_), vector));
    size_t at = 0;
    for (const FusedTensor::Part& part : fused.parts) {
      const int64_t size = Extent(part.rows, config_);
      TensorView& member = layer.*part.member;
      member = view;
      (vector ? member.cols : member.rows) = size;
      const auto bytes = static_cast<size_t>(member.rows * RowBytes(view.type, member.cols));
      member.data = view.data.subspan(at, bytes);
      at += bytes;
    }
    return absl::OkStatus();
  }

  void Expect(const std::string& name) { expected_.insert(name); }

  absl::Status RefuseForeignTensors() const {
    for (const GgufTensor& tensor : file_.tensors()) {
      if (!expected_.contains(std::string(tensor.name))) {
        return UnsupportedFeature(file_, absl::StrFormat("tensor %s has no place in architecture %s with %d layers",
                                                         Printable(tensor.name), config_.architecture, config_.layers));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<TensorView> FindShape(const std::string& name, int64_t rows, int64_t cols, bool vector) {
    const std::string shape = vector ? absl::StrFormat("[%d]", cols) : absl::StrFormat("[%d, %d]", rows, cols);
    const GgufTensor* const tensor = file_.FindTensor(name);
    if (tensor == nullptr) return file_.MissingTensor(name, shape);
    if (tensor->rows() != rows || tensor->cols() != cols) {
      return file_.Damaged(*tensor, absl::StrFormat("tensor %s of shape %s", name, shape),
                           absl::StrFormat("[%d, %d]", tensor->rows(), tensor->cols()));
    }
    EBB_ASSIGN(const TensorView view, file_.GetTensor(name));
    if (vector && view.type != DType::kF32) {
      return Refuse(
          absl::StatusCode::kFailedPrecondition,
          absl::StrFormat("%s: tensor %s has type %s; vectors are read as F32 only", file_.name(), name,
                          TypeName(view.type)),
          {.reason = "UNSUPPORTED_TENSOR_TYPE",
           .metadata = {{"file", file_.name()}, {"tensor", name}, {"type", std::string(TypeName(view.type))}}});
    }
    Expect(name);
    return view;
  }

  const GgufFile& file_;
  const ModelConfig& config_;
  std::unordered_set<std::string> expected_ = {};
};

}  // namespace

absl::StatusOr<ModelConfig> ReadConfig(const GgufFile& file) {
  ModelConfig config;
  EBB_ASSIGN(const std::string_view architecture, file.GetString("general.architecture"));
  const ArchitectureRow* const row = FindArchitecture(architecture);
  if (row == nullptr) return UnsupportedArchitecture(file, architecture);
  const ConfigReader reader(file, *row);
  EBB_TRY(reader.RefuseForeignKeys());
  config.architecture = std::string(row->name);
  config.rope_pairs = row->rope_pairs;
  config.positions = row->positions;
  config.norm = row->norm;
  config.activation = row->activation;
  config.parallel_residual = row->parallel_residual;
  if (row->Reads(kParallelKey)) {
    EBB_ASSIGN(config.parallel_residual, file.GetBool(reader.Key(kParallelKey), row->parallel_residual));
  }
  EBB_ASSIGN(config.name, file.GetString("general.name", ""));
  EBB_ASSIGN(config.layers, reader.Int("block_count", 1, kLayersMax));
  EBB_ASSIGN(config.dim, reader.Int("embedding_length", 1, kDimMax));
  EBB_TRY(ReadFeedForward(*row, reader, config));
  EBB_ASSIGN(config.context, reader.Int("context_length", 1, kContextMax));
  const bool rms = row->norm == NormKind::kRms;
  EBB_ASSIGN(config.norm_eps,
             reader.Real(rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon", 0, 1));
  EBB_TRY(ReadHeads(file, reader, config));
  EBB_TRY(ReadWindows(*row, reader, config));
  EBB_TRY(ReadScales(*row, reader, config));
  EBB_TRY(ReadRope(file, *row, reader, config));
  EBB_TRY(ReadVocab(file, config));
  return config;
}

absl::StatusOr<Weights> FindWeights(const GgufFile& file, const ModelConfig& config) {
  const ArchitectureRow* const row = FindArchitecture(config.architecture);
  EBB_CHECK(row != nullptr);
  WeightFinder finder(file, config);
  finder.Expect(std::string(kRopeFactorsTensor));
  Weights weights;
  for (const ModelTensor& tensor : row->model_tensors) {
    const std::string name(tensor.name);
    if (tensor.name == kOutputTensor && !finder.Has(name)) {
      weights.output = weights.embedding;  // the head is tied
      continue;
    }
    EBB_ASSIGN(weights.*tensor.member, finder.Find(name, tensor.rows, tensor.cols));
  }
  weights.layers.resize(static_cast<size_t>(config.layers));
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const auto in_layer = [i](std::string_view name) { return absl::StrFormat("blk.%d.%s", i, name); };
    for (const LayerTensor& tensor : row->layer_tensors) {
      EBB_ASSIGN(weights.layers[i].*tensor.member, finder.Find(in_layer(tensor.name), tensor.rows, tensor.cols));
    }
    for (const FusedTensor& fused : row->fused_tensors) {
      EBB_TRY(finder.FindParts(in_layer(fused.name), fused, weights.layers[i]));
    }
    for (const std::string_view name : row->unused_layer_tensors) finder.Expect(in_layer(name));
  }
  EBB_TRY(finder.RefuseForeignTensors());
  return weights;
}

}  // namespace ebb
