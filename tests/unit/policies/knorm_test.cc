#include "policies/knorm.h"

#include <gmock/gmock.h>

#include <vector>

#include "policies/registry.h"
#include "tests/support/lane_memory_of.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Knorm, AsksForWhoEnteredAndTheirKeys) {
  const Needs needs = MakeKnorm(KeptKeys::kShort)->needs();
  EXPECT_TRUE(needs.entered);
  EXPECT_TRUE(needs.memory);
  EXPECT_FALSE(needs.attention());
  EXPECT_FALSE(needs.queries);
  EXPECT_EQ(needs.state_floats, 1);
}

TEST(Knorm, ScoresTheLengthOfTheKeyThatEntered) {
  const LaneMemoryOf memory(2, {3, 4, 0, 0, 5, 12});
  const std::vector<int32_t> token = {1, -1, 0};
  const LaneView lane = {.token = token, .live = 2, .memory = &memory};
  std::vector<float> state(3, 0.0F);
  std::vector<float> keep(3);
  const std::vector<int32_t> first = {2};
  const std::vector<int32_t> second = {0};
  const auto shorts = MakeKnorm(KeptKeys::kShort);
  shorts->Observe(lane, {.queries = 1, .slots = first}, {.slot = state});
  EXPECT_THAT(state, ElementsAre(0, 0, 13)) << "only who entered is read";
  shorts->Observe(lane, {.queries = 1, .slots = second}, {.slot = state});
  shorts->Score(lane, {.slot = state}, keep);
  EXPECT_EQ(keep[0], -5);
  EXPECT_EQ(keep[2], -13);
  MakeKnorm(KeptKeys::kLong)->Score(lane, {.slot = state}, keep);
  EXPECT_EQ(keep[0], 5);
  EXPECT_EQ(keep[2], 13);
}

TEST(Knorm, RebuildsFromTheKeysOfTheLiveSlots) {
  const LaneMemoryOf memory(2, {3, 4, 0, 0, 5, 12});
  const std::vector<int32_t> token = {1, -1, 0};
  std::vector<float> state(3, 0.0F);
  EXPECT_TRUE(MakeKnorm(KeptKeys::kShort)->Rebuild({.token = token, .live = 2, .memory = &memory}, {.slot = state}));
  EXPECT_THAT(state, ElementsAre(5, 0, 13));
}

TEST(Knorm, ProtectsFourAndTenAndTakesTheSignByName) {
  const auto spec = Resolve({.scorer = "knorm", .budget = 100}, {});
  ASSERT_THAT(spec, IsOk());
  EXPECT_EQ(spec->sinks, 4);
  EXPECT_EQ(spec->recent, 10);
  const auto wrong = Resolve({.scorer = "knorm", .parameters = {{"keep", 2}}, .budget = 100}, {});
  ASSERT_THAT(wrong, IsRefusal(absl::StatusCode::kInvalidArgument, "PARAMETER_OUT_OF_RANGE", "policy.knorm.keep"));
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("2 is no choice; use 0 (short) or 1 (long)"));
}

}  // namespace
}  // namespace ebb
