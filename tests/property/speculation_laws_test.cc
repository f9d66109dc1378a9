// The rejection rule keeps the target's distribution, whatever the draft was drawn from: chi-square over 100,000
// drafts.

#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/speculation.h"
#include "policies/hash_random.h"

namespace ebb {
namespace {

constexpr int32_t kVocab = 8;
constexpr int32_t kDrafts = 100000;
// Upper 1e-6 quantiles of chi-square: the seeds are fixed, so a test that passes always passes.
constexpr double kOf7Degrees = 40.5;
constexpr double kOf63Degrees = 132.4;

std::vector<float> Logits(std::initializer_list<double> p) {
  std::vector<float> logits;
  for (const double each : p) logits.push_back(static_cast<float>(std::log(each)));
  return logits;
}

int32_t DrawFrom(std::span<const TokenProbability> q, double u) {
  for (const TokenProbability& each : q) {
    if (u < each.p) return each.token;
    u -= each.p;
  }
  return q.back().token;
}

double ChiSquare(std::span<const int64_t> counts, std::span<const double> p) {
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = p[i] * static_cast<double>(total);
    sum += (static_cast<double>(counts[i]) - expected) * (static_cast<double>(counts[i]) - expected) / expected;
  }
  return sum;
}

// Three places of a log: the model's distribution at each, whatever came before, and the draft's.
struct Places {
  std::vector<float> before = Logits({0.30, 0.20, 0.15, 0.12, 0.10, 0.08, 0.04, 0.01});
  std::vector<float> first = Logits({0.02, 0.08, 0.10, 0.30, 0.20, 0.15, 0.05, 0.10});
  std::vector<float> second = Logits({0.05, 0.05, 0.25, 0.05, 0.25, 0.05, 0.25, 0.05});
  std::vector<std::vector<TokenProbability>> q = {
      {{0, 0.05F}, {1, 0.40F}, {2, 0.15F}, {5, 0.30F}, {7, 0.10F}},  // nothing of 3, 4 and 6
      {{0, 0.25F}, {1, 0.05F}, {2, 0.20F}, {3, 0.10F}, {4, 0.10F}, {5, 0.10F}, {6, 0.10F}, {7, 0.10F}}};
};

std::vector<double> Target(const SamplingOptions& options, const std::vector<float>& logits) {
  Sampler sampler(kVocab);
  std::vector<float> p(kVocab);
  sampler.Distribution(options, logits, {}, p);
  return {p.begin(), p.end()};
}

struct Counts {
  std::vector<int64_t> first = std::vector<int64_t>(kVocab);           // of the first token that comes out
  std::vector<int64_t> pairs = std::vector<int64_t>(kVocab * kVocab);  // of the first two, where two come out
  std::vector<int64_t> bonus = std::vector<int64_t>(kVocab);           // behind drafts that were accepted whole
  std::vector<int64_t> drafted = std::vector<int64_t>(kVocab);         // of the draft's first token
};

Counts Verify(const SamplingOptions& sampling) {
  const Places places;
  std::vector<float> logits = places.first;
  logits.insert(logits.end(), places.second.begin(), places.second.end());
  Sampler sampler(kVocab);
  Counts counts;
  for (int32_t i = 0; i < kDrafts; ++i) {
    SamplingOptions options = sampling;
    options.seed = static_cast<uint64_t>(i);
    DraftProposal draft = {.q = places.q};
    for (uint64_t k = 0; k < 2; ++k) draft.tokens.push_back(DrawFrom(places.q[k], HashUniform(options.seed, 99, k)));
    const DraftVerdict verdict = Judge(draft, options, places.before, logits, std::vector<int32_t>(5), sampler);
    const int32_t first = verdict.accepted > 0 ? draft.tokens[0] : verdict.next;
    ++counts.drafted[draft.tokens[0]];
    ++counts.first[first];
    if (verdict.accepted >= 1) {
      const int32_t second = verdict.accepted > 1 ? draft.tokens[1] : verdict.next;
      ++counts.pairs[first * kVocab + second];
    }
    if (verdict.accepted == 2) ++counts.bonus[verdict.next];
  }
  return counts;
}

TEST(Speculation, RejectionKeepsTheDistributionOfEveryToken) {
  const Places places;
  const Counts counts = Verify({});
  const std::vector<double> p0 = Target({}, places.before), p1 = Target({}, places.first);
  EXPECT_LT(ChiSquare(counts.first, p0), kOf7Degrees);
  EXPECT_LT(ChiSquare(counts.bonus, Target({}, places.second)), kOf7Degrees);
  // The second token's, given a first that was accepted: min(p, q) of it, and p1 of the second.
  std::vector<int64_t> second(kVocab);
  for (int32_t pair = 0; pair < kVocab * kVocab; ++pair) second[pair % kVocab] += counts.pairs[pair];
  EXPECT_LT(ChiSquare(second, p1), kOf7Degrees);
  std::vector<int64_t> pairs;
  std::vector<double> expected;
  double mass = 0;
  for (const TokenProbability& each : places.q[0]) mass += std::min<double>(each.p, p0[each.token]);
  for (const TokenProbability& each : places.q[0]) {
    for (int32_t next = 0; next < kVocab; ++next) {
      pairs.push_back(counts.pairs[each.token * kVocab + next]);
      expected.push_back(std::min<double>(each.p, p0[each.token]) / mass * p1[next]);
    }
  }
  EXPECT_LT(ChiSquare(pairs, expected), kOf63Degrees);
  // What the test could tell apart: the draft's own distribution is far off.
  EXPECT_GT(ChiSquare(counts.drafted, p0), 100 * kOf7Degrees);
}

// Also of the distribution that temperature and truncation make of the logits.
TEST(Speculation, RejectionKeepsWhatTheSamplerWouldDrawFrom) {
  const SamplingOptions options = {.temperature = 0.8F, .top_k = 6, .top_p = 0.9F};
  const Counts counts = Verify(options);
  const std::vector<double> p = Target(options, Places().before);
  std::vector<int64_t> kept;
  std::vector<double> expected;
  for (int32_t token = 0; token < kVocab; ++token) {
    if (p[token] == 0) {
      EXPECT_EQ(counts.first[token], 0);
    } else {
      kept.push_back(counts.first[token]);
      expected.push_back(p[token]);
    }
  }
  EXPECT_LT(kept.size(), static_cast<size_t>(kVocab));
  EXPECT_LT(ChiSquare(kept, expected), kOf7Degrees);
}

// The share of accepted tokens is sum min(p, q): the best that any rule can do.
TEST(Speculation, AcceptsAsOftenAsTheDistributionsOverlap) {
  const Places places;
  const Counts counts = Verify({});
  const std::vector<double> p = Target({}, places.before);
  double overlap = 0;
  for (const TokenProbability& each : places.q[0]) overlap += std::min<double>(each.p, p[each.token]);
  int64_t accepted = 0;
  for (const int64_t count : counts.pairs) accepted += count;
  const double deviation = std::sqrt(overlap * (1 - overlap) / kDrafts);
  EXPECT_NEAR(static_cast<double>(accepted) / kDrafts, overlap, 5 * deviation);
}

}  // namespace
}  // namespace ebb
