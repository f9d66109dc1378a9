#include "policies/sage.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
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

// The paper's case for selection: a needle that the last query looks for, among keys that it does not. Keys and query
// by hand: key j is a unit vector of its own angle, the needle's lies along the query and is four times as long. Sage
// keeps it wherever it lies; a window keeps it only in its sinks or its recent part.
TEST(Sage, KeepsThePlantedNeedleThatAWindowLoses) {
  constexpr int32_t kLive = 200;
  constexpr int32_t kBudget = 32;
  std::vector<int32_t> token(kLive);
  std::iota(token.begin(), token.end(), 0);
  int window_kept = 0;
  for (int32_t needle = 0; needle < kLive; ++needle) {
    std::vector<float> attention(kLive);
    float sum = 0;
    for (int32_t j = 0; j < kLive; ++j) {
      const float angle = 1 + 0.025F * static_cast<float>(j);  // of the key, the query's being 0
      attention[j] = std::exp(j == needle ? 4.0F : std::cos(angle));
      sum += attention[j];
    }
    for (float& share : attention) share /= sum;
    const auto kept = [&](const std::string& scorer) {
      const ValidSpec spec = Resolve({.scorer = scorer, .budget = kBudget}, {.query_heads = 1}).value();
      const LaneView lane = {.token = token,
                             .live = kLive,
                             .sinks = spec.sinks,
                             .recent = spec.recent,
                             .budget = kBudget,
                             .query_heads = 1};
      const std::vector<Track> tracks = {{.lane = lane, .state = {.slot = attention}}};
      RankScratch scratch;
      std::vector<float> keep(kLive);
      Rank(spec, tracks, scratch, keep);
      SelectScratch select;
      std::vector<int32_t> victims;
      EXPECT_THAT(SelectVictims(lane, keep, kLive - kBudget, select, victims), IsOk());
      return std::ranges::find(victims, needle) == victims.end();
    };
    EXPECT_TRUE(kept("sage")) << needle;
    const bool in_window = needle < 4 || needle >= kLive - (kBudget - 4);
    EXPECT_EQ(kept("streaming"), in_window) << needle;
    window_kept += in_window ? 1 : 0;
  }
  EXPECT_EQ(window_kept, kBudget);
}

}  // namespace
}  // namespace ebb
