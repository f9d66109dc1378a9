#include "engine/model/hub_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <string_view>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/model/architecture_table.h"
#include "engine/model/json_text.h"
#include "policies/status.h"

namespace ebb {
namespace {

using Json = nlohmann::json;

constexpr int64_t kIntMax = std::numeric_limits<int32_t>::max();
constexpr int64_t kRopePairsMax = 1 << 16;

class Reader {
 public:
  Reader(const std::string& file, const Json& config) : file_(file), config_(config) {}

  // Null where it is missing, or null in the file.
  const Json* Find(std::string_view name) const {
    const auto found = config_.find(name);
    return found == config_.end() || found->is_null() ? nullptr : &*found;
  }

  absl::StatusOr<double> Number(std::string_view name, HubKey::Kind kind) const {
    const Json* const value = Find(name);
    switch (kind) {
      case HubKey::Kind::kInt:
        if (value != nullptr && value->is_number_integer() && *value >= 0 && *value <= kIntMax) break;
        return Wrong(name, "a whole number from 0 that fits 31 bits", value);
      case HubKey::Kind::kReal:
        if (value != nullptr && value->is_number()) break;
        return Wrong(name, "a number", value);
      case HubKey::Kind::kFlag:
        if (value != nullptr && value->is_boolean()) return value->get<bool>() ? 1 : 0;
        return Wrong(name, "true or false", value);
    }
    return value->get<double>();
  }

  // A number, or a flag as 0 or 1.
  absl::StatusOr<double> NumberOr(std::string_view name, double otherwise) const {
    const Json* const value = Find(name);
    if (value == nullptr) return otherwise;
    return Number(name, value->is_boolean() ? HubKey::Kind::kFlag : HubKey::Kind::kReal);
  }

  absl::StatusOr<std::string> Text(std::string_view name) const {
    const Json* const value = Find(name);
    if (value == nullptr || !value->is_string()) return Wrong(name, "a text", value);
    return value->get<std::string>();
  }

  absl::Status Wrong(std::string_view name, const std::string& expected, const Json* found) const {
    return DamagedJson(file_, std::string(name), expected, found == nullptr ? "none" : ShowJson(*found));
  }

  absl::Status Unsupported(std::string_view name, const Json& value, const std::string& supported) const {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("%s: %s is %s; only %s is supported", file_, name, ShowJson(value), supported),
                  {.reason = "UNSUPPORTED_MODEL_FEATURE", .metadata = {{"file", file_}}});
  }

  const std::string& file() const { return file_; }

 private:
  const std::string& file_;
  const Json& config_;
};

absl::StatusOr<const HubFamily*> FamilyOf(const Reader& reader) {
  EBB_ASSIGN(const std::string type, reader.Text("model_type"));
  const HubFamily* const family = FindHubFamily(type);
  if (family != nullptr) return family;
  std::vector<std::string> known;
  for (const HubFamily& row : HubFamilies()) known.emplace_back(row.model_type);
  return Refuse(
      absl::StatusCode::kFailedPrecondition,
      absl::StrFormat("%s: model_type \"%s\" is not supported; known: %s", reader.file(), Printable(type),
                      absl::StrJoin(known, ", ")),
      {.reason = "UNSUPPORTED_ARCHITECTURE", .metadata = {{"file", reader.file()}, {"architecture", Printable(type)}}});
}

class ConfigWriter {
 public:
  ConfigWriter(const Reader& reader, const HubFamily& family, GgufHeader& header)
      : reader_(reader), family_(family), header_(header) {
    shape_.family = &family;
  }

  absl::StatusOr<HubShape> Write() {
    header_.AddText("general.architecture", family_.architecture);
    for (const HubKey& key : family_.keys) EBB_TRY(WriteKey(key));
    for (const HubDemand& demand : family_.demands) EBB_TRY(Check(demand));
    EBB_TRY(CheckActivation());
    EBB_TRY(ReadShape());
    EBB_TRY(WriteRotary());
    EBB_TRY(WriteScaling());
    EBB_TRY(WriteWindows());
    return shape_;
  }

 private:
  std::string Key(std::string_view part) const { return absl::StrFormat("%s.%s", family_.architecture, part); }

  absl::Status WriteKey(const HubKey& key) {
    const bool missing = reader_.Find(key.name) == nullptr;
    if (missing && key.missing == HubKey::Missing::kLeftOut) return absl::OkStatus();
    absl::StatusOr<double> number = key.fallback;
    if (!missing || key.missing == HubKey::Missing::kRefused) number = reader_.Number(key.name, key.kind);
    EBB_TRY(number.status());
    if (key.kind == HubKey::Kind::kInt) header_.Add(Key(key.key), static_cast<uint32_t>(*number));
    if (key.kind == HubKey::Kind::kReal) header_.Add(Key(key.key), static_cast<float>(*number));
    if (key.kind == HubKey::Kind::kFlag) header_.Add(Key(key.key), *number != 0);
    return absl::OkStatus();
  }

