#include "policies/calibration.h"

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {

std::span<const std::string_view> FeatureNames() {
  static constexpr std::array<std::string_view, kFeatures> kNames = {"key_length", "key_likeness", "value_length",
                                                                     "attention", "age"};
  return kNames;
}

const LaneWeights& Calibration::lane(int32_t layer, int32_t head) const {
  EBB_CHECK(layer >= 0 && layer < layers);
  EBB_CHECK(head >= 0 && head < kv_heads);
  return lanes[static_cast<size_t>(layer) * kv_heads + head];
}

absl::Status CalibrationMissing(const std::string& file) {
  const std::string where = file.empty() ? "" : absl::StrFormat("; there is no %s", file);
  return Refuse(absl::StatusCode::kFailedPrecondition,
                absl::StrFormat("policy.calibrated: the model has no calibration%s; make one with `ebb-lab calibrate`, "
                                "or use another scorer",
                                where),
                {.reason = "CALIBRATION_MISSING", .field = "policy.calibrated"});
}

const CalibrationOr& BlankCalibration() {
  static const auto& blank = *new CalibrationOr(std::make_shared<const Calibration>());
  return blank;
}

}  // namespace ebb
