// The sampler against its definition in float64, for random options; and its draws against their distribution.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "engine/sampler.h"
#include "policies/hash_random.h"

namespace ebb {
namespace {

constexpr uint64_t kSampling = 1;  // the purpose of the sampler's random numbers: part of what a seed promises

// engine/sampler.h read aloud. `margin` is how close any decision was: below it float32 may decide otherwise.
class Oracle {
 public:
  Oracle(const SamplingOptions& options, std::span<const float> logits, std::span<const int32_t> log)
      : options_(options), x_(logits.begin(), logits.end()), kept_(logits.size(), true) {
    for (const auto& [token, bias] : options.logit_bias) x_[token] += bias;
    Penalise(log);
    for (double& x : x_) x /= options.temperature;
    Renormalise();
    if (options.top_k > 0) Keep(ByShare(), [&](size_t before, double) { return before < size_t(options_.top_k); });
    Renormalise();
    if (options.typical_p < 1) {
      Keep(ByTypicality(), [&](size_t, double mass) { return Decide(mass, options_.typical_p); });
      Renormalise();
    }
    if (options.top_p < 1) Keep(ByShare(), [&](size_t, double mass) { return Decide(mass, options_.top_p); });
    const double floor = options.min_p * *std::ranges::max_element(share_);
    for (size_t i = 0; i < share_.size(); ++i) {
      if (kept_[i] && options.min_p > 0 && Decide(share_[i], floor)) Drop(i);
    }
    Renormalise();
  }

  // The token that owns `u` in [0, 1) when the kept lie side by side in order of id.
  int32_t Token(double u) {
    double end = 0;
    for (size_t i = 0; i < share_.size(); ++i) {
      end += share_[i];
      if (kept_[i] && Decide(u, end)) return static_cast<int32_t>(i);
    }
    return -1;
  }

  double margin() const { return margin_; }

 private:
  void Penalise(std::span<const int32_t> log) {
    const size_t window =
        options_.penalty_window < 0 ? log.size() : std::min<size_t>(log.size(), options_.penalty_window);
    const std::span<const int32_t> seen = log.last(window);
    for (const int32_t token : std::set<int32_t>(seen.begin(), seen.end())) {
      double& x = x_[token];
      x = x > 0 ? x / options_.repetition_penalty : x * options_.repetition_penalty;
      x -= options_.presence_penalty + options_.frequency_penalty * double(std::ranges::count(seen, token));
    }
  }

  bool Decide(double a, double b) {  // a < b
    margin_ = std::min(margin_, std::abs(a - b));
    return a < b;
  }

  void Renormalise() {
    share_.assign(x_.size(), 0);
    double sum = 0;
    const double best = *std::ranges::max_element(x_);
    for (size_t i = 0; i < x_.size(); ++i) sum += share_[i] = kept_[i] ? std::exp(x_[i] - best) : 0;
    for (double& share : share_) share /= sum;
  }

  void Drop(size_t i) {
    kept_[i] = false;
    share_[i] = 0;
  }

  std::vector<size_t> Order(const std::vector<double>& key) {  // largest first, the lower id first among equals
    std::vector<size_t> order(key.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return key[a] > key[b]; });
    return order;
  }
  std::vector<size_t> ByShare() { return Order(x_); }
  std::vector<size_t> ByTypicality() {
    double entropy = 0;
    for (const double p : share_) entropy -= p > 0 ? p * std::log(p) : 0;
    std::vector<double> nearness(share_.size(), -INFINITY);
    for (size_t i = 0; i < share_.size(); ++i) {
      if (share_[i] > 0) nearness[i] = -std::abs(-std::log(share_[i]) - entropy);
    }
    std::vector<size_t> order = Order(nearness);
    for (size_t i = 1; i < order.size(); ++i) {  // float32 may order two that are so near otherwise
      if (kept_[order[i]]) margin_ = std::min(margin_, nearness[order[i - 1]] - nearness[order[i]]);
    }
    return order;
  }

  // Keeps tokens in this order while wanted(kept before it, their mass), and at least one.
  template <typename Wanted>
  void Keep(const std::vector<size_t>& order, const Wanted& wanted) {
    size_t before = 0;
    double mass = 0;
    bool ended = false;
    for (const size_t i : order) {
      if (!kept_[i]) continue;
      ended = ended || (before > 0 && !wanted(before, mass));
      if (ended) {
        Drop(i);
      } else {
        ++before;
        mass += share_[i];
      }
    }
  }

