#include "engine/cache/evictor.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <vector>

#include "policies/registry.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ValidSpec Spec(const PolicySpec& spec) {
  const auto valid = Resolve(spec, {.trained_context = 4096});
  EXPECT_THAT(valid, IsOk());
  return *valid;
}

// The lane's tokens in order of age.
std::vector<int32_t> Tokens(const SlotMap& map) {
  std::vector<int32_t> tokens;
  for (const int32_t token : map.token()) {
    if (token >= 0) tokens.push_back(token);
  }
  std::ranges::sort(tokens);
  return tokens;
}

TEST(EvictAfterStep, DoesNothingBelowTheTrigger) {
  const ValidSpec policy = Spec({.scorer = "streaming", .budget = 8, .overflow = 3});
  SlotMap map(16, 16, 0, policy.positions);
  EvictScratch scratch;
  map.Place(0, 0, 10);
  EXPECT_FALSE(IsDue(policy, map));
  EXPECT_EQ(EvictAfterStep(policy, map, scratch).tokens, 0);
  map.Place(10, 10, 1);
  EXPECT_TRUE(IsDue(policy, map));
  EXPECT_EQ(EvictAfterStep(policy, map, scratch).tokens, 3);
  EXPECT_THAT(Tokens(map), ElementsAre(0, 1, 2, 3, 7, 8, 9, 10));
}

TEST(EvictAfterStep, WaitsForTheBudgetOfARatio) {
  ValidSpec policy = Spec({.scorer = "streaming", .budget_ratio = 0.5});
  SlotMap map(20, 20, 0, policy.positions);
  EvictScratch scratch;
  map.Place(0, 0, 20);
  EXPECT_EQ(EvictAfterStep(policy, map, scratch).tokens, 0);
  policy = *FixBudget(policy, 20);
  EXPECT_EQ(EvictAfterStep(policy, map, scratch).tokens, 10);
}

TEST(EvictAfterStep, NeverEvictsUnderFull) {
  const ValidSpec policy = Spec({.scorer = "full", .budget = 4});
  SlotMap map(16, 16, 0, policy.positions);
  EvictScratch scratch;
  map.Place(0, 0, 16);
  EXPECT_EQ(EvictAfterStep(policy, map, scratch).tokens, 0);
}

TEST(EvictAfterStep, GoesByTheStateOfTheSlotAndCountsNotANumber) {
  const ValidSpec policy = Spec({.scorer = "h2o", .budget = 4, .recent = 1});
  SlotMap map(8, 8, 1, policy.positions);
  EvictScratch scratch;
  map.Place(0, 0, 7);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> sums = {5, 1, nan, 4, 3, 2, 0};  // token 6 is protected
  std::ranges::copy(sums, map.state().begin());
  const Evicted evicted = EvictAfterStep(policy, map, scratch);
  EXPECT_EQ(evicted.tokens, 3);
  EXPECT_EQ(evicted.nan_scores, 1);
  EXPECT_THAT(Tokens(map), ElementsAre(0, 3, 4, 6));
  EXPECT_THAT(scratch.victims, ElementsAre(1, 2, 5));
}

TEST(ChooseVictims, RefusesWhatProtectionForbids) {
  const ValidSpec policy = Spec({.scorer = "h2o", .budget = 8, .sinks = 2, .recent = 4});
  SlotMap map(8, 8, 1, policy.positions);
  map.Place(0, 0, 8);
  EvictScratch scratch;
  EXPECT_THAT(ChooseVictims(*policy.scorer, map.view(2, 4), map.state(), 3, scratch),
              IsRefusal(absl::StatusCode::kInvalidArgument, "NOT_ENOUGH_CANDIDATES", ""));
  EXPECT_THAT(scratch.victims, IsEmpty());
}

// Lazy Pruning's worked example, through a real lane: (S, W, R, sigma, delta) = (4, 2044, 32, 16, 32).
TEST(EvictAfterStep, FollowsTheLazySequenceOfTheWorkedExample) {
  const ValidSpec policy =
      Spec({.scorer = "streaming", .budget = 2048, .overflow = 32, .slack = 16, .max_drop = 32, .sinks = 4});
  SlotMap map(static_cast<int32_t>(Capacity(policy.trigger, 90)), 2048, 0, policy.positions);
  EvictScratch scratch;
  int32_t next = 0;
  const auto step = [&](int32_t tokens) {
    map.Place(next, next, tokens);
    next += tokens;
    return EvictAfterStep(policy, map, scratch).tokens;
  };
  EXPECT_EQ(step(2048), 0);
  EXPECT_EQ(step(42), 32);  // 2090 -> 2058
  EXPECT_EQ(map.live(), 2058);
  for (int period = 0; period < 3; ++period) {
    const int32_t quiet = period == 0 ? 21 : 31;
    for (int32_t i = 0; i < quiet; ++i) ASSERT_EQ(step(1), 0);
    EXPECT_EQ(step(1), 32);  // 2080 -> 2048
    EXPECT_EQ(map.live(), 2048);
  }
}

}  // namespace
}  // namespace ebb
