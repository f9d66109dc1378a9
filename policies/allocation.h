// How one budget is shared among layers and KV heads: the allocations and their arithmetic. Pure. By default all are
// alike:
//
//   budget[layer, head] = budget
//
// What the others share is the room beside the protected tokens, budget - sinks - recent: whatever a lane gets, its
// sinks and its recent window stay.

#ifndef EBB_POLICIES_ALLOCATION_H_
#define EBB_POLICIES_ALLOCATION_H_

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "policies/lane_view.h"
#include "policies/registry_row.h"
#include "policies/spec.h"

namespace ebb {

extern const AllocationRow kUniformRow;
extern const AllocationRow kPyramidRow;
extern const AllocationRow kAdaRow;
extern const AllocationRow kDuoRow;

// Of AllocationRegistry.
const AllocationRow& RowOf(Allocation allocation);

// The row by name, or null.
const AllocationRow* FindAllocation(std::string_view name);

// PyramidKV (Cai et al. 2024, arXiv:2406.02069); POLICIES 3.15. Early layers get more:
//
//   min = room / beta,  max = 2 room - min,  step = (max - min) / (layers - 1)  all rounded down
//   rooms[l] = max - l step
//
// No layer gets more than the `most` tokens there are beside the protected ones: then max = most and
// min = 2 room - most, and everybody gets `room` where there are no more. As in the reference the sum is at least
// layers * room, by rounding, and less than layers (layers - 1) / 2 above it; `exact_total` takes the excess from the
// largest layers in turn. Descending. Every room is at least 1 if room >= beta, or most < 2 room.
//
// Differs: where a prompt is shorter than 2 room the reference gives every layer the same; its formula, which POLICIES
// works out for such a prompt, needs no such case.
//
// REQUIRES: layers >= 2, room >= 1, beta >= 1.
struct PyramidShape {
  int32_t layers = 0;
  int32_t beta = 20;
  bool exact_total = false;
};
std::vector<int32_t> PyramidRooms(const PyramidShape& shape, int32_t room,
                                  int32_t most = std::numeric_limits<int32_t>::max());

// Ada-KV (Feng et al. 2024, arXiv:2407.11550); POLICIES 3.16. Heads whose tokens matter more get more. The unprotected
// tokens of all heads of a layer are taken together:
//
//   b*[h] = tokens of head h among the heads * room with the highest keep scores in the layer
//   rooms[h] = (1 - floor) b*[h] + floor room,  rounded by largest remainder, so that they sum to heads * room
//
// Each is at least floor * room, rounded down. `room` each where there are not that many tokens. Order as selection has
// it (POLICIES 1.5): the smaller score leaves, then the older token, then the later head; NaN before all.
//
// Differs: the reference rounds each head by itself, so that the sum is lost, and can weigh a head's scores by how much
// of them its best tokens hold.
struct AdaCandidate {
  float keep = 0;
  int32_t token = 0;
  int32_t head = 0;  // 0 .. heads - 1
};
// Reorders the candidates. REQUIRES: heads >= 1, room >= 0, floor in [0, 1].
std::vector<int32_t> AdaRooms(std::span<AdaCandidate> candidates, int32_t heads, int32_t room, double floor);

// Appends the unprotected tokens of a lane with their keep scores [n].
void AppendCandidates(const LaneView& lane, std::span<const float> keep, std::vector<AdaCandidate>& candidates);

// DuoAttention (Xiao et al. 2024, arXiv:2410.10819); POLICIES 3.17. Heads whose gate is at or below the threshold keep
// the first and the newest tokens alone; the others have the policy's budget and scorer:
//
//   streams[h] = gate[h] <= threshold
//
// Differs: heads stay where they are, where the reference reorders the weights so that those that look back come first;
// gates are what streaming costs (`ebb-lab heads`), not trained.
std::vector<bool> StreamingHeads(std::span<const double> gates, double threshold);

}  // namespace ebb

#endif  // EBB_POLICIES_ALLOCATION_H_