  SamplingOptions options_;
  std::vector<double> x_;      // logits, step by step
  std::vector<double> share_;  // [vocab] of the kept
  std::vector<bool> kept_;
  double margin_ = INFINITY;
};

SamplingOptions RandomOptions(HashRandom& random, int32_t vocab) {
  const auto maybe = [&](auto off, auto on) { return random.Uniform(0, 1) == 0 ? off : on; };
  SamplingOptions options = {
      .temperature = maybe(1.0F, 0.2F + 2 * random.UniformFloat()),
      .top_k = maybe(0, random.Uniform(1, vocab + 3)),
      .top_p = maybe(1.0F, 0.05F + 0.9F * random.UniformFloat()),
      .min_p = maybe(0.0F, random.UniformFloat()),
      .typical_p = maybe(1.0F, 0.05F + 0.9F * random.UniformFloat()),
      .repetition_penalty = maybe(1.0F, 0.5F + random.UniformFloat()),
      .presence_penalty = maybe(0.0F, 4 * random.UniformFloat() - 2),
      .frequency_penalty = maybe(0.0F, 4 * random.UniformFloat() - 2),
      .penalty_window = random.Uniform(-1, 12),
      .seed = random.Next64(),
  };
  for (int32_t i = random.Uniform(0, 3); i > 0; --i) {
    options.logit_bias[random.Uniform(0, vocab - 1)] = 10 * random.UniformFloat() - 5;
  }
  return options;
}

TEST(Sampler, DrawsTheTokenThatItsDefinitionInFloat64Draws) {
  // Small vocabularies, where every filter decides; and larger ones of many blocks, the last one short, that take their
  // candidates from a few of them. Among many tokens two are always almost equally typical: no typical_p there.
  struct Case {
    int32_t vocab = 0;
    float spread = 0;  // of the logits
    int cases = 0;
    bool typical = true;
    int unsure_max = 0;  // cases that float32 may decide otherwise
  };
  for (const Case& c :
       {Case{24, 8, 20000, true, 200}, Case{503, 24, 4000, false, 200}, Case{4096, 60, 500, false, 125}}) {
    Sampler sampler(c.vocab);
    int unsure = 0;
    for (uint64_t seed = 0; seed < static_cast<uint64_t>(c.cases); ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", vocabulary " << c.vocab);
      HashRandom random(seed);
      SamplingOptions options = RandomOptions(random, c.vocab);
      if (!c.typical) options.typical_p = 1;
      ASSERT_TRUE(CheckSampling(options, c.vocab).ok());
      std::vector<float> logits;
      for (int32_t i = 0; i < c.vocab; ++i) logits.push_back(c.spread * (random.UniformFloat() - 0.5F));
      std::vector<int32_t> log;
      for (int32_t i = random.Uniform(0, 20); i > 0; --i) log.push_back(random.Uniform(0, c.vocab - 1));
      Oracle oracle(options, logits, log);
      const int32_t expected = oracle.Token(HashUniform(options.seed, kSampling, log.size()));
      const int32_t drawn = sampler.Draw(options, logits, log).token;
      if (oracle.margin() < 2e-5) {  // logits of 10 are rounded to 1e-6, and the temperature divides
        ++unsure;
      } else {
        ASSERT_EQ(drawn, expected);
      }
    }
    EXPECT_LT(unsure, c.unsure_max);
  }
}

// Pearson's statistic over the places of one log; 7 degrees of freedom exceed 29.9 once in ten thousand.
TEST(Sampler, DrawsAlongOneLogFollowTheDistribution) {
  constexpr int32_t kDraws = 100000;
  const std::vector<double> shares = {0.3, 0.02, 0.18, 0.1, 0.25, 0.05, 0.07, 0.03};
  std::vector<float> logits;
  for (const double share : shares) logits.push_back(static_cast<float>(std::log(share)));
  const std::vector<int32_t> log(kDraws, 0);
  Sampler sampler(static_cast<int32_t>(shares.size()));
  for (const uint64_t seed : {0ULL, 1ULL, 0xFFFFFFFFFFFFFFFFULL}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::vector<int> counts(shares.size(), 0);
    for (size_t i = 0; i < kDraws; ++i) ++counts[sampler.Draw({.seed = seed}, logits, std::span(log).first(i)).token];
    double statistic = 0;
    for (size_t i = 0; i < shares.size(); ++i) {
      statistic += std::pow(counts[i] - kDraws * shares[i], 2) / (kDraws * shares[i]);
    }
    EXPECT_LT(statistic, 29.9);
  }
}

}  // namespace
}  // namespace ebb
