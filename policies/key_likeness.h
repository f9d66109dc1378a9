// How alike a lane's keys are: the cosine of each to the mean direction of all that live.
//
//   m = mean over live tokens j of k[j] / |k[j]|,  cosine[j] = cos(k[j], m)
//
// Keys as they rest in the cache, unrotated. A key of length 0 counts as 0 in the mean, and its cosine is 0; so are all
// where the mean is 0. Reads every live key, O(n * head_dim).
//
// Invariant: the mean is the same bits for any order of slots, since its terms are rounded to where their sum is exact.

#ifndef EBB_POLICIES_KEY_LIKENESS_H_
#define EBB_POLICIES_KEY_LIKENESS_H_

#include <span>

#include "policies/lane_view.h"

namespace ebb {

// Writes `cosine` [n], 0 for free slots. REQUIRES: lane.memory.
void KeyLikeness(const LaneView& lane, std::span<float> cosine);

}  // namespace ebb

#endif  // EBB_POLICIES_KEY_LIKENESS_H_
