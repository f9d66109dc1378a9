// The float64 oracle of attention: engine/ops.h's equation, written as loops and nothing else.

#ifndef EBB_TESTS_SUPPORT_ATTENTION_REFERENCE_H_
#define EBB_TESTS_SUPPORT_ATTENTION_REFERENCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/architecture.h"

namespace ebb {

// RoPE as the model states it: radians per position, not the kernels' integers.
struct ReferenceRope {
  RopePairs pairs = RopePairs::kNeighbours;
  std::vector<double> frequencies = {};  // [rotary_dims / 2]
  // What else makes scores (engine/ops.h, Rope):
  int32_t window = 0;               // positions that a query sees, the newest; 0: all
  double cap = 0;                   // 0: none
  std::vector<double> slopes = {};  // [G], or empty
};

// Keys (unrotated) and values of one lane as numbers, slot by slot; a slot with position < 0 may not be seen.
struct ReferenceLane {
  int32_t head_dim = 0;
  std::vector<int32_t> position = {};  // [n]
  std::vector<double> k = {};          // [n][d]
  std::vector<double> v = {};          // [n][d]
};

struct ReferenceAttention {
  std::vector<double> out = {};          // [T][G][d]
  std::vector<double> probability = {};  // [T][G][n], 0 where a slot may not be seen
};

// `x` [d] turned by `position`, in place.
void RotateReference(const ReferenceRope& rope, int64_t position, std::span<double> x);

// q [T][G][d] unrotated, at q_position [T].
ReferenceAttention AttendReference(const ReferenceRope& rope, const ReferenceLane& lane, std::span<const double> q,
                                   std::span<const int32_t> q_position, int32_t group);

// Sums of `probability` over the rows of tokens first .. last-1, divided by the group: what an observation reports. [n]
std::vector<double> SumReference(const ReferenceAttention& seen, int32_t group, int32_t slots, int32_t first,
                                 int32_t last);

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_ATTENTION_REFERENCE_H_
