#include "engine/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace ebb {
namespace {

TEST(KlDivergence, IsThatOfTheDistributions) {
  const std::vector<float> p = {std::log(0.5F), std::log(0.25F), std::log(0.25F)};
  const std::vector<float> q = {std::log(0.25F) + 7, std::log(0.5F) + 7, std::log(0.25F) + 7};
  EXPECT_NEAR(KlDivergence(p, q), 0.25 * std::log(2.0), 1e-6);  // 1/2 ln 2 - 1/4 ln 2; logits are rounded to float
}

TEST(KlDivergence, TakesTheFirstAsTheTruth) {
  const std::vector<float> sure = {std::log(0.9F), std::log(0.1F)};
  const std::vector<float> even = {0, 0};
  EXPECT_NEAR(KlDivergence(sure, even), 0.9 * std::log(1.8) + 0.1 * std::log(0.2), 1e-6);
  EXPECT_NEAR(KlDivergence(even, sure), 0.5 * std::log(0.5 / 0.9) + 0.5 * std::log(5.0), 1e-6);
}

TEST(KlDivergence, OfEqualLogitsIsNothingAtAll) {
  const std::vector<float> logits = {1.5F, -80, 3.25F, 3.25F, 0.1F};
  EXPECT_EQ(KlDivergence(logits, logits), 0);
}

TEST(KlDivergence, OfLargeLogitsDoesNotOverflow) {
  EXPECT_NEAR(KlDivergence(std::vector<float>{1000, 1000}, std::vector<float>{-1000, -1000}), 0, 1e-12);
}

}  // namespace
}  // namespace ebb
