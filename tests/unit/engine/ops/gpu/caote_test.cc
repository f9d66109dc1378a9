// What a lane's output loses with each of its tokens, against the formula in float64 and against policies/caote.h, of
// every type of cache: random pages and slots, free ones whose bytes are no numbers, and weights of every kind.

#include "policies/caote.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "policies/hash_random.h"
#include "tests/support/attend_case.h"
#include "tests/support/test_lane.h"
#include "tests/support/value_memory.h"
#include "tests/unit/engine/ops/gpu/each_target.h"
#include "tests/unit/engine/ops/gpu/resting_lanes.h"

namespace ebb::gpu {
namespace {

// Weights are floats, and a center is a sum of up to 300 of them, each rounded to 6e-8: relative to the numbers that
// are summed 1e-6 root mean square, ten times that.
constexpr double kRelative = 1e-5;

enum class Weights { kRandom, kOneHoldsNearlyAll, kOneHoldsAll, kNone, kOdd, kCount };

struct CaoteCase {
  LanesShape shape = {};
  ScoreModifier modifier = ScoreModifier::kCaote;
  Weights weights = Weights::kRandom;
  float offset = 0;  // that all values have in common
};

struct WeighedLanes {
  RestingLanes values;
  std::vector<float> score;  // [lanes][capacity]
};

float ScoreOf(Weights weights, int32_t i, HashRandom& random) {
  switch (weights) {
    case Weights::kOneHoldsNearlyAll:
      return i == 0 ? 1.0F : 1e-4F * random.UniformFloat();
    case Weights::kOneHoldsAll:
      return i == 0 ? 2.0F : 0.0F;
    case Weights::kNone:
      return 0;
    case Weights::kOdd:
      if (i % 4 == 0) return std::numeric_limits<float>::quiet_NaN();
      if (i % 4 == 1) return -1;
      [[fallthrough]];
    default:
      return random.UniformFloat();
  }
}

WeighedLanes RandomWeighedLanes(const CaoteCase& c, HashRandom& random) {
  WeighedLanes l = {.values = RestingLanes(c.shape, Part::kValues, random),
                    .score = std::vector<float>(c.shape.slots(), std::numeric_limits<float>::quiet_NaN())};
  for (int32_t lane = 0; lane < c.shape.lanes; ++lane) {
    const std::vector<int32_t> order = RandomOrder(random, c.shape.capacity);
    for (int32_t i = 0; i < c.shape.live; ++i) {
      l.score[int64_t{lane} * c.shape.capacity + order[i]] = ScoreOf(c.weights, i, random);
      std::vector<float> row = RandomFloats(random.Next64(), 1, c.shape.head_dim);
      for (float& x : row) x += c.offset;
      l.values.Seat(lane, order[i], i, row);
    }
  }
  return l;
}

std::vector<float> OnTheDevice(const CaoteCase& c, const WeighedLanes& l, int32_t drop) {
  return OnEachTarget([&](const Table& table) {
    Mirror mirror(table);
    SessionView view = l.values.View(mirror);
    view.score = mirror.In(l.score);
    view.modifier = c.modifier;
    view.drop = drop;
    table.caote({.cache = l.values.Cache(view, 1, mirror)}, mirror.stream());
    std::vector<float> keep(l.score.size());
    mirror.Out(view.keep, keep);
    return keep;
  });
}

struct Cost {
  double cost = 0;
  double scale = 0;  // what an error is to be compared with
};

std::vector<Cost> InFloat64(const CaoteCase& c, const WeighedLanes& l, int32_t lane) {
  const int64_t first = int64_t{lane} * c.shape.capacity;
  std::vector<double> weight(c.shape.capacity, 0);
  double total = 0;
  for (int32_t slot = 0; slot < c.shape.capacity; ++slot) {
    if (l.values.token[first + slot] >= 0 && l.score[first + slot] > 0) weight[slot] = l.score[first + slot];
    total += weight[slot];
  }
  if (total == 0) {
    for (int32_t slot = 0; slot < c.shape.capacity; ++slot) weight[slot] = l.values.token[first + slot] >= 0 ? 1 : 0;
    total = c.shape.live;
  }
  std::vector<double> center(c.shape.head_dim, 0);
  double size = 0;
  for (int32_t slot = 0; slot < c.shape.capacity; ++slot) {
    const double share = c.modifier == ScoreModifier::kCaote ? weight[slot] / total
                         : l.values.token[first + slot] >= 0 ? 1.0 / c.shape.live
                                                             : 0;
    for (int32_t i = 0; i < c.shape.head_dim; ++i) {
      const double v = l.values.rows[(first + slot) * c.shape.head_dim + i];
      center[i] += share * v;
      size = std::max(size, std::abs(v - c.offset));
    }
  }
  std::vector<Cost> costs(c.shape.capacity);
  for (int32_t slot = 0; slot < c.shape.capacity; ++slot) {
    if (weight[slot] == 0) continue;
    double squares = 0;
    for (int32_t i = 0; i < c.shape.head_dim; ++i) {
      const double difference = center[i] - l.values.rows[(first + slot) * c.shape.head_dim + i];
      squares += difference * difference;
    }
    double rest = 0;  // total - weight, without losing what it holds
    for (int32_t other = 0; other < c.shape.capacity; ++other) rest += other == slot ? 0 : weight[other];
    const double odds = rest > 0 ? weight[slot] / rest : INFINITY;
    // A value and the center are floats: how near they lie to the numbers is relative to the numbers.
    costs[slot] = {rest > 0 ? odds * std::sqrt(squares) : INFINITY,
                   odds * std::sqrt(c.shape.head_dim) * (size + std::abs(c.offset) / 100)};
  }
  return costs;
}

TEST(GpuCaote, EqualsFloat64AndTheHost) {
  constexpr int32_t kDims[] = {16, 32, 48, 80, 128, 256};
  HashRandom random(31);
  for (int i = 0; i < Cases(40); ++i) {
    CaoteCase c = {.shape = {.type = kCacheTypes[i % std::size(kCacheTypes)],
                             .head_dim = kDims[random.Uniform(0, 5)],
                             .lanes = random.Uniform(1, 2),
                             .capacity = random.Uniform(2, i % 3 == 0 ? 8 : 300)}};
    const LanesShape& shape = c.shape;
    c.shape.live = random.Uniform(2, shape.capacity);
    c.modifier = random.Uniform(0, 1) == 0 ? ScoreModifier::kCaote : ScoreModifier::kFastCaote;
    c.weights = static_cast<Weights>(i % static_cast<int>(Weights::kCount));
    c.offset = i % 7 == 0 ? 4 : 0;
    SCOPED_TRACE("case " + std::to_string(i) + ", type " + std::to_string(i % 4) + ", d " +
                 std::to_string(shape.head_dim) + ", " + std::to_string(shape.live) + " of " +
                 std::to_string(shape.capacity));
    const WeighedLanes l = RandomWeighedLanes(c, random);
    const std::vector<float> keep = OnTheDevice(c, l, 1);
    for (int32_t lane = 0; lane < shape.lanes; ++lane) {
      const int64_t first = int64_t{lane} * shape.capacity;
      const auto slots = static_cast<size_t>(shape.capacity);
      const std::vector<Cost> costs = InFloat64(c, l, lane);
      const ValueMemory memory(shape.head_dim, {l.values.rows.begin() + first * shape.head_dim,
                                                l.values.rows.begin() + (first + shape.capacity) * shape.head_dim});
      std::vector<float> host(l.score.begin() + first, l.score.begin() + first + shape.capacity);
      CaoteScratch scratch;
      Caote({.token = std::span(l.values.token).subspan(first, slots), .live = shape.live, .memory = &memory},
            c.modifier == ScoreModifier::kCaote ? CaoteForm::kExact : CaoteForm::kFast, scratch, host);
      for (int32_t slot = 0; slot < shape.capacity; ++slot) {
        const float is = keep[first + slot];
        if (std::isinf(costs[slot].cost)) {
          ASSERT_EQ(is, INFINITY);
          ASSERT_EQ(host[slot], INFINITY);
          continue;
        }
        ASSERT_NEAR(is, costs[slot].cost, kRelative * costs[slot].scale) << "slot " << slot;
        ASSERT_NEAR(is, host[slot], kRelative * costs[slot].scale) << "slot " << slot;
      }
    }
  }
}

TEST(GpuCaote, NothingIsReadWhereThereIsNoChoice) {
  HashRandom random(32);
  const CaoteCase c = {};
  const std::vector<float> untouched(c.shape.slots(), -7);
  EXPECT_EQ(OnTheDevice(c, RandomWeighedLanes(c, random), 0), untouched);
  EXPECT_EQ(OnTheDevice(c, RandomWeighedLanes(c, random), c.shape.live), untouched);
}

}  // namespace
}  // namespace ebb::gpu
