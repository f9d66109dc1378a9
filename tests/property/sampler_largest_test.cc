// What the sampler draws from the largest logits of a row is what it draws from the row, or nothing where these do not
// say; and they do say where LargestThatDecide promises it.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <optional>
#include <vector>

#include "engine/sampler.h"
#include "policies/hash_random.h"

namespace ebb {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// As gpu::LargestArgs has it.
std::vector<gpu::TokenLogit> LargestOf(const std::vector<float>& logits, int32_t count) {
  std::vector<gpu::TokenLogit> all;
  for (size_t i = 0; i < logits.size(); ++i) {
    all.push_back({.logit = std::isnan(logits[i]) ? -kInfinity : logits[i] + 0.0F, .token = static_cast<int32_t>(i)});
  }
  std::ranges::stable_sort(all, std::greater<>(), &gpu::TokenLogit::logit);
  all.resize(count);
  return all;
}

// Of many kinds: where all differ, where many are equal, with what is no number or infinite, and of nothing else.
std::vector<float> RandomRow(HashRandom& random, int32_t vocab) {
  const int32_t kind = random.Uniform(0, 5);
  constexpr float kOdd[] = {kNan, 0.0F, -0.0F, kInfinity, -kInfinity};
  std::vector<float> logits;
  for (int32_t i = 0; i < vocab; ++i) {
    const float plain = 16 * random.UniformFloat() - 8;
    const bool is_odd = (kind == 2 && random.Uniform(0, 3) == 0) || kind == 3;
    const int32_t odd = random.Uniform(0, 4);
    if (kind == 4) {
      logits.push_back(i % 7 == 0 ? kNan : -kInfinity);
    } else if (is_odd && (odd != 3 || random.Uniform(0, 9) == 0)) {
      logits.push_back(kOdd[odd]);
    } else {
      logits.push_back(kind == 0 ? plain : std::round(plain / 2));
    }
  }
  return logits;
}

SamplingOptions OptionsToDraw(HashRandom& random, int32_t vocab) {
  const auto maybe = [&](auto off, auto on) { return random.Uniform(0, 2) != 0 ? off : on; };
  const bool falls = random.Uniform(0, 1) == 0;
  SamplingOptions options = {
      .temperature = maybe(maybe(1.0F, 0.0F), 0.2F + 2 * random.UniformFloat()),
      .top_k = random.Uniform(0, 3) == 0 ? 0 : random.Uniform(1, random.Uniform(0, 3) == 0 ? vocab + 3 : 50),
      .top_p = maybe(1.0F, maybe(0.5F, 0.05F + 0.9F * random.UniformFloat())),
      .min_p = maybe(0.0F, random.UniformFloat()),
      .typical_p = maybe(1.0F, 0.05F + 0.9F * random.UniformFloat()),
      .repetition_penalty = maybe(1.0F, (falls ? 1.0F : 0.5F) + random.UniformFloat()),
      .presence_penalty = maybe(0.0F, falls ? 2 * random.UniformFloat() : 4 * random.UniformFloat() - 2),
      .frequency_penalty = maybe(0.0F, falls ? 2 * random.UniformFloat() : 4 * random.UniformFloat() - 2),
      .penalty_window = random.Uniform(-1, 70),
      .seed = random.Next64(),
  };
  for (int32_t i = maybe(0, random.Uniform(1, 5)); i > 0; --i) {
    const float bias = maybe(random.UniformFloat(), 100.0F);
    options.logit_bias[random.Uniform(0, vocab - 1)] = falls ? -bias : maybe(bias, -bias);
  }
  return options;
}

// Tokens that the row makes likely come often, as in what a model wrote.
std::vector<int32_t> RandomLog(HashRandom& random, const std::vector<float>& logits) {
  const auto vocab = static_cast<int32_t>(logits.size());
  const std::vector<gpu::TokenLogit> likely = LargestOf(logits, std::min(vocab, 40));
  std::vector<int32_t> log;
  for (int32_t i = random.Uniform(0, 90); i > 0; --i) {
    const bool is_likely = random.Uniform(0, 1) == 0;
    log.push_back(is_likely ? likely[random.Uniform(0, static_cast<int32_t>(likely.size()) - 1)].token
                            : random.Uniform(0, vocab - 1));
  }
  return log;
}

TEST(SamplerLargest, DrawTheTokenOfTheRowOrNothing) {
  int drawn = 0, promised = 0, floored = 0, open = 0;
  for (const int32_t vocab : {1, 5, 30, 129, 500, 3000}) {
    Sampler sampler(vocab);
    for (uint64_t seed = 0; seed < (vocab < 1000 ? 6000 : 1000); ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", vocabulary " << vocab);
      HashRandom random(seed);
      const SamplingOptions options = OptionsToDraw(random, vocab);
      ASSERT_TRUE(CheckSampling(options, vocab).ok());
      const std::vector<float> logits = RandomRow(random, vocab);
      const std::vector<int32_t> log = RandomLog(random, logits);
      const int32_t needed = LargestThatDecide(options, vocab);
      const int32_t most = std::min(vocab, gpu::kLargestMax);
      ASSERT_LE(needed, most);
      const int32_t count = needed > 0 && random.Uniform(0, 1) == 0 ? needed : random.Uniform(1, most);
      const std::optional<int32_t> token = sampler.DrawTokenFrom(options, LargestOf(logits, count), log);
      const bool is_counted = options.temperature == 0 || (options.top_k > 0 && options.top_k < vocab);
      if (needed > 0 && count >= needed && is_counted) {
        ++promised;
        ASSERT_TRUE(token) << count << " of " << needed;
      }
      if (!token) {
        ++open;
        continue;
      }
      ++(is_counted ? drawn : floored);
      ASSERT_EQ(*token, sampler.DrawToken(options, logits, log)) << "from " << count;
    }
  }
  // Neither side of the law is empty, and more is decided than was promised.
  EXPECT_GT(promised, 5000);
  EXPECT_GT(drawn, promised + 1000);
  EXPECT_GT(floored, 500);
  EXPECT_GT(open, 5000);
}

