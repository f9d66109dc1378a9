#include "policies/caote.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <vector>

#include "policies/select.h"
#include "tests/support/status_matchers.h"
#include "tests/support/value_memory.h"

namespace ebb {
namespace {

using testing::ElementsAre;
using testing::FloatNear;
using testing::Pointwise;

constexpr float kInf = std::numeric_limits<float>::infinity();

// Worked by hand: five tokens with two channels, X = (.8125, .5625).
const std::vector<float> kAttention = {8 / 16.0F, 1 / 16.0F, 2 / 16.0F, 4 / 16.0F, 1 / 16.0F};
const ValueMemory kValues(2, {1, 0, 0, 4, 2, 0, 0, 1, 1, 1});
const std::vector<int32_t> kTokens = {0, 1, 2, 3, 4};

std::vector<float> Costs(CaoteForm form, const ValueMemory& values, const std::vector<int32_t>& tokens,
                         std::vector<float> keep) {
  CaoteScratch scratch;
  const auto live = static_cast<int32_t>(std::ranges::count_if(tokens, [](int32_t token) { return token >= 0; }));
  Caote({.token = tokens, .live = live, .memory = &values}, form, scratch, keep);
  return keep;
}

TEST(Caote, GivesTheWorkedExample) {
  EXPECT_THAT(Costs(CaoteForm::kExact, kValues, kTokens, kAttention),
              Pointwise(FloatNear(1e-6F), {0.592927, 0.235481, 0.187712, 0.307600, 0.031732}));
  EXPECT_THAT(Costs(CaoteForm::kFast, kValues, kTokens, kAttention),
              Pointwise(FloatNear(1e-6F), {1.216553, 0.194136, 0.242437, 0.274874, 0.018856}));
}

// Attention alone ties slots 1 and 4, and of two that tie the older leaves; the output would miss it seven times as
// much.
TEST(Caote, BreaksATieOfAttentionByTheValues) {
  SelectScratch scratch;
  std::vector<int32_t> victims;
  const auto victim = [&](const std::vector<float>& keep) {
    EXPECT_THAT(SelectVictims({.token = kTokens, .live = 5}, keep, 1, scratch, victims), IsOk());
    return victims.at(0);
  };
  EXPECT_EQ(victim(kAttention), 1);
  EXPECT_EQ(victim(Costs(CaoteForm::kExact, kValues, kTokens, kAttention)), 4);
  EXPECT_EQ(victim(Costs(CaoteForm::kFast, kValues, kTokens, kAttention)), 4);
}

TEST(Caote, NormalisesWhatItIsGiven) {
  std::vector<float> sums = kAttention;
  for (float& sum : sums) sum *= 48;
  for (const CaoteForm form : {CaoteForm::kExact, CaoteForm::kFast}) {
    EXPECT_THAT(Costs(form, kValues, kTokens, sums),
                ElementsAre(FloatNear(form == CaoteForm::kExact ? 0.592927F : 1.216553F, 1e-6F), testing::_, testing::_,
                            testing::_, testing::_));
  }
}

TEST(Caote, LeavesFreeSlotsOutWhateverRestsThere) {
  const ValueMemory values(2, {1, 0, 90, 90, 0, 4, 2, 0, 0, 1, 1, 1});
  const std::vector<int32_t> tokens = {0, -1, 1, 2, 3, 4};
  EXPECT_THAT(Costs(CaoteForm::kExact, values, tokens, {8, std::numeric_limits<float>::quiet_NaN(), 1, 2, 4, 1}),
              Pointwise(FloatNear(1e-6F), {0.592927, 0.0, 0.235481, 0.187712, 0.307600, 0.031732}));
}

TEST(Caote, CountsScoresThatSumToNothingAsEqual) {
  for (const CaoteForm form : {CaoteForm::kExact, CaoteForm::kFast}) {
    EXPECT_EQ(Costs(form, kValues, kTokens, {0, 0, 0, 0, 0}), Costs(form, kValues, kTokens, {1, 1, 1, 1, 1}));
    EXPECT_EQ(Costs(form, kValues, kTokens, {0, -3, 0, 0, -0.0F}), Costs(form, kValues, kTokens, {1, 1, 1, 1, 1}));
  }
}

TEST(Caote, NeverLetsGoOfTheTokenThatHoldsAllTheAttention) {
  for (const CaoteForm form : {CaoteForm::kExact, CaoteForm::kFast}) {
    EXPECT_THAT(Costs(form, kValues, kTokens, {0, 0, 1, 0, 0}), ElementsAre(0, 0, kInf, 0, 0));
    EXPECT_THAT(Costs(form, kValues, {-1, -1, 7, -1, -1}, {0, 0, 0, 0, 0}), ElementsAre(0, 0, kInf, 0, 0));
    EXPECT_THAT(Costs(form, kValues, {-1, -1, -1, -1, -1}, {1, 1, 1, 1, 1}), ElementsAre(0, 0, 0, 0, 0));
  }
}

TEST(MeasureEviction, IsTheChangeOfTheOutput) {
  CaoteScratch scratch;
  const LaneView lane = {.token = kTokens, .live = 5, .memory = &kValues};
  const auto loss = [&](const std::vector<int32_t>& victims) {
    return MeasureEviction(lane, kAttention, victims, scratch);
  };
  // Without slots 1 and 4 the others weigh 8, 2 and 4 of 14: X' = (12 / 14, 4 / 14).
  EXPECT_NEAR(loss({}).output, std::hypot(0.8125, 0.5625), 1e-6);
  EXPECT_EQ(loss({}).mass, 0);
  EXPECT_EQ(loss({}).error, 0);
  EXPECT_NEAR(loss({4}).error, 0.031732, 1e-6);
  EXPECT_NEAR(loss({1}).error, 0.235481, 1e-6);
  EXPECT_EQ(loss({1, 4}).mass, 0.125);
  EXPECT_NEAR(loss({1, 4}).error, std::hypot(0.8125 - 12 / 14.0, 0.5625 - 4 / 14.0), 1e-6);
  EXPECT_EQ(loss({4, 1}).error, loss({1, 4}).error);
  EXPECT_EQ(loss({0, 1, 2, 3, 4}).mass, 1);
  EXPECT_EQ(loss({0, 1, 2, 3, 4}).error, 0);
}

}  // namespace
}  // namespace ebb
