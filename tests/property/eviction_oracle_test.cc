// Sessions that evict in place, held against float64 models whose caches are shifted and appended to.

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "engine/engine.h"
#include "policies/hash_random.h"
#include "tests/support/reference_model.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

// README of the golden data: a plain float32 implementation stays within 1.3e-5 of float64 on models of this size and
// scale. Errors of evicted tokens live on in the K and V of those that saw them, so twice that is allowed.
constexpr double kTolerance = 2.6e-5;

struct Case {
  TinyModel model = {};
  PolicySpec policy = {};
  ReferencePolicy reference = {};
};

// Runs the same tokens in the same random blocks through both; logits and live tokens agree after each step.
void ExpectTheOraclesRun(const Case& c, uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  const TinyModelFile file(c.model);
  const auto engine = OpenTestEngine(file.path(), {.threads = 2});
  const auto session = OpenTestSession(*engine, c.policy, 16);
  ReferenceModel oracle(file.path(), c.reference);
  HashRandom random(seed);
  const std::vector<int32_t> tokens = RandomTokens(seed, 150, engine->config().vocab);
  for (size_t first = 0; first < tokens.size();) {
    const auto count = std::min<size_t>(random.Uniform(0, 2) == 0 ? random.Uniform(1, 16) : 1, tokens.size() - first);
    const std::span<const int32_t> block(tokens.data() + first, count);
    const std::vector<float> logits = Step(*engine, *session, block, Want::kAll);
    const auto expected = oracle.Step(block);
    size_t at = 0;
    for (const std::vector<double>& row : expected) {
      for (const double logit : row) ASSERT_NEAR(logits[at++], logit, kTolerance) << "after token " << first;
    }
    for (int32_t layer = 0; layer < c.model.layers; ++layer) {
      for (int32_t head = 0; head < c.model.kv_heads; ++head) {
        ASSERT_EQ(LiveTokens(*engine, *session, layer, head), oracle.Live(layer, head)) << "after token " << first;
      }
    }
    first += count;
  }
  EXPECT_GT(session->evicted(), 50);
}

PolicySpec F32(PolicySpec spec) {
  spec.kv_type = KvType::kF32;
  return spec;
}

using Rule = ReferencePolicy::Rule;

TEST(InPlaceEviction, StreamingEqualsAFreshlyCompactedCache) {
  for (const bool compacted : {true, false}) {
    const Case c = {
        .model = {.layers = 2},
        .policy = F32({.scorer = "streaming",
                       .budget = 24,
                       .positions = compacted ? Positions::kCompacted : Positions::kOriginal}),
        .reference = {.rule = Rule::kOldest, .budget = 24, .sinks = 4, .recent = 19, .compacted = compacted}};
    for (uint64_t seed = 0; seed < 3; ++seed) ExpectTheOraclesRun(c, seed);
  }
}

TEST(InPlaceEviction, H2oEqualsItsBruteForceReplicaInEveryLane) {
  for (const bool compacted : {false, true}) {
    const Case c = {
        .model = {.layers = 2, .heads = 6, .kv_heads = 3},
        .policy =
            F32({.scorer = "h2o", .budget = 24, .positions = compacted ? Positions::kCompacted : Positions::kOriginal}),
        .reference = {.rule = Rule::kLeastAttended, .budget = 24, .recent = 12, .compacted = compacted}};
    for (uint64_t seed = 0; seed < 3; ++seed) ExpectTheOraclesRun(c, seed);
  }
}

TEST(InPlaceEviction, TovaEqualsItsBruteForceReplicaInEveryLane) {
  for (const bool compacted : {false, true}) {
    const Case c = {
        .model = {.layers = 2, .heads = 6, .kv_heads = 3},
        .policy = F32(
            {.scorer = "tova", .budget = 24, .positions = compacted ? Positions::kCompacted : Positions::kOriginal}),
        .reference = {.rule = Rule::kLeastAttendedLast, .budget = 24, .compacted = compacted}};
    for (uint64_t seed = 0; seed < 3; ++seed) ExpectTheOraclesRun(c, seed);
  }
}

TEST(InPlaceEviction, ProtectionHoldsWhateverTheScores) {
  const Case c = {.model = {.layers = 1},
                  .policy = F32({.scorer = "h2o", .budget = 20, .sinks = 6, .recent = 3}),
                  .reference = {.rule = Rule::kLeastAttended, .budget = 20, .sinks = 6, .recent = 3}};
  for (uint64_t seed = 0; seed < 3; ++seed) ExpectTheOraclesRun(c, seed);
}

// In one layer K and V of a token depend on nothing but the token, so a cache with closed-up positions is what a run
// over the kept tokens alone would leave: the next token cannot tell.
TEST(Reindexing, StreamingInOneLayerEqualsAFromScratchRunOverTheKeptTokens) {
  const TinyModelFile file({.layers = 1});
  const auto engine = OpenTestEngine(file.path());
  const std::vector<int32_t> tokens = RandomTokens(7, 90, engine->config().vocab);
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kF16, KvType::kInt8, KvType::kFp8}) {
    const auto session = OpenTestSession(*engine, {.scorer = "streaming", .budget = 20, .kv_type = type}, 16);
    Feed(*engine, *session, std::span(tokens).first(40), 9);
    for (size_t t = 40; t < tokens.size(); ++t) {
      std::vector<int32_t> kept;
      for (const int32_t index : LiveTokens(*engine, *session, 0, 0)) kept.push_back(tokens[index]);
      ASSERT_EQ(kept.size(), 20);
      const auto scratch = OpenTestSession(*engine, {.scorer = "full", .kv_type = type}, 64);
      Step(*engine, *scratch, kept);
      const std::span<const int32_t> next(&tokens[t], 1);
      // Both are the same sums in another slot order: keys and values have the same bits in any type.
      ASSERT_LT(LargestDifference(Step(*engine, *session, next), Step(*engine, *scratch, next)), 2e-5);
    }
  }
}

TEST(RkCache, EqualsTheFusedOne) {
  const TinyModelFile file({.layers = 2});
  const auto engine = OpenTestEngine(file.path());
  const std::vector<int32_t> tokens = RandomTokens(9, 120, engine->config().vocab);
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kF16, KvType::kInt8, KvType::kFp8}) {
    PolicySpec spec = {.scorer = "streaming", .budget = 32, .kv_type = type};
    const auto fused = OpenTestSession(*engine, spec);
    spec.rope_cache = RopeCache::kRk;
    const auto rk = OpenTestSession(*engine, spec);
    EXPECT_GE(rk->pages(), fused->pages());
    EXPECT_LT(LargestDifference(Feed(*engine, *fused, tokens, 11), Feed(*engine, *rk, tokens, 11)), 1e-5);
  }
}

}  // namespace
}  // namespace ebb
