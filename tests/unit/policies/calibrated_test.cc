#include "policies/calibrated.h"

#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "policies/registry.h"
#include "policies/spec.h"
#include "tests/support/lane_memory_of.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// One lane in which each feature weighs so much; the unseen go by `unseen`.
std::shared_ptr<const Calibration> Weights(const Features& with_attention, const Features& unseen = {},
                                           double unseen_bias = 0) {
  Calibration calibration = {.layers = 1, .kv_heads = 1};
  calibration.lanes.push_back(
      {.with_attention = {.weight = with_attention}, .unseen = {.bias = unseen_bias, .weight = unseen}});
  return std::make_shared<const Calibration>(std::move(calibration));
}

// Three tokens in the slots 2, 0, 3 of four, of keys (3, 4), (0, 5), (-1, 0) and values of length 2, 0, 1.
struct ThreeTokens {
  LaneMemoryOf memory = LaneMemoryOf(2, {0, 5, 9, 9, 3, 4, -1, 0});
  std::vector<int32_t> token = {1, -1, 0, 2};
  std::vector<int32_t> slots = {2, 0, 3};
  std::vector<float> sums = {0.5F, 0, 2.25F, 0.25F};  // that three queries paid
  std::vector<float> slot_state = std::vector<float>(12);
  std::vector<float> lane_state = std::vector<float>(1);

  ThreeTokens() { memory.values = {0, 0, 9, 9, 0, 2, 1, 0}; }
  LaneView View() const { return {.token = token, .live = 3, .tokens = 3, .memory = &memory}; }
  MutableScorerState State() { return {.slot = slot_state, .lane = lane_state}; }

  // The scores of the tokens 0, 1, 2.
  std::vector<float> Scores(const Scorer& scorer) {
    std::vector<float> keep(4);
    scorer.Score(View(), State(), keep);
    return {keep[2], keep[0], keep[3]};
  }
};

std::vector<float> ScoresBy(const Features& weights) {
  ThreeTokens lane;
  const auto scorer = MakeCalibrated(Weights(weights), {});
  scorer->Observe(lane.View(), {.column_sums = lane.sums, .queries = 3, .slots = lane.slots}, lane.State());
  return lane.Scores(*scorer);
}

TEST(Calibrated, MeasuresEachFeature) {
  EXPECT_THAT(ScoresBy({1, 0, 0, 0, 0}), ElementsAre(5, 5, 1));
  // The mean of (0.6, 0.8), (0, 1) and (-1, 0) points along (-0.4, 1.8).
  const auto length = static_cast<float>(std::sqrt(3.4));
  EXPECT_THAT(ScoresBy({0, 1, 0, 0, 0}),
              testing::Pointwise(testing::FloatNear(1e-6F), {1.2F / length, 1.8F / length, 0.4F / length}));
  EXPECT_THAT(ScoresBy({0, 0, 1, 0, 0}), ElementsAre(2, 0, 1));
  // Three queries saw the first, two the second.
  EXPECT_THAT(ScoresBy({0, 0, 0, 1, 0}), testing::Pointwise(testing::FloatNear(1e-6F), {std::sqrt(0.75F), 0.5F, 0.5F}));
  EXPECT_THAT(ScoresBy({0, 0, 0, 0, 1}),
              testing::Pointwise(testing::FloatNear(1e-6F), {std::log(3.0F), std::log(2.0F), 0.0F}));
  EXPECT_THAT(ScoresBy({2, 0, -1, 0, 0}), ElementsAre(8, 10, 1));
}

// After a swap K and V are read from the cache; what queries paid before is not known, and the other weights decide,
// until a query has seen the token.
TEST(Calibrated, TokensThatNoQuerySawGoByTheOtherWeights) {
  ThreeTokens lane;
  const auto scorer = MakeCalibrated(Weights({1, 0, 0, 1, 0}, {0, 0, 1, 0, 0}, 10), {});
  ASSERT_TRUE(scorer->Rebuild(lane.View(), lane.State()));
  EXPECT_THAT(lane.Scores(*scorer), ElementsAre(12, 10, 11));

  lane.token[1] = 3;
  LaneView view = lane.View();
  view.live = view.tokens = 4;
  const std::vector<int32_t> slots = {1};
  const std::vector<float> sums = {0.25F, 0.25F, 0.25F, 0.25F};
  scorer->Observe(view, {.column_sums = sums, .queries = 1, .slots = slots}, lane.State());
  std::vector<float> keep(4);
  scorer->Score(view, lane.State(), keep);
  EXPECT_FLOAT_EQ(keep[2], 5 + 0.5F);
}

TEST(Calibrated, AsksNothingOfAttentionWhereItIsIgnored) {
  const auto uses = MakeCalibrated(Weights({}), {});
  EXPECT_TRUE(uses->needs().column_sums);
  EXPECT_EQ(uses->needs().state_floats, 3);
  EXPECT_EQ(uses->lane_floats({}), 1);
  const auto ignores = MakeCalibrated(Weights({1, 0, 0, 0, 0}, {0, 0, 1, 0, 0}, 10), {.attention = false});
  EXPECT_FALSE(ignores->needs().attention());
  EXPECT_EQ(ignores->needs().state_floats, 2);
  EXPECT_EQ(ignores->lane_floats({}), 0);

  ThreeTokens lane;
  lane.slot_state.resize(8);
  lane.lane_state.clear();
  ignores->Observe(lane.View(), {.queries = 3, .slots = lane.slots}, lane.State());
  EXPECT_THAT(lane.Scores(*ignores), ElementsAre(12, 10, 11));
}

TEST(Calibrated, TheNewestThirtyTwoStay) {
  const auto spec = Resolve({.scorer = "calibrated", .budget = 100}, {.calibration = &BlankCalibration()});
  ASSERT_THAT(spec, IsOk());
  EXPECT_EQ(spec->sinks, 0);
  EXPECT_EQ(spec->recent, 32);
  EXPECT_EQ(spec->positions, Positions::kOriginal);
}

// No other policy takes its place.
TEST(Calibrated, IsRefusedWithoutACalibration) {
  const PolicySpec spec = {.scorer = "calibrated", .budget = 100};
  EXPECT_THAT(Resolve(spec, {}),
              IsRefusal(absl::StatusCode::kFailedPrecondition, "CALIBRATION_MISSING", "policy.calibrated"));
  const CalibrationOr missing = CalibrationMissing("models/a.calibration.json");
  const auto refused = Resolve(spec, {.calibration = &missing});
  ASSERT_THAT(refused, IsRefusal(absl::StatusCode::kFailedPrecondition, "CALIBRATION_MISSING", "policy.calibrated"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("models/a.calibration.json"));
  EXPECT_THAT(Resolve({.scorer = "h2o", .budget = 100}, {.calibration = &missing}), IsOk());
}

}  // namespace
}  // namespace ebb
