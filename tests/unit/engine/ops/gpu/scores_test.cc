// Keep scores that attention does not inform: likeness and lengths of keys of every type of cache, and chance, against
// the scorers of policies/: random pages and slots, free ones whose bytes are no numbers.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "policies/hash_random.h"
#include "policies/key_likeness.h"
#include "policies/random.h"
#include "tests/support/attend_case.h"
#include "tests/support/test_lane.h"
#include "tests/unit/engine/ops/gpu/each_target.h"
#include "tests/unit/engine/ops/gpu/resting_lanes.h"

namespace ebb::gpu {
namespace {

// A cosine's rounding in float64 is nothing beside that of the float it becomes.
constexpr double kFloatTolerance = 1.2e-7;

class KeyMemory final : public LaneMemory {
 public:
  KeyMemory(int32_t head_dim, std::span<const float> keys) : head_dim_(head_dim), keys_(keys) {}
  int32_t head_dim() const override { return head_dim_; }
  RopeView rope() const override { return {}; }
  std::span<const float> Keys(int32_t first, int32_t count) const override {
    return keys_.subspan(static_cast<size_t>(first) * head_dim_, static_cast<size_t>(count) * head_dim_);
  }
  std::span<const float> Values(int32_t /*first*/, int32_t /*count*/) const override {
    CheckFailed("nobody reads values here", __FILE__, __LINE__);
  }

