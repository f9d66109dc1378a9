// Turns many rows by RoPE, each by the position of its own, without a sine for every pair of every row.
//
// A position is a multiple of 256 and a rest. cos and sin of the rests are computed once and kept, those of a multiple
// when it comes up, and a row takes their product: angles are float64's but for some 3e-16, and follow from the
// position alone.

#ifndef EBB_POLICIES_ROTATOR_H_
#define EBB_POLICIES_ROTATOR_H_

#include <cstdint>
#include <span>
#include <vector>

#include "policies/lane_memory.h"

namespace ebb {

// One thread's; keeps its memory, 4 KiB for each pair.
class Rotator {
 public:
  // Everything is turned as `rope` says from here on. Cheap where that has not changed.
  void Point(const RopeView& rope);

  // Turns `row` [head_dim] by `position` >= 0, in place, as Rotate (lane_memory.h).
  void Turn(int64_t position, std::span<float> row);

 private:
  bool halves_ = false;
  std::vector<double> frequencies_ = {};  // [pairs]
  std::vector<double> rests_ = {};        // [256][2][pairs] cos, then sin
  int64_t multiple_ = -1;                 // that base_ is of
  std::vector<double> base_ = {};         // [2][pairs]
};

}  // namespace ebb

#endif  // EBB_POLICIES_ROTATOR_H_
