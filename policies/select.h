// Which slots of a lane leave, given keep scores and protection.

#ifndef EBB_POLICIES_SELECT_H_
#define EBB_POLICIES_SELECT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "policies/lane_view.h"

namespace ebb {

// Working memory of SelectVictims; keeps its capacity, so that a steady step allocates nothing.
struct SelectScratch {
  std::vector<int32_t> ages = {};
  std::vector<uint64_t> turns = {};
};

// Chooses `count` slots of one lane to free: the smallest keep scores among the slots that are live and neither sink
// nor recent. Total order (POLICIES 1.5): NaN before everything, then score, then the older token; -0 equals +0. The
// result therefore does not depend on slot layout or thread count.
//
// Writes slots to `victims` in ascending order, replacing what was there. O(n). INVALID_ARGUMENT
// (NOT_ENOUGH_CANDIDATES) when fewer than `count` slots may be evicted, naming both numbers; `victims` is then empty.
absl::Status SelectVictims(const LaneView& lane, std::span<const float> keep, int32_t count, SelectScratch& scratch,
                           std::vector<int32_t>& victims);

// Live slots whose keep score is not a number.
int64_t CountNan(std::span<const int32_t> token, std::span<const float> keep);

}  // namespace ebb

#endif  // EBB_POLICIES_SELECT_H_
