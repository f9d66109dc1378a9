#include "engine/model/head_gates_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "ebb head gates";
constexpr int kVersion = 1;

absl::Status Damaged(const std::string& path, const std::string& place, const std::string& expected) {
  return Refuse(absl::StatusCode::kDataLoss, absl::StrFormat("%s: %s: expected %s", path, place, expected),
                {.reason = "HEAD_GATES_DAMAGED"});
}

// The gates of one layer, appended.
absl::Status ReadRow(const std::string& path, const Json& row, int32_t layer, int32_t kv_heads, HeadGates& gates) {
  const std::string place = absl::StrFormat("gates[%d]", layer);
  if (!row.is_array() || static_cast<int64_t>(row.size()) != kv_heads) {
    return Damaged(path, place, absl::StrFormat("%d gates, found %s", kv_heads, row.dump()));
  }
  for (size_t head = 0; head < row.size(); ++head) {
    const double gate = row[head].is_number() ? row[head].get<double>() : -1;
    if (!(gate >= 0 && gate <= 1)) {
      return Damaged(path, absl::StrFormat("%s[%d]", place, head), "a number in [0, 1], found " + row[head].dump());
    }
    gates.push_back(gate);
  }
  return absl::OkStatus();
}

}  // namespace

std::string HeadGatesPath(const std::string& model_path) {
  return std::filesystem::path(model_path).replace_extension(".heads.json").string();
}

HeadGatesOr ReadHeadGates(const std::string& path, const ModelConfig& model) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return HeadGatesMissing(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return Damaged(path, "the file", "a JSON object");
  if (json.value("format", Json()) != kFormat) return Damaged(path, "format", absl::StrFormat("\"%s\"", kFormat));
  if (json.value("version", Json()) != kVersion) return Damaged(path, "version", absl::StrFormat("%d", kVersion));
  const Json found = json.value("model", Json());
  if (!found.is_string()) return Damaged(path, "model", "a model's fingerprint, found " + found.dump());
  if (found != model.fingerprint) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("policy.duo: %s was made for the model %s, and this is %s; make one with `ebb-lab "
                                  "heads`, or use another allocation",
                                  path, found.get<std::string>(), model.fingerprint),
                  {.reason = "HEAD_GATES_FOREIGN", .field = "policy.duo"});
  }
  const Json rows = json.value("gates", Json());
  if (!rows.is_array() || static_cast<int64_t>(rows.size()) != model.layers) {
    return Damaged(path, "gates", absl::StrFormat("a row for each of %d layers", model.layers));
  }
  HeadGates gates;
  for (int32_t layer = 0; layer < model.layers; ++layer) {
    EBB_TRY(ReadRow(path, rows[static_cast<size_t>(layer)], layer, model.kv_heads, gates));
  }
  return std::make_shared<const HeadGates>(std::move(gates));
}

absl::Status WriteHeadGates(const std::string& path, const ModelConfig& model, const std::string& source,
                            const HeadGates& gates) {
  EBB_CHECK(static_cast<int64_t>(gates.size()) == int64_t{model.layers} * model.kv_heads);
  Json json = {{"format", kFormat}, {"version", kVersion}, {"model", model.fingerprint}, {"source", source}};
  json["gates"] = Json::array();
  for (int32_t layer = 0; layer < model.layers; ++layer) {
    const auto first = gates.begin() + std::ptrdiff_t{layer} * model.kv_heads;
    json["gates"].push_back(std::vector<double>(first, first + model.kv_heads));
  }
  std::ofstream file(path, std::ios::binary);
  file << json.dump(1) << "\n";
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat("%s: cannot be written", path));
}

}  // namespace ebb
