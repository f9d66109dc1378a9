// Store puts every number where engine/ops.h says, rounded as the element type says, and touches nothing else.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "engine/model/quantization.h"
#include "gtest/gtest.h"
#include "tests/support/attend_case.h"
#include "tests/support/e4m3.h"
#include "tests/support/test_lane.h"
#include "tests/unit/engine/ops/each_isa.h"

namespace ebb {
namespace {

// Component x of a head as it rests.
double Rounded(KvType type, std::span<const float> head, size_t x) {
  if (type == KvType::kF32) return head[x];
  if (type == KvType::kBf16) return FloatFromBf16(Bf16FromFloat(head[x]));
  if (type == KvType::kF16) return FloatFromF16(F16FromFloat(head[x]));
  float most = 0;
  for (const float value : head) most = std::max(most, std::abs(value));
  if (type == KvType::kFp8) {
    const double number = E4M3Number(E4M3Code(head[x] * (448.0F / most)));
    return most * (256.0F / 448.0F) * static_cast<float>(number * 0x1p-8);
  }
  const double byte = std::nearbyint(double{head[x]} * double{127.0F / most});
  return most * (1.0F / 127.0F) * static_cast<float>(byte);
}

TEST(Store, PutsEveryComponentWhereTheFormatSays) {
  HashRandom random(1);
  for (int i = 0; i < 100; ++i) {
    const AttendShape shape = RandomShape(random, 150);
    SCOPED_TRACE(shape.ToString());
    const auto d = static_cast<size_t>(shape.format.head_dim);
    ForEachIsa([&](Ops& ops) {
      const AttendCase c(ops, shape);
      for (size_t t = 0; t < c.slots().size(); ++t) {
        for (size_t x = 0; x < d; ++x) {
          const auto component = static_cast<int32_t>(x);
          ASSERT_EQ(c.lane().Read(TestLane::Part::kK, c.slots()[t], component),
                    Rounded(shape.format.type, std::span(c.k()).subspan(t * d, d), x));
          ASSERT_EQ(c.lane().Read(TestLane::Part::kV, c.slots()[t], component),
                    Rounded(shape.format.type, std::span(c.v()).subspan(t * d, d), x));
        }
      }
    });
  }
}

// Tokens in the order of slots, from any slot on: tiles that they fill and tiles that they do not.
TEST(Store, PutsNeighboursWhereTheFormatSays) {
  HashRandom random(2);
  for (int i = 0; i < 60; ++i) {
    const AttendShape shape = RandomShape(random, 150);
    SCOPED_TRACE(shape.ToString());
    const int32_t first = random.Uniform(0, 20);
    const int64_t d = shape.format.head_dim;
    std::vector<int32_t> slots(static_cast<size_t>(random.Uniform(1, 70)));
    for (size_t t = 0; t < slots.size(); ++t) slots[t] = first + static_cast<int32_t>(t);
    if (slots.size() > 40) std::swap(slots[30], slots[33]);
    const auto floats = static_cast<int64_t>(slots.size()) * d;
    const std::vector<float> k = RandomFloats(shape.seed, 5, floats);
    const std::vector<float> v = RandomFloats(shape.seed, 6, floats);
    const Rope rope = MakeRope(TestRope(shape.pairs, shape.rotary_dims));
    ForEachIsa([&](Ops& ops) {
      TestLane lane(shape.format, 100);
      lane.Write(ops, rope, slots, slots, k, v);
      for (size_t t = 0; t < slots.size(); ++t) {
        for (int64_t x = 0; x < d; ++x) {
          const auto component = static_cast<int32_t>(x);
          const auto in_head = static_cast<size_t>(x);
          const auto head = [&](const std::vector<float>& of) { return std::span(of).subspan(t * d, d); };
          ASSERT_EQ(lane.Read(TestLane::Part::kK, slots[t], component), Rounded(shape.format.type, head(k), in_head));
          ASSERT_EQ(lane.Read(TestLane::Part::kV, slots[t], component), Rounded(shape.format.type, head(v), in_head));
        }
      }
      for (int32_t slot = 0; slot < first; ++slot) {
        ASSERT_TRUE(std::isnan(lane.Read(TestLane::Part::kK, slot, 0)));
      }
    });
  }
}

TEST(Store, KeepsTheRotatedHalfWhereTheFormatHasIt) {
  for (const RopePairs pairs : {RopePairs::kNeighbours, RopePairs::kHalves}) {
    for (const int32_t rotary : {0, 2, 20, 24}) {
      AttendShape shape = {.pairs = pairs, .rotary_dims = rotary, .slots = 20, .live = 17};
      shape.format = {.type = KvType::kF16, .rope_cache = RopeCache::kRk, .head_dim = 24, .page_tiles = 1};
      SCOPED_TRACE(shape.ToString());
      ForEachIsa([&](Ops& ops) {
        const AttendCase c(ops, shape);
        for (const int32_t slot : c.slots()) {
          const auto k = [&](int32_t x) { return c.lane().Read(TestLane::Part::kK, slot, x); };
          const auto rk = [&](int32_t x) { return c.lane().Read(TestLane::Part::kRk, slot, x); };
          for (int32_t i = 0; i < rotary / 2; ++i) {
            const int32_t first = pairs == RopePairs::kHalves ? i : 2 * i;
            const int32_t second = pairs == RopePairs::kHalves ? i + rotary / 2 : 2 * i + 1;
            ASSERT_EQ(rk(first), -k(second));
            ASSERT_EQ(rk(second), k(first));
          }
          for (int32_t x = rotary; x < 24; ++x) ASSERT_EQ(rk(x), 0);
        }
      });
    }
  }
}

TEST(Store, LeavesOtherSlotsAlone) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kFp8}) {
    AttendShape shape = {.slots = 40, .live = 9, .seed = 3};
    shape.format = {.type = type, .rope_cache = RopeCache::kFused, .head_dim = 24, .page_tiles = 2};
    shape.rotary_dims = 24;
    ForEachIsa([&](Ops& ops) {
      const AttendCase c(ops, shape);
      int32_t untouched = 0;
      for (int32_t slot = 0; slot < 40; ++slot) {
        if (c.lane().position()[static_cast<size_t>(slot)] >= 0) continue;
        ++untouched;
        for (int32_t x = 0; x < 24; ++x) {
          ASSERT_TRUE(std::isnan(c.lane().Read(TestLane::Part::kK, slot, x)));
          ASSERT_TRUE(std::isnan(c.lane().Read(TestLane::Part::kV, slot, x)));
        }
      }
      EXPECT_EQ(untouched, 31);
    });
  }
}

