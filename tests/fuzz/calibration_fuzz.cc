// Any bytes as a calibration file. What is taken has finite weights for every lane, and none for attention unseen.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/model/calibration_file.h"
#include "policies/check.h"

namespace {

void CheckFinite(const ebb::FeatureWeights& weights) {
  EBB_CHECK(std::isfinite(weights.bias));
  for (const double weight : weights.weight) EBB_CHECK(std::isfinite(weight));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ebb::ModelConfig model;
  model.layers = 2;
  model.kv_heads = 2;
  model.fingerprint = "00000000000000aa";
  const auto calibration = ebb::ParseCalibration("fuzz.json", {reinterpret_cast<const char*>(data), size}, model);
  if (!calibration.ok()) return 0;
  EBB_CHECK((*calibration)->lanes.size() == 4);
  for (const ebb::LaneWeights& lane : (*calibration)->lanes) {
    CheckFinite(lane.with_attention);
    CheckFinite(lane.unseen);
    EBB_CHECK(lane.unseen.weight[static_cast<size_t>(ebb::Feature::kAttention)] == 0);
  }
  return 0;
}
