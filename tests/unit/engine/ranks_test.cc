#include "engine/lab/ranks.h"

#include <gmock/gmock.h>

#include <vector>

namespace ebb::lab {
namespace {

using Scores = std::vector<double>;

TEST(MeanRanks, SharesTheRankOfEqualScores) { EXPECT_EQ(MeanRanks(Scores{3, 1, 3, 2}), (Scores{2.5, 0, 2.5, 1})); }

// Worked by hand: ranks 0 1 2 3 against 1 0 3 2 differ by 1 each, so 1 - 6 * 4 / (4 * 15) = 0.6.
TEST(Spearman, GivesTheWorkedExample) { EXPECT_NEAR(Spearman(Scores{1, 2, 3, 4}, Scores{20, 10, 40, 30}), 0.6, 1e-12); }

TEST(Spearman, GoesByOrderAlone) {
  EXPECT_NEAR(Spearman(Scores{1, 2, 3}, Scores{10, 100, 1000}), 1, 1e-12);
  EXPECT_NEAR(Spearman(Scores{1, 2, 3}, Scores{0, -1, -5}), -1, 1e-12);
  EXPECT_EQ(Spearman(Scores{1, 2, 3}, Scores{7, 7, 7}), 0);
}

TEST(SharedTop, CountsWhoIsAmongTheBestOfBoth) {
  EXPECT_EQ(SharedTop(Scores{1, 2, 3, 4}, Scores{4, 1, 2, 3}, 2), 0.5);
  EXPECT_EQ(SharedTop(Scores{1, 2, 3, 4}, Scores{1, 2, 3, 4}, 3), 1);
  EXPECT_EQ(SharedTop(Scores{1, 2}, Scores{2, 1}, 1), 0);
  EXPECT_EQ(SharedTop(Scores{1, 2}, Scores{2, 1}, 0), 1);
}

}  // namespace
}  // namespace ebb::lab
