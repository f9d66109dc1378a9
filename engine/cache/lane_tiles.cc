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

// Calls copy(a component in its tile, the same in the rows) for K, V and scales of `count` slots.
template <typename Element, typename Copy>
void VisitRowsOf(const LaneStorage& lane, int32_t first, int32_t count, const SlotRows& rows, const Copy& copy) {
  const int32_t d = lane.format.head_dim;
  for (int32_t i = 0; i < count; i += kTileSlots) {
    std::byte* const bytes = TileAt(lane, (first + i) / kTileSlots);
    auto* const tile = reinterpret_cast<Element*>(bytes);
    const int32_t slots = std::min(kTileSlots, count - i);
    Element* const keys = reinterpret_cast<Element*>(rows.keys) + int64_t{i} * d;
    Element* const values = reinterpret_cast<Element*>(rows.values) + int64_t{i} * d;
    for (int32_t slot = 0; slot < slots; ++slot) {
      for (int32_t c = 0; c < d; ++c) copy(tile[c * kTileSlots + slot], keys[slot * d + c]);
    }
    for (int32_t c = 0; c < slots * d; ++c) copy(tile[kTileSlots * d + c], values[c]);
    if (rows.key_scales == nullptr) continue;
    auto* const scales = reinterpret_cast<float*>(bytes + lane.format.scales_offset());
    for (int32_t slot = 0; slot < slots; ++slot) {
      copy(scales[slot], rows.key_scales[i + slot]);
      copy(scales[kTileSlots + slot], rows.value_scales[i + slot]);
    }
  }
}

template <typename Copy>
void VisitRows(const LaneStorage& lane, int32_t first, int32_t count, const SlotRows& rows, const Copy& copy) {
  EBB_CHECK(first % kTileSlots == 0);
  EBB_CHECK(lane.format.rope_cache == RopeCache::kFused);
  switch (lane.format.element_bytes()) {
    case 1:
      return VisitRowsOf<uint8_t>(lane, first, count, rows, copy);
    case 2:
      return VisitRowsOf<uint16_t>(lane, first, count, rows, copy);
    default:
      return VisitRowsOf<uint32_t>(lane, first, count, rows, copy);
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

void ReadRows(const LaneStorage& lane, int32_t first, int32_t count, const SlotRows& to) {
  VisitRows(lane, first, count, to, [](const auto& tile, auto& row) { row = tile; });
}

void WriteRows(const LaneStorage& lane, int32_t first, int32_t count, const SlotRows& from) {
  VisitRows(lane, first, count, from, [](auto& tile, const auto& row) { tile = row; });
}

}  // namespace ebb
