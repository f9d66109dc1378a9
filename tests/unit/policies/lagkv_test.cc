#include "policies/lagkv.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <vector>

#include "policies/registry.h"
#include "tests/support/lane_memory_of.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using testing::AnyOf;
using testing::Each;
using testing::ElementsAre;
using testing::Pointwise;

MATCHER(IsAboutEqual, "") { return std::abs(std::get<0>(arg) - std::get<1>(arg)) < 1e-6; }

const std::vector<float> kPartition = {0, 1, 2, 4, 1, 0, 2, 2, 2, 1, 0, 3};
const std::vector<float> kReference = {0, 0, 0, 4, 2, 4, 2, 1, 2, 1, 2, 1};

TEST(LagDeviations, FollowTheWorkedExample) {
  std::vector<double> deviations(4);
  LagDeviations(kPartition, kReference, 3, deviations);
  EXPECT_THAT(deviations, Pointwise(IsAboutEqual(), {.2886751, .5, .2886751, .3818813}));
}

TEST(LagScores, FollowTheWorkedExample) {
  std::vector<double> scores(4);
  LagScores(kPartition, kReference, 3, scores);
  EXPECT_THAT(scores, Pointwise(IsAboutEqual(), {.230787, .285094, .230787, .253332}));
}

// Channel 1 is 5 throughout the reference: z is (5 - 5) / 1e-6 = 0 and (5.01 - 5) / 1e-6 = 10,000, the largest.
TEST(LagDeviations, AChannelThatDoesNotVaryIsBounded) {
  std::vector<double> deviations(3);
  LagDeviations(std::vector<float>{0, 5, 0, 6, 0, -1e30F}, std::vector<float>{0, 5, 1, 5}, 2, deviations);
  EXPECT_THAT(deviations, Pointwise(IsAboutEqual(), {0.0, 1e4 / std::sqrt(2), 1e4 / std::sqrt(2)}));
}

TEST(LagDeviations, AreZeroWhereNothingIsDefined) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<double> deviations(2, 7.0);
  LagDeviations(std::vector<float>{1, 2}, std::vector<float>{0, 5}, 1, deviations);
  EXPECT_THAT(deviations, Each(0.0)) << "one channel";
  deviations.assign(2, 7.0);
  LagDeviations(std::vector<float>{1, 2, 3, 4}, {}, 2, deviations);
  EXPECT_THAT(deviations, Each(0.0)) << "no reference";
  LagDeviations(std::vector<float>{1, nan, 0, 1}, std::vector<float>{0, 0, 1, 1}, 2, deviations);
  EXPECT_THAT(deviations, Pointwise(IsAboutEqual(), {0.0, std::sqrt(0.5)})) << "a key that is no number";
}

TEST(Lagkv, AsksForWhoEnteredAndTheMemory) {
  const Needs needs = MakeLagkv({})->needs();
  EXPECT_TRUE(needs.entered);
  EXPECT_TRUE(needs.memory);
  EXPECT_FALSE(needs.attention());
  EXPECT_FALSE(needs.queries);
  EXPECT_EQ(needs.state_floats, 1);
}

// One sink and the example's two partitions, in the order of their slots.
struct Example {
  Example() : memory(3, {9, 9, 9}) {
    memory.keys.insert(memory.keys.end(), kPartition.begin(), kPartition.end());
    memory.keys.insert(memory.keys.end(), kReference.begin(), kReference.end());
    memory.values.assign(memory.keys.size(), 0.0F);  // the same deviation for all
  }
  LaneView View() const { return {.token = token, .live = 9, .sinks = 1, .tokens = 9, .memory = &memory}; }

  LaneMemoryOf memory;
  std::vector<int32_t> token = {0, 1, 2, 3, 4, 5, 6, 7, 8};
};

TEST(Lagkv, RanksAPartitionOnceItsReferenceIsWhole) {
  const auto lagkv = MakeLagkv({.lag = 4});
  const Example example;
  std::vector<float> state(9, 0.0F);
  lagkv->Observe(example.View(), {.queries = 8, .slots = std::span(example.token).first(8)}, {.slot = state});
  EXPECT_THAT(state, Each(0.0F)) << "one token of the reference is to come";
  lagkv->Observe(example.View(), {.queries = 1, .slots = std::span(example.token).subspan(8)}, {.slot = state});
  // Tokens 1 and 3 are worth the same, rounding apart.
  EXPECT_THAT(state, ElementsAre(0, AnyOf(0.25F, 0.5F), 1, 0.75F - state[1], 0.75F, 0, 0, 0, 0));

  std::vector<float> keep(9);
  lagkv->Score(example.View(), {.slot = state}, keep);
  for (size_t slot = 1; slot < 5; ++slot) EXPECT_EQ(keep[slot], state[slot]);
  for (size_t slot = 5; slot < 9; ++slot) EXPECT_GT(keep[slot], 1) << "not scored yet, so kept before all who are";
  for (size_t slot = 6; slot < 9; ++slot) EXPECT_GT(keep[slot], keep[slot - 1]) << "the newest first";
}

TEST(Lagkv, ValuesWeighByTheirRatio) {
  Example example;
  example.memory.values = example.memory.keys;
  example.memory.keys.assign(example.memory.keys.size(), 0.0F);
  std::vector<float> state(9, 0.0F);
  ASSERT_TRUE(MakeLagkv({.lag = 4})->Rebuild(example.View(), {.slot = state}));
  EXPECT_THAT(state, ElementsAre(0, AnyOf(0.25F, 0.5F), 1, 0.75F - state[1], 0.75F, 0, 0, 0, 0));
  ASSERT_TRUE(MakeLagkv({.lag = 4, .value_ratio = 0})->Rebuild(example.View(), {.slot = state}));
  EXPECT_THAT(state, ElementsAre(0, 0.25F, 0.5F, 0.75F, 1, 0, 0, 0, 0)) << "all tie, so by age";
}

// After a swap of policies, or under a budget too small for two partitions.
TEST(Lagkv, TakesThoseThatLive) {
  Example example;
  example.token = {0, 1, 2, -1, 4, 5, 6, -1, 8};
  std::vector<float> state(9, 0.0F);
  ASSERT_TRUE(MakeLagkv({.lag = 4})->Rebuild(example.View(), {.slot = state}));
  EXPECT_EQ(state[3], 0) << "a free slot";
  EXPECT_FLOAT_EQ(state[1] + state[2] + state[4], 2) << "places 1/3, 2/3 and 1";
  example.token = {0, 1, 2, 3, 4, -1, -1, -1, -1};
  ASSERT_TRUE(MakeLagkv({.lag = 4})->Rebuild(example.View(), {.slot = state}));
  EXPECT_THAT(state, ElementsAre(0, 0.25F, 0.5F, 0.75F, 1, 0, 0, 0, 0)) << "no reference, so by age";
}

TEST(Lagkv, ProtectsSixteenAndRefusesHalfATokenOfLag) {
  const auto spec = Resolve({.scorer = "lagkv", .budget = 400}, {});
  ASSERT_THAT(spec, IsOk());
  EXPECT_EQ(spec->sinks, 16);
  EXPECT_EQ(spec->recent, 0);
  EXPECT_EQ(spec->parameters.at("lag"), 128);
  EXPECT_EQ(spec->parameters.at("value_ratio"), 1);
  EXPECT_THAT(Resolve({.scorer = "lagkv", .parameters = {{"lag", 2.5}}, .budget = 400}, {}),
              IsRefusal(absl::StatusCode::kInvalidArgument, "PARAMETER_OUT_OF_RANGE", "policy.lagkv.lag"));
}

}  // namespace
}  // namespace ebb
