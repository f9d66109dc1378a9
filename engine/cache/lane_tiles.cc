#include "engine/cache/lane_tiles.h"

#include <algorithm>
#include <cstring>

#include "policies/check.h"

namespace ebb {
namespace {

int32_t Tiles(int32_t slots) { return (slots + kTileSlots - 1) / kTileSlots; }

std::byte* TileAt(const LaneStorage& lane, int32_t tile) {
  const int32_t per_page = lane.format.page_tiles;
  return lane.pages[tile / per_page] + tile % per_page * lane.format.tile_bytes();
}

// K and RK have a column for each slot, V a row, and scales a place each.
void ClearSlot(const KvFormat& format, int32_t slot, std::byte* tile) {
  const auto element = static_cast<size_t>(format.element_bytes());
  const int32_t rows = format.head_dim * (format.rope_cache == RopeCache::kRk ? 2 : 1);
  for (int32_t row = 0; row < rows; ++row) std::memset(tile + (row * kTileSlots + slot) * element, 0, element);
  const size_t values = format.head_dim * element;
  std::memset(tile + rows * kTileSlots * element + slot * values, 0, values);
  for (int32_t i = 0; i < format.scales(); ++i) {
    std::memset(tile + format.scales_offset() + int64_t{4} * (i * kTileSlots + slot), 0, 4);
  }
}

}  // namespace

int64_t TileBytes(const KvFormat& format, int32_t slots) { return Tiles(slots) * format.tile_bytes(); }

void ReadTiles(const LaneStorage& lane, std::span<const int32_t> token, std::span<std::byte> out) {
  EBB_CHECK(static_cast<int32_t>(token.size()) == lane.slots);
  EBB_CHECK(static_cast<int64_t>(out.size()) == TileBytes(lane.format, lane.slots));
  const int64_t bytes = lane.format.tile_bytes();
  for (int32_t tile = 0; tile < Tiles(lane.slots); ++tile) {
    std::byte* const to = out.data() + tile * bytes;
    std::memcpy(to, TileAt(lane, tile), static_cast<size_t>(bytes));
    for (int32_t i = 0; i < kTileSlots; ++i) {
      const int32_t slot = tile * kTileSlots + i;
      if (slot >= lane.slots || token[slot] < 0) ClearSlot(lane.format, i, to);
    }
  }
}

void WriteTiles(const LaneStorage& lane, std::span<const std::byte> tiles) {
  EBB_CHECK(static_cast<int64_t>(tiles.size()) == TileBytes(lane.format, lane.slots));
  const int64_t bytes = lane.format.tile_bytes();
  for (int32_t tile = 0; tile < Tiles(lane.slots); ++tile) {
    std::memcpy(TileAt(lane, tile), tiles.data() + tile * bytes, static_cast<size_t>(bytes));
  }
}

}  // namespace ebb
