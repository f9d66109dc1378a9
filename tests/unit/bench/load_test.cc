// When requests come, and what is said of their answers.

#include "bench/load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace ebb::bench {
namespace {

TEST(PoissonArrivals, AreThoseOfTheSeed) {
  EXPECT_EQ(PoissonArrivals(2, 100, 7), PoissonArrivals(2, 100, 7));
  EXPECT_NE(PoissonArrivals(2, 100, 7), PoissonArrivals(2, 100, 8));
  EXPECT_EQ(PoissonArrivals(2, 50, 7).back(), PoissonArrivals(2, 100, 7)[49]);
}

TEST(PoissonArrivals, ComeAtTheRateWithExponentialGaps) {
  constexpr int32_t kCount = 20000;
  constexpr double kRate = 4;
  const std::vector<double> times = PoissonArrivals(kRate, kCount, 1);
  EXPECT_EQ(times.front(), 0);
  EXPECT_TRUE(std::ranges::is_sorted(times));
  EXPECT_NEAR(times.back() * kRate / kCount, 1, 0.03);  // 4 standard deviations of a mean of 20000
  // Of exponential gaps a share e^-1 exceeds the mean, and e^-3 three times the mean.
  for (const double many : {1.0, 3.0}) {
    int above = 0;
    for (size_t i = 1; i < times.size(); ++i) above += times[i] - times[i - 1] > many / kRate ? 1 : 0;
    EXPECT_NEAR(above / static_cast<double>(kCount), std::exp(-many), 0.015);
  }
}

TEST(Summarize, TakesTimesFromWhenRequestsWereDue) {
  const std::vector<Answer> answers = {{.due = 10, .messages = {10.5, 11, 12.5}, .tokens = 5},
                                       {.due = 11, .messages = {13, 14}, .tokens = 2}};
  const Summary summary = Summarize(answers, {});
  EXPECT_EQ(summary.answered, 2);
  EXPECT_DOUBLE_EQ(summary.seconds, 4);
  EXPECT_DOUBLE_EQ(summary.tokens_per_second, 7.0 / 4);
  EXPECT_DOUBLE_EQ(summary.first_token.p50, (0.5 + 2) / 2);
  EXPECT_DOUBLE_EQ(summary.per_token.p50, (0.5 + 1) / 2);  // 2 s for four tokens, 1 s for one
  EXPECT_DOUBLE_EQ(summary.gap.p50, 1);                    // 0.5, 1 and 1.5
  EXPECT_DOUBLE_EQ(summary.goodput, 2.0 / 4);
}

TEST(Summarize, CountsAsGoodWhatKeepsAllLimits) {
  const std::vector<Answer> answers = {{.due = 0, .messages = {1, 2}, .tokens = 2},
                                       {.due = 0, .messages = {3, 3.5}, .tokens = 2},
                                       {.due = 0, .messages = {1, 4}, .tokens = 2}};
  EXPECT_EQ(Summarize(answers, {.first_token = 2}).good, 2);
  EXPECT_EQ(Summarize(answers, {.per_token = 1}).good, 2);
  EXPECT_EQ(Summarize(answers, {.first_token = 2, .per_token = 1}).good, 1);
  EXPECT_DOUBLE_EQ(Summarize(answers, {.first_token = 2, .per_token = 1}).goodput, 1.0 / 4);
}

TEST(Summarize, LeavesFailuresOutOfTimesAndCountsThem) {
  const std::vector<Answer> answers = {{.due = 0, .failed = true},
                                       {.due = 1, .messages = {2}, .tokens = 1},
                                       {.due = 0, .messages = {0.5, 9}, .tokens = 2, .failed = true}};
  const Summary summary = Summarize(answers, {});
  EXPECT_EQ(summary.failed, 2);
  EXPECT_EQ(summary.answered, 1);
  EXPECT_DOUBLE_EQ(summary.first_token.p99, 1);
  EXPECT_DOUBLE_EQ(summary.tokens_per_second, 0.5);  // it was due at 0 that the load began
  EXPECT_EQ(Summarize({{.failed = true}}, {}).tokens_per_second, 0);
}

}  // namespace
}  // namespace ebb::bench
