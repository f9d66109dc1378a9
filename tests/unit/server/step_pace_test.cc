#include "server/step_pace.h"

#include <gmock/gmock.h>

#include "policies/hash_random.h"

namespace ebb {
namespace {

constexpr absl::Duration kTarget = absl::Milliseconds(100);

absl::Duration Line(double start_ms, double each_ms, int32_t tokens) {
  return absl::Milliseconds(1) * (start_ms + each_ms * tokens);
}

TEST(StepPace, KnowsNothingAtFirstAndWithoutATarget) {
  StepPace pace(kTarget);
  EXPECT_EQ(pace.tokens(), StepPace::kFree);
  StepPace aimless(absl::InfiniteDuration());
  aimless.Took(1, absl::Hours(1));
  EXPECT_EQ(aimless.tokens(), StepPace::kFree);
}

// Whatever the line, and in whatever order steps of whatever lengths come: with the pace's tokens a step is within the
// target, with one more it is not, or twice as long as those before.
TEST(StepPace, FindsWhatFitsTheTarget) {
  HashRandom random(3);
  for (int round = 0; round < 200; ++round) {
    const double start_ms = random.Uniform(0, 90);
    const double each_ms = random.Uniform(1, 1000) / 1000.0;
    StepPace pace(kTarget);
    for (int step = 0; step < 100; ++step) {
      const int32_t tokens = random.Uniform(1, 512);
      pace.Took(tokens, Line(start_ms, each_ms, tokens));
    }
    const double exact = (100 - start_ms) / each_ms;
    if (exact > 512) {
      EXPECT_GE(pace.tokens(), 512);
    } else {
      EXPECT_NEAR(pace.tokens(), exact, 1) << start_ms << " + " << each_ms << " ms";
    }
  }
}

TEST(StepPace, FollowsWhatChanges) {
  StepPace pace(kTarget);
  for (const double each_ms : {0.5, 1.0, 0.5}) {
    for (int step = 0; step < 200; ++step) {
      const int32_t tokens = step % 4 == 0 ? 130 : 2;
      pace.Took(tokens, Line(10, each_ms, tokens));
    }
    EXPECT_NEAR(pace.tokens(), 90 / each_ms, 1);
  }
}

// Before the first prompt comes, a step is thought to grow with its tokens from nothing, which is the most it can.
TEST(StepPace, IsCarefulWhereStepsWereAlike) {
  StepPace pace(kTarget);
  for (int step = 0; step < 100; ++step) pace.Took(4, absl::Milliseconds(60));
  EXPECT_EQ(pace.tokens(), 6);
  pace.Took(104, absl::Milliseconds(110));  // half a millisecond each, from 58 on
  EXPECT_EQ(pace.tokens(), 84);
}

// Whatever a first prompt's block costs, and however little: twice as much at a time, until the line is known.
TEST(StepPace, GoesToLongerStepsByAndBy) {
  StepPace pace(kTarget);
  for (int step = 0; step < 100; ++step) pace.Took(1, absl::Milliseconds(20));
  pace.Took(9, absl::Milliseconds(20));
  EXPECT_EQ(pace.tokens(), 18);
  pace.Took(18, absl::Milliseconds(20));
  EXPECT_EQ(pace.tokens(), 36);
  for (int step = 0; step < 100; ++step) pace.Took(1, absl::Milliseconds(20));
  EXPECT_EQ(pace.tokens(), 2) << "and that is forgotten";
}

TEST(StepPace, KeepsWhatItHasLearntForAnotherTarget) {
  StepPace pace(kTarget);
  for (int step = 0; step < 100; ++step) pace.Took(1 + step % 128, Line(10, 0.5, 1 + step % 128));
  EXPECT_NEAR(pace.tokens(), 180, 1);
  pace.SetTarget(absl::Milliseconds(30));
  EXPECT_NEAR(pace.tokens(), 40, 1);
  pace.SetTarget(absl::Milliseconds(10));
  EXPECT_EQ(pace.tokens(), 0);
}

TEST(StepPace, HasNoTimeWhereOneTokenTakesTooLong) {
  StepPace pace(kTarget);
  for (const int32_t tokens : {1, 2, 9, 1}) pace.Took(tokens, Line(150, 1, tokens));
  EXPECT_EQ(pace.tokens(), 0);
}

// A clock that stands still or jumps back, and steps that take less the longer they are, are no reason to be afraid.
TEST(StepPace, TakesWhatMakesNoSense) {
  StepPace still(kTarget);
  for (const int32_t tokens : {1, 7, 3}) still.Took(tokens, absl::ZeroDuration());
  EXPECT_GE(still.tokens(), 7);
  StepPace backwards(kTarget);
  backwards.Took(5, -absl::Seconds(1));
  EXPECT_GE(backwards.tokens(), 5);
  StepPace falling(kTarget);
  for (const int32_t tokens : {1, 30, 1, 30}) falling.Took(tokens, Line(40, -1, tokens));
  EXPECT_GE(falling.tokens(), 30);
}

}  // namespace
}  // namespace ebb
