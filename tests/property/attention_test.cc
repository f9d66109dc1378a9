// Laws of the attention op (EQUIP, lemmas 1-3): what may change where tokens lie, how a prompt is cut and how keys are
// cached without changing the result, and how far.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "engine/ops/cpu/ops_cpu.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/attend_case.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

std::unique_ptr<Ops> MakeOps(int32_t threads = 1) {
  auto ops = MakeCpuOps({.threads = threads});
  EXPECT_THAT(ops, IsOk());
  return *std::move(ops);
}

float LargestMagnitude(const std::vector<float>& values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

void ExpectNear(const std::vector<float>& a, const std::vector<float>& b, float tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << "at " << i;
}

std::vector<float> Attend(Ops& ops, const AttendCase& c, const TestLane& lane) {
  std::vector<float> out(c.q().size());
  const AttendTask task = {.lane = lane.storage(),
                           .q = c.q().data(),
                           .out = out.data(),
                           .stride = int64_t{c.shape().group} * c.shape().format.head_dim,
                           .tokens = c.shape().tokens,
                           .q_position = c.q_position()};
  ops.Attend(c.rope(), c.shape().group, {&task, 1});
  return out;
}

// The tokens of `c` at other slots of a lane of its own.
TestLane Moved(Ops& ops, const AttendCase& c, const std::vector<int32_t>& slots, int32_t lane_slots) {
  TestLane lane(c.shape().format, lane_slots);
  lane.Write(ops, c.rope(), slots, c.positions(), c.k(), c.v());
  return lane;
}

// EQUIP-1: sums run in slot order, so a permutation changes rounding and nothing else. Rounding it does change: EQUIP
// states deviations below 1e-9, which F32 sums cannot keep. EQUIP-5: nor where nothing is rotated; biases the engine
// has none.
TEST(AttentionLaws, OutputUnchangedUnderPermutationOfSlots) {
  const auto ops = MakeOps();
  HashRandom random(1);
  float furthest = 0;
  for (int i = 0; i < 200; ++i) {
    AttendShape shape = RandomShape(random, 600);
    shape.format.type = KvType::kF32;
    if (i % 10 == 0) shape.rotary_dims = 0;
    SCOPED_TRACE(shape.ToString());
    const AttendCase c(*ops, shape);
    std::vector<int32_t> slots = RandomOrder(random, shape.slots);
    slots.resize(static_cast<size_t>(shape.live));
    const TestLane moved = Moved(*ops, c, slots, shape.slots);
    const std::vector<float> out = Attend(*ops, c, moved);
    const std::vector<float> expected = c.Run(*ops).out;
    ExpectNear(out, expected, 1e-6F * LargestMagnitude(c.v()));
    for (size_t j = 0; j < out.size(); ++j) furthest = std::max(furthest, std::abs(out[j] - expected[j]));
  }
  EXPECT_GT(furthest, 1e-9F);
  std::printf("the furthest of all outputs: %.1e\n", furthest);
}

// A lane whose slots were freed and written again, against the same tokens written once, in order, without holes.
TEST(AttentionLaws, InPlaceEqualsFreshlyCompactedCache) {
  const auto ops = MakeOps();
  HashRandom random(2);
  for (int i = 0; i < 100; ++i) {
    AttendShape shape = RandomShape(random, 300);
    shape.format.type = KvType::kF32;
    SCOPED_TRACE(shape.ToString());
    const AttendCase c(*ops, shape);

    // Tokens that were there before and were evicted leave their bytes in every slot.
    TestLane in_place(shape.format, shape.slots);
    std::vector<int32_t> all(static_cast<size_t>(shape.slots));
    std::iota(all.begin(), all.end(), 0);
    const int64_t floats = int64_t{shape.slots} * shape.format.head_dim;
    in_place.Write(*ops, c.rope(), all, all, RandomFloats(shape.seed, 8, floats, 100),
                   RandomFloats(shape.seed, 9, floats, 100));
    std::ranges::fill(in_place.position(), -1);
    in_place.Write(*ops, c.rope(), c.slots(), c.positions(), c.k(), c.v());

    std::vector<int32_t> in_order(static_cast<size_t>(shape.live));
    std::iota(in_order.begin(), in_order.end(), 0);
    const TestLane compacted = Moved(*ops, c, in_order, shape.live);
    ExpectNear(Attend(*ops, c, in_place), Attend(*ops, c, compacted), 1e-6F * LargestMagnitude(c.v()));
  }
}

// EQUIP-4: how many tiles lie side by side in a page changes no bit, down to pages of one tile.
TEST(AttentionLaws, PagedEqualsContiguous) {
  const auto ops = MakeOps();
  HashRandom random(4);
  for (int i = 0; i < 100; ++i) {
    AttendShape shape = RandomShape(random, 600);
    SCOPED_TRACE(shape.ToString());
    shape.format.page_tiles = (shape.slots + kTileSlots - 1) / kTileSlots;
    const AttendCase contiguous(*ops, shape);
    const std::vector<float> expected = contiguous.Run(*ops).out;
    for (const int32_t page_tiles : {1, 2, 7}) {
      shape.format.page_tiles = page_tiles;
      EXPECT_EQ(AttendCase(*ops, shape).Run(*ops).out, expected) << page_tiles << " tiles a page";
    }
  }
}

// EQUIP-2: the literal rotate-half cache is another way to get the same numbers.
TEST(AttentionLaws, RkEqualsFused) {
  const auto ops = MakeOps();
  HashRandom random(3);
  for (int i = 0; i < 200; ++i) {
    AttendShape shape = RandomShape(random, 300);
    SCOPED_TRACE(shape.ToString());
    shape.format.rope_cache = RopeCache::kFused;
    const AttendCase fused(*ops, shape);
    shape.format.rope_cache = RopeCache::kRk;
    const AttendCase rk(*ops, shape);
    ExpectNear(rk.Run(*ops).out, fused.Run(*ops).out, 1e-6F);
  }
}

// Slots that may not be seen hold NaN in AttendCase; here they hold other bytes, and no bit of any result moves. A slot
// is unseen because it is free or because it lies in the future of a row, and a step's first rows see less than its
// last.
TEST(AttentionLaws, DeadSlotsContributeNothing) {
  const auto ops = MakeOps();
  HashRandom random(4);
  for (int i = 0; i < 150; ++i) {
    AttendShape shape = RandomShape(random, 300);
    SCOPED_TRACE(shape.ToString());
    const AttendCase c(*ops, shape);
    const AttendResult with_nan = c.Run(*ops, shape.tokens);
    for (const float value : with_nan.out) ASSERT_TRUE(std::isfinite(value));

    AttendCase zeros(*ops, shape);
    std::vector<int32_t> dead;
    for (int32_t s = 0; s < shape.slots; ++s) {
      if (c.lane().position()[static_cast<size_t>(s)] < 0) dead.push_back(s);
    }
    const std::vector<float> nothing(dead.size() * static_cast<size_t>(shape.format.head_dim));
    zeros.lane().Write(*ops, c.rope(), dead, std::vector<int32_t>(dead.size(), -1), nothing, nothing);
    const AttendResult with_zeros = zeros.Run(*ops, shape.tokens);
    EXPECT_EQ(with_nan.out, with_zeros.out);
    EXPECT_EQ(with_nan.column_sums, with_zeros.column_sums);
    EXPECT_EQ(with_nan.last_row, with_zeros.last_row);
    EXPECT_EQ(with_nan.window, with_zeros.window);
    for (const int32_t s : dead) {
      EXPECT_EQ(with_nan.column_sums[static_cast<size_t>(s)], 0);
      EXPECT_EQ(with_nan.last_row[static_cast<size_t>(s)], 0);
    }
  }
}

// The last token of the step is made of NaN: the rows before it, which may not see it, keep their bits.
TEST(AttentionLaws, TheFutureContributesNothing) {
  const auto ops = MakeOps();
  HashRandom random(5);
  for (int i = 0; i < 100; ++i) {
    AttendShape shape = RandomShape(random, 300);
    shape.tokens = std::min(shape.live, random.Uniform(2, 12));
    if (shape.tokens < 2) continue;
    SCOPED_TRACE(shape.ToString());
    AttendCase c(*ops, shape);
    std::vector<float> before = c.Run(*ops).out;
    const std::vector<float> nan(static_cast<size_t>(shape.format.head_dim), std::nanf(""));
    c.lane().Write(*ops, c.rope(), {&c.slots().back(), 1}, {&c.positions().back(), 1}, nan, nan);
    std::vector<float> after = c.Run(*ops).out;
    const int64_t row = int64_t{shape.group} * shape.format.head_dim;
    before.resize(static_cast<size_t>((shape.tokens - 1) * row));
    after.resize(before.size());
    EXPECT_EQ(before, after);
  }
}

// However a step's tokens are cut into smaller steps, every row keeps its bits: slots are taken in fixed blocks, and
// what a row may not see is left out rather than added as zero. Holds on any number of threads.
TEST(AttentionLaws, RowBitsDoNotDependOnBlockSize) {
  const auto ops = MakeOps();
  const auto threaded = MakeOps(2);
  HashRandom random(6);
  for (int i = 0; i < 60; ++i) {
    AttendShape shape = RandomShape(random, 400);
    shape.tokens = random.Uniform(1, shape.live);
    SCOPED_TRACE(shape.ToString());
    AttendCase c(*ops, shape);
    const std::vector<float> whole = c.Run(*ops).out;
    EXPECT_EQ(c.Run(*threaded).out, whole);

    const std::vector<int32_t> positions = c.lane().position();
    const int64_t row = int64_t{shape.group} * shape.format.head_dim;
    const int32_t block = random.Uniform(1, shape.tokens);
    SCOPED_TRACE(block);
    std::vector<float> cut(whole.size());
    for (int32_t first = 0; first < shape.tokens; first += block) {
      const int32_t tokens = std::min(block, shape.tokens - first);
      // As in a prompt: tokens of later blocks are not in the lane yet.
      const int32_t newest = c.q_position()[first + tokens - 1];
      for (size_t s = 0; s < positions.size(); ++s) {
        c.lane().position()[s] = positions[s] <= newest ? positions[s] : -1;
      }
      const AttendTask task = {.lane = c.lane().storage(),
                               .q = c.q().data() + first * row,
                               .out = cut.data() + first * row,
                               .stride = row,
                               .tokens = tokens,
                               .q_position = c.q_position() + first};
      ops->Attend(c.rope(), shape.group, {&task, 1});
    }
    EXPECT_EQ(cut, whole);
  }
}

// P of a row sums to 1, column sums to the number of queries.
TEST(AttentionLaws, ColumnSumsSumToQueries) {
  const auto ops = MakeOps(2);
  HashRandom random(7);
  for (int i = 0; i < 100; ++i) {
    const AttendShape shape = RandomShape(random, 1500);
    SCOPED_TRACE(shape.ToString());
    const AttendCase c(*ops, shape);
    const AttendResult seen = c.Run(*ops, shape.tokens);
    const auto sum = [](const std::vector<float>& values) {
      return std::accumulate(values.begin(), values.end(), 0.0);
    };
    EXPECT_NEAR(sum(seen.column_sums), shape.tokens, 1e-5 * shape.tokens);
    EXPECT_NEAR(sum(seen.last_row), 1, 1e-5);
    EXPECT_NEAR(sum(seen.window), shape.tokens, 1e-5 * shape.tokens);
    for (const float value : seen.column_sums) EXPECT_GE(value, 0);
  }
}

}  // namespace
}  // namespace ebb
