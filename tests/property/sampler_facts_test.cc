// What the sampler draws from what a device says of a row is what it draws from the row, or nothing where that does not
// say; and it does say where NeedsOf promises it.

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <vector>

#include "engine/ops/gpu/draw_weight.h"
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
  std::ranges::partial_sort(all, all.begin() + count, [](const gpu::TokenLogit& a, const gpu::TokenLogit& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  });
  all.resize(count);
  return all;
}

// As a device answers `asked`, whose sums are off by `error` of the mass.
class Facts {
 public:
  Facts(const std::vector<float>& logits, const gpu::DrawNeeds& asked, double error = 0)
      : asked_(asked), largest_(LargestOf(logits, asked.largest)) {
    if (asked.temperature > 0) Weigh(logits, error);
  }
  RowFacts operator()() const { return {.asked = asked_, .largest = largest_, .mass = mass_}; }

 private:
  void Weigh(const std::vector<float>& logits, double error) {
    const float best = *std::ranges::max_element(logits, {}, [](float x) { return std::isnan(x) ? -kInfinity : x; });
    std::vector<long double> ends;
    long double mass = 0;
    for (const float logit : logits) {
      if (logit > -kInfinity) mass += gpu::DrawWeight(logit, best, asked_.temperature);
      ends.push_back(mass);
    }
    mass_.mass = static_cast<double>(mass * (1 + static_cast<long double>(error)));
    const long double at = mass * (asked_.share + static_cast<long double>(error));
    const auto end = std::ranges::upper_bound(ends, at);
    if (asked_.share < 0 || at < 0 || end == ends.end()) return;
    const long double before = end == ends.begin() ? 0 : *(end - 1);
    mass_.token = end - ends.begin();
    mass_.margin = static_cast<double>(std::min(at - before, *end - at) / mass);
  }

  gpu::DrawNeeds asked_;
  std::vector<gpu::TokenLogit> largest_;
  gpu::RowMass mass_ = {};
};

// Within what a device's sums may be off.
double RandomError(HashRandom& random) {
  constexpr double kErrors[] = {0, 0.9 * gpu::kMassError, -0.9 * gpu::kMassError};
  return kErrors[random.Uniform(0, 2)];
}

