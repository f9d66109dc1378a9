#include "engine/ops/cpu/kernel_args.h"

#include <cmath>
#include <cstring>

namespace ebb::cpu {
namespace {

Element ElementOf(KvType type) {
  switch (type) {
    case KvType::kF32:
      return Element::kF32;
    case KvType::kF16:
      return Element::kF16;
    case KvType::kBf16:
      return Element::kBf16;
    case KvType::kInt8:
      return Element::kInt8;
    case KvType::kFp8:
      return Element::kFp8;
  }
  return Element::kF32;
}

}  // namespace

RopeArgs FirstSet(const Rope& rope) {
  return {.turns = rope.turns.data(),
          .half_turns = rope.half_turns.data(),
          .rotary_dims = rope.rotary_dims,
          .halves = rope.pairs == RopePairs::kHalves};
}

RopeArgs ToArgs(const Rope& rope, int32_t layer) {
  RopeArgs args = FirstSet(rope);
  args.turns += rope.first_pair(layer);
  args.half_turns += 2 * rope.first_pair(layer);
  return args;
}

Curve CurveOf(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return Curve::kSilu;
    case Activation::kGelu:
      return Curve::kGelu;
    case Activation::kRelu:
      return Curve::kRelu;
  }
  return Curve::kSilu;
}

KvArgs ToArgs(const LaneStorage& lane) {
  return {.type = ElementOf(lane.format.type),
          .rk = lane.format.rope_cache == RopeCache::kRk,
          .head_dim = lane.format.head_dim,
          .page_tiles = lane.format.page_tiles,
          .pages = lane.pages};
}

bool SeeAlike(const Rope& rope, int32_t layer, int32_t other) {
  return rope.window(layer) == rope.window(other) && rope.first_pair(layer) == rope.first_pair(other);
}

void SetScores(const Rope& rope, const LaneStorage& lane, AttendArgs& args) {
  args.rope = ToArgs(rope, lane.layer);
  args.scale = rope.scale > 0 ? rope.scale : 1.0F / std::sqrt(static_cast<float>(lane.format.head_dim));
  args.cap = rope.cap;
  if (rope.window(lane.layer) > 0) args.reach = rope.window(lane.layer);
  if (!rope.slopes.empty()) args.slopes = rope.slopes.data() + lane.query_head;
}

void MoveSlots(const LaneStorage& lane, std::span<const SlotMove> moves) {
  const KvFormat& format = lane.format;
  const int64_t element = format.element_bytes();
  const int64_t part = element * format.head_dim * kTileSlots;
  const int64_t column_parts = format.rope_cache == RopeCache::kRk ? 2 : 1;
  const auto tile = [&](int32_t slot) {
    const int32_t index = slot / kTileSlots;
    return lane.pages[index / format.page_tiles] + (index % format.page_tiles) * format.tile_bytes();
  };
  for (const SlotMove& move : moves) {
    const std::byte* from = tile(move.from);
    std::byte* to = tile(move.to);
    for (int64_t c = 0; c < column_parts * format.head_dim; ++c) {
      const int64_t column = c * kTileSlots * element;
      std::memcpy(to + column + move.to % kTileSlots * element, from + column + move.from % kTileSlots * element,
                  static_cast<size_t>(element));
    }
    const int64_t row = element * format.head_dim;
    std::memcpy(to + column_parts * part + move.to % kTileSlots * row,
                from + column_parts * part + move.from % kTileSlots * row, static_cast<size_t>(row));
    for (int32_t i = 0; i < format.scales(); ++i) {
      const int64_t scales = format.scales_offset() + int64_t{4} * i * kTileSlots;
      std::memcpy(to + scales + int64_t{4} * (move.to % kTileSlots),
                  from + scales + int64_t{4} * (move.from % kTileSlots), 4);
    }
  }
}

}  // namespace ebb::cpu