TEST(SamplerLargest, SayWhatCommonOptionsDrawFromALargeVocabulary) {
  constexpr int32_t kVocab = 128256;
  struct Case {
    SamplingOptions options;
    int32_t needed;
  };
  const std::vector<Case> cases = {
      {{.temperature = 0}, 1},
      {{.top_k = 40}, 40},
      {{.temperature = 0.7F, .top_k = 40, .top_p = 0.95F, .min_p = 0.05F}, 40},
      {{.top_k = 50, .typical_p = 0.9F}, 50},
      {{.top_k = 40, .repetition_penalty = 1.1F}, 104},
      {{.min_p = 0.2F}, 128},
      {{.temperature = 0.5F, .min_p = 0.05F, .repetition_penalty = 1.1F}, 128},
      {{.temperature = 0, .presence_penalty = 0.5F, .frequency_penalty = 0.2F}, 65},
      {{.top_k = 20, .logit_bias = {{17, -100.0F}, {18, -1.0F}}}, 22},
  };
  Sampler sampler(kVocab);
  std::vector<float> logits;
  for (int32_t i = 0; i < kVocab; ++i) {
    const double radius = std::sqrt(-2 * std::log1p(-HashUniform(1, 1, i)));
    logits.push_back(static_cast<float>(2 * radius * std::cos(2 * std::numbers::pi * HashUniform(1, 2, i))));
  }
  for (const Case& c : cases) {
    ASSERT_EQ(LargestThatDecide(c.options, kVocab), c.needed);
    const std::vector<gpu::TokenLogit> largest = LargestOf(logits, c.needed);
    std::vector<int32_t> log;
    for (size_t i = 0; i < 64; ++i) log.push_back(largest[i % largest.size()].token);
    SamplingOptions options = c.options;
    for (options.seed = 0; options.seed < 20; ++options.seed) {
      EXPECT_EQ(sampler.DrawTokenFrom(options, largest, log), sampler.DrawToken(options, logits, log));
    }
  }
}

