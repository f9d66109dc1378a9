// What a scorer could have learned: weights by chance.

#ifndef EBB_TESTS_SUPPORT_RANDOM_CALIBRATION_H_
#define EBB_TESTS_SUPPORT_RANDOM_CALIBRATION_H_

#include <cstdint>
#include <memory>

#include "policies/calibration.h"
#include "policies/hash_random.h"

namespace ebb {

// Weights in (-1, 1); the same arguments, the same weights.
inline Calibration RandomCalibration(uint64_t seed, int32_t layers, int32_t kv_heads) {
  HashRandom random(seed);
  const auto draw = [&] { return 2.0 * random.UniformFloat() - 1; };
  Calibration calibration = {.layers = layers, .kv_heads = kv_heads};
  for (int32_t lane = 0; lane < layers * kv_heads; ++lane) {
    LaneWeights& weights = calibration.lanes.emplace_back();
    for (FeatureWeights* each : {&weights.with_attention, &weights.unseen}) {
      each->bias = draw();
      for (double& weight : each->weight) weight = draw();
    }
    weights.unseen.weight[static_cast<size_t>(Feature::kAttention)] = 0;
  }
  return calibration;
}

// Of more lanes than any test has; what Resolve may be given for a model.
inline const CalibrationOr& TestCalibration() {
  static const CalibrationOr calibration = std::make_shared<const Calibration>(RandomCalibration(7, 16, 8));
  return calibration;
}

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_RANDOM_CALIBRATION_H_