 private:
  int32_t head_dim_;
  std::span<const float> keys_;
};

RestingLanes RandomKeyLanes(Element type, int32_t slots_max, HashRandom& random) {
  constexpr int32_t kDims[] = {16, 32, 48, 80, 128, 256};
  LanesShape shape = {.type = type, .head_dim = kDims[random.Uniform(0, 5)], .capacity = random.Uniform(2, slots_max)};
  shape.live = random.Uniform(2, shape.capacity);
  RestingLanes l(shape, Part::kKeys, random);
  const std::vector<float> common = RandomFloats(random.Next64(), 2, shape.head_dim);
  for (int32_t lane = 0; lane < shape.lanes; ++lane) {
    const std::vector<int32_t> order = RandomOrder(random, shape.capacity);
    for (int32_t i = 0; i < shape.live; ++i) {
      std::vector<float> row = RandomFloats(random.Next64(), 1, shape.head_dim);
      // One has no direction; but of bytes, whose scale would be 0.
      for (int32_t c = 0; c < shape.head_dim; ++c) row[c] = i == 1 ? 0 : row[c] + common[c];
      if (i == 1 && IsScaled(type)) row[0] = 1;
      l.Seat(lane, order[i], 3 * i, row);
    }
  }
  return l;
}

SessionView ViewBy(ScoreRule rule, const RestingLanes& l, Mirror& mirror) {
  SessionView view = l.View(mirror);
  view.rule = rule;
  view.first_token = 1000;
  return view;
}
LaneView LaneOf(const RestingLanes& l, int32_t lane, const LaneMemory* memory) {
  const auto slots = static_cast<size_t>(l.capacity);
  return {.token = std::span(l.token).subspan(lane * slots, slots), .live = l.live, .memory = memory};
}

TEST(GpuLikeness, IsTheHosts) {
  HashRandom random(71);
  for (int i = 0; i < Cases(40); ++i) {
    const RestingLanes l = RandomKeyLanes(kCacheTypes[i % std::size(kCacheTypes)], i % 3 == 0 ? 8 : 300, random);
    SCOPED_TRACE("case " + std::to_string(i) + ", d " + std::to_string(l.head_dim) + ", " + std::to_string(l.live) +
                 " of " + std::to_string(l.capacity));
    const std::vector<float> keep = OnEachTarget([&](const Table& table) {
      Mirror mirror(table);
      const SessionView view = ViewBy(ScoreRule::kKeyLikeness, l, mirror);
      table.likeness({.cache = l.Cache(view, 1, mirror)}, mirror.stream());
      std::vector<float> all(l.token.size());
      mirror.Out(view.keep, all);
      return all;
    });
    const auto slots = static_cast<size_t>(l.capacity);
    for (int32_t lane = 0; lane < l.lanes; ++lane) {
      const KeyMemory memory(l.head_dim, std::span(l.rows).subspan(lane * slots * l.head_dim, slots * l.head_dim));
      std::vector<float> cosine(slots);
      KeyLikeness(LaneOf(l, lane, &memory), cosine);
      for (size_t slot = 0; slot < slots; ++slot) {
        if (l.token[lane * slots + slot] < 0) continue;
        ASSERT_NEAR(keep[lane * slots + slot], -cosine[slot], kFloatTolerance) << "slot " << slot;
      }
    }
  }
}

TEST(GpuChance, DrawsWhatTheHostDraws) {
  HashRandom random(72);
  for (int i = 0; i < Cases(20); ++i) {
    const RestingLanes l = RandomKeyLanes(Element::kF32, 300, random);
    const uint64_t seed = random.Next64() >> 11;
    const int32_t kv_heads = 1 + i % 2;
    const std::vector<float> keep = OnEachTarget([&](const Table& table) {
      Mirror mirror(table);
      SessionView view = ViewBy(ScoreRule::kChance, l, mirror);
      view.seed = seed;
      view.fresh = i % 3 == 0 ? 1 : 0;
      table.chance({.cache = l.Cache(view, kv_heads, mirror)}, mirror.stream());
      std::vector<float> all(l.token.size());
      mirror.Out(view.keep, all);
      return all;
    });
    const auto scorer = MakeRandom(seed, i % 3 == 0 ? RandomMode::kFresh : RandomMode::kReservoir);
    const auto slots = static_cast<size_t>(l.capacity);
    for (int32_t lane = 0; lane < l.lanes; ++lane) {
      LaneView view = LaneOf(l, lane, nullptr);
      view.tokens = 1001;
      view.layer = lane / kv_heads;
      view.head = lane % kv_heads;
      std::vector<float> expected(slots, -7);
      scorer->Score(view, {}, expected);
      for (size_t slot = 0; slot < slots; ++slot) ASSERT_EQ(keep[lane * slots + slot], expected[slot]) << slot;
    }
  }
}

// The key alone decides: what is written is as long as what then rests there.
TEST(GpuStore, LengthsAreThoseOfKeysAsTheyRest) {
  HashRandom random(73);
  for (int i = 0; i < Cases(16); ++i) {
    const RestingLanes l = RandomKeyLanes(kCacheTypes[i % std::size(kCacheTypes)], 100, random);
    const int32_t slot = random.Uniform(0, l.capacity - 1);
    const std::vector<float> k = RandomFloats(random.Next64(), 3, int64_t{l.lanes} * l.head_dim, 5);
    const std::vector<float> lengths = OnEachTarget([&](const Table& table) {
      Mirror mirror(table);
      SessionView view = ViewBy(i % 2 == 0 ? ScoreRule::kShortKeys : ScoreRule::kLongKeys, l, mirror);
      view.score = view.keep;
      view.placed = mirror.In(std::vector<int32_t>(l.lanes, slot));
      view.block_max = 1;
      CacheArgs cache = l.Cache(view, l.lanes, mirror);
      cache.row_session = mirror.In(std::vector<int32_t>{0});
      cache.rows = 1;
      table.store({.cache = cache, .k = mirror.In(k), .v = mirror.In(k), .stride = int64_t{l.lanes} * l.head_dim},
                  mirror.stream());
      std::vector<float> all(l.token.size());
      mirror.Out(view.score, all);
      return all;
    });
    for (int32_t lane = 0; lane < l.lanes; ++lane) {
      const auto d = static_cast<size_t>(l.head_dim);
      double squares = 0;
      for (const float x : Rest(l.type, std::span(k).subspan(lane * d, d)).numbers) squares += double{x} * x;
      for (int32_t at = 0; at < l.capacity; ++at) {
        const float is = lengths[lane * l.capacity + at];
        if (at == slot) {
          ASSERT_NEAR(is / std::sqrt(squares), 1, kFloatTolerance) << "lane " << lane;
        } else {
          ASSERT_EQ(is, -7) << "slot " << at;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ebb::gpu
