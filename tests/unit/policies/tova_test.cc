#include "policies/tova.h"

#include <gmock/gmock.h>

#include <vector>

namespace ebb {
namespace {

using testing::ElementsAre;

TEST(Tova, AsksForTheLastRowAndOneFloatPerSlot) {
  const Needs needs = MakeTova()->needs();
  EXPECT_TRUE(needs.last_row);
  EXPECT_FALSE(needs.column_sums);
  EXPECT_EQ(needs.window_rows, 0);
  EXPECT_EQ(needs.state_floats, 1);
}

TEST(Tova, ScoresTheLastRowAndForgetsTheOneBefore) {
  const auto tova = MakeTova();
  std::vector<float> state(3, 0.0F);
  const std::vector<float> before = {0.5F, 0.5F, 0.0F};
  const std::vector<float> last = {0.25F, 0.125F, 0.625F};
  tova->Observe({}, {.last_row = before, .queries = 1}, {.slot = state});
  tova->Observe({}, {.last_row = last, .queries = 1}, {.slot = state});
  const std::vector<int32_t> token = {0, 1, 2};
  std::vector<float> keep(3);
  tova->Score({.token = token, .live = 3}, {.slot = state}, keep);
  EXPECT_THAT(keep, ElementsAre(0.25F, 0.125F, 0.625F));
}

TEST(Tova, TakesOverAnotherScorersAttention) {
  const auto tova = MakeTova();
  std::vector<float> state(3, 0.0F);
  const std::vector<float> sums = {3.0F, 1.0F, 0.5F};
  ASSERT_TRUE(tova->Seed(sums, {.slot = state}));
  EXPECT_THAT(state, ElementsAre(3.0F, 1.0F, 0.5F));
}

}  // namespace
}  // namespace ebb