TEST(SamplerLargest, SayNothingWhereTheyCannotKnow) {
  constexpr int32_t kVocab = 1000;
  std::vector<float> logits(kVocab, 0.0F);
  for (int32_t i = 0; i < kVocab; ++i) logits[i] = static_cast<float>(-i);
  Sampler sampler(kVocab);
  const auto draw = [&](const SamplingOptions& options, int32_t count, const std::vector<int32_t>& log) {
    return sampler.DrawTokenFrom(options, LargestOf(logits, count), log);
  };
  for (const SamplingOptions& options :
       {SamplingOptions{}, SamplingOptions{.top_p = 0.9F}, SamplingOptions{.min_p = 0.1F, .typical_p = 0.5F},
        SamplingOptions{.min_p = 0.1F, .presence_penalty = -1}, SamplingOptions{.top_k = kVocab},
        SamplingOptions{.top_k = gpu::kLargestMax + 1}, SamplingOptions{.top_k = 40, .logit_bias = {{999, 1.0F}}},
        SamplingOptions{.top_k = 40, .repetition_penalty = 0.9F}, SamplingOptions{.top_k = 40, .presence_penalty = -1},
        SamplingOptions{.top_k = 40, .frequency_penalty = -1},
        SamplingOptions{.top_k = 40, .repetition_penalty = 1.1F, .penalty_window = -1},
        SamplingOptions{.top_k = 40, .repetition_penalty = 1.1F, .penalty_window = 89}}) {
    EXPECT_EQ(LargestThatDecide(options, kVocab), 0);
  }
  EXPECT_EQ(draw({}, 128, {}), std::nullopt);
  EXPECT_EQ(draw({.top_k = 3}, 2, {}), std::nullopt);
  // e^-3 is below the floor, and nobody is behind; or so near that who is behind might round to more.
  EXPECT_EQ(draw({.min_p = 0.051F}, 3, {}), std::nullopt);
  EXPECT_TRUE(draw({.min_p = 0.051F}, 4, {}));
  EXPECT_EQ(draw({.min_p = 0.0497871F}, 4, {}), std::nullopt);
  EXPECT_EQ(draw({.min_p = 0.5F, .logit_bias = {{500, 4.5F}}}, 4, {}), std::nullopt);
  // The first two fall behind what is not known; one more token would do.
  const SamplingOptions penalised = {.temperature = 0, .presence_penalty = 2};
  EXPECT_EQ(draw(penalised, 2, {0, 1}), std::nullopt);
  EXPECT_EQ(draw(penalised, 3, {0, 1}), 0);
  // A bias lifts a token from behind: it stands where nobody knows, unless it cannot reach those that count.
  EXPECT_EQ(draw({.temperature = 0, .logit_bias = {{500, 4.5F}}}, 4, {}), std::nullopt);
  EXPECT_EQ(draw({.temperature = 0, .logit_bias = {{500, 2.5F}}}, 4, {}), 0);
  // By the last bit of a float.
  logits.assign(kVocab, 3.0F);
  const SamplingOptions lifted = {.temperature = 0, .logit_bias = {{500, 0x1p-22F}}};
  EXPECT_EQ(sampler.DrawToken(lifted, logits, {}), 500);
  EXPECT_EQ(draw(lifted, 4, {}), std::nullopt);
}

// Sums of weights round: top_p keeps one token of two equals if tiny weights are added last, and both if they are added
// first. In the row they come first, among the largest last.
TEST(SamplerLargest, SumsDoNotDependOnWhereTokensStand) {
  constexpr int32_t kVocab = 5000;
  constexpr int32_t kTop = 62;
  std::vector<float> logits(kVocab, -1000.0F);
  for (int32_t i = 0; i < kTop - 2; ++i) logits[i] = -37.5F;
  logits[4000] = logits[4001] = 0;
  Sampler sampler(kVocab);
  SamplingOptions options = {.top_k = kTop, .top_p = 0.5F};
  for (options.seed = 0; options.seed < 50; ++options.seed) {
    EXPECT_EQ(sampler.DrawToken(options, logits, {}), 4000);
    EXPECT_EQ(sampler.DrawTokenFrom(options, LargestOf(logits, kTop), {}), 4000);
  }
}

}  // namespace
}  // namespace ebb
