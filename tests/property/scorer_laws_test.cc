// What one scorer's equation promises: identities that hold for every attention matrix, over random ones.

#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "policies/hash_random.h"
#include "policies/registry.h"
#include "tests/property/policy_lane.h"
#include "tests/support/random_attention.h"

namespace ebb {
namespace {

using testing::ElementsAreArray;

double Sum(const PolicyLane& lane) {
  const LaneView view = lane.View();
  double sum = 0;
  for (size_t slot = 0; slot < view.token.size(); ++slot) sum += view.token[slot] >= 0 ? lane.states[0].slot[slot] : 0;
  return sum;
}

PolicyLane H2oLane(int32_t budget, const RandomAttentionOptions& options) {
  return {SpecFor(*FindScorer("h2o"), {.budget = budget}), options};
}

// H2O-1 of POLICIES 11; and H2O-4: with more than one token the sum exceeds 1.
TEST(H2oLaw, WithoutEvictionTheSumsAddUpToTheQueries) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    PolicyLane lane = H2oLane(400, {.seed = seed, .slots = 400, .query_heads = random.Uniform(1, 4)});
    while (lane.attention.live() < 100) {
      lane.Step(random.Uniform(1, 40));
      const int32_t queries = lane.attention.tokens();
      ASSERT_NEAR(Sum(lane), queries, 1e-5 * queries);
      if (queries >= 2) {
        ASSERT_GT(Sum(lane), 1.0);
      }
    }
  }
}

// H2O-2: each step the sums grow by the queries of the step and lose exactly what the evicted slots held.
TEST(H2oLaw, AttentionMassIsConserved) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t budget = random.Uniform(2, 60);
    PolicyLane lane = H2oLane(budget, {.seed = seed, .slots = budget + 16, .query_heads = random.Uniform(1, 4)});
    double expected = 0;
    for (int step = 0; step < 40; ++step) {
      const int32_t queries = random.Uniform(1, 16);
      lane.Step(queries);
      expected += queries;
      for (const int32_t slot : lane.victims)
        expected -= lane.states[0].slot[slot];  // a freed slot's state rests until reused
      ASSERT_NEAR(Sum(lane), expected, 1e-5 * (1 + expected));
    }
    EXPECT_EQ(lane.attention.live(), std::min(budget, lane.attention.tokens()));
  }
}

// H2O-3: its own row is a softmax over itself alone.
TEST(H2oLaw, TheFirstTokenHoldsAtLeastOneAfterPrefill) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    PolicyLane lane = H2oLane(400, {.seed = seed, .slots = 400, .query_heads = random.Uniform(1, 4)});
    lane.Step(random.Uniform(1, 100));
    const int32_t slot = lane.attention.placed()[0];
    ASSERT_EQ(lane.View().token[slot], 0);
    EXPECT_GE(lane.states[0].slot[slot], 1 - 1e-6);
  }
}

// What the scorer is for: a token that draws attention outlives the window, where streaming drops it.
TEST(H2oLaw, AHeavyHitterOutlivesTheRecentWindow) {
  const auto survivors = [](const char* scorer) {
    PolicyLane lane(SpecFor(*FindScorer(scorer), {.budget = 32}), {.seed = 3, .slots = 33});
    for (int step = 0; step < 300; ++step) lane.Step(1);
    const std::vector<int32_t> live = lane.attention.LiveTokens();
    return std::ranges::count_if(live, [](int32_t token) { return token >= 4 && token < 300 - 32; });
  };
  EXPECT_GT(survivors("h2o"), 4);
  EXPECT_EQ(survivors("streaming"), 0);
}

// STR-1, the live set: {0 .. S-1} and the last C - S, for any blocks; a shorter recent window leaves the same tokens.
TEST(StreamingLaw, TheLiveSetIsItsClosedForm) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t budget = random.Uniform(1, 60);
    const int32_t sinks = random.Uniform(0, budget - 1);
    const int32_t block = random.Uniform(1, 30);
    PolicySpec spec = {.budget = budget, .sinks = sinks};
    if (random.Uniform(0, 1) == 0) spec.recent = random.Uniform(1, budget - sinks);
    PolicyLane lane(Resolve(spec, {}).value(), {.seed = seed, .slots = budget + block});
    for (int step = 0; step < 60; ++step) {
      lane.Step(random.Uniform(1, block));
      const int32_t tokens = lane.attention.tokens();
      std::vector<int32_t> expected;
      for (int32_t token = 0; token < tokens; ++token) {
        if (tokens <= budget || token < sinks || token >= tokens - (budget - sinks)) expected.push_back(token);
      }
      ASSERT_THAT(lane.attention.LiveTokens(), ElementsAreArray(expected));
    }
  }
}

// LAZY-1, through a whole policy: 2090 tokens become 2058, then 2080 become 2048 every 32.
TEST(StreamingLaw, LazyPruningFollowsTheWorkedExample) {
  const auto spec = Resolve({.budget = 2048, .overflow = 32, .slack = 16, .max_drop = 32, .recent = 2044}, {});
  ASSERT_THAT(spec, IsOk());
  ASSERT_EQ(spec->sinks, 4);
  PolicyLane lane(*spec, {.slots = static_cast<int32_t>(Capacity(spec->trigger, 43))});
  for (int step = 0; step < 2047; ++step) lane.Step(1);
  EXPECT_EQ(lane.Step(43).size(), 32U);
  EXPECT_EQ(lane.attention.live(), 2058);
  for (int32_t length = 2059; length < 2080; ++length) EXPECT_TRUE(lane.Step(1).empty());
  for (int pruning = 0; pruning < 3; ++pruning) {
    EXPECT_EQ(lane.Step(1).size(), 32U);
    EXPECT_EQ(lane.attention.live(), 2048);
    for (int step = 0; step < 31; ++step) EXPECT_TRUE(lane.Step(1).empty());
  }
}

}  // namespace
}  // namespace ebb
