// Laws of LagKV, and its plain form in float64.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "policies/lagkv.h"
#include "tests/property/given_lane.h"

namespace ebb {
namespace {

using testing::ElementsAreArray;

constexpr int32_t kSinks = 3;

GivenTokens RandomTokens(HashRandom& random, int32_t tokens, int32_t d) {
  GivenTokens given = {.head_dim = d};
  given.keys = UniformFloats(random, int64_t{tokens} * d);
  given.values = UniformFloats(random, int64_t{tokens} * d);
  return given;
}

struct LagRotation {
  bool halves = false;
  std::vector<double> frequencies = {};
};

GivenLane LagLane(const LagkvOptions& options, const GivenTokens& given, int32_t slots, const LagRotation& rotation,
                  uint64_t scatter = 0) {
  GivenLane lane(MakeLagkv(options), given, slots, scatter);
  lane.sinks = kSinks;
  lane.memory.halves = rotation.halves;
  lane.memory.frequencies = rotation.frequencies;
  return lane;
}

// [tokens, d] as float64, rotated for the tokens' indices.
std::vector<double> Rotated(const std::vector<float>& rows, size_t d, const LagRotation& rotation) {
  std::vector<double> out(rows.begin(), rows.end());
  const size_t pairs = rotation.frequencies.size();
  for (size_t token = 0; token < rows.size() / d; ++token) {
    for (size_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(token) * rotation.frequencies[i];
      const size_t x = token * d + (rotation.halves ? i : 2 * i);
      const size_t y = token * d + (rotation.halves ? i + pairs : 2 * i + 1);
      const double a = out[x];
      const double b = out[y];
      out[x] = a * std::cos(angle) - b * std::sin(angle);
      out[y] = a * std::sin(angle) + b * std::cos(angle);
    }
  }
  return out;
}

// The score by keys or values of partition p's tokens, as the paper writes it.
std::vector<double> OracleScores(const std::vector<double>& rows, size_t d, int32_t lag, int32_t p) {
  const auto begin = static_cast<size_t>(kSinks + int64_t{p} * lag);
  std::vector<double> scores(static_cast<size_t>(lag));
  double sum = 0;
  for (size_t j = 0; j < scores.size(); ++j) {
    std::vector<double> z(d);
    double mean = 0;
    for (size_t c = 0; c < d; ++c) {
      double lo = HUGE_VAL;
      double hi = -HUGE_VAL;
      for (size_t r = begin + scores.size(); r < begin + 2 * scores.size(); ++r) {
        lo = std::min(lo, rows[r * d + c]);
        hi = std::max(hi, rows[r * d + c]);
      }
      z[c] = (rows[(begin + j) * d + c] - lo) / (hi - lo);
      mean += z[c] / static_cast<double>(d);
    }
    double square = 0;
    for (const double x : z) square += (x - mean) * (x - mean);
    scores[j] = std::exp(std::sqrt(square / static_cast<double>(d - 1)));
    sum += scores[j];
  }
  for (double& score : scores) score /= sum;
  return scores;
}

LagRotation RandomRotation(HashRandom& random, int32_t d) {
  LagRotation rotation = {.halves = random.Uniform(0, 1) == 1};
  for (int32_t i = 0, pairs = random.Uniform(0, d / 2); i < pairs; ++i) {
    rotation.frequencies.push_back(std::pow(100.0, -2.0 * i / d));
  }
  return rotation;
}

// Places follow the plain form's worth, up to what float32 rounds of a rotated key.
TEST(LagkvLaw, AgreesWithThePlainForm) {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t d = random.Uniform(2, 16);
    const int32_t lag = random.Uniform(2, 16);
    const int32_t tokens = kSinks + random.Uniform(2, 5) * lag + random.Uniform(0, lag - 1);
    const double ratio = random.Uniform(0, 4) / 2.0;
    const GivenTokens given = RandomTokens(random, tokens, d);
    const LagRotation rotation = RandomRotation(random, d);
    GivenLane lane = LagLane({.lag = lag, .value_ratio = ratio}, given, tokens, rotation);
    while (lane.tokens < tokens) lane.Step(std::min(random.Uniform(1, 3 * lag), tokens - lane.tokens));
    const std::vector<double> keys = Rotated(given.keys, static_cast<size_t>(d), rotation);
    const std::vector<double> values = Rotated(given.values, static_cast<size_t>(d), {});
    const int32_t scored = (tokens - kSinks) / lag - 1;
    for (int32_t p = 0; p < scored; ++p) {
      const std::vector<double> by_key = OracleScores(keys, static_cast<size_t>(d), lag, p);
      const std::vector<double> by_value = OracleScores(values, static_cast<size_t>(d), lag, p);
      std::vector<double> by_place(static_cast<size_t>(lag), -1.0);
      for (int32_t j = 0; j < lag; ++j) {
        const float place = lane.state[static_cast<size_t>(kSinks + int64_t{p} * lag + j)] * static_cast<float>(lag);
        ASSERT_FLOAT_EQ(place, std::round(place));
        ASSERT_GE(place, 1);
        by_place[static_cast<size_t>(std::lround(place)) - 1] =
            by_key[static_cast<size_t>(j)] + ratio * by_value[static_cast<size_t>(j)];
      }
      ASSERT_GE(by_place[0], 0) << "two tokens of one place";
      for (size_t j = 1; j < by_place.size(); ++j) ASSERT_GE(by_place[j], by_place[j - 1] - 1e-5);
    }
    for (int32_t token = kSinks + scored * lag; token < tokens; ++token) {
      ASSERT_EQ(lane.state[static_cast<size_t>(token)], 0) << "the last whole partition has no reference";
    }
  }
}

// LAG-1, the counts: where the budget gives each of P scored partitions room for k, each keeps its k best.
TEST(LagkvLaw, ScoredPartitionsShareTheBudgetEqually) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t lag = random.Uniform(2, 12);
    const int32_t partitions = random.Uniform(1, 6);
    const int32_t kept = random.Uniform(1, lag);
    const int32_t rest = random.Uniform(0, lag - 1);
    const int32_t tokens = kSinks + (partitions + 1) * lag + rest;
    const GivenTokens given = RandomTokens(random, tokens, 4);
    GivenLane lane = LagLane({.lag = lag}, given, tokens, {}, seed);
    lane.Step(tokens);
    const auto before = lane.ScoresByToken();
    lane.Prune(kSinks + partitions * kept + lag + rest);
    const std::vector<int32_t> live = lane.LiveTokens();
    for (int32_t p = 0; p < partitions; ++p) {
      const int32_t begin = kSinks + p * lag;
      std::vector<int32_t> stayed;
      std::ranges::copy_if(live, std::back_inserter(stayed), [&](int32_t t) { return t >= begin && t < begin + lag; });
      ASSERT_EQ(static_cast<int32_t>(stayed.size()), kept);
      for (const int32_t token : stayed) {
        ASSERT_GT(before[static_cast<size_t>(token)].second * static_cast<float>(lag),
                  static_cast<float>(lag - kept) + 0.5F);
      }
    }
  }
}

