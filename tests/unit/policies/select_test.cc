#include "policies/select.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "policies/hash_random.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

LaneView View(const std::vector<int32_t>& token, int32_t sinks, int32_t recent) {
  const auto live = std::ranges::count_if(token, [](int32_t t) { return t >= 0; });
  return {.token = token, .live = static_cast<int32_t>(live), .sinks = sinks, .recent = recent};
}

TEST(SelectVictims, FollowsTheTotalOrder) {
  struct Case {
    std::string name;
    std::vector<int32_t> token;  // -1: free slot
    std::vector<float> keep;
    std::vector<int32_t> victims;
  };
  const std::vector<Case> cases = {
      {"lowest score first", {0, 1, 2, 3}, {9, 5, 2, 9}, {2}},
      {"sink and recent stay", {0, 1, 2, 3}, {0, 5, 2, 0}, {1, 2}},
      {"the first and last are by age, not by slot", {2, 3, 0, 1}, {7, 0, 0, 8}, {0}},
      {"the first and last are of those that live", {9, -1, 4, 7}, {0, 0, 0, 8}, {3}},
      {"a tie evicts the oldest", {3, 2, 1, 0}, {9, 4, 4, 9}, {2}},
      {"NaN goes before everything", {0, 1, 2, 3}, {9, -7, kNan, 9}, {2}},
      {"NaN goes before minus infinity", {0, 1, 2, 3}, {9, -kInf, -kNan, 9}, {2}},
      {"of two NaN the oldest goes", {0, 2, 1, 3}, {9, -kNan, kNan, 9}, {2}},
      {"minus zero is zero", {0, 1, 2, 3}, {9, 0.0F, -0.0F, 9}, {1}},
      {"plus infinity goes last", {0, 1, 2, 3}, {9, kInf, 8, 9}, {2}},
      {"free slots are skipped", {0, -1, 2, 3}, {9, -1, 4, 9}, {2}},
      {"victims come in slot order", {0, 4, 3, 2, 1, 5}, {9, 1, 4, 2, 3, 9}, {1, 3, 4}},
      {"nobody leaves when none is asked for", {0, 1, 2, 3}, {9, 5, 2, 9}, {}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    SelectScratch scratch;
    std::vector<int32_t> victims = {77};
    ASSERT_THAT(SelectVictims(View(c.token, 1, 1), c.keep, static_cast<int32_t>(c.victims.size()), scratch, victims),
                IsOk());
    EXPECT_THAT(victims, ElementsAreArray(c.victims));
  }
}

TEST(SelectVictims, ProtectsTheFirstAndTheLastOfTheLiving) {
  struct Case {
    std::string name;
    int32_t sinks, recent;
    std::vector<int32_t> victims;  // all that may leave
  };
  const std::vector<int32_t> token = {7, 3, -1, 5, 1, 9};
  const std::vector<Case> cases = {
      {"nobody is protected", 0, 0, {0, 1, 3, 4, 5}},
      {"sinks alone", 2, 0, {0, 3, 5}},
      {"recent alone", 0, 3, {1, 4}},
      {"one candidate between them", 2, 2, {3}},
      {"sinks outnumber what is left", 3, 1, {0}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    SelectScratch scratch;
    std::vector<int32_t> victims;
    ASSERT_THAT(SelectVictims(View(token, c.sinks, c.recent), std::vector<float>(token.size()),
                              static_cast<int32_t>(c.victims.size()), scratch, victims),
                IsOk());
    EXPECT_THAT(victims, ElementsAreArray(c.victims));
  }
}

TEST(SelectVictims, RefusesMoreThanMayLeaveAndNamesBothNumbers) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  struct Case {
    std::string name;
    std::vector<int32_t> token;
    int32_t sinks, recent, count;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"one more than the candidates", {0, 1, 2, 3}, 1, 1, 3, "3 tokens were to leave, but only 2 of 4"},
      {"everything is protected", {0, 1, 2, 3}, 2, 2, 1, "1 tokens were to leave, but only 0 of 4"},
      {"protection overlaps", {0, 1, 2, 3}, 3, 3, 1, "only 0 of 4 may be evicted beside sinks 3 and recent 3"},
      {"protection of any size", {0, 1}, kMax, kMax, 1, "only 0 of 2"},
      {"an empty lane", {-1, -1}, 0, 0, 1, "only 0 of 0"},
      {"a count of any size", {0, -1}, 0, 0, kMax, "only 1 of 1"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    SelectScratch scratch;
    std::vector<int32_t> victims = {77};
    const absl::Status status =
        SelectVictims(View(c.token, c.sinks, c.recent), std::vector<float>(c.token.size()), c.count, scratch, victims);
    EXPECT_THAT(status, IsRefusal(absl::StatusCode::kInvalidArgument, "NOT_ENOUGH_CANDIDATES", ""));
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
    EXPECT_EQ(GetRefusal(status).metadata.at("count"), std::to_string(c.count));
    EXPECT_THAT(victims, IsEmpty());
  }
}

TEST(SelectVictims, AllocatesNothingOnceItsMemoryHasGrown) {
  HashRandom random(0);
  std::vector<int32_t> token(500);
  std::vector<float> keep(token.size());
  SelectScratch scratch;
  std::vector<int32_t> victims;
  std::vector<const void*> memory;
  for (int step = 0; step < 20; ++step) {
    for (size_t slot = 0; slot < token.size(); ++slot) {
      token[slot] = step > 0 && random.Uniform(0, 3) == 0 ? -1 : static_cast<int32_t>(slot);
      keep[slot] = random.UniformFloat();
    }
    const int32_t count = step == 0 ? 100 : random.Uniform(1, 100);
    token[0] = -1;  // a gap before the sinks: the slower way to tell who is protected, too
    ASSERT_THAT(SelectVictims(View(token, 4, 32), keep, count, scratch, victims), IsOk());
    const std::vector<const void*> now = {scratch.ages.data(), scratch.turns.data(), victims.data()};
    if (step == 0) memory = now;
    EXPECT_EQ(now, memory);
  }
}

TEST(SelectVictimsDeathTest, AViewThatMiscountsItsLiveSlotsIsABrokenInvariant) {
  const std::vector<int32_t> token = {0, 1, -1};
  const std::vector<float> keep(3);
  SelectScratch scratch;
  std::vector<int32_t> victims;
  EXPECT_DEATH((void)SelectVictims({.token = token, .live = 3}, keep, 1, scratch, victims), "broken invariant");
}

}  // namespace
}  // namespace ebb
