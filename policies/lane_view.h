// What a scorer and the selection may see of one lane: which token sits in which slot, and who is protected.

#ifndef EBB_POLICIES_LANE_VIEW_H_
#define EBB_POLICIES_LANE_VIEW_H_

#include <cstdint>
#include <span>

#include "policies/lane_memory.h"

namespace ebb {

// Slots of one (layer, KV head). Valid for the length of one call.
struct LaneView {
  // [n] index of the slot's token in the session's log, -1 for a free slot. Live entries are distinct. This is the
  // token's age, whatever its RoPE position is: it changes only where an edit of the log moves what follows.
  std::span<const int32_t> token = {};
  int32_t live = 0;    // live slots, 0..n
  int32_t sinks = 0;   // the first `sinks` live tokens by age may not be evicted
  int32_t recent = 0;  // nor the last `recent`

  // Past here: what only some scorers look at.
  int32_t budget = 0;  // tokens that pruning leaves; sinks + recent <= budget
  int32_t tokens = 0;  // length of the session's log
  int32_t layer = 0;
  int32_t head = 0;                        // KV head
  int32_t query_heads = 1;                 // that share it
  std::span<const int32_t> position = {};  // [n] RoPE position, -1 for a free slot
  const LaneMemory* memory = nullptr;      // null unless Needs.memory
  // [n] sum over the scorer's probes of P[probe, slot], mean over the query heads; empty unless Needs.probes. Live
  // entries sum to the number of probes.
  std::span<const float> probed = {};
  // [live] live slots, oldest first; empty unless Needs.by_age. Rank fills it in.
  std::span<const int32_t> by_age = {};
};

}  // namespace ebb

#endif  // EBB_POLICIES_LANE_VIEW_H_
