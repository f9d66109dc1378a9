// Laws of the attention op (EQUIP, lemmas 1-3): what may change where tokens lie, how a prompt is cut and how keys are
// cached without changing the result, and how far.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/attend_case.h"
#include "tests/support/test_ops.h"

namespace ebb {
namespace {

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
  const auto ops = MakeTestOps();
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
  const auto ops = MakeTestOps();
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
  const auto ops = MakeTestOps();
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

// K and V as bytes, against the same in F32. A component errs by at most `step` of the largest of its head, a rotated
// key by sqrt(d) times that, so a logit by e = |q| kmax step (1 / sqrt(d) is in it), and softmax by a factor of exp(2
// e); the output by (exp(2 e) - 1) vmax, and by vmax step for V's own rounding. A thousandth more for the rounding of
// floats, and for what of E4M3 is too small to be normal. The mean error is far smaller, since roundings cancel.
void ExpectBytesDeviateByNoMore(KvType type, double step, double mean_min, double mean_max) {
  const auto ops = MakeTestOps();
  HashRandom random(7);
  double squares = 0;
  double reference_squares = 0;
  double furthest = 0;
  for (int i = 0; i < 200; ++i) {
    AttendShape shape = RandomShape(random, 600);
    if (shape.cap == 0 && i % 2 == 0) shape.tokens = 1;
    SCOPED_TRACE(shape.ToString());
    shape.format.type = KvType::kF32;
    const AttendCase exact(*ops, shape);
    shape.format.type = type;
    const AttendCase bytes(*ops, shape);
    const std::vector<float> expected = exact.Run(*ops).out;
    const std::vector<float> ours = bytes.Run(*ops).out;
    const double vmax = LargestMagnitude(exact.v());
    const double kmax = LargestMagnitude(exact.k());
    const size_t d = shape.format.head_dim;
    for (size_t row = 0; row < expected.size(); row += d) {
      double q = 0;
      for (size_t x = 0; x < d; ++x) q += double{exact.q()[row + x]} * exact.q()[row + x];
      const double e = std::sqrt(q) * kmax * step;
      const double bound = 1.001 * vmax * (std::exp(2 * e) - 1 + step);
      for (size_t x = 0; x < d; ++x) {
        const double error = std::abs(double{ours[row + x]} - expected[row + x]);
        ASSERT_LE(error, bound);
        furthest = std::max(furthest, error / bound);
        squares += error * error;
        reference_squares += double{expected[row + x]} * expected[row + x];
      }
    }
  }
  const double mean = std::sqrt(squares / reference_squares);
  std::printf("bytes for K and V: outputs off by %.4f of their root mean square, at furthest %.2f of the bound\n", mean,
              furthest);
  EXPECT_LT(mean, mean_max);
  EXPECT_GT(mean, mean_min) << "were they bytes?";
}

TEST(AttentionLaws, BytesDeviateByNoMoreThanTheirRounding) {
  ExpectBytesDeviateByNoMore(KvType::kInt8, 1.0 / 254, 1e-4, 0.02);
}
TEST(AttentionLaws, Fp8DeviatesByNoMoreThanItsRounding) {
  ExpectBytesDeviateByNoMore(KvType::kFp8, 1.0 / 16, 1e-3, 0.1);
}

// EQUIP-2: the literal rotate-half cache is another way to get the same numbers.
TEST(AttentionLaws, RkEqualsFused) {
  const auto ops = MakeTestOps();
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
  const auto ops = MakeTestOps();
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
  const auto ops = MakeTestOps();
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
  const auto ops = MakeTestOps();
  const auto threaded = MakeTestOps({.threads = 2});
  HashRandom random(6);
  for (int i = 0; i < 60; ++i) {
    const bool several_parts = i % 6 == 0;
    AttendShape shape = RandomShape(random, several_parts ? 3000 : 400);
    shape.tokens = random.Uniform(1, several_parts ? std::min(shape.live, 40) : shape.live);
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

// Long lanes are shared by threads where there are few, and are not where there are many: no bit of what they yield,
// nor of what is observed, tells. Some lanes share their positions, and take turns.
TEST(AttentionLaws, NoBitTellsWhoSharedALane) {
  HashRandom random(8);
  for (int i = 0; i < 24; ++i) {
    AttendShape shape = RandomShape(random, 600);
    shape.slots = random.Uniform(2048, 5000);
    shape.live = shape.slots - random.Uniform(0, 900);
    shape.format.head_dim = random.Uniform(0, 1) == 0 ? 16 : 24;
    shape.rotary_dims = 16;
    shape.window = i % 3 == 0 ? random.Uniform(1, 3000) : 0;
    shape.tokens = random.Uniform(1, 3);
    SCOPED_TRACE(shape.ToString());
    const auto one = MakeTestOps();
    const AttendCase c(*one, shape);
    const AttendCase other(*one, [&] {
      AttendShape shorter = shape;
      shorter.slots = 1500;
      shorter.live = 1400;
      return shorter;
    }());
    const auto slots = static_cast<size_t>(shape.slots);
    // `count` tasks, all alike but for one shorter lane in the midst; whether their results are equal.
    const auto run = [&](int32_t threads, size_t count, size_t at) {
      const auto ops = MakeTestOps({.threads = threads});
      std::vector<AttendResult> results(count);
      std::vector<AttendTask> tasks;
      for (size_t t = 0; t < count; ++t) {
        const bool is_other = t == 1;
        const AttendCase& of = is_other ? other : c;
        AttendResult& result = results[t];
        result.out.resize(of.q().size());
        result.column_sums.assign(slots, -1);
        result.last_row.assign(slots, -1);
        result.window.assign(slots, -1);
        const bool observed = i % 2 == 0;
        tasks.push_back({.lane = of.lane().storage(),
                         .q = of.q().data(),
                         .out = result.out.data(),
                         .stride = int64_t{shape.group} * shape.format.head_dim,
                         .tokens = shape.tokens,
                         .q_position = of.q_position(),
                         .column_sums = observed ? result.column_sums.data() : nullptr,
                         .last_row = observed ? result.last_row.data() : nullptr,
                         .window = observed ? result.window.data() : nullptr,
                         .window_rows = 1});
      }
      std::vector<std::atomic<int>> done(count);
      ops->Attend(c.rope(), shape.group, tasks, [&](size_t task, int32_t /*thread*/) { ++done[task]; });
      for (const auto& times : done) EXPECT_EQ(times, 1);
      return std::move(results[at]);
    };
    const AttendResult whole = run(1, 8, 7);  // as many as a thread needs: nothing is cut
    const auto expect_equal = [&](const AttendResult& result) {
      EXPECT_EQ(result.out, whole.out);
      EXPECT_EQ(result.column_sums, whole.column_sums);
      EXPECT_EQ(result.last_row, whole.last_row);
      EXPECT_EQ(result.window, whole.window);
    };
    for (const int32_t threads : {1, 2, 3, 8}) {
      SCOPED_TRACE(threads);
      expect_equal(run(threads, 1, 0));
      expect_equal(run(threads, 5, 4));
      expect_equal(run(threads, 8 * static_cast<size_t>(threads), 2));
    }
  }
}

// P of a row sums to 1, column sums to the number of queries.
TEST(AttentionLaws, ColumnSumsSumToQueries) {
  const auto ops = MakeTestOps({.threads = 2});
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