// LAG-1, the blocks: fed in any blocks and pruned after each, the same tokens are kept whenever a partition but one
// token is new. In between, when a partition was scored early or late in a block shows.
TEST(LagkvLaw, BlocksDoNotMatter) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t lag = random.Uniform(2, 12);
    const int32_t tokens = kSinks + 8 * lag - 1;
    const int32_t budget = kSinks + 2 * lag + random.Uniform(0, 4 * lag);
    const int32_t block = random.Uniform(1, 3 * lag);
    const GivenTokens given = RandomTokens(random, tokens, 4);
    GivenLane single = LagLane({.lag = lag}, given, budget + 1, {});
    GivenLane blocks = LagLane({.lag = lag}, given, budget + block, {}, seed);
    while (single.tokens < tokens) {
      single.Step(1);
      single.Prune(budget);
    }
    while (blocks.tokens < tokens) {
      blocks.Step(std::min(random.Uniform(1, block), tokens - blocks.tokens));
      blocks.Prune(budget);
    }
    ASSERT_THAT(blocks.LiveTokens(), ElementsAreArray(single.LiveTokens()));
    ASSERT_EQ(blocks.ScoresByToken(), single.ScoresByToken());
  }
}

// LAG-2: x -> a[c] x + b[c] with a[c] > 0 changes no score.
TEST(LagkvLaw, ChannelsMayBeScaledAndShiftedOneByOne) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t d = random.Uniform(2, 16);
    const auto lag = static_cast<size_t>(random.Uniform(2, 40));
    std::vector<float> rows = UniformFloats(random, static_cast<int64_t>(lag) * d);
    std::vector<float> reference = UniformFloats(random, static_cast<int64_t>(lag) * d);
    std::vector<double> scores(lag);
    LagScores(rows, reference, d, scores);
    double sum = 0;
    for (const double score : scores) sum += score;
    ASSERT_NEAR(sum, 1, 1e-12);
    const std::vector<float> shift = UniformFloats(random, d);
    std::vector<float> scale = UniformFloats(random, d);
    for (float& x : scale) x = std::exp(3 * x);
    for (std::vector<float>* all : {&rows, &reference}) {
      for (size_t i = 0; i < all->size(); ++i) {
        (*all)[i] = scale[i % static_cast<size_t>(d)] * ((*all)[i] + shift[i % static_cast<size_t>(d)]);
      }
    }
    std::vector<double> mapped(lag);
    LagScores(rows, reference, d, mapped);
    for (size_t j = 0; j < lag; ++j) ASSERT_NEAR(mapped[j], scores[j], 1e-4);
  }
}

// Keys are rotated for the index of their tokens; what the cache counts as a position changes nothing.
TEST(LagkvLaw, CompactedPositionsGiveTheSameScores) {
  HashRandom random(1);
  const GivenTokens given = RandomTokens(random, 60, 8);
  const LagRotation rotation = {.frequencies = {1, 0.3, 0.1, 0.03}};
  GivenLane lane = LagLane({.lag = 8}, given, 60, rotation);
  lane.Step(60);
  std::vector<float> state(60);
  LaneView view = lane.View();
  const std::vector<int32_t> compacted(60, 5);
  view.position = compacted;
  ASSERT_TRUE(MakeLagkv({.lag = 8})->Rebuild(view, {.slot = state}));
  EXPECT_EQ(state, lane.state) << "and Rebuild gives what Observe does";
  GivenLane unrotated = LagLane({.lag = 8}, given, 60, {});
  unrotated.Step(60);
  EXPECT_NE(unrotated.state, lane.state) << "while rotation does";
}

}  // namespace
}  // namespace ebb
