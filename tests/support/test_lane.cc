#include "tests/support/test_lane.h"

#include <cmath>
#include <cstring>

#include "engine/model/quantization.h"
#include "policies/check.h"
#include "policies/hash_random.h"
#include "tests/support/e4m3.h"

namespace ebb {

TestLane::TestLane(const KvFormat& format, int32_t slots) : format_(format), slots_(slots) {
  const int32_t tiles = (slots + kTileSlots - 1) / kTileSlots;
  const int32_t pages = (tiles + format.page_tiles - 1) / format.page_tiles;
  const auto page_bytes = static_cast<size_t>(format.page_tiles * format.tile_bytes());
  memory_.assign(static_cast<size_t>(pages), std::vector<std::byte>(page_bytes, std::byte{0xFF}));
  for (auto& page : memory_) pages_.push_back(page.data());
  position_.assign(static_cast<size_t>(tiles) * kTileSlots, -1);
}

LaneStorage TestLane::storage() const {
  return {.format = format_, .pages = pages_.data(), .position = position_.data(), .slots = slots_};
}

void TestLane::Write(Ops& ops, const Rope& rope, std::span<const int32_t> slots, std::span<const int32_t> positions,
                     std::span<const float> k, std::span<const float> v) {
  const StoreTask task = {.lane = storage(),
                          .k = k.data(),
                          .v = v.data(),
                          .stride = format_.head_dim,
                          .tokens = static_cast<int32_t>(slots.size()),
                          .slots = slots.data()};
  ops.Store(rope, {&task, 1});
  for (size_t t = 0; t < slots.size(); ++t) position_[static_cast<size_t>(slots[t])] = positions[t];
}

double TestLane::Read(Part part, int32_t slot, int32_t component) const {
  const bool has_rk = format_.rope_cache == RopeCache::kRk;
  EBB_CHECK(part != Part::kRk || has_rk);
  const int32_t d = format_.head_dim;
  const int32_t tile = slot / kTileSlots;
  const int32_t lane = slot % kTileSlots;
  int64_t element = component * kTileSlots + lane;  // K and RK
  if (part == Part::kRk) element += int64_t{d} * kTileSlots;
  if (part == Part::kV) element = int64_t{d} * kTileSlots * (has_rk ? 2 : 1) + int64_t{lane} * d + component;
  const std::byte* const tile_at =
      pages_[static_cast<size_t>(tile / format_.page_tiles)] + tile % format_.page_tiles * format_.tile_bytes();
  const std::byte* const at = tile_at + element * format_.element_bytes();
  if (format_.type == KvType::kF32) {
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  if (IsScaled(format_.type)) {
    float scale = 0;
    std::memcpy(&scale, tile_at + format_.scales_offset() + 4 * (part == Part::kV ? kTileSlots + lane : lane), 4);
    if (format_.type == KvType::kInt8) return scale * static_cast<float>(static_cast<int8_t>(*at));
    return scale * static_cast<float>(E4M3Number(static_cast<uint8_t>(*at)) * 0x1p-8);
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return format_.type == KvType::kBf16 ? FloatFromBf16(bits) : FloatFromF16(bits);
}

ReferenceLane TestLane::Reference() const {
  ReferenceLane lane = {.head_dim = format_.head_dim};
  lane.position.assign(position_.begin(), position_.begin() + slots_);
  for (int32_t s = 0; s < slots_; ++s) {
    const bool live = position_[static_cast<size_t>(s)] >= 0;
    for (int32_t c = 0; c < format_.head_dim; ++c) {
      lane.k.push_back(live ? Read(Part::kK, s, c) : 0);
      lane.v.push_back(live ? Read(Part::kV, s, c) : 0);
    }
  }
  return lane;
}

ReferenceRope TestRope(RopePairs pairs, int32_t rotary_dims, double base) {
  ReferenceRope rope = {.pairs = pairs};
  for (int32_t i = 0; i < rotary_dims / 2; ++i) rope.frequencies.push_back(std::pow(base, -2.0 * i / rotary_dims));
  return rope;
}

Rope MakeRope(const ReferenceRope& reference) {
  ModelConfig config;
  config.rope_pairs = reference.pairs;
  config.rotary_dims = static_cast<int32_t>(2 * reference.frequencies.size());
  config.rope_frequencies = reference.frequencies;
  config.attention_cap = static_cast<float>(reference.cap);
  if (reference.window > 0) config.windows = {reference.window};
  Rope rope = MakeRope(config);
  rope.slopes.assign(reference.slopes.begin(), reference.slopes.end());
  return rope;
}

std::vector<float> RandomFloats(uint64_t seed, uint64_t purpose, int64_t count, float scale) {
  std::vector<float> values(static_cast<size_t>(count));
  HashRandom random(seed, purpose);
  for (float& value : values) value = (2 * random.UniformFloat() - 1) * scale;
  return values;
}

}  // namespace ebb
