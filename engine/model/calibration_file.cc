#include "engine/model/calibration_file.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/model/file_beside.h"
#include "engine/model/model_path.h"
#include "policies/status.h"

namespace ebb {
namespace {

absl::Status Damaged(const std::string& path, const std::string& place, const std::string& expected) {
  return Refuse(absl::StatusCode::kDataLoss, absl::StrFormat("%s: %s: expected %s", path, place, expected),
                {.reason = "CALIBRATION_DAMAGED"});
}

absl::Status Foreign(const std::string& name, const std::string& made_for, const std::string& model) {
  return Refuse(absl::StatusCode::kFailedPrecondition,
                absl::StrFormat("policy.calibrated: %s was made for the model %s, and this is %s; make one with "
                                "`ebb-lab calibrate`, or use another scorer",
                                name, made_for, model),
                {.reason = "CALIBRATION_FOREIGN", .field = "policy.calibrated"});
}

constexpr FileBeside kKind = {
    .ending = ".calibration.json", .format = "ebb calibration", .damaged = Damaged, .foreign = Foreign};

absl::StatusOr<std::vector<Feature>> ReadFeatures(const std::string& path, const OrderedJson& json) {
  std::string known;
  for (const std::string_view name : FeatureNames()) known += absl::StrFormat("%s%s", known.empty() ? "" : ", ", name);
  const OrderedJson list = json.value("features", OrderedJson());
  if (!list.is_array()) return Damaged(path, "features", "a list of some of " + known);
  std::vector<Feature> features;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place = absl::StrFormat("features[%d]", i);
    const std::string name = list[i].is_string() ? list[i].get<std::string>() : list[i].dump();
    const auto at = std::ranges::find(FeatureNames(), name);
    if (at == FeatureNames().end()) return Damaged(path, place, absl::StrFormat("one of %s, found %s", known, name));
    const auto feature = static_cast<Feature>(at - FeatureNames().begin());
    if (std::ranges::find(features, feature) != features.end()) {
      return Damaged(path, place, absl::StrFormat("each feature once, found %s again", name));
    }
    features.push_back(feature);
  }
  return features;
}

absl::StatusOr<std::vector<FeatureWeights>> ReadRows(const std::string& path, const OrderedJson& json, const char* key,
                                                     const std::vector<Feature>& features, size_t lanes) {
  const OrderedJson list = json.value(key, OrderedJson());
  if (!list.is_array() || list.size() != lanes) {
    return Damaged(path, key, absl::StrFormat("a row for each of %d lanes, found %d", lanes, list.size()));
  }
  std::vector<FeatureWeights> rows(lanes);
  for (size_t lane = 0; lane < lanes; ++lane) {
    const std::string place = absl::StrFormat("%s[%d]", key, lane);
    const OrderedJson& row = list[lane];
    if (!row.is_array() || row.size() != features.size() + 1) {
      return Damaged(path, place, absl::StrFormat("a bias and %d weights, found %s", features.size(), row.dump()));
    }
    for (size_t i = 0; i < row.size(); ++i) {
      if (!row[i].is_number() || !std::isfinite(row[i].get<double>())) {
        return Damaged(path, absl::StrFormat("%s[%d]", place, i), "a finite number, found " + row[i].dump());
      }
      (i == 0 ? rows[lane].bias : rows[lane].weight[static_cast<size_t>(features[i - 1])]) = row[i].get<double>();
    }
  }
  return rows;
}

OrderedJson RowOf(const FeatureWeights& weights, const std::vector<Feature>& features) {
  OrderedJson row = {weights.bias};
  for (const Feature feature : features) row.push_back(weights.weight[static_cast<size_t>(feature)]);
  return row;
}

}  // namespace

std::string CalibrationPath(const std::string& model_path) { return PathBeside(model_path, kKind.ending); }

CalibrationOr ReadCalibration(const std::string& path, const ModelConfig& model) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return CalibrationMissing(NameOfFile(path));
  return ParseCalibration(path, std::string((std::istreambuf_iterator<char>(file)), {}), model);
}

CalibrationOr ParseCalibration(const std::string& path, const std::string& text, const ModelConfig& model) {
  EBB_ASSIGN(const OrderedJson json, ParseBeside(kKind, path, text));
  EBB_TRY(CheckHeadBeside(kKind, path, json, model));
  EBB_TRY(CheckKeyBeside(kKind, path, json, "layers", model.layers));
  EBB_TRY(CheckKeyBeside(kKind, path, json, "kv_heads", model.kv_heads));
  EBB_ASSIGN(const std::vector<Feature> features, ReadFeatures(path, json));
  const size_t lanes = static_cast<size_t>(model.layers) * model.kv_heads;
  EBB_ASSIGN(const std::vector<FeatureWeights> with, ReadRows(path, json, "with_attention", features, lanes));
  EBB_ASSIGN(const std::vector<FeatureWeights> unseen, ReadRows(path, json, "unseen", features, lanes));
  Calibration calibration = {.layers = model.layers, .kv_heads = model.kv_heads};
  for (size_t lane = 0; lane < lanes; ++lane) {
    if (unseen[lane].weight[static_cast<size_t>(Feature::kAttention)] != 0) {
      return Damaged(path, absl::StrFormat("unseen[%d]", lane), "0 as the weight of attention");
    }
    calibration.lanes.push_back({.with_attention = with[lane], .unseen = unseen[lane]});
  }
  return std::make_shared<const Calibration>(std::move(calibration));
}

absl::Status WriteCalibration(const std::string& path, const ModelConfig& model, const std::vector<Feature>& features,
                              const std::string& source, const Calibration& calibration) {
  OrderedJson json = HeadBeside(kKind, model, source);
  json["features"] = OrderedJson::array();
  json["layers"] = calibration.layers;
  json["kv_heads"] = calibration.kv_heads;
  json["with_attention"] = OrderedJson::array();
  json["unseen"] = OrderedJson::array();
  for (const Feature feature : features) json["features"].push_back(FeatureNames()[static_cast<size_t>(feature)]);
  for (const LaneWeights& lane : calibration.lanes) {
    json["with_attention"].push_back(RowOf(lane.with_attention, features));
    json["unseen"].push_back(RowOf(lane.unseen, features));
  }
  return WriteBeside(path, json);
}

}  // namespace ebb
