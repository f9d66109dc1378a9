// Laws of the random baseline: what kind of sample it keeps. Seeds are fixed, so a test that passes
// keeps passing; its bound is what chance exceeds once in 10,000.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "policies/random.h"
#include "tests/property/given_lane.h"

namespace ebb {
namespace {

using testing::ElementsAreArray;

// What chi-square exceeds with probability 1e-4 (Wilson and Hilferty 1931).
double ChiSquareBound(double freedom) {
  constexpr double kNormal = 3.719;  // what a standard normal exceeds with probability 1e-4
  const double spread = 2 / (9 * freedom);
  return freedom * std::pow(1 - spread + kNormal * std::sqrt(spread), 3);
}

// RANDOM-1: after a stream, every token of the history is kept with probability budget / tokens, the first as the last.
TEST(RandomLaw, TheReservoirIsAUniformSampleOfTheHistory) {
  constexpr int32_t kTokens = 60;
  constexpr int32_t kBudget = 20;
  constexpr int32_t kRuns = 4000;
  std::vector<double> kept(kTokens, 0.0);
  for (uint64_t seed = 0; seed < kRuns; ++seed) {
    GivenLane lane(MakeRandom(seed, RandomMode::kReservoir), {}, kBudget + 5);
    while (lane.tokens < kTokens) {
      lane.Step(5);
      lane.Prune(kBudget);
    }
    for (const int32_t token : lane.LiveTokens()) ++kept[static_cast<size_t>(token)];
  }
  // Draws without replacement: the sum has kTokens - 1 degrees once scaled by (kTokens - 1) / kTokens.
  const double share = static_cast<double>(kBudget) / kTokens;
  double statistic = 0;
  for (const double count : kept) {
    statistic += std::pow(count - kRuns * share, 2) / (kRuns * share * (1 - share)) * (kTokens - 1) / kTokens;
  }
  EXPECT_LT(statistic, ChiSquareBound(kTokens - 1));
}

// Lanes of one session draw by themselves: that one keeps a token says nothing of another.
TEST(RandomLaw, LanesDrawIndependently) {
  constexpr int32_t kTokens = 4000;
  std::vector<std::vector<int32_t>> live;
  for (const auto& [layer, head] : {std::pair(0, 0), std::pair(0, 1), std::pair(1, 0)}) {
    GivenLane lane(MakeRandom(9, RandomMode::kReservoir), {}, kTokens);
    lane.layer = layer;
    lane.head = head;
    lane.Step(kTokens);
    lane.Prune(kTokens / 2);
    live.push_back(lane.LiveTokens());
  }
  for (const auto& [one, other] : {std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)}) {
    std::vector<int32_t> both;
    std::ranges::set_intersection(live[one], live[other], std::back_inserter(both));
    // Hypergeometric: mean 1000, variance 250.
    EXPECT_NEAR(static_cast<double>(both.size()), kTokens / 4.0, 3.891 * std::sqrt(kTokens / 16.0));
  }
}

// RANDOM-1, the other half: blocks, evictions on the way and slots do not matter.
TEST(RandomLaw, TheReservoirDoesNotDependOnTheOrderOfEvictions) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t tokens = random.Uniform(50, 150);
    const int32_t budget = random.Uniform(1, 40);
    GivenLane whole(MakeRandom(seed, RandomMode::kReservoir), {}, tokens);
    whole.Step(tokens);
    whole.Prune(budget);
    GivenLane blocks(MakeRandom(seed, RandomMode::kReservoir), {}, budget + 20, seed);
    while (blocks.tokens < tokens) {
      blocks.Step(std::min(random.Uniform(1, 20), tokens - blocks.tokens));
      blocks.Prune(budget);
    }
    ASSERT_THAT(blocks.LiveTokens(), ElementsAreArray(whole.LiveTokens()));
  }
}

// Fresh draws: of c = budget + 1 candidates one leaves each step, so a token's age at death is geometric.
TEST(RandomLaw, FreshDrawsGiveGeometricSurvival) {
  constexpr int32_t kBudget = 10;
  constexpr int32_t kFollowed = 15;  // a token that meets a full lane
  constexpr int32_t kAges = 30;      // the last bin: this old or older
  constexpr int32_t kRuns = 6000;
  std::vector<double> died(kAges + 1, 0.0);
  for (uint64_t seed = 0; seed < kRuns; ++seed) {
    GivenLane lane(MakeRandom(seed, RandomMode::kFresh), {}, kBudget + 1);
    for (int32_t token = 0; token < kFollowed; ++token) {
      lane.Step(1);
      lane.Prune(kBudget);
    }
    int32_t age = 0;
    for (; age < kAges; ++age) {
      lane.Step(1);
      lane.Prune(kBudget);
      if (std::ranges::find(lane.token, kFollowed) == lane.token.end()) break;
    }
    ++died[static_cast<size_t>(age)];
  }
  double statistic = 0;
  double alive = 1;
  for (int32_t age = 0; age <= kAges; ++age) {
    const double expected = kRuns * (age == kAges ? alive : alive / (kBudget + 1));
    statistic += std::pow(died[static_cast<size_t>(age)] - expected, 2) / expected;
    alive *= static_cast<double>(kBudget) / (kBudget + 1);
  }
  EXPECT_LT(statistic, ChiSquareBound(kAges));
}

}  // namespace
}  // namespace ebb
