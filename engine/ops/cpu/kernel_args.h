// What the ops are given, as the kernels take it.

#ifndef EBB_ENGINE_OPS_CPU_KERNEL_ARGS_H_
#define EBB_ENGINE_OPS_CPU_KERNEL_ARGS_H_

#include <cstdint>
#include <span>

#include "engine/ops.h"
#include "engine/ops/cpu/kernels.h"

namespace ebb::cpu {

// With the frequencies of lanes of `layer`.
RopeArgs ToArgs(const Rope& rope, int32_t layer);
RopeArgs FirstSet(const Rope& rope);
KvArgs ToArgs(const LaneStorage& lane);
Curve CurveOf(Activation activation);

// Whether a query sees the same positions in both layers, turned by the same angles.
bool SeeAlike(const Rope& rope, int32_t layer, int32_t other);

// Fills in what of a call's arguments says how scores are made: rope, scale, cap, window, slopes.
void SetScores(const Rope& rope, const LaneStorage& lane, AttendArgs& args);

// Ops::Move. Bytes are bytes: no instruction set does this better than memcpy, and it is rare.
void MoveSlots(const LaneStorage& lane, std::span<const SlotMove> moves);

}  // namespace ebb::cpu

#endif  // EBB_ENGINE_OPS_CPU_KERNEL_ARGS_H_
