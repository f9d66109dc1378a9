// What the scorers that ask chosen queries promise, SemanticKV and NACL, over random attention.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "policies/hash_random.h"
#include "tests/property/policy_lane.h"
#include "tests/support/random_attention.h"

namespace ebb {
namespace {

using testing::ElementsAreArray;

constexpr int32_t kHeads = 2;
const SpecLimits kLimits = {.trained_context = 1024, .query_heads = kHeads};

// A lane that nobody left yet.
PolicyLane Observed(const PolicySpec& spec, uint64_t seed, const std::vector<int32_t>& blocks) {
  int32_t tokens = 0;
  for (const int32_t block : blocks) tokens += block;
  PolicyLane lane(Resolve(spec, kLimits).value(), {.seed = seed, .slots = tokens, .query_heads = kHeads});
  for (const int32_t block : blocks) lane.Observe(block);
  return lane;
}

std::vector<int32_t> RandomBlocks(HashRandom& random) {
  std::vector<int32_t> blocks(random.Uniform(2, 6));
  for (int32_t& block : blocks) block = random.Uniform(1, 40);
  return blocks;
}

// SEM-1: rotating a query changes its norm by rounding alone, so who is largest does not depend on positions.
TEST(SemanticLaw, RopeLeavesTheRankingByNorm) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const RandomAttention attention({.seed = seed});
    std::vector<std::pair<double, int32_t>> raw;
    std::vector<std::pair<double, int32_t>> rotated;
    for (int32_t token = 0; token < 100; ++token) {
      const auto norm = [](const std::vector<float>& q) {
        double sum = 0;
        for (const float x : q) sum += double{x} * x;
        return std::sqrt(sum);
      };
      std::vector<float> q = attention.Query({}, token);
      raw.emplace_back(norm(q), token);
      Rotate(attention.rope(), token, q);
      rotated.emplace_back(norm(q), token);
      ASSERT_NEAR(raw.back().first, rotated.back().first, 1e-5);
    }
    std::ranges::sort(raw);
    std::ranges::sort(rotated);
    for (size_t i = 0; i < raw.size(); ++i) ASSERT_EQ(raw[i].second, rotated[i].second);
  }
}

// SEM-2: where every query speaks, |O| r is H2O's sum.
TEST(SemanticLaw, AllQueriesTogetherAreH2o) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const std::vector<int32_t> blocks = RandomBlocks(random);
    PolicyLane semantic = Observed({.scorer = "semantic",
                                    .parameters = {{"semantic_ratio", 1}, {"recent_ratio", 0}, {"rows_max", 512}},
                                    .budget = 500},
                                   seed, blocks);
    PolicyLane h2o = Observed({.scorer = "h2o", .budget = 500}, seed, blocks);
    const std::vector<float> expected = h2o.Score();
    const std::vector<float>& keep = semantic.Score();
    for (size_t slot = 0; slot < keep.size(); ++slot) ASSERT_NEAR(keep[slot], expected[slot], 1e-5 * (1 + keep[slot]));
  }
}

// With the newest queries alone it is SnapKV without pooling.
TEST(SemanticLaw, TheNewestQueriesAloneAreSnapkvWithoutPooling) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const std::vector<int32_t> blocks = RandomBlocks(random);
    int32_t tokens = 0;
    for (const int32_t block : blocks) tokens += block;
    const int32_t window = random.Uniform(1, std::min(tokens, 60));
    PolicyLane semantic =
        Observed({.scorer = "semantic",
                  .parameters = {{"semantic_ratio", 0}, {"recent_ratio", (window - 0.5) / tokens}, {"rows_max", 64}},
                  .budget = 500},
                 seed, blocks);
    PolicyLane snapkv =
        Observed({.scorer = "snapkv", .parameters = {{"window", window}, {"pooling", 0}}, .budget = 500}, seed, blocks);
    const std::vector<float> expected = snapkv.Score();
    const std::vector<float>& keep = semantic.Score();
    for (size_t slot = 0; slot < keep.size(); ++slot) ASSERT_NEAR(keep[slot], expected[slot], 1e-5 * (1 + keep[slot]));
  }
}

// NACL without a draw keeps what SnapKV keeps without pooling, over the proxies as its window.
TEST(NaclLaw, WithoutADrawItIsSnapkvWithoutPooling) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const std::vector<int32_t> blocks = {random.Uniform(30, 60), random.Uniform(30, 60)};
    const int32_t tokens = blocks[0] + blocks[1];
    const int32_t window = random.Uniform(1, 12);
    const int32_t budget = window + random.Uniform(1, 15);
    PolicyLane nacl = Observed({.scorer = "nacl",
                                .parameters = {{"proxy_ratio", (window - 0.5) / tokens}, {"proxy_share", 1}},
                                .budget = budget,
                                .sinks = 0,
                                .recent = window},
                               seed, blocks);
    PolicyLane snapkv = Observed(
        {.scorer = "snapkv", .parameters = {{"window", window}, {"pooling", 0}}, .budget = budget}, seed, blocks);
    const std::vector<int32_t> left = snapkv.Prune(tokens - budget);
    ASSERT_THAT(nacl.Prune(tokens - budget), ElementsAreArray(left));
  }
}

// The draw is bound to tokens: from any layout of slots the same tokens leave.
TEST(NaclLaw, ADrawDoesNotKnowSlots) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const ValidSpec spec =
        Resolve({.scorer = "nacl", .parameters = {{"seed", static_cast<double>(seed)}}, .budget = 40}, kLimits).value();
    const auto kept = [&](Placement placement) {
      PolicyLane lane(spec, {.seed = seed, .slots = 150, .query_heads = kHeads, .placement = placement});
      for (const int32_t block : {60, 30, 1, 1}) lane.Step(block);
      return lane.attention.LiveTokens();
    };
    ASSERT_THAT(kept(Placement::kRandom), ElementsAreArray(kept(Placement::kLowest)));
  }
}

}  // namespace
}  // namespace ebb
