#include "policies/sage.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "policies/rank.h"
#include "policies/registry.h"
#include "policies/select.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ValidSpec SageSpec(int32_t budget, int32_t query_heads) {
  return Resolve({.scorer = "sage", .budget = budget}, {.query_heads = query_heads}).value();
}

TEST(Sage, RunsOnceForEachQueryHeadAndThenSlides) {
  const ValidSpec spec = SageSpec(8192, 4);
  EXPECT_TRUE(spec.needs().last_row);
  EXPECT_EQ(spec.needs().state_floats, 1);
  EXPECT_EQ(spec.schedule, Schedule::kOncePrompt);
  EXPECT_EQ(spec.then, Then::kSlideRecent);
  EXPECT_EQ(spec.reduction, Reduction::kUnion);
  EXPECT_FALSE(FindScorer("sage")->safe_across_turns);
}

// SAGE-2, the paper's two models, and budgets around a step of k.
TEST(Sage, SharesTheBudgetAsInThePaper) {
  struct Case {
    int32_t budget, query_heads, sinks, per_head, recent;
  };
  const std::vector<Case> cases = {
      {8192, 4, 2048, 1024, 2048},
      {8192, 7, 2048, 512, 2560},
      {8191, 4, 2047, 512, 4096},
      {1024, 1, 256, 512, 256},
      {1023, 1, 255, 256, 512},
      {2, 1, 0, 1, 1},
      {8, 4, 2, 1, 2},
      {15, 7, 3, 1, 5},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << "budget " << c.budget << ", query heads " << c.query_heads);
    const ValidSpec spec = SageSpec(c.budget, c.query_heads);
    EXPECT_EQ(spec.sinks, c.sinks);
    EXPECT_EQ(SageSelectedPerHead(c.budget, c.query_heads), c.per_head);
    EXPECT_EQ(spec.recent, c.recent);
    EXPECT_EQ(spec.sinks + c.query_heads * c.per_head + spec.recent, c.budget);
  }
}

TEST(Sage, NeedsOneTokenForEachQueryHead) {
  const auto spec = Resolve({.scorer = "sage", .budget = 13}, {.query_heads = 7});
  ASSERT_THAT(spec, IsRefusal(absl::StatusCode::kInvalidArgument, "BUDGET_TOO_SMALL", "policy.trigger.budget"));
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr("use at least 14"));
}

TEST(Sage, LeavesRoomBesideAnyNumberOfSinks) {
  for (int32_t sinks = 0; sinks <= 20; ++sinks) {
    SCOPED_TRACE(testing::Message() << sinks << " sinks");
    const auto spec = Resolve({.scorer = "sage", .budget = 22, .sinks = sinks}, {.query_heads = 2});
    ASSERT_THAT(spec, IsOk());
    EXPECT_GE(spec->recent, 1);
    EXPECT_LT(spec->sinks + spec->recent, 22);
  }
}

// Ten tokens, a budget of 8, two query heads: two sinks, two recent, and the two best of each head between them. Token
// 3 is in both heads' sets, so there is room for the next best by the mean, which is 6 before 4.
TEST(Sage, KeepsTheUnionOfWhatEachQueryHeadNames) {
  const ValidSpec spec = SageSpec(8, 2);
  ASSERT_EQ(spec.sinks, 2);
  ASSERT_EQ(spec.recent, 2);
  std::vector<int32_t> token = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<float> one = {0, 0, 0.9F, 0.8F, 0.1F, 0, 0.3F, 0, 0, 0};
  const std::vector<float> other = {0, 0, 0, 0.5F, 0.2F, 0.6F, 0.1F, 0, 0, 0};
  LaneView lane = {.token = token, .live = 10, .sinks = 2, .recent = 2, .budget = 8, .query_heads = 2};
  const std::vector<Track> tracks = {{.lane = lane, .state = {.slot = one}}, {.lane = lane, .state = {.slot = other}}};
  RankScratch scratch;
  std::vector<float> keep(10);
  Rank(spec, tracks, scratch, keep);
  SelectScratch select;
  std::vector<int32_t> victims;
  ASSERT_THAT(SelectVictims(lane, keep, 2, select, victims), IsOk());
  EXPECT_THAT(victims, ElementsAre(4, 7));
}

}  // namespace
}  // namespace ebb
