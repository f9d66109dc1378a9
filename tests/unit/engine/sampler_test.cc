#include "engine/sampler.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Logits whose softmax is the given distribution.
std::vector<float> LogitsOf(const std::vector<double>& shares) {
  std::vector<float> logits;
  for (const double share : shares) logits.push_back(static_cast<float>(std::log(share)));
  return logits;
}

int32_t DrawToken(const SamplingOptions& options, const std::vector<float>& logits,
                  const std::vector<int32_t>& log = {}) {
  return Sampler(static_cast<int32_t>(logits.size())).Draw(options, logits, log).token;
}

// How often each token is drawn, as a share, over many seeds.
std::map<int32_t, double> Frequencies(SamplingOptions options, const std::vector<float>& logits,
                                      const std::vector<int32_t>& log = {}) {
  constexpr int kDraws = 20000;
  Sampler sampler(static_cast<int32_t>(logits.size()));
  std::map<int32_t, double> shares;
  for (int seed = 0; seed < kDraws; ++seed) {
    options.seed = static_cast<uint64_t>(seed);
    shares[sampler.Draw(options, logits, log).token] += 1.0 / kDraws;
  }
  return shares;
}

std::set<int32_t> Drawable(const SamplingOptions& options, const std::vector<float>& logits) {
  std::set<int32_t> tokens;
  for (const auto& [token, share] : Frequencies(options, logits)) tokens.insert(token);
  return tokens;
}

// Four standard deviations of a share of 0.5 in 20000 draws.
constexpr double kSpread = 4 * 0.5 / 141.4;

TEST(Sampler, DrawsTheModelsOwnDistributionByDefault) {
  const auto shares = Frequencies({}, LogitsOf({0.5, 0.3, 0.15, 0.05}));
  EXPECT_NEAR(shares.at(0), 0.5, kSpread);
  EXPECT_NEAR(shares.at(1), 0.3, kSpread);
  EXPECT_NEAR(shares.at(2), 0.15, kSpread);
  EXPECT_NEAR(shares.at(3), 0.05, kSpread);
}

TEST(Sampler, IsGreedyAtTemperatureZeroAndTakesTheFirstOfEquals) {
  EXPECT_EQ(DrawToken({.temperature = 0}, {1, 3, 3, 2}), 1);
}

TEST(Sampler, TemperatureFlattensOrSharpens) {
  const auto logits = LogitsOf({0.8, 0.2});
  EXPECT_NEAR(Frequencies({.temperature = 2}, logits).at(0), 2.0 / 3, kSpread);      // sqrt(4) to 1
  EXPECT_NEAR(Frequencies({.temperature = 0.5}, logits).at(0), 16.0 / 17, kSpread);  // 4^2 to 1
}

TEST(Sampler, ATinyTemperatureIsGreedyAndNotATieOfInfinities) {
  EXPECT_THAT(Drawable({.temperature = 1e-38F}, {5, 7, 6}), testing::ElementsAre(1));
}

