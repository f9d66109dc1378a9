// K and V of a lane as bytes, and back: whole tiles, as they lie in its pages (KvFormat), one after another. What free
// slots hold is no part of a session, and may have been another's: it leaves as zeros.

#ifndef EBB_ENGINE_CACHE_LANE_TILES_H_
#define EBB_ENGINE_CACHE_LANE_TILES_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/ops.h"

namespace ebb {

// Of the tiles that `slots` slots take.
int64_t TileBytes(const KvFormat& format, int32_t slots);

// `token` [lane.slots] is -1 where a slot is free. REQUIRES: out.size() == TileBytes(lane.format, lane.slots).
void ReadTiles(const LaneStorage& lane, std::span<const int32_t> token, std::span<std::byte> out);

// REQUIRES: as many bytes, and the lane's pages are its own.
void WriteTiles(const LaneStorage& lane, std::span<const std::byte> tiles);

// The same numbers with a slot's components side by side, as a device keeps them (ops/gpu/kernels.h, Arena): `keys` and
// `values` [count][d] in the lane's element type; of bytes their scales too, else null, [count].
struct SlotRows {
  std::byte* keys = nullptr;
  std::byte* values = nullptr;
  float* key_scales = nullptr;
  float* value_scales = nullptr;
};
// Of slots first .. first + count - 1. REQUIRES: first is a multiple of kTileSlots; RopeCache::kFused.
void ReadRows(const LaneStorage& lane, int32_t first, int32_t count, const SlotRows& to);
// REQUIRES also: the lane's pages are its own.
void WriteRows(const LaneStorage& lane, int32_t first, int32_t count, const SlotRows& from);

}  // namespace ebb

#endif  // EBB_ENGINE_CACHE_LANE_TILES_H_
