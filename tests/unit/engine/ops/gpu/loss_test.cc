// What leaves a lane with those who are evicted, against float64 and against policies/caote.h, of every type of cache:
// random pages and slots, free ones whose bytes are no numbers, any number of query heads, both kinds of pairs.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "policies/caote.h"
#include "policies/hash_random.h"
#include "policies/select.h"
#include "tests/support/attend_case.h"
#include "tests/support/attention_reference.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_lane.h"
#include "tests/support/value_memory.h"
#include "tests/unit/engine/ops/gpu/each_target.h"
#include "tests/unit/engine/ops/gpu/resting_lanes.h"

namespace ebb::gpu {
namespace {

// Attention and output are sums of up to 300 floats, and an error is a difference of two outputs: as caote_test.cc's,
// relative to the values, whose components are below 1.
constexpr double kLossTolerance = 1e-5;

struct LossCase {
  LanesShape shape = {};
  RopePairs pairs = RopePairs::kHalves;
  int32_t rotary_dims = 16;
  int32_t group = 1;
  int32_t drop = 1;
  bool compacted = false;
  float sharpness = 1;  // of queries
  int32_t window = 0;   // positions that the newest token sees; 0: all
  float cap = 0;        // of logits; 0: none
  bool alibi = false;   // slopes 1/2, 1/4, ... for the heads of the group
};

struct MeasuredLanes {
  RestingLanes keys;
  std::vector<float> values = {};      // [lanes][capacity][d], as they rest
  std::vector<int32_t> position = {};  // [lanes][capacity]
  std::vector<int32_t> newest = {};    // [lanes] slots
  std::vector<float> score = {};       // [lanes][capacity]
  std::vector<float> queries = {};     // [lanes][G][d]
};

MeasuredLanes RandomMeasuredLanes(const LossCase& c, HashRandom& random) {
  const LanesShape& s = c.shape;
  MeasuredLanes l = {.keys = RestingLanes(s, Part::kKeys, random)};
  l.values.assign(s.slots() * s.head_dim, 0);
  l.position.assign(s.slots(), -1);
  l.score.assign(s.slots(), NAN);
  l.queries = RandomFloats(random.Next64(), 3, int64_t{s.lanes} * c.group * s.head_dim, c.sharpness);
  for (int32_t lane = 0; lane < s.lanes; ++lane) {
    const std::vector<int32_t> order = RandomOrder(random, s.capacity);
    for (int32_t i = 0; i < s.live; ++i) {
      const int32_t slot = order[i];
      const int64_t at = int64_t{lane} * s.capacity + slot;
      l.keys.Seat(lane, slot, 2 * i, RandomFloats(random.Next64(), 1, s.head_dim));
      const std::vector<float> value = RandomFloats(random.Next64(), 2, s.head_dim);
      const int32_t page = l.keys.page[lane * s.pages_per_lane() + slot / kPageSlots];
      WriteRow(s.type, value, slot, Part::kValues, &l.keys.arena[page * PageBytes(s.type, s.head_dim)]);
      std::ranges::copy(Rest(s.type, value).numbers, l.values.begin() + at * s.head_dim);
      l.position[at] = c.compacted ? i : 2 * i;
      l.score[at] = random.UniformFloat();
    }
    l.newest.push_back(order[s.live - 1]);
  }
  return l;
}

// `rope.slopes` [G] or empty.
std::vector<double> MeasuredOnTheDevice(const LossCase& c, const MeasuredLanes& l, const Rope& rope) {
  return OnEachTarget([&](const Table& table) {
    Mirror mirror(table);
    SessionView view = l.keys.View(mirror);
    view.position = mirror.In(l.position);
    view.score = mirror.In(l.score);
    view.keep = nullptr;
    view.placed = mirror.In(l.newest);
    view.block_max = 1;
    view.scratch = mirror.In(std::vector<int32_t>(l.position.size(), 12345));
    view.queries = mirror.In(l.queries);
    view.loss = mirror.In(std::vector<LaneLoss>(c.shape.lanes));
    view.rule = ScoreRule::kSum;
    view.drop = c.drop;
    table.loss({.cache = l.keys.Cache(view, 1, mirror),
                .group = c.group,
                .rope = {.turns = mirror.In(rope.turns),
                         .rotary_dims = c.rotary_dims,
                         .halves = c.pairs == RopePairs::kHalves ? 1 : 0},
                .scale = 1.0F / std::sqrt(static_cast<float>(c.shape.head_dim)),
                .cap = c.cap,
                .slopes = rope.slopes.empty() ? nullptr : mirror.In(rope.slopes),
                .window = c.window > 0 ? c.window : INT32_MAX},
               mirror.stream());
    std::vector<LaneLoss> loss(c.shape.lanes);
    mirror.Out(view.loss, loss);
    std::vector<double> numbers;
    for (const LaneLoss& lane : loss) numbers.insert(numbers.end(), {lane.mass, lane.error, lane.output});
    return numbers;
  });
}

// Of one lane, the attention of its newest token, mean over the query heads. [capacity]
std::vector<double> Attention(const LossCase& c, const MeasuredLanes& l, const ReferenceRope& rope, int32_t lane) {
  const LanesShape& s = c.shape;
  const int64_t first = int64_t{lane} * s.capacity;
  const auto rows = [&](const std::vector<float>& of) {
    return std::vector<double>(of.begin() + first * s.head_dim, of.begin() + (first + s.capacity) * s.head_dim);
  };
  const ReferenceLane reference = {.head_dim = s.head_dim,
                                   .position = {l.position.begin() + first, l.position.begin() + first + s.capacity},
                                   .k = rows(l.keys.rows),
                                   .v = rows(l.values)};
  const int64_t queries = int64_t{c.group} * s.head_dim;
  const std::vector<double> q(l.queries.begin() + lane * queries, l.queries.begin() + (lane + 1) * queries);
  const std::vector<int32_t> at = {l.position[first + l.newest[lane]]};
  return SumReference(AttendReference(rope, reference, q, at, c.group), c.group, s.capacity, 0, 1);
}

EvictionLoss LossInFloat64(const LossCase& c, const MeasuredLanes& l, int32_t lane, const std::vector<double>& a,
                           const std::vector<int32_t>& victims) {
  const int32_t d = c.shape.head_dim;
  std::vector<double> output(d, 0), left(d, 0);
  double mass = 0;
  for (int32_t slot = 0; slot < c.shape.capacity; ++slot) {
    const bool leaves = std::ranges::find(victims, slot) != victims.end();
    mass += leaves ? a[slot] : 0;
    for (int32_t i = 0; i < d; ++i) {
      const double v = a[slot] * l.values[(int64_t{lane} * c.shape.capacity + slot) * d + i];
      output[i] += v;
      left[i] += leaves ? v : 0;
    }
  }
  double moved = 0;
  double squares = 0;
  for (int32_t i = 0; i < d; ++i) {
    const double after = (output[i] - left[i]) / (1 - mass);
    moved += (output[i] - after) * (output[i] - after);
    squares += output[i] * output[i];
  }
  return {.mass = mass, .error = std::sqrt(moved), .output = std::sqrt(squares)};
}

TEST(GpuLoss, EqualsFloat64AndTheHost) {
  constexpr int32_t kDims[] = {16, 32, 48, 80, 128, 256};
  HashRandom random(81);
  for (int i = 0; i < Cases(32); ++i) {
    LossCase c = {.shape = {.type = kCacheTypes[i % std::size(kCacheTypes)],
                            .head_dim = kDims[random.Uniform(0, 5)],
                            .lanes = random.Uniform(1, 2),
                            .capacity = random.Uniform(3, i % 3 == 0 ? 8 : 300)}};
    const LanesShape& s = c.shape;
    c.shape.live = random.Uniform(3, s.capacity);
    c.pairs = i % 2 == 0 ? RopePairs::kHalves : RopePairs::kNeighbours;
    c.rotary_dims = random.Uniform(0, 1) == 0 ? s.head_dim : 16;
    c.group = random.Uniform(1, kGroupMax);
    c.drop = random.Uniform(0, 1) == 0 ? 1 : random.Uniform(1, s.live - 1);
    c.compacted = random.Uniform(0, 1) == 0;
    c.sharpness = i % 5 == 0 ? 30 : 1;
    if (i % 3 == 0) c.cap = 2;
    c.alibi = i % 4 == 0;
    if (c.drop == 1) c.window = random.Uniform(3, 2 * s.live);  // somebody who is seen stays
    SCOPED_TRACE("case " + std::to_string(i) + ", d " + std::to_string(s.head_dim) + ", group " +
                 std::to_string(c.group) + ", " + std::to_string(c.drop) + " of " + std::to_string(s.live) + " in " +
                 std::to_string(s.capacity));
    const MeasuredLanes l = RandomMeasuredLanes(c, random);
    ReferenceRope rope = TestRope(c.pairs, c.rotary_dims);
    rope.window = c.window;
    rope.cap = c.cap;
    for (int32_t g = 0; c.alibi && g < c.group; ++g) rope.slopes.push_back(std::ldexp(1.0, -1 - g));
    const std::vector<double> loss = MeasuredOnTheDevice(c, l, MakeRope(rope));
    const auto slots = static_cast<size_t>(s.capacity);
    for (int32_t lane = 0; lane < s.lanes; ++lane) {
      const size_t first = lane * slots;
      const std::span token(l.keys.token.data() + first, slots);
      SelectScratch scratch;
      std::vector<int32_t> victims;
      ASSERT_THAT(SelectVictims({.token = token, .live = s.live}, std::span(l.score).subspan(first, slots), c.drop,
                                scratch, victims),
                  IsOk());
      const std::vector<double> a = Attention(c, l, rope, lane);
      const EvictionLoss exact = LossInFloat64(c, l, lane, a, victims);
      const ValueMemory memory(
          s.head_dim, {l.values.begin() + first * s.head_dim, l.values.begin() + (first + slots) * s.head_dim});
      CaoteScratch caote;
      const EvictionLoss host = MeasureEviction({.token = token, .live = s.live, .memory = &memory},
                                                std::vector<float>(a.begin(), a.end()), victims, caote);
      // Where nearly all leaves, what stays is known as well as its share is.
      const double error_tolerance = kLossTolerance * std::sqrt(s.head_dim) * (1 + 1 / (1 - exact.mass));
      for (const EvictionLoss& expected : {exact, host}) {
        ASSERT_NEAR(loss[3 * lane], expected.mass, kLossTolerance);
        ASSERT_NEAR(loss[3 * lane + 1], expected.error, error_tolerance);
        ASSERT_NEAR(loss[3 * lane + 2], expected.output, kLossTolerance * std::sqrt(s.head_dim));
      }
    }
  }
}

TEST(GpuLoss, OfAllWhoAreThereNothingIsLeftToCompareWith) {
  HashRandom random(82);
  LossCase c = {.shape = {.head_dim = 16, .lanes = 1, .capacity = 5, .live = 4}, .drop = 4};
  const std::vector<double> loss =
      MeasuredOnTheDevice(c, RandomMeasuredLanes(c, random), MakeRope(TestRope(c.pairs, 16)));
  EXPECT_NEAR(loss[0], 1, kLossTolerance);
  EXPECT_EQ(loss[1], 0);
}

TEST(GpuLoss, NothingIsWrittenWhereNobodyLeaves) {
  HashRandom random(83);
  LossCase c = {.shape = {.head_dim = 16, .lanes = 1, .capacity = 5, .live = 4}, .drop = 0};
  const std::vector<double> loss =
      MeasuredOnTheDevice(c, RandomMeasuredLanes(c, random), MakeRope(TestRope(c.pairs, 16)));
  EXPECT_EQ(loss, std::vector<double>(3, 0));
}

}  // namespace
}  // namespace ebb::gpu