TEST(Sampler, TopKKeepsTheLikeliest) {
  const auto logits = LogitsOf({0.1, 0.4, 0.2, 0.3});
  EXPECT_THAT(Drawable({.top_k = 2}, logits), testing::ElementsAre(1, 3));
  EXPECT_THAT(Drawable({.top_k = 9}, logits), testing::ElementsAre(0, 1, 2, 3));
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesTheMass) {
  const auto logits = LogitsOf({0.1, 0.4, 0.2, 0.3});
  EXPECT_THAT(Drawable({.top_p = 0.6F}, logits), testing::ElementsAre(1, 3));
  EXPECT_THAT(Drawable({.top_p = 0.8F}, logits), testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(Drawable({.top_p = 1e-6F}, logits), testing::ElementsAre(1));
}

TEST(Sampler, MinPGoesByTheLikeliestTokenOfThoseLeft) {
  const auto logits = LogitsOf({0.1, 0.4, 0.21, 0.29});
  EXPECT_THAT(Drawable({.min_p = 0.5F}, logits), testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(Drawable({.min_p = 1}, logits), testing::ElementsAre(1));
}

TEST(Sampler, TypicalKeepsTokensWhoseSurpriseIsNearTheEntropy) {
  // Entropy 1.19 nats; surprises 0.92, 1.2, 1.2, 2.3: the likeliest token is not the most typical.
  const auto logits = LogitsOf({0.4, 0.3, 0.3 - 1e-4, 1e-4});
  EXPECT_THAT(Drawable({.typical_p = 0.5F}, logits), testing::ElementsAre(1, 2));
}

TEST(Sampler, FiltersWorkOnWhatTheOneBeforeThemLeft) {
  // Of the two that top_k leaves, the first alone has 0.4 / 0.7 = 0.57 of the mass.
  const auto logits = LogitsOf({0.4, 0.3, 0.2, 0.1});
  EXPECT_THAT(Drawable({.top_k = 2, .top_p = 0.5F}, logits), testing::ElementsAre(0));
  EXPECT_THAT(Drawable({.top_p = 0.5F}, logits), testing::ElementsAre(0, 1));
}

TEST(Sampler, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogits) {
  const std::vector<int32_t> log = {0, 0, 2};
  // 4 -> 2, -1 -> -2; unseen token 1 stays at 1.9 and 3.
  EXPECT_EQ(DrawToken({.temperature = 0, .repetition_penalty = 2}, {4, 1.9F, -5}, log), 0);
  EXPECT_EQ(DrawToken({.temperature = 0, .repetition_penalty = 2}, {4, 2.1F, -5}, log), 1);
  EXPECT_EQ(DrawToken({.temperature = 0, .repetition_penalty = 2}, {-9, -1.9F, -1}, log), 1);
}

TEST(Sampler, PresenceCountsOnceAndFrequencyEachTime) {
  const std::vector<int32_t> log = {0, 0, 0, 1};
  EXPECT_EQ(DrawToken({.temperature = 0, .presence_penalty = 1}, {3, 2.5F, 1.9F}, log), 0);      // 2, 1.5, 1.9
  EXPECT_EQ(DrawToken({.temperature = 0, .frequency_penalty = 0.5F}, {3, 2.5F, 1.9F}, log), 1);  // 1.5, 2, 1.9
}

TEST(Sampler, PenaltiesLookAtTheLastTokensOfTheWindow) {
  const std::vector<int32_t> log = {0, 1, 1};
  const std::vector<float> logits = {3, 2, 1};
  EXPECT_EQ(DrawToken({.temperature = 0, .presence_penalty = 2, .penalty_window = 2}, logits, log), 0);
  EXPECT_EQ(DrawToken({.temperature = 0, .presence_penalty = 2, .penalty_window = -1}, logits, {0, 1, 1, 1}), 0);
  EXPECT_EQ(DrawToken({.temperature = 0, .presence_penalty = 1.5F, .penalty_window = -1}, {3, 2, 1.9F}, log), 2);
  EXPECT_EQ(DrawToken({.temperature = 0, .presence_penalty = 2, .penalty_window = 0}, {3, 2, 1.9F}, log), 0);
}

TEST(Sampler, ForgetsThePenaltiesOfTheDrawBefore) {
  Sampler sampler(3);
  const std::vector<float> logits = {3, 2.5F, 0};
  const SamplingOptions options = {.temperature = 0, .frequency_penalty = 0.4F};
  const std::vector<int32_t> log = {0};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(sampler.Draw(options, logits, log).token, 0);
}

TEST(Sampler, BiasComesFirstAndIsNotReported) {
  const std::vector<float> logits = LogitsOf({0.7, 0.2, 0.1});
  const Drawn drawn = Sampler(3).Draw({.temperature = 0, .logit_bias = {{2, 100.0F}}}, logits, {});
  EXPECT_EQ(drawn.token, 2);
  EXPECT_NEAR(drawn.logprob, std::log(0.1), 1e-6);
}

TEST(Sampler, ReportsAlternativesOfTheModelsOwnDistributionBestFirst) {
  const std::vector<float> logits = LogitsOf({0.2, 0.5, 0.2, 0.1});
  const Drawn drawn = Sampler(4).Draw({.temperature = 0, .top_k = 1, .logprobs = 3}, logits, {});
  ASSERT_EQ(drawn.top.size(), 3);
  EXPECT_EQ(drawn.top[0].token, 1);
  EXPECT_EQ(drawn.top[1].token, 0);  // the lower id of two equals
  EXPECT_EQ(drawn.top[2].token, 2);
  EXPECT_NEAR(drawn.top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_NEAR(drawn.top[2].logprob, std::log(0.2), 1e-6);
}

TEST(Sampler, NotANumberIsNeverDrawnUnlessNothingElseIsThere) {
  EXPECT_EQ(DrawToken({.temperature = 0}, {kNan, -3, kNan}), 1);
  EXPECT_THAT(Drawable({}, {kNan, 1, kNan, 1}), testing::ElementsAre(1, 3));
  for (const float temperature : {0.0F, 1.0F}) {
    const std::vector<float> logits = {kNan, kNan, -kInfinity, kNan};
    const Drawn drawn = Sampler(4).Draw({.temperature = temperature, .top_p = 0.5F, .logprobs = 2}, logits, {});
    EXPECT_EQ(drawn.token, 0);
    EXPECT_NEAR(drawn.logprob, std::log(0.25), 1e-6);
    EXPECT_FALSE(std::isnan(drawn.top[1].logprob));
  }
}

TEST(Sampler, AnInfiniteLogitTakesAll) {
  const std::vector<float> logits = {3, kInfinity, 2};
  EXPECT_THAT(Drawable({.top_p = 0.9F}, logits), testing::ElementsAre(1));
  EXPECT_EQ(Sampler(3).Draw({}, logits, {}).logprob, 0);
}

TEST(Sampler, ADrawIsAFunctionOfSeedAndPlaceInTheLog) {
  const std::vector<float> logits(64, 0.0F);
  const SamplingOptions options = {.seed = 5};
  Sampler used(64);
  for (int32_t length = 0; length < 20; ++length) {
    const std::vector<int32_t> log(static_cast<size_t>(length), 0);
    const int32_t token = used.Draw(options, logits, log).token;
    EXPECT_EQ(DrawToken(options, logits, log), token) << length;
  }
  std::set<int32_t> tokens;
  for (size_t length = 0; length < 20; ++length)
    tokens.insert(DrawToken(options, logits, std::vector<int32_t>(length)));
  EXPECT_GT(tokens.size(), 10);
}

TEST(Sampler, TellsTheDistributionThatItDrawsFrom) {
  const auto logits = LogitsOf({0.1, 0.4, 0.2, 0.3});
  Sampler sampler(4);
  const auto distribution = [&](const SamplingOptions& options) {
    std::vector<float> p(4, -1.0F);
    sampler.Distribution(options, logits, {}, p);
    return p;
  };
  using testing::FloatNear;
  const float near = 1e-6F;
  EXPECT_THAT(distribution({}), testing::ElementsAre(FloatNear(0.1F, near), FloatNear(0.4F, near),
                                                     FloatNear(0.2F, near), FloatNear(0.3F, near)));
  EXPECT_THAT(distribution({.top_p = 0.6F}),
              testing::ElementsAre(0, FloatNear(4.0F / 7, near), 0, FloatNear(3.0F / 7, near)));
  EXPECT_THAT(distribution({.temperature = 0}), testing::ElementsAre(0, 1, 0, 0));
}

TEST(Sampler, FindsTheFirstBestWhereverItStands) {
  for (const int32_t vocab : {1, 15, 16, 17, 40, 64}) {
    for (int32_t best = 0; best < vocab; ++best) {
      std::vector<float> logits(vocab, -5.0F);
      logits[best] = 2;
      logits.back() = 2;
      EXPECT_EQ(DrawToken({.temperature = 0}, logits), best) << vocab;
    }
  }
}

TEST(LogProbability, IsExactFarFromZero) {
  EXPECT_NEAR(LogProbability(std::vector<float>{1000, 999}, 1), -1.3132616875182228, 1e-12);
  EXPECT_NEAR(LogProbability(std::vector<float>{-1000, -1000}, 0), -std::log(2.0), 1e-12);
}

TEST(CheckSampling, NamesTheFieldOfEachNumberOutOfRange) {
  const std::vector<std::pair<SamplingOptions, std::string>> wrong = {
      {{.temperature = -1}, "sampling.temperature"},
      {{.temperature = kNan}, "sampling.temperature"},
      {{.temperature = kInfinity}, "sampling.temperature"},
      {{.top_k = -1}, "sampling.top_k"},
      {{.top_p = 0}, "sampling.top_p"},
      {{.top_p = 1.01F}, "sampling.top_p"},
      {{.min_p = -0.1F}, "sampling.min_p"},
      {{.typical_p = 0}, "sampling.typical_p"},
      {{.repetition_penalty = 0}, "sampling.repetition_penalty"},
      {{.presence_penalty = 2.1F}, "sampling.presence_penalty"},
      {{.frequency_penalty = kNan}, "sampling.frequency_penalty"},
      {{.penalty_window = -2}, "sampling.penalty_window"},
      {{.logit_bias = {{3, 101.0F}}}, "sampling.logit_bias"},
      {{.logit_bias = {{10, 1.0F}}}, "sampling.logit_bias"},
      {{.logprobs = 21}, "sampling.logprobs"},
  };
  for (const auto& [options, field] : wrong) {
    const absl::Status status = CheckSampling(options, 10);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_EQ(GetRefusal(status).field, field);
  }
  EXPECT_THAT(CheckSampling({}, 10), IsOk());
}

}  // namespace
}  // namespace ebb
