// Laws of key norm.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "policies/knorm.h"
#include "tests/property/given_lane.h"

namespace ebb {
namespace {

using testing::ElementsAreArray;

constexpr int32_t kLaneTokens = 120;

double OracleLength(const GivenTokens& given, int32_t token) {
  double square = 0;
  for (int32_t c = 0; c < given.head_dim; ++c) {
    const double x = given.keys[static_cast<size_t>(int64_t{token} * given.head_dim + c)];
    square += x * x;
  }
  return std::sqrt(square);
}

// The `budget` best of tokens 0 .. tokens - 1, by plain sorting; of equals the newer.
std::vector<int32_t> Best(const GivenTokens& given, KeptKeys kept, int32_t tokens, int32_t budget) {
  std::vector<int32_t> order(static_cast<size_t>(tokens));
  for (int32_t t = 0; t < tokens; ++t) order[static_cast<size_t>(t)] = t;
  std::ranges::sort(order, std::greater(), [&](int32_t t) {
    const auto length = static_cast<float>(OracleLength(given, t));
    return std::pair(kept == KeptKeys::kLong ? length : -length, t);
  });
  order.resize(static_cast<size_t>(std::min(tokens, budget)));
  std::ranges::sort(order);
  return order;
}

// KNORM-1: whatever the blocks and wherever the slots, those kept under streaming are the best of all that came.
TEST(KnormLaw, WhoStaysDoesNotDependOnTheOrderOfEvictions) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const KeptKeys kept = random.Uniform(0, 1) == 0 ? KeptKeys::kShort : KeptKeys::kLong;
    const int32_t d = random.Uniform(1, 20);
    const int32_t budget = random.Uniform(1, 50);
    const int32_t block = random.Uniform(1, 30);
    const GivenTokens given = {.head_dim = d, .keys = UniformFloats(random, kLaneTokens * d)};
    GivenLane lane(MakeKnorm(kept), given, budget + block, random.Uniform(0, 1) == 0 ? 0 : seed);
    while (lane.tokens < kLaneTokens) {
      lane.Step(std::min(random.Uniform(1, block), kLaneTokens - lane.tokens));
      lane.Prune(budget);
      ASSERT_THAT(lane.LiveTokens(), ElementsAreArray(Best(given, kept, lane.tokens, budget)));
    }
  }
}

TEST(KnormLaw, AnOrthogonalMapOfTheKeysChangesNoScore) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t d = random.Uniform(1, 64);
    GivenTokens given = {.head_dim = d, .keys = UniformFloats(random, 40 * d)};
    GivenLane lane(MakeKnorm(KeptKeys::kShort), given, 40);
    Reflect(UniformFloats(random, d), given.keys);
    Reflect(UniformFloats(random, d), given.keys);
    GivenLane turned(MakeKnorm(KeptKeys::kShort), given, 40);
    lane.Step(40);
    turned.Step(40);
    const std::vector<float> scores = lane.Scores();
    const std::vector<float> other = turned.Scores();
    for (size_t slot = 0; slot < scores.size(); ++slot) ASSERT_NEAR(scores[slot], other[slot], 1e-5);
  }
}

// What Observe gathered and what Rebuild reads after a swap are the same.
TEST(KnormLaw, RebuildGivesWhatObserveWouldHave) {
  HashRandom random(1);
  const GivenTokens given = {.head_dim = 8, .keys = UniformFloats(random, kLaneTokens * 8)};
  const auto scorer = MakeKnorm(KeptKeys::kLong);
  GivenLane lane(MakeKnorm(KeptKeys::kLong), given, 40, 7);
  while (lane.tokens < kLaneTokens) {
    lane.Step(10);
    lane.Prune(30);
  }
  std::vector<float> state(lane.state.size());
  ASSERT_TRUE(scorer->Rebuild(lane.View(), {.slot = state}));
  int32_t live = 0;
  for (size_t slot = 0; slot < state.size(); ++slot) {
    if (lane.token[slot] < 0) continue;
    ++live;
    EXPECT_EQ(state[slot], lane.state[slot]);
  }
  EXPECT_EQ(live, 30);
}

}  // namespace
}  // namespace ebb
