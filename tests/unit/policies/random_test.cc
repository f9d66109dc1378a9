#include "policies/random.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "policies/registry.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using testing::HasSubstr;

std::vector<float> Scores(uint64_t seed, RandomMode mode, LaneView lane, const std::vector<int32_t>& token) {
  lane.token = token;
  std::vector<float> keep(token.size(), -1.0F);
  MakeRandom(seed, mode)->Score(lane, {}, keep);
  return keep;
}

TEST(Random, NeedsAndKeepsNothing) {
  const Needs needs = MakeRandom(0, RandomMode::kReservoir)->needs();
  EXPECT_FALSE(needs.observes());
  EXPECT_FALSE(needs.memory);
  EXPECT_EQ(needs.state_floats, 0);
}

TEST(Random, ReservoirDrawsOncePerSeedLayerHeadAndToken) {
  const std::vector<int32_t> token = {7, 3, 9};
  const auto draw = [&](uint64_t seed, int32_t layer, int32_t head, int32_t tokens) {
    return Scores(seed, RandomMode::kReservoir, {.tokens = tokens, .layer = layer, .head = head}, token);
  };
  const std::vector<float> keep = draw(5, 2, 1, 10);
  EXPECT_EQ(draw(5, 2, 1, 5000), keep) << "later draws nothing anew";
  EXPECT_NE(draw(6, 2, 1, 10), keep);
  EXPECT_NE(draw(5, 1, 1, 10), keep);
  EXPECT_NE(draw(5, 2, 0, 10), keep);
  EXPECT_NE(draw(5, 1, 2, 10), draw(5, 2, 1, 10)) << "layer and head do not trade places";
  EXPECT_NE(keep[0], keep[1]);
}

TEST(Random, AScoreBelongsToTheTokenAndNotToItsSlot) {
  for (const RandomMode mode : {RandomMode::kReservoir, RandomMode::kFresh}) {
    const std::vector<float> one = Scores(5, mode, {.tokens = 10}, {7, 3, 9});
    const std::vector<float> other = Scores(5, mode, {.tokens = 10}, {9, -1, 7, 3});
    EXPECT_EQ(one[0], other[2]);
    EXPECT_EQ(one[1], other[3]);
    EXPECT_EQ(one[2], other[0]);
  }
}

TEST(Random, FreshDrawsAnewAsTheLogGrows) {
  const std::vector<int32_t> token = {7, 3, 9};
  const auto at = [&](int32_t tokens) { return Scores(5, RandomMode::kFresh, {.tokens = tokens}, token); };
  EXPECT_EQ(at(10), at(10));
  EXPECT_NE(at(10), at(11));
}

TEST(Random, ScoresLieInZeroToOne) {
  std::vector<int32_t> token(10000);
  for (size_t i = 0; i < token.size(); ++i) token[i] = static_cast<int32_t>(i);
  const std::vector<float> keep = Scores(0, RandomMode::kReservoir, {}, token);
  EXPECT_GE(*std::ranges::min_element(keep), 0.0F);
  EXPECT_LT(*std::ranges::max_element(keep), 1.0F);
}

TEST(Random, ProtectsFourAndThirtyTwoAndTakesAnySeed) {
  const auto spec = Resolve({.scorer = "random", .parameters = {{"seed", 0x1p53}, {"mode", 1}}, .budget = 100}, {});
  ASSERT_THAT(spec, IsOk());
  EXPECT_EQ(spec->sinks, 4);
  EXPECT_EQ(spec->recent, 32);
  const auto half = Resolve({.scorer = "random", .parameters = {{"seed", 0.5}}, .budget = 100}, {});
  ASSERT_THAT(half, IsRefusal(absl::StatusCode::kInvalidArgument, "PARAMETER_OUT_OF_RANGE", "policy.random.seed"));
  EXPECT_THAT(std::string(half.status().message()), HasSubstr("not a whole number"));
  const auto mode = Resolve({.scorer = "random", .parameters = {{"mode", 0.5}}, .budget = 100}, {});
  ASSERT_THAT(mode, IsRefusal(absl::StatusCode::kInvalidArgument, "PARAMETER_OUT_OF_RANGE", "policy.random.mode"));
  EXPECT_THAT(std::string(mode.status().message()), HasSubstr("use 0 (reservoir) or 1 (fresh)"));
}

}  // namespace
}  // namespace ebb
