#include "policies/streaming.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <vector>

#include "policies/select.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using testing::ElementsAre;

TEST(Streaming, AsksNothingOfAttention) {
  const auto streaming = MakeStreaming();
  EXPECT_FALSE(streaming->needs().observes());
  EXPECT_EQ(streaming->needs().state_floats, 0);
}

TEST(Streaming, RanksByAge) {
  const std::vector<int32_t> token = {30, 0, -1, 7};
  std::vector<float> keep(token.size());
  MakeStreaming()->Score({.token = token, .live = 3}, {}, keep);
  EXPECT_THAT(keep, ElementsAre(30, 0, -1, 7));
}

// 2^24 + 1 has no float of its own; the oldest must leave first all the same.
TEST(Streaming, EvictsTheOldestWhereFloatsNoLongerTellNeighboursApart) {
  constexpr int32_t kFirst = (1 << 24) - 2;
  std::vector<int32_t> token;
  for (int32_t age = 6; age >= 0; --age) token.push_back(kFirst + age);
  std::vector<float> keep(token.size());
  const LaneView lane = {.token = token, .live = 7};
  MakeStreaming()->Score(lane, {}, keep);
  SelectScratch scratch;
  std::vector<int32_t> victims;
  for (int32_t count = 1; count <= 7; ++count) {
    ASSERT_THAT(SelectVictims(lane, keep, count, scratch, victims), IsOk());
    ASSERT_EQ(victims.size(), static_cast<size_t>(count));
    EXPECT_EQ(victims.front(), 7 - count);  // the youngest victim: everyone older left with it
  }
}

}  // namespace
}  // namespace ebb