// Of many kinds: where all differ, where many are equal, with what is no number or infinite, and of nothing else.
std::vector<float> RandomRow(HashRandom& random, int32_t vocab) {
  const int32_t kind = random.Uniform(0, 6);
  constexpr float kOdd[] = {kNan, 0.0F, -0.0F, kInfinity, -kInfinity};
  std::vector<float> logits;
  for (int32_t i = 0; i < vocab; ++i) {
    const float plain = 16 * random.UniformFloat() - 8;
    const bool is_odd = (kind == 2 && random.Uniform(0, 3) == 0) || kind == 3;
    const int32_t odd = random.Uniform(0, 4);
    if (kind == 6) {
      logits.push_back(plain * (i % 3 == 0 ? 1e37F : 1));
    } else if (kind == 4) {
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
  // One after the other: arguments are worked out in an order of the compiler's.
  const float usual = maybe(1.0F, 0.0F);
  const float warm = 0.2F + 2 * random.UniformFloat();
  const float odd = maybe(warm, 1e-6F);
  const float nucleus = 0.05F + 0.9F * random.UniformFloat();
  const float nucleus_or_half = maybe(0.5F, nucleus);
  const int32_t most = random.Uniform(0, 3) == 0 ? vocab + 3 : 50;
  SamplingOptions options = {
      .temperature = maybe(usual, odd),
      .top_k = random.Uniform(0, 3) == 0 ? 0 : random.Uniform(1, most),
      .top_p = maybe(1.0F, nucleus_or_half),
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
    const int32_t token = random.Uniform(0, vocab - 1);
    options.logit_bias[token] = falls ? -bias : maybe(bias, -bias);
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

// What decides a draw: a count, a floor, the nucleus, or a share of the mass.
enum Kind { kCounted, kFloored, kNucleus, kShared, kOther };
Kind KindOf(const SamplingOptions& options, int32_t vocab) {
  if (options.temperature == 0 || (options.top_k > 0 && options.top_k < vocab)) return kCounted;
  if (options.typical_p < 1) return kOther;
  if (options.top_p < 1) return kNucleus;
  return options.min_p > 0 ? kFloored : kShared;
}

TEST(SamplerFacts, DrawTheTokenOfTheRowOrNothing) {
  int promised = 0, open = 0;
  std::array<int, 5> drawn = {};
  for (const int32_t vocab : {1, 5, 30, 129, 500, 3000}) {
    Sampler sampler(vocab);
    for (uint64_t seed = 0; seed < (vocab < 1000 ? 8000 : 1500); ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", vocabulary " << vocab);
      HashRandom random(seed);
      const SamplingOptions options = OptionsToDraw(random, vocab);
      ASSERT_TRUE(CheckSampling(options, vocab).ok());
      const std::vector<float> logits = RandomRow(random, vocab);
      const std::vector<int32_t> log = RandomLog(random, logits);
      gpu::DrawNeeds asked = NeedsOf(options, vocab, std::ssize(log));
      const int32_t most = std::min(vocab, gpu::kLargestMax);
      ASSERT_LE(asked.largest, most);
      const Kind kind = KindOf(options, vocab);
      const bool is_promised = asked.largest > 0 && kind == kCounted && random.Uniform(0, 1) == 0;
      if (asked.largest == 0 || !is_promised) asked.largest = random.Uniform(1, most);
      if (random.Uniform(0, 9) == 0) asked.temperature = random.Uniform(0, 1) == 0 ? 0 : 0.5F;
      if (random.Uniform(0, 9) == 0) asked.share = random.UniformFloat();
      const Facts facts(logits, asked, RandomError(random));
      const std::optional<int32_t> token = sampler.DrawTokenFrom(options, facts(), log);
      if (is_promised) {
        ++promised;
        ASSERT_TRUE(token) << asked.largest;
      }
      if (!token) {
        ++open;
        continue;
      }
      ++drawn[kind];
      ASSERT_EQ(*token, sampler.DrawToken(options, logits, log)) << "kind " << kind << ", from " << asked.largest;
    }
  }
  // Neither side of the law is empty, and more is decided than was promised.
  EXPECT_GT(promised, 5000);
  EXPECT_GT(drawn[kCounted], promised + 1000);
  EXPECT_GT(drawn[kFloored], 500);
  EXPECT_GT(drawn[kNucleus], 500);
  EXPECT_GT(drawn[kShared], 500);
  EXPECT_EQ(drawn[kOther], 0);
  EXPECT_GT(open, 5000);
}

TEST(SamplerFacts, SayWhatCommonOptionsDrawFromALargeVocabulary) {
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
      {{.temperature = 0.2F, .top_p = 0.9F}, 128},
      {{.temperature = 0.3F, .top_p = 0.99F, .min_p = 0.01F}, 128},
      {{}, 1},
      {{.temperature = 2}, 1},
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
    ASSERT_EQ(NeedsOf(c.options, kVocab, 64).largest, c.needed);
    const std::vector<gpu::TokenLogit> largest = LargestOf(logits, c.needed);
    std::vector<int32_t> log;
    for (size_t i = 0; i < 64; ++i) log.push_back(largest[i % largest.size()].token);
    SamplingOptions options = c.options;
    for (options.seed = 0; options.seed < 20; ++options.seed) {
      const Facts facts(logits, NeedsOf(options, kVocab, std::ssize(log)));
      EXPECT_EQ(sampler.DrawTokenFrom(options, facts(), log), sampler.DrawToken(options, logits, log));
    }
  }
}

// As a language model's, whose n-th likeliest token has a probability of about n^-s, and a tail of all others: how many
// draws need no row.
TEST(SamplerFacts, SayWhichTokenIsDrawnFromMostRowsOfALanguageModel) {
  constexpr int32_t kVocab = 32000;
  constexpr int kRows = 100;
  const std::vector<SamplingOptions> sampling = {{.temperature = 0.7F, .top_p = 0.95F},
                                                 {.top_p = 0.9F},
                                                 {.min_p = 0.05F},
                                                 {.top_p = 0.95F, .min_p = 0.02F},
                                                 {},
                                                 {.temperature = 0.8F},
                                                 {.temperature = 1.5F}};
  std::vector<int> decided(sampling.size(), 0);
  Sampler sampler(kVocab);
  for (int row = 0; row < kRows; ++row) {
    HashRandom random(row);
    const float slope = 1.5F + 2 * random.UniformFloat();
    std::vector<float> logits(kVocab, 0.0F);
    for (int32_t rank = 1; rank <= kVocab; ++rank) {
      const auto place = static_cast<int32_t>(int64_t{rank} * 7919 % kVocab);
      logits[place] = 15 - slope * std::log(static_cast<float>(rank)) + random.UniformFloat();
    }
    for (size_t i = 0; i < sampling.size(); ++i) {
      SamplingOptions options = sampling[i];
      options.seed = row;
      const Facts facts(logits, NeedsOf(options, kVocab, 0), RandomError(random));
      const std::optional<int32_t> token = sampler.DrawTokenFrom(options, facts(), {});
      if (!token) continue;
      ASSERT_EQ(*token, sampler.DrawToken(options, logits, {}));
      ++decided[i];
    }
  }
  for (size_t i = 0; i < sampling.size(); ++i) EXPECT_GE(decided[i], kRows * 95 / 100) << i;
  for (const size_t i : {4, 5, 6}) EXPECT_EQ(decided[i], kRows) << i;
}

// Rows that are made so that the nucleus, or the draw's share, ends at the edge of a token as exactly as floats can
// say: a device's sum may come out on either side of it. Nobody but the row knows then; a little further away all do.
TEST(SamplerFacts, SayNothingAtAnEdge) {
  Sampler sampler(400);
  int asked_for_the_row = 0, decided = 0;
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE(i);
    HashRandom random(i);
    const bool is_nucleus = i % 2 == 0;
    SamplingOptions options = {.seed = static_cast<uint64_t>(i)};
    if (is_nucleus) options.top_p = 0.5F + 0.4F * random.UniformFloat();
    const double share = is_nucleus ? options.top_p : NeedsOf(options, 400, 0).share;
    std::vector<float> logits = {0};
    double before = 1;
    for (int32_t n = random.Uniform(1, 6); n > 0 && is_nucleus; --n) {
      logits.push_back(-0.1F * static_cast<float>(logits.size()));
      before += gpu::DrawWeight(logits.back(), 0, 1);
    }
    // What is behind the edge, of ever smaller weights.
    const double far = i % 4 < 2 ? 0 : 1e-8 * before / (share * share);
    double behind = before / share - before + far;
    while (behind > 1e-13 && logits.size() < 400) {
      // A little less than is wanted, as both round.
      logits.push_back(static_cast<float>(std::min(-1.0, std::log(behind) - 1e-5)));
      behind -= gpu::DrawWeight(logits.back(), 0, 1);
    }
    logits.resize(400, -kInfinity);
    for (const double error : {-0.9, 0.0, 0.9}) {
      const Facts facts(logits, NeedsOf(options, 400, 0), error * gpu::kMassError);
      const std::optional<int32_t> token = sampler.DrawTokenFrom(options, facts(), {});
      EXPECT_TRUE(token || far == 0) << error;
      EXPECT_EQ(token.value_or(sampler.DrawToken(options, logits, {})), sampler.DrawToken(options, logits, {}));
      ++(token ? decided : asked_for_the_row);
    }
  }
  EXPECT_GT(asked_for_the_row, 300);
  EXPECT_GE(decided, 600);
}

// What was asked for another draw's sake says nothing.
TEST(SamplerFacts, AnswersToAnotherQuestionSayNothing) {
  const std::vector<float> logits = {3, 2, 1, 0};
  Sampler sampler(4);
  const SamplingOptions plain = {.seed = 1};
  const SamplingOptions nucleus = {.top_p = 0.7F, .seed = 1};
  const auto draw = [&](const SamplingOptions& options, const gpu::DrawNeeds& asked, const std::vector<int32_t>& log) {
    return sampler.DrawTokenFrom(options, Facts(logits, asked)(), log);
  };
  EXPECT_TRUE(draw(plain, NeedsOf(plain, 4, 0), {}));
  EXPECT_TRUE(draw(nucleus, NeedsOf(nucleus, 4, 0), {}));
  EXPECT_TRUE(draw(nucleus, NeedsOf(nucleus, 4, 7), {}));
  EXPECT_EQ(draw(plain, NeedsOf(plain, 4, 1), {}), std::nullopt) << "of another token";
  EXPECT_EQ(draw({.seed = 2}, NeedsOf(plain, 4, 0), {}), std::nullopt) << "of another seed";
  EXPECT_EQ(draw({.temperature = 1.5F, .seed = 1}, NeedsOf(plain, 4, 0), {}), std::nullopt);
  EXPECT_EQ(draw(plain, NeedsOf(nucleus, 4, 0), {}), std::nullopt);
  EXPECT_EQ(draw({.temperature = 1.5F, .top_p = 0.7F}, NeedsOf(nucleus, 4, 0), {}), std::nullopt);
  EXPECT_EQ(draw(nucleus, {.largest = 4}, {}), std::nullopt);
  const SamplingOptions penalised = {.presence_penalty = 1, .seed = 1};
  EXPECT_EQ(draw(penalised, NeedsOf(plain, 4, 1), {0}), std::nullopt);
  EXPECT_EQ(draw({.typical_p = 0.5F}, NeedsOf(plain, 4, 0), {}), std::nullopt);
}

TEST(SamplerFacts, SayNothingWhereTheyCannotKnow) {
  constexpr int32_t kVocab = 1000;
  std::vector<float> logits(kVocab, 0.0F);
  for (int32_t i = 0; i < kVocab; ++i) logits[i] = static_cast<float>(-i);
  Sampler sampler(kVocab);
  const auto draw = [&](const SamplingOptions& options, int32_t count, const std::vector<int32_t>& log) {
    return sampler.DrawTokenFrom(options, Facts(logits, {.largest = count})(), log);
  };
  for (const SamplingOptions& options :
       std::vector<SamplingOptions>{{.typical_p = 0.5F},
                                    {.top_p = 0.9F, .typical_p = 0.5F},
                                    {.min_p = 0.1F, .typical_p = 0.5F},
                                    {.min_p = 0.1F, .presence_penalty = -1},
                                    {.top_p = 0.9F, .presence_penalty = 1},
                                    {.frequency_penalty = 1},
                                    {.top_k = kVocab, .logit_bias = {{3, -1.0F}}},
                                    {.top_k = gpu::kLargestMax + 1},
                                    {.top_k = 40, .logit_bias = {{999, 1.0F}}},
                                    {.top_k = 40, .repetition_penalty = 0.9F},
                                    {.top_k = 40, .presence_penalty = -1},
                                    {.top_k = 40, .frequency_penalty = -1},
                                    {.top_k = 40, .repetition_penalty = 1.1F, .penalty_window = -1},
                                    {.top_k = 40, .repetition_penalty = 1.1F, .penalty_window = 89}}) {
    EXPECT_EQ(NeedsOf(options, kVocab, 0).largest, 0);
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
TEST(SamplerFacts, SumsDoNotDependOnWhereTokensStand) {
  constexpr int32_t kVocab = 5000;
  constexpr int32_t kTop = 62;
  std::vector<float> logits(kVocab, -1000.0F);
  for (int32_t i = 0; i < kTop - 2; ++i) logits[i] = -37.5F;
  logits[4000] = logits[4001] = 0;
  Sampler sampler(kVocab);
  SamplingOptions options = {.top_k = kTop, .top_p = 0.5F};
  for (options.seed = 0; options.seed < 50; ++options.seed) {
    EXPECT_EQ(sampler.DrawToken(options, logits, {}), 4000);
    EXPECT_EQ(sampler.DrawTokenFrom(options, Facts(logits, {.largest = kTop})(), {}), 4000);
  }
}

}  // namespace
}  // namespace ebb