// Every kind of number: signed zeros, subnormals, ties, overflow, infinities and NaN.
TEST(Store, RoundsToTheNearestEvenInEveryInstructionSet) {
  std::vector<float> values;
  for (uint32_t high = 0; high < 0x10000; high += 7) {
    for (const uint32_t low :
         {0x0000U, 0x0001U, 0x0FFFU, 0x1000U, 0x1001U, 0x3000U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      values.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  values.resize(values.size() / 64 * 64);
  for (const KvType type : {KvType::kF16, KvType::kBf16}) {
    const KvFormat format = {.type = type, .head_dim = 64, .page_tiles = 8};
    const auto tokens = static_cast<int32_t>(values.size() / 64);
    std::vector<int32_t> slots(static_cast<size_t>(tokens));
    for (int32_t t = 0; t < tokens; ++t) slots[static_cast<size_t>(t)] = t;
    ForEachIsa([&](Ops& ops) {
      TestLane lane(format, tokens);
      lane.Write(ops, {}, slots, slots, values, values);
      for (size_t i = 0; i < values.size(); ++i) {
        const double expected = Rounded(type, values, i);
        const double ours = lane.Read(TestLane::Part::kV, static_cast<int32_t>(i / 64), static_cast<int32_t>(i % 64));
        ASSERT_EQ(std::isnan(ours), std::isnan(expected)) << values[i];
        if (!std::isnan(expected)) {
          ASSERT_EQ(ours, expected) << values[i];
        }
        ASSERT_EQ(std::signbit(ours), std::signbit(expected)) << values[i];
      }
    });
  }
}

// What is not finite makes the whole of its K, or V, not a number, and nothing beside it; what is too small for a scale
// rests as zeros.
TEST(Store, BytesHoldToTheirOwnSlotWhateverTheyAreMadeOf) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> rows(5 * 20, 0.5F);
  rows[1 * 20 + 3] = kInf;
  rows[2 * 20 + 19] = std::nanf("");
  for (size_t x = 0; x < 20; ++x) rows[3 * 20 + x] = 1e-40F;
  rows[4 * 20] = std::numeric_limits<float>::max();
  const std::vector<int32_t> slots = {3, 4, 5, 6, 7};
  for (const KvType type : {KvType::kInt8, KvType::kFp8}) {
    const KvFormat format = {.type = type, .head_dim = 20, .page_tiles = 1};
    ForEachIsa([&](Ops& ops) {
      TestLane lane(format, 16);
      lane.Write(ops, {}, slots, slots, rows, rows);
      for (const TestLane::Part part : {TestLane::Part::kK, TestLane::Part::kV}) {
        for (int32_t x = 0; x < 20; ++x) {
          ASSERT_EQ(lane.Read(part, 3, x), Rounded(type, std::span(rows).first(20), 0));
          ASSERT_TRUE(std::isnan(lane.Read(part, 4, x)));
          ASSERT_TRUE(std::isnan(lane.Read(part, 5, x)));
          ASSERT_EQ(lane.Read(part, 6, x), 0);
          ASSERT_TRUE(std::isfinite(lane.Read(part, 7, x)));
        }
      }
    });
  }
}

// Scorers that look at K and V get what rests.
TEST(Store, IsReadBackAsItRests) {
  HashRandom random(3);
  for (int i = 0; i < 40; ++i) {
    const AttendShape shape = RandomShape(random, 100);
    SCOPED_TRACE(shape.ToString());
    const auto d = static_cast<size_t>(shape.format.head_dim);
    ForEachIsa([&](Ops& ops) {
      const AttendCase c(ops, shape);
      std::vector<float> keys(shape.slots * d);
      std::vector<float> values(shape.slots * d);
      ops.Read(c.lane().storage(), Ops::Part::kKeys, 0, shape.slots, keys.data());
      ops.Read(c.lane().storage(), Ops::Part::kValues, 0, shape.slots, values.data());
      for (const int32_t slot : c.slots()) {
        for (size_t x = 0; x < d; ++x) {
          const auto component = static_cast<int32_t>(x);
          ASSERT_EQ(keys[slot * d + x], c.lane().Read(TestLane::Part::kK, slot, component));
          ASSERT_EQ(values[slot * d + x], c.lane().Read(TestLane::Part::kV, slot, component));
        }
      }
    });
  }
}

// A slot takes another's place with its scales.
TEST(Store, MovesWhatBelongsToASlot) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kFp8}) {
    AttendShape shape = {.slots = 40, .live = 40, .seed = 5};
    shape.format = {.type = type, .rope_cache = RopeCache::kRk, .head_dim = 24, .page_tiles = 2};
    shape.rotary_dims = 24;
    const auto ops = OpsFor("");
    AttendCase c(*ops, shape);
    const AttendCase before(*ops, shape);
    const SlotMove move = {.from = 37, .to = 2};
    ops->Move(c.lane().storage(), {&move, 1});
    for (int32_t slot = 0; slot < 40; ++slot) {
      for (const TestLane::Part part : {TestLane::Part::kK, TestLane::Part::kRk, TestLane::Part::kV}) {
        for (int32_t x = 0; x < 24; ++x) {
          ASSERT_EQ(c.lane().Read(part, slot, x), before.lane().Read(part, slot == 2 ? 37 : slot, x));
        }
      }
    }
  }
}

}  // namespace
}  // namespace ebb
