#include "policies/keydiff.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <vector>

#include "policies/registry.h"
#include "tests/support/lane_memory_of.h"

namespace ebb {
namespace {

using testing::Each;

std::vector<float> Scores(const LaneMemoryOf& memory, const std::vector<int32_t>& token) {
  std::vector<float> keep(token.size());
  MakeKeydiff()->Score({.token = token, .live = static_cast<int32_t>(token.size()), .memory = &memory}, {}, keep);
  return keep;
}

TEST(Keydiff, AsksForMemoryAndKeepsNothing) {
  const Needs needs = MakeKeydiff()->needs();
  EXPECT_TRUE(needs.memory);
  EXPECT_FALSE(needs.observes());
  EXPECT_EQ(needs.state_floats, 0);
  EXPECT_TRUE(MakeKeydiff()->Rebuild({}, {}));
}

// Unit keys (1, 0), (0.6, 0.8), (0, 1): their mean points along (1.6, 1.8) of length sqrt(5.8).
TEST(Keydiff, ScoresTheCosineWithTheMeanOfTheUnitKeysNegated) {
  const std::vector<float> keep = Scores(LaneMemoryOf(2, {1, 0, 3, 4, 0, 0.5}), {0, 1, 2});
  EXPECT_NEAR(keep[0], -1.6 / std::sqrt(5.8), 1e-6);
  EXPECT_NEAR(keep[1], -(0.6 * 1.6 + 0.8 * 1.8) / std::sqrt(5.8), 1e-6);
  EXPECT_NEAR(keep[2], -1.8 / std::sqrt(5.8), 1e-6);
}

TEST(Keydiff, FreeSlotsHaveNoVoice) {
  const std::vector<float> keep = Scores(LaneMemoryOf(2, {1, 0, 0, 9, 0, 1}), {0, -1, 2});
  EXPECT_NEAR(keep[0], -std::sqrt(0.5), 1e-6);
  EXPECT_EQ(keep[0], keep[2]);
}

TEST(Keydiff, AKeyOfLengthZeroHasCosineZeroAndMovesNoMean) {
  const std::vector<float> keep = Scores(LaneMemoryOf(2, {0, 0, 2, 0, 0, 3}), {0, 1, 2});
  EXPECT_EQ(keep[0], 0);
  EXPECT_NEAR(keep[1], -std::sqrt(0.5), 1e-6);
}

TEST(Keydiff, AMeanOfZeroTiesEveryone) {
  EXPECT_THAT(Scores(LaneMemoryOf(2, {1, 0, -2, 0, 0, 3, 0, -1}), {0, 1, 2, 3}), Each(0.0F));
}

TEST(Keydiff, KeysOfAnyLengthKeepTheirDirection) {
  const std::vector<float> keep = Scores(LaneMemoryOf(2, {1e-30F, 0, 3e37F, 4e37F, 0, 1e-42F}), {0, 1, 2});
  EXPECT_NEAR(keep[0], -1.6 / std::sqrt(5.8), 1e-6);
  EXPECT_NEAR(keep[2], -1.8 / std::sqrt(5.8), 1e-6);
}

// A broken key is its own trouble: it scores NaN, which leaves first, and the others keep their scores.
TEST(Keydiff, AKeyThatIsNoNumberSpoilsNoOther) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> keep = Scores(LaneMemoryOf(2, {1, 0, nan, 1, 0, 1, inf, 1}), {0, 1, 2, 3});
  EXPECT_NEAR(keep[0], -std::sqrt(0.5), 1e-6);
  EXPECT_TRUE(std::isnan(keep[1]));
  EXPECT_NEAR(keep[2], -std::sqrt(0.5), 1e-6);
  EXPECT_TRUE(std::isnan(keep[3]));
}

TEST(Keydiff, TheNewestThirtyTwoStay) {
  const auto spec = Resolve({.scorer = "keydiff", .budget = 100}, {});
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->sinks, 0);
  EXPECT_EQ(spec->recent, 32);
}

}  // namespace
}  // namespace ebb
