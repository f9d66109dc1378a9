// What `calibrated` knows of a model's lanes: how much each feature of a token tells of the attention still to come.
// Learned by `ebb-lab calibrate` and kept in a file beside the model (engine/model/calibration_file.h); here it is a
// value, so that a scorer reads no file.

#ifndef EBB_POLICIES_CALIBRATION_H_
#define EBB_POLICIES_CALIBRATION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ebb {

// Of a token in a lane; calibrated.h says how each is measured.
enum class Feature : size_t { kKeyLength, kKeyLikeness, kValueLength, kAttention, kAge };

inline constexpr size_t kFeatures = 5;
using Features = std::array<double, kFeatures>;

// In the order of Feature: "key_length", "key_likeness", "value_length", "attention", "age".
std::span<const std::string_view> FeatureNames();

// One lane's prediction: bias + sum over the features of weight * feature.
struct FeatureWeights {
  double bias = 0;
  Features weight = {};

  double operator()(const Features& features) const {
    double sum = bias;
    for (size_t i = 0; i < kFeatures; ++i) sum += weight[i] * features[i];
    return sum;
  }
};

struct LaneWeights {
  FeatureWeights with_attention = {};  // for tokens whose attention so far is known
  FeatureWeights unseen = {};          // for the rest: the weight of kAttention is 0
};

struct Calibration {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  std::vector<LaneWeights> lanes = {};  // [layers, kv_heads]

  const LaneWeights& lane(int32_t layer, int32_t head) const;
};

// A model's calibration, or why there is none: FAILED_PRECONDITION CALIBRATION_MISSING or CALIBRATION_FOREIGN.
using CalibrationOr = absl::StatusOr<std::shared_ptr<const Calibration>>;

// CALIBRATION_MISSING, naming the file that is not there, if a name is known, and what would make one.
absl::Status CalibrationMissing(const std::string& file);

// Of a model that weighs nothing: for what a policy needs, costs and defaults to, which no weight decides.
const CalibrationOr& BlankCalibration();

}  // namespace ebb

#endif  // EBB_POLICIES_CALIBRATION_H_
