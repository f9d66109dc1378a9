#include "engine/gpu/step_bound.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace ebb {
namespace {

constexpr int64_t kLargest = int64_t{1} << 30;  // larger than any step

void Count(StepBound& bound, int steps) {
  for (int i = 0; i < steps; ++i) bound.CountStep();
}

TEST(StepBound, ThereIsNoneBeforeAStepLackedMemory) {
  StepBound bound;
  EXPECT_GT(bound.tokens(), kLargest);
  Count(bound, 3 * StepBound::kPatience);
  EXPECT_GT(bound.tokens(), kLargest);
}

TEST(StepBound, StaysForAWhileThenDoublesAndIsGoneInTheEnd) {
  StepBound bound;
  bound.Lower(3);
  for (const int64_t tokens : {3, 6, 12}) {
    EXPECT_EQ(bound.tokens(), tokens);
    Count(bound, StepBound::kPatience - 1);
    EXPECT_EQ(bound.tokens(), tokens);
    bound.CountStep();
  }
  Count(bound, 32 * StepBound::kPatience);
  EXPECT_GT(bound.tokens(), kLargest);
}

TEST(StepBound, WaitsAnewAfterAnotherShortage) {
  StepBound bound;
  bound.Lower(8);
  Count(bound, StepBound::kPatience - 1);
  bound.Lower(4);
  Count(bound, StepBound::kPatience - 1);
  EXPECT_EQ(bound.tokens(), 4);
  bound.CountStep();
  EXPECT_EQ(bound.tokens(), 8);
}

}  // namespace
}  // namespace ebb
