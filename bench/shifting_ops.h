// Ops as the engine has them, in a cache that keeps its tokens in order: the baseline of papers that replace tokens in
// place, made as fast as it can be.
//
// When a decode step has attended to a lane, and K and V of it are still in that core's cache, all rows of K and V
// behind the token that leaves move down by one, over the lane's own memory. Nothing is allocated, nothing is copied
// twice, no thread waits for another, and keys are rotated as they are read, so that none is rotated again: a shift
// costs its bytes. Attention is the engine's own. What slots hold afterwards is no longer what was stored (tiles are
// not rows): times are those of such a cache, outputs are not.

#ifndef EBB_BENCH_SHIFTING_OPS_H_
#define EBB_BENCH_SHIFTING_OPS_H_

#include <memory>
#include <optional>

#include "engine/ops.h"

namespace ebb::bench {

// Who leaves a full lane at a step, by rank in order of age: the one behind the sinks, as with streaming, or any, drawn
// by a hash of the call of Attend and of the lane's place in it.
struct Leaving {
  std::optional<int32_t> rank = {};
  int32_t full = 0;  // slots from which a lane is full: it is shifted when a step of one token attends to as many
};

// REQUIRES: a type that is not IsScaled.
std::unique_ptr<Ops> MakeShiftingOps(std::unique_ptr<Ops> ops, const Leaving& leaving);

// Moves what lies behind row `rank` of a lane's memory down by a row, a row being K and V of a slot.
void ShiftLane(const LaneStorage& lane, int32_t rank);

}  // namespace ebb::bench

#endif  // EBB_BENCH_SHIFTING_OPS_H_
