// What a scorer and the selection may see of one lane: which token sits in which slot, and who is protected.

#ifndef EBB_POLICIES_LANE_VIEW_H_
#define EBB_POLICIES_LANE_VIEW_H_

#include <cstdint>
#include <span>

namespace ebb {

// Slots of one (layer, KV head). Valid for the length of one call.
struct LaneView {
  // [n] index of the slot's token in the session's log, -1 for a free slot. Live entries are distinct. This is the
  // token's age: it never changes while the token lives, whatever its RoPE position is.
  std::span<const int32_t> token = {};
  int32_t live = 0;    // live slots, 0..n
  int32_t sinks = 0;   // the first `sinks` live tokens by age may not be evicted
  int32_t recent = 0;  // nor the last `recent`
};

}  // namespace ebb

#endif  // EBB_POLICIES_LANE_VIEW_H_
