#include "policies/scissorhands.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace ebb {
namespace {

using testing::ElementsAre;

// A lane of `tokens` by slot, the newest `step` of which arrived in the step at hand, and the state of one scorer.
struct Lane {
  Lane(int32_t window, std::vector<int32_t> tokens)
      : scorer(MakeScissorhands(window)),
        token(std::move(tokens)),
        slot(token.size() * scorer->needs().state_floats),
        lane(static_cast<size_t>(scorer->lane_floats({}))) {}

  LaneView View() const {
    const auto live = std::ranges::count_if(token, [](int32_t t) { return t >= 0; });
    return {.token = token, .live = static_cast<int32_t>(live)};
  }

  // `rows` are [rows, n], of the tokens in `slots`.
  void Observe(const std::vector<int32_t>& slots, const std::vector<float>& rows) {
    scorer->Observe(View(), {.window = rows, .queries = static_cast<int32_t>(slots.size()), .slots = slots},
                    {.slot = slot, .lane = lane});
  }

  std::vector<float> Score() const {
    std::vector<float> keep(token.size());
    scorer->Score(View(), {.slot = slot, .lane = lane}, keep);
    return keep;
  }

  // Unimportant rows: what the fraction, which is below 1, leaves of the score.
  std::vector<float> Counts() const {
    std::vector<float> counts = Score();
    for (float& count : counts) count = std::ceil(-count);
    return counts;
  }

  std::unique_ptr<const Scorer> scorer;
  std::vector<int32_t> token;
  std::vector<float> slot, lane;
};

TEST(Scissorhands, StatesItsBytes) {
  EXPECT_EQ(MakeScissorhands(400)->needs().window_rows, 400);
  EXPECT_EQ(MakeScissorhands(400)->needs().state_floats, 19);
  EXPECT_EQ(MakeScissorhands(24)->needs().state_floats, 3);
  EXPECT_EQ(MakeScissorhands(25)->needs().state_floats, 4);
}

TEST(Scissorhands, CountsRowsBelowTheUniformLevel) {
  Lane lane(8, {0, 1, 2, 3});
  lane.Observe({3}, {0.5F, 0.24F, 0.01F, 0.25F});  // the level is 1 / 4, and at it a token is important
  EXPECT_THAT(lane.Counts(), ElementsAre(0, 1, 1, 0));
  lane.Observe({3}, {0.2F, 0.5F, 0.05F, 0.25F});
  EXPECT_THAT(lane.Counts(), ElementsAre(1, 1, 2, 0));
}

// Each row of a block has its own level, and says nothing of tokens that it did not see.
TEST(Scissorhands, ARowOfABlockKnowsOnlyWhatItSaw) {
  Lane lane(8, {1, 2, 0});
  lane.Observe({2, 0, 1}, {0.0F, 0.0F, 1.0F,      // token 0 alone
                           0.51F, 0.0F, 0.49F,    // two: the level is 1 / 2
                           0.4F, 0.35F, 0.25F});  // three
  EXPECT_THAT(lane.Counts(), ElementsAre(0, 0, 2));
}

TEST(Scissorhands, ForgetsRowsOlderThanTheWindow) {
  Lane lane(2, {0, 1});
  lane.Observe({1}, {0.9F, 0.1F});
  lane.Observe({1}, {0.9F, 0.1F});
  EXPECT_THAT(lane.Counts(), ElementsAre(0, 2));
  lane.Observe({1}, {0.1F, 0.9F});
  EXPECT_THAT(lane.Counts(), ElementsAre(1, 1));
  lane.Observe({1}, {0.1F, 0.9F});
  EXPECT_THAT(lane.Counts(), ElementsAre(2, 0));
}

TEST(Scissorhands, ANewTokenInASlotStartsAtZero) {
  Lane lane(30, {0, 1});
  for (int row = 0; row < 29; ++row) lane.Observe({1}, {0.1F, 0.9F});
  EXPECT_THAT(lane.Counts(), ElementsAre(29, 0));
  lane.token[0] = 2;
  std::fill_n(lane.slot.begin(), 4, 0.0F);  // as the lane zeroes the slot of a token that enters
  lane.Observe({0}, {0.1F, 0.9F});
  EXPECT_THAT(lane.Counts(), ElementsAre(1, 0));
}

// Of equal counts the lower last probability leaves first, whatever the count is; a lower count outweighs any.
TEST(Scissorhands, TheLastRowBreaksTies) {
  Lane lane(512, {0, 1, 2, 3, 4});
  for (int row = 0; row < 511; ++row) lane.Observe({4}, {0.1F, 0.1F, 0.1F, 0.7F, 0.0F});
  lane.Observe({4}, {0.0101F, 0.01F, 0.0F, 0.19F, 0.7899F});
  const std::vector<float> keep = lane.Score();
  EXPECT_LT(keep[2], keep[1]);
  EXPECT_LT(keep[1], keep[0]);
  EXPECT_LT(keep[0], keep[4]);
  EXPECT_LT(keep[4], keep[3]);
}

}  // namespace
}  // namespace ebb
