#include "engine/lab/statistics.h"

#include <gmock/gmock.h>

#include <cmath>

namespace ebb::lab {
namespace {

// Published values: Wilson's score interval for 8 of 10 is 0.490 to 0.943; for 0 of 50, z^2 / (n + z^2) = 0.0713.
TEST(Wilson, GivesThePublishedIntervals) {
  EXPECT_NEAR(Wilson(8, 10).low, 0.490, 5e-4);
  EXPECT_NEAR(Wilson(8, 10).high, 0.943, 5e-4);
  EXPECT_NEAR(Wilson(0, 50).low, 0.0, 1e-12);
  EXPECT_NEAR(Wilson(0, 50).high, 0.0713, 5e-5);
}

TEST(Wilson, IsSymmetricAndHoldsTheShare) {
  for (int right = 0; right <= 50; ++right) {
    const Interval interval = Wilson(right, 50);
    const Interval mirrored = Wilson(50 - right, 50);
    EXPECT_LE(interval.low, right / 50.0 + 1e-12);
    EXPECT_GE(interval.high, right / 50.0 - 1e-12);
    EXPECT_NEAR(interval.low, 1 - mirrored.high, 1e-12);
  }
}

TEST(Wilson, KnowsNothingOfNoCases) {
  EXPECT_EQ(Wilson(0, 0).low, 0);
  EXPECT_EQ(Wilson(0, 0).high, 1);
}

TEST(Interval, OverlapsWhereTheyShareAPoint) {
  EXPECT_TRUE((Interval{.low = 0, .high = 0.5}.Overlaps({.low = 0.5, .high = 1})));
  EXPECT_FALSE((Interval{.low = 0, .high = 0.4}.Overlaps({.low = 0.5, .high = 1})));
}

// Tables of Student's t, 97.5 %.
TEST(Student95, IsThatOfTheTables) {
  EXPECT_NEAR(Student95(1), 12.706, 5e-4);
  EXPECT_NEAR(Student95(7), 2.365, 5e-4);
  EXPECT_NEAR(Student95(10), 2.228, 1e-3);
  EXPECT_NEAR(Student95(30), 2.042, 5e-4);
  EXPECT_NEAR(Student95(1000000), 1.960, 5e-4);
}

// 2, 4, 4, 4, 5, 5, 7, 9: mean 5, sum of squares 32, so sqrt(32 / 7 / 8) * 2.365.
TEST(MeanOf, GivesMeanAndStudentsInterval) {
  const double samples[] = {2, 4, 4, 4, 5, 5, 7, 9};
  EXPECT_NEAR(MeanOf(samples).value, 5, 1e-12);
  EXPECT_NEAR(MeanOf(samples).half_width, 0.75593 * 2.365, 1e-4);
}

TEST(MeanOf, OfOneSampleKnowsNoSpread) {
  const double one[] = {3};
  EXPECT_EQ(MeanOf(one).value, 3);
  EXPECT_TRUE(std::isinf(MeanOf(one).half_width));
  EXPECT_EQ(MeanOf({}).value, 0);
}

}  // namespace
}  // namespace ebb::lab
