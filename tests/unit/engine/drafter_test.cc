#include "engine/drafter.h"

#include <gmock/gmock.h>

#include <vector>

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> Drafted(const std::vector<int32_t>& log, int32_t most) {
  std::vector<int32_t> draft = {99};
  LookUp(log, most, draft);
  return draft;
}

TEST(LookUp, GoesOnAsTheTextDidBefore) {
  EXPECT_THAT(Drafted({1, 2, 3, 4, 5, 6, 1, 2, 3}, 2), ElementsAre(4, 5));
  EXPECT_THAT(Drafted({1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3}, 1), ElementsAre(5)) << "the newest place";
  EXPECT_THAT(Drafted({7, 2, 3, 8, 4, 2, 3, 6, 7, 2, 3}, 1), ElementsAre(8)) << "three tokens before two";
  EXPECT_THAT(Drafted({2, 3, 8, 9, 2, 3}, 3), ElementsAre(8, 9, 2)) << "two where three never stood";
}

TEST(LookUp, DraftsARepetitionOn) {
  EXPECT_THAT(Drafted({5, 1, 2, 1, 2, 1}, 5), ElementsAre(2, 1, 2, 1, 2));
  EXPECT_THAT(Drafted({4, 4, 4}, 3), ElementsAre(4, 4, 4));
}

TEST(LookUp, IsSilentWhereNothingRepeats) {
  EXPECT_THAT(Drafted({}, 4), IsEmpty());
  EXPECT_THAT(Drafted({1}, 4), IsEmpty());
  EXPECT_THAT(Drafted({1, 2}, 4), IsEmpty());
  EXPECT_THAT(Drafted({1, 2, 3, 2}, 4), IsEmpty()) << "one token is too little to go by";
  EXPECT_THAT(Drafted({1, 2, 3, 1, 2, 3}, 0), IsEmpty());
}

TEST(LookUp, LooksBackSoFarAndNoFarther) {
  std::vector<int32_t> log = {-1, -2, -3, -4};
  for (int32_t i = 0; static_cast<int32_t>(log.size()) < kLookBackTokens - 3; ++i) log.push_back(i);
  log.insert(log.end(), {-1, -2, -3});
  EXPECT_THAT(Drafted(log, 1), ElementsAre(-4));
  log.insert(log.begin() + 4, {-5, -6});  // pushes the place out of sight
  EXPECT_THAT(Drafted(log, 1), IsEmpty());
}

TEST(DraftLength, GrowsWhileDraftsAreAcceptedWhole) {
  DraftLength length(16);
  std::vector<int32_t> lengths;
  for (int i = 0; i < 4; ++i) {
    lengths.push_back(length.Next());
    length.Settle(lengths.back(), lengths.back());
  }
  EXPECT_THAT(lengths, ElementsAre(2, 4, 8, 16));
  length.Settle(16, 5);
  EXPECT_EQ(length.Next(), 6);
}

TEST(DraftLength, PausesAfterAFirstDraftThatIsRejectedWhole) {
  DraftLength length(16);
  length.Settle(length.Next(), 0);
  EXPECT_EQ(length.Next(), 0);
}

// What is never accepted costs ever less: of 10,000 steps at most one in a hundred drafts anything.
TEST(DraftLength, PausesWhereDraftsDoNotPay) {
  DraftLength length(16);
  int32_t drafts = 0;
  for (int step = 0; step < 10000; ++step) {
    const int32_t drafted = length.Next();
    if (drafted == 0) continue;
    ++drafts;
    length.Settle(drafted, 0);
  }
  EXPECT_LT(drafts, 100);
  EXPECT_GT(drafts, 5) << "it tries again";
  int32_t accepted = 0;  // the text begins to repeat itself
  for (int step = 0; step < 2000; ++step) {
    const int32_t drafted = length.Next();
    accepted += drafted;
    if (drafted > 0) length.Settle(drafted, drafted);
  }
  EXPECT_GT(accepted, 2000) << "and then goes on";
}

// What pays is asked of what was measured, and a model as slow as the one that it drafts for never does.
TEST(DraftLength, KeepsToTheShareThatPays) {
  DraftLength dear(16), cheap(16);
  int32_t dear_drafts = 0, cheap_drafts = 0;
  for (int step = 0; step < 10000; ++step) {
    if (const int32_t drafted = dear.Next(); drafted > 0) {
      ++dear_drafts;
      dear.Settle(drafted, drafted, 1.2);
    }
    if (const int32_t drafted = cheap.Next(); drafted > 0) {
      ++cheap_drafts;
      cheap.Settle(drafted, step % 5 == 0 ? drafted : 0, 0.05);
    }
  }
  EXPECT_LT(dear_drafts, 30);
  EXPECT_GT(dear_drafts, 5) << "it tries again";
  EXPECT_GT(cheap_drafts, 5000);
}

TEST(DraftCost, IsWhatADraftedTokenTakesByWhatADecodedOneDoes) {
  DraftCost cost;
  EXPECT_EQ(cost.BreakEven(1), 0) << "nothing is known";
  // A step takes 10 ms and 1 ms for each token; drafting one takes 2 ms.
  for (int i = 0; i < 50; ++i) {
    const int32_t tokens = 1 + i % 9;
    cost.StepTook(tokens, 0.010 + 0.001 * tokens);
    cost.DraftTook(4, 0.008);
  }
  EXPECT_NEAR(cost.BreakEven(1), (0.001 + 0.002) / 0.011, 1e-9);
  EXPECT_NEAR(cost.BreakEven(10), (0.001 + 0.002) * 10 / 0.020, 1e-9) << "in company a decoded token is cheaper";
}

TEST(DraftCost, ForgetsAndTakesNothingForGranted) {
  DraftCost cost;
  for (int i = 0; i < 1000; ++i) cost.StepTook(1 + i % 2, 1.0);
  for (int i = 0; i < 1000; ++i) cost.StepTook(1 + i % 2, 0.010);
  cost.DraftTook(1, 0.001);
  EXPECT_NEAR(cost.BreakEven(1), 0.1, 1e-6) << "longer steps took no longer";
  DraftCost level;
  level.StepTook(3, 0.030);
  level.DraftTook(1, 0.005);
  EXPECT_NEAR(level.BreakEven(1), 0.005 / 0.030, 1e-9) << "steps of one length say nothing of longer ones";
  DraftCost dear;
  for (int i = 0; i < 50; ++i) {
    dear.StepTook(1 + i % 2, 0.010 * (1 + i % 2));
    dear.DraftTook(1, 0.010);
  }
  EXPECT_GT(dear.BreakEven(1), 1) << "as slow as what it is to save";
}

}  // namespace
}  // namespace ebb