  absl::Status Check(const HubDemand& demand) const {
    EBB_ASSIGN(const double number, reader_.NumberOr(demand.name, demand.otherwise));
    if (number == demand.value) return absl::OkStatus();
    const Json* const stated = reader_.Find(demand.name);
    return reader_.Unsupported(demand.name, stated == nullptr ? Json("not stated") : *stated,
                               absl::StrFormat("%g", demand.value));
  }

  // Our GELU is the tanh form, which other engines use for the exact one, too.
  absl::Status CheckActivation() const {
    if (family_.activation.empty()) return absl::OkStatus();
    const std::string_view name =
        reader_.Find(family_.activation) == nullptr ? std::string_view("hidden_act") : family_.activation;
    EBB_ASSIGN(const std::string text, reader_.Text(name));
    constexpr std::string_view kSilu[] = {"silu", "swish"};
    constexpr std::string_view kGelu[] = {"gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu"};
    constexpr std::string_view kRelu[] = {"relu"};
    const Activation activation = FindArchitecture(family_.architecture)->activation;
    std::span<const std::string_view> known = kSilu;
    if (activation == Activation::kGelu) known = kGelu;
    if (activation == Activation::kRelu) known = kRelu;
    if (std::ranges::find(known, text) != known.end()) return absl::OkStatus();
    return reader_.Unsupported(name, text, std::string(known.front()));
  }

  // By the key that it is written as, since families name it differently.
  absl::StatusOr<int64_t> Stated(std::string_view key, int64_t otherwise) const {
    for (const HubKey& row : family_.keys) {
      if (row.key != key || reader_.Find(row.name) == nullptr) continue;
      EBB_ASSIGN(const double number, reader_.Number(row.name, HubKey::Kind::kInt));
      return static_cast<int64_t>(number);
    }
    return otherwise;
  }

  absl::Status ReadShape() {
    EBB_ASSIGN(shape_.layers, Stated("block_count", 0));
    EBB_ASSIGN(dim_, Stated("embedding_length", 0));
    EBB_ASSIGN(shape_.heads, Stated("attention.head_count", 0));
    EBB_ASSIGN(shape_.kv_heads, Stated("attention.head_count_kv", shape_.heads));
    EBB_ASSIGN(shape_.experts, Stated(kExpertsKey, 0));
    if (shape_.heads == 0 || shape_.kv_heads == 0) {
      return DamagedJson(reader_.file(), "", "heads from 1", "0");
    }
    EBB_ASSIGN(head_dim_, Stated("attention.key_length", dim_ / shape_.heads));
    EBB_ASSIGN(const double tied, reader_.NumberOr("tie_word_embeddings", family_.tied ? 1 : 0));
    shape_.tied = tied != 0;
    EBB_ASSIGN(const int64_t ffn, Stated("feed_forward_length", 0));
    if (ffn == 0 && family_.ffn_widths > 0) {
      header_.Add(Key("feed_forward_length"),
                  static_cast<uint32_t>(std::min<int64_t>(family_.ffn_widths * dim_, kIntMax)));
    }
    if (family_.query_scale.empty() || reader_.Find(family_.query_scale) == nullptr) return absl::OkStatus();
    EBB_ASSIGN(const double scale, reader_.Number(family_.query_scale, HubKey::Kind::kReal));
    const bool by_width = FindArchitecture(family_.architecture)->layers_scaled_by_width == shape_.layers;
    const int64_t expected = by_width ? dim_ / shape_.heads : head_dim_;
    if (scale == static_cast<double>(expected)) return absl::OkStatus();
    return reader_.Unsupported(family_.query_scale, scale, absl::StrFormat("%d", expected));
  }

  absl::Status WriteRotary() {
    rotary_dims_ = head_dim_;
    if (family_.rotary_part.empty()) return absl::OkStatus();
    EBB_ASSIGN(const double part, reader_.NumberOr(family_.rotary_part, family_.rotary_otherwise));
    if (!(part >= 0 && part <= 1)) {
      return reader_.Wrong(family_.rotary_part, "a number from 0 to 1", reader_.Find(family_.rotary_part));
    }
    rotary_dims_ = static_cast<int64_t>(static_cast<double>(head_dim_) * part);
    header_.Add(Key("rope.dimension_count"), static_cast<uint32_t>(rotary_dims_));
    return absl::OkStatus();
  }

  absl::Status WriteScaling() {
    if (const Json* const newer = reader_.Find("rope_parameters"); newer != nullptr) {
      return reader_.Unsupported("rope_parameters", *newer, "rope_theta with rope_scaling");
    }
    const Json* const scaling = reader_.Find("rope_scaling");
    if (scaling == nullptr) return absl::OkStatus();
    if (!scaling->is_object()) return reader_.Wrong("rope_scaling", "an object", scaling);
    const std::string file = reader_.file() + ": rope_scaling";
    const Reader inside(file, *scaling);
    EBB_ASSIGN(const std::string type, inside.Text(inside.Find("rope_type") != nullptr ? "rope_type" : "type"));
    if (type == "default") return absl::OkStatus();
    if (type == "linear") {
      EBB_ASSIGN(const double factor, inside.Number("factor", HubKey::Kind::kReal));
      header_.AddText(Key("rope.scaling.type"), "linear");
      header_.Add(Key("rope.scaling.factor"), static_cast<float>(factor));
      return absl::OkStatus();
    }
    if (type == "llama3") return ReadLlama3(inside);
    return reader_.Unsupported("rope_scaling", type, "linear or llama3");
  }

