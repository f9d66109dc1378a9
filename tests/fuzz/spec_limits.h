// A model's limits that no policy a fuzzer writes is refused by for want of weights: what calibrated scorers and head
// gates need is there.

#ifndef EBB_TESTS_FUZZ_SPEC_LIMITS_H_
#define EBB_TESTS_FUZZ_SPEC_LIMITS_H_

#include <memory>

#include "policies/calibration.h"
#include "policies/spec.h"

namespace ebb {

// Of a model of 3 layers with 2 KV heads each, 4 query heads, trained on 512 tokens.
inline const SpecLimits& FuzzedLimits() {
  static const SpecLimits limits = {.trained_context = 512,
                                    .query_heads = 4,
                                    .layers = 3,
                                    .kv_heads = 2,
                                    .calibration = &BlankCalibration(),
                                    .head_gates = std::make_shared<const HeadGates>(6, 0.5)};
  return limits;
}

}  // namespace ebb

#endif  // EBB_TESTS_FUZZ_SPEC_LIMITS_H_
