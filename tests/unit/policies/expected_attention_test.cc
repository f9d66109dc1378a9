#include "policies/expected_attention.h"

#include <gmock/gmock.h>

#include <cmath>
#include <vector>

#include "policies/registry.h"
#include "tests/support/lane_memory_of.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

using Covariance = ExpectedAttentionOptions::Covariance;
using Values = ExpectedAttentionOptions::Values;

TEST(ExpectedAttention, AsksForQueriesAndMemory) {
  const Needs needs = MakeExpectedAttention({})->needs();
  EXPECT_TRUE(needs.queries);
  EXPECT_TRUE(needs.memory);
  EXPECT_FALSE(needs.attention());
  EXPECT_EQ(needs.state_floats, 0);
}

TEST(ExpectedAttention, KeepsStatisticsOfEachQueryHead) {
  const LaneShape shape = {.query_heads = 4, .head_dim = 8};
  EXPECT_EQ(MakeExpectedAttention({.covariance = Covariance::kNone})->lane_floats(shape), 4 * (1 + 8));
  EXPECT_EQ(MakeExpectedAttention({.covariance = Covariance::kDiagonal})->lane_floats(shape), 4 * (1 + 8 + 8));
  EXPECT_EQ(MakeExpectedAttention({.covariance = Covariance::kFull})->lane_floats(shape), 4 * (1 + 8 + 36));
}

// Two heads of two channels; of six queries the first four are left out.
TEST(ExpectedAttention, GathersMeanAndCovarianceOfTheLaterQueries) {
  const LaneMemoryOf memory(2, std::vector<float>(12));
  const std::vector<int32_t> token = {0, 1, 2, 3, 4, 5};
  const LaneView lane = {.token = token, .live = 6, .position = token, .memory = &memory};
  std::vector<float> q(24, 100.0F);
  const std::vector<float> counted = {1, 2, 5, 0, 3, 8, 5, 4};  // [2 tokens, 2 heads, 2]
  std::ranges::copy(counted, q.begin() + 16);
  const Observation seen = {.queries = 6, .slots = token, .q = q.data(), .q_stride = 4};
  std::vector<float> state(2 * 6);
  MakeExpectedAttention({})->Observe(lane, seen, {.lane = state});
  // Head 0 saw (1, 2) and (3, 8): mean (2, 5), covariance [[1, 3], [3, 9]]. Head 1 (5, 0), (5, 4).
  EXPECT_THAT(state, ElementsAre(2, 2, 5, 1, 3, 9, 2, 5, 2, 0, 0, 4));
  std::vector<float> diagonal(2 * 5);
  MakeExpectedAttention({.covariance = Covariance::kDiagonal})->Observe(lane, seen, {.lane = diagonal});
  EXPECT_THAT(diagonal, ElementsAre(2, 2, 5, 1, 9, 2, 5, 2, 0, 4));
}

// m = (ln 4, 0), S = diag(0, 2 ln 2), d = 4 so that sqrt(d) = 2 and 2 d = 8; no rotation. Keys (1, 0, 0, 0),
// (0, 2, 0, 0) and 0 have x = ln 2, 4 * 2 ln 2 / 8 = ln 2 and 0.
TEST(ExpectedAttention, ScoresTheExpectedExponential) {
  const LaneMemoryOf memory(4, {1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0}, {0, 3, 4, 0, 1, 0, 0, 0, 0, 0, 0, 2});
  const std::vector<int32_t> token = {0, 1, 2};
  const LaneView lane = {.token = token, .live = 3, .position = token, .memory = &memory};
  const float ln2 = std::log(2.0F);
  const std::vector<float> statistics = {9, 2 * ln2, 0, 0, 0, 0, 2 * ln2, 0, 0};
  std::vector<float> keep(3);
  const auto score = [&](ExpectedAttentionOptions options) {
    options.covariance = Covariance::kDiagonal;
    MakeExpectedAttention(options)->Score(lane, {.lane = statistics}, keep);
    return keep;
  };
  EXPECT_THAT(score({.values = Values::kIgnore}), testing::Pointwise(testing::FloatEq(), {0.4F, 0.4F, 0.2F}));
  EXPECT_THAT(score({}), testing::Pointwise(testing::FloatEq(), {2.0F, 0.4F, 0.4F}));
  EXPECT_THAT(score({.epsilon = 0.1}), testing::Pointwise(testing::FloatEq(), {2.5F, 0.5F, 0.6F}));
}

// A session of four tokens, or one whose past nobody observed.
TEST(ExpectedAttention, WithoutStatisticsTheValuesDecide) {
  const LaneMemoryOf memory(2, {1, 0, 9, 9, 5, 5, 0, 1}, {1, 0, 0, 0, 0, 4, 3, 0});
  const std::vector<int32_t> token = {0, 1, 2, 3};
  const LaneView lane = {.token = token, .live = 4, .position = token, .memory = &memory};
  std::vector<float> state(6, 0.0F);
  EXPECT_FALSE(MakeExpectedAttention({})->Rebuild(lane, {.lane = state}));
  EXPECT_THAT(state, Each(0.0F));
  std::vector<float> keep(4);
  MakeExpectedAttention({})->Score(lane, {.lane = state}, keep);
  EXPECT_THAT(keep, ElementsAre(0.25F, 0, 1, 0.75F));
}

TEST(ExpectedAttention, RunsOnceAfterThePromptUnlessToldOtherwise) {
  const auto spec = Resolve({.scorer = "expected_attention", .budget = 100}, {.query_heads = 4});
  ASSERT_THAT(spec, IsOk());
  EXPECT_EQ(spec->sinks, 4);
  EXPECT_EQ(spec->recent, 32);
  EXPECT_EQ(spec->schedule, Schedule::kOncePrompt);
  EXPECT_EQ(spec->then, Then::kSlideRecent);
  EXPECT_THAT(Resolve({.scorer = "expected_attention", .budget = 100, .schedule = Schedule::kEveryStep}, {}), IsOk());
  const auto wrong = Resolve({.scorer = "expected_attention", .parameters = {{"covariance", 3}}, .budget = 100}, {});
  ASSERT_THAT(wrong, IsRefusal(absl::StatusCode::kInvalidArgument, "PARAMETER_OUT_OF_RANGE",
                               "policy.expected_attention.covariance"));
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("use 0 (none), 1 (diagonal) or 2 (full)"));
}

}  // namespace
}  // namespace ebb