  // Divisors by wavelength: 1 for short ones, `factor` for long ones, a ramp between (Llama 3.1's model definition).
  absl::Status ReadLlama3(const Reader& scaling) {
    using Kind = HubKey::Kind;
    EBB_ASSIGN(const double factor, scaling.Number("factor", Kind::kReal));
    EBB_ASSIGN(const double low, scaling.Number("low_freq_factor", Kind::kReal));
    EBB_ASSIGN(const double high, scaling.Number("high_freq_factor", Kind::kReal));
    EBB_ASSIGN(const double old_context, scaling.Number("original_max_position_embeddings", Kind::kReal));
    EBB_ASSIGN(const double base, reader_.NumberOr("rope_theta", 10000));
    const int64_t pairs = rotary_dims_ / 2;
    if (!(factor > 0 && low > 0 && high > low && old_context > 0 && base > 0) || pairs < 1 || pairs > kRopePairsMax) {
      return DamagedJson(scaling.file(), "", "positive numbers, low_freq_factor below high_freq_factor", "others");
    }
    for (int64_t i = 0; i < pairs; ++i) {
      const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(rotary_dims_);
      const double wavelength = 2 * std::numbers::pi * std::pow(base, exponent);
      const double ramp = std::clamp((old_context / wavelength - low) / (high - low), 0.0, 1.0);
      shape_.rope_factors.push_back(static_cast<float>(1 / ((1 - ramp) / factor + ramp)));
    }
    return absl::OkStatus();
  }

  // Which layers have the window: every one, or all but the last of each so many.
  absl::Status WriteWindows() {
    const ArchitectureRow& row = *FindArchitecture(family_.architecture);
    int64_t pattern = row.window_pattern;
    if (const Json* const types = reader_.Find("layer_types"); types != nullptr) {
      if (!types->is_array()) return reader_.Wrong("layer_types", "an array", types);
      const auto full = std::ranges::find(*types, "full_attention") - types->begin();
      const bool windows = full > 0 && row.Reads(kWindowKey);
      pattern = full == static_cast<int64_t>(types->size()) ? 0 : full + 1;
      for (int64_t i = 0; i < static_cast<int64_t>(types->size()); ++i) {
        const bool near = windows && (pattern == 0 || i % pattern < pattern - 1);
        if ((*types)[static_cast<size_t>(i)] == (near ? "sliding_attention" : "full_attention")) continue;
        return reader_.Unsupported("layer_types", *types, "all but the last of each so many sliding_attention");
      }
    } else if (reader_.Find("sliding_window_pattern") != nullptr) {
      EBB_ASSIGN(const double stated, reader_.Number("sliding_window_pattern", HubKey::Kind::kInt));
      pattern = static_cast<int64_t>(stated);
    }
    if (pattern != row.window_pattern) {
      header_.Add(Key("attention.sliding_window_pattern"), static_cast<uint32_t>(pattern));
    }
    return absl::OkStatus();
  }

  const Reader& reader_;
  const HubFamily& family_;
  GgufHeader& header_;
  HubShape shape_ = {};
  int64_t dim_ = 0, head_dim_ = 0, rotary_dims_ = 0;
};

// Where a text ends: generation's own list counts before the model's.
absl::StatusOr<HubEnds> ReadConfigEnds(const Reader& config, const Reader& generation) {
  HubEnds read;
  const Reader& from = generation.Find("eos_token_id") != nullptr ? generation : config;
  if (const Json* const ends = from.Find("eos_token_id"); ends != nullptr) {
    const Json list = ends->is_array() ? *ends : Json::array({*ends});
    if (list.size() > kEndsMax) {
      return from.Unsupported("eos_token_id", *ends, absl::StrFormat("a list of up to %d", kEndsMax));
    }
    for (const Json& end : list) {
      if (!end.is_number_integer() || end < 0 || end > kIntMax) {
        return from.Wrong("eos_token_id", "ids of tokens", ends);
      }
      read.eos.push_back(end.get<int32_t>());
    }
  }
  if (config.Find("bos_token_id") == nullptr) return read;
  EBB_ASSIGN(const double begin, config.Number("bos_token_id", HubKey::Kind::kInt));
  read.bos = static_cast<int32_t>(begin);
  return read;
}

}  // namespace

absl::StatusOr<HubShape> ReadHubConfig(const std::string& file, const Json& config, const std::string& generation_file,
                                       const Json& generation, GgufHeader& header) {
  const Reader reader(file, config);
  EBB_ASSIGN(const HubFamily* const family, FamilyOf(reader));
  EBB_ASSIGN(HubShape shape, ConfigWriter(reader, *family, header).Write());
  EBB_ASSIGN(shape.ends, ReadConfigEnds(reader, Reader(generation_file, generation)));
  return shape;
}

}  // namespace ebb
