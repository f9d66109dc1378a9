// What a block of a launch over splits attends to (attend.cc, attend_tensor.cc): block (c, h, t) has split c, slots
// 256 c .. 256 c + 255, the last one up to 16 more, of KV head h of row t.

#ifndef EBB_ENGINE_OPS_GPU_ATTEND_SPLIT_H_
#define EBB_ENGINE_OPS_GPU_ATTEND_SPLIT_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {

struct OwnSplit {
  int32_t row, head;
  const SessionView& session;
  int32_t lane;
  int32_t first;  // slot of the lane
  int32_t slots;  // from there on, up to kSplitSlotsMax; 0: the lane has no such split

  EBB_DEVICE explicit OwnSplit(const AttendArgs& a)
      : row(a.first_row + BlockZ()),
        head(BlockY()),
        session(a.cache.sessions[a.first_session + BlockZ()]),  // each brings one row
        lane(a.layer * a.cache.kv_heads + head),
        first(BlockX() * kSplitSlots),
        slots(SlotsOfSplit(session.slots, kSplitSlots, BlockX())) {}

  // Positions of the lane's slots, -1 where nobody sits; and where the row's token sits.
  EBB_DEVICE const int32_t* Positions() const { return session.position + int64_t{lane} * session.capacity; }
  EBB_DEVICE int32_t OwnSlot() const {
    return session.placed[int64_t{lane} * session.block_max + row - session.first_row];
  }
  // Of the row's query heads that share the KV head the first, among those of all rows.
  EBB_DEVICE int64_t FirstHead(const AttendArgs& a) const {
    return row * (int64_t{a.cache.kv_heads} * a.group) + int64_t{head} * a.group;
  }
};

// Whether the row sees nothing of the split, which with a window most are far behind. By all threads of a block.
template <int32_t kThreads>
EBB_DEVICE bool IsOutOfSight(const AttendArgs& a, const OwnSplit& split) {
  if (a.window == INT32_MAX) return false;
  const int32_t* const position = split.Positions();
  const int32_t query = position[split.OwnSlot()];
  int32_t sees = 0;
  for (int32_t i = ThreadIndex(); i < split.slots; i += kThreads) {
    const int32_t at = position[split.first + i];
    if (at >= 0 && at <= query && at > query - a.window) sees = 1;
  }
  return ReduceBlock<kThreads>(sees, Largest()) == 0;
}

// What such a split tells of itself, for which no K and no V is read.
template <int32_t kThreads>
EBB_DEVICE void LeaveOut(const AttendArgs& a, const OwnSplit& split) {
  for (int32_t g = 0; g < a.group; ++g) {
    const int64_t head = split.FirstHead(a) + g;
    if (ThreadIndex() == 0) {
      float* const stats = a.partial_stats + (head * a.splits + BlockX()) * 2;
      stats[0] = MinusInfinity();
      stats[1] = 0;
    }
    if (a.logits == nullptr) continue;
    float* const logits = a.logits + head * a.cache.slots_max + split.first;
    for (int32_t i = ThreadIndex(); i < split.slots; i += kThreads) logits[i] = MinusInfinity();
  }
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_ATTEND_SPLIT_H_
