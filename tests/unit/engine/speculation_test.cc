#include "engine/speculation.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "policies/hash_random.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int32_t kVocab = 6;

std::vector<float> RandomLogits(uint64_t seed, int32_t rows) {
  HashRandom random(seed);
  std::vector<float> logits(static_cast<size_t>(rows) * kVocab);
  for (float& logit : logits) logit = 6 * random.UniformFloat();
  return logits;
}

// What decoding would draw from the same logits, one after another.
std::vector<int32_t> Decoded(const SamplingOptions& options, const std::vector<float>& logits,
                             std::vector<int32_t> log) {
  Sampler sampler(kVocab);
  std::vector<int32_t> tokens;
  for (size_t at = 0; at < logits.size(); at += kVocab) {
    tokens.push_back(sampler.Draw(options, std::span(logits).subspan(at, kVocab), log).token);
    log.push_back(tokens.back());
  }
  return tokens;
}

// A draft without probabilities changes no token, at any temperature and with penalties on what was accepted.
TEST(Judge, WithoutProbabilitiesYieldsTheTokensOfDecoding) {
  int32_t seen = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const SamplingOptions options = {
        .temperature = seed % 3 == 0 ? 0 : 0.7F, .repetition_penalty = seed % 2 == 0 ? 1 : 1.5F, .seed = seed};
    const std::vector<float> logits = RandomLogits(seed, 5);
    const std::vector<int32_t> log = {1, 2};
    const std::vector<int32_t> decoded = Decoded(options, logits, log);
    DraftProposal draft = {.tokens = {decoded.begin(), decoded.end() - 1}};
    const int32_t wrong = random.Uniform(0, 4);  // 4: none is
    if (wrong < 4) draft.tokens[wrong] = (draft.tokens[wrong] + 1) % kVocab;
    Sampler sampler(kVocab);
    const DraftVerdict verdict =
        Judge(draft, options, std::span(logits).first(kVocab), std::span(logits).subspan(kVocab), log, sampler);
    EXPECT_EQ(verdict.accepted, wrong);
    EXPECT_EQ(verdict.next, decoded[wrong]);
    seen |= 1 << wrong;
  }
  EXPECT_EQ(seen, 31);
}

// At temperature 0 the rule is greedy match, whatever the draft's probabilities.
TEST(Judge, WithProbabilitiesAndTemperatureZeroIsGreedyMatch) {
  const std::vector<float> logits = RandomLogits(3, 4);
  const SamplingOptions greedy = {.temperature = 0};
  const std::vector<int32_t> best = Decoded(greedy, logits, {});
  for (int32_t wrong = 0; wrong <= 3; ++wrong) {
    DraftProposal draft = {.tokens = {best.begin(), best.end() - 1}};
    if (wrong < 3) draft.tokens[wrong] = (draft.tokens[wrong] + 1) % kVocab;
    for (const int32_t token : draft.tokens) draft.q.push_back({{token, 0.5F}, {(token + 2) % kVocab, 0.5F}});
    Sampler sampler(kVocab);
    const DraftVerdict verdict =
        Judge(draft, greedy, std::span(logits).first(kVocab), std::span(logits).subspan(kVocab), {}, sampler);
    EXPECT_EQ(verdict.accepted, wrong);
    EXPECT_EQ(verdict.next, best[wrong]);
  }
}

TEST(CheckDraft, SaysWhatIsWrongAndWhere) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    std::string name;
    DraftProposal draft;
    std::string reason;
    std::string field;
  };
  const std::string at0 = "draft_probabilities[0]";
  const std::vector<Case> cases = {
      {"nothing", {}, "DRAFT_EMPTY", "draft_tokens"},
      {"65 tokens", {.tokens = std::vector<int32_t>(65)}, "DRAFT_TOO_LONG", "draft_tokens"},
      {"token 6 of 6", {.tokens = {0, 6}}, "TOKEN_OUT_OF_RANGE", "draft_tokens"},
      {"token -1", {.tokens = {-1}}, "TOKEN_OUT_OF_RANGE", "draft_tokens"},
      {"one of two", {.tokens = {1, 2}, .q = {{{1, 1}}}}, "DRAFT_PROBABILITIES", "draft_probabilities"},
      {"unknown token", {.tokens = {1}, .q = {{{1, 0.5F}, {6, 0.5F}}}}, "DRAFT_PROBABILITIES", at0},
      {"named twice", {.tokens = {1}, .q = {{{1, 0.5F}, {1, 0.5F}}}}, "DRAFT_PROBABILITIES", at0},
      {"not drawn from it", {.tokens = {1}, .q = {{{0, 1}}}}, "DRAFT_PROBABILITIES", at0},
      {"sum 0.9", {.tokens = {1}, .q = {{{1, 0.9F}}}}, "DRAFT_PROBABILITIES", at0},
      {"negative", {.tokens = {1}, .q = {{{1, 1}, {0, -0.1F}}}}, "DRAFT_PROBABILITIES", at0 + ".probabilities[1]"},
      {"NaN", {.tokens = {1}, .q = {{{1, kNan}}}}, "DRAFT_PROBABILITIES", at0 + ".probabilities[0]"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Refusal refusal = GetRefusal(CheckDraft(c.draft, kVocab));
    EXPECT_EQ(refusal.reason, c.reason);
    EXPECT_EQ(refusal.field, c.field);
  }
  EXPECT_TRUE(CheckDraft({.tokens = std::vector<int32_t>(64, 5)}, kVocab).ok());
  EXPECT_TRUE(CheckDraft({.tokens = {1}, .q = {{{1, 0.3F}, {2, 0.7003F}}}}, kVocab).ok());
}

}  // namespace
}  // namespace ebb
