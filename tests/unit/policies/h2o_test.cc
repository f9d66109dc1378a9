#include "policies/h2o.h"

#include <gmock/gmock.h>

#include <vector>

namespace ebb {
namespace {

using testing::ElementsAre;

TEST(H2o, AsksForColumnSumsAndOneFloatPerSlot) {
  const Needs needs = MakeH2o()->needs();
  EXPECT_TRUE(needs.column_sums);
  EXPECT_FALSE(needs.last_row);
  EXPECT_EQ(needs.window_rows, 0);
  EXPECT_EQ(needs.state_floats, 1);
}

TEST(H2o, ScoresTheSumOfAllItSaw) {
  const auto h2o = MakeH2o();
  std::vector<float> state(3, 0.0F);
  const std::vector<float> block = {1.5F, 0.5F, 0.0F};
  const std::vector<float> row = {0.25F, 0.25F, 0.5F};
  h2o->Observe({}, {.column_sums = block, .queries = 2}, {.slot = state});
  h2o->Observe({}, {.column_sums = row, .queries = 1}, {.slot = state});
  const std::vector<int32_t> token = {0, 1, 2};
  std::vector<float> keep(3);
  h2o->Score({.token = token, .live = 3}, {.slot = state}, keep);
  EXPECT_THAT(keep, ElementsAre(1.75F, 0.75F, 0.5F));
}

TEST(H2o, ForgetsASlotThatWasZeroedAndNoOther) {
  const auto h2o = MakeH2o();
  std::vector<float> state = {1.75F, 0.75F, 0.5F};
  state[1] = 0;  // evicted, and its slot handed to the next token
  const std::vector<float> row = {0.5F, 0.25F, 0.25F};
  h2o->Observe({}, {.column_sums = row, .queries = 1}, {.slot = state});
  EXPECT_THAT(state, ElementsAre(2.25F, 0.25F, 0.75F));
}

TEST(H2oDeathTest, AnObservationOfAnotherLaneIsABrokenInvariant) {
  std::vector<float> state(3);
  const std::vector<float> sums(2);
  EXPECT_DEATH(MakeH2o()->Observe({}, {.column_sums = sums, .queries = 1}, {.slot = state}), "broken invariant");
}

}  // namespace
}  // namespace ebb
