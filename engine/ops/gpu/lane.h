// Where a lane's slots, K and V lie (kernels.h, Arena, SessionView).

#ifndef EBB_ENGINE_OPS_GPU_LANE_H_
#define EBB_ENGINE_OPS_GPU_LANE_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"

namespace ebb::gpu::EBB_GPU_TARGET {

template <typename T>
struct SlotRows {
  T* k;
  T* v;
};

// The rows of a slot. REQUIRES: slot < capacity.
template <typename T>
EBB_DEVICE SlotRows<T> RowsOf(const Arena& arena, const SessionView& session, int32_t lane, int32_t slot) {
  const int64_t d = arena.head_dim;
  const int64_t page = session.page[int64_t{lane} * session.pages_per_lane + slot / kPageSlots];
  T* const k = static_cast<T*>(arena.base) + (page * 2 * kPageSlots + slot % kPageSlots) * d;
  return {k, k + kPageSlots * d};
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_LANE_H_
