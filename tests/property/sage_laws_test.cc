// What SAGE's definition promises, over random attention.

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <vector>

#include "policies/hash_random.h"
#include "policies/sage.h"
#include "tests/property/policy_lane.h"
#include "tests/support/random_attention.h"

namespace ebb {
namespace {

// SAGE-1: the softmax is monotone, so a head's choice by attention is its choice by logits, and all of it is kept.
TEST(SageLaw, EachHeadsBestByLogitsAreKept) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t heads = random.Uniform(1, 4);
    const int32_t budget = random.Uniform(2 * heads, 60);
    const int32_t prompt = budget + random.Uniform(1, 60);
    const ValidSpec spec = Resolve({.scorer = "sage", .budget = budget}, {.query_heads = heads}).value();
    PolicyLane lane(spec, {.seed = seed, .slots = prompt, .query_heads = heads});
    const RopeView rope = lane.attention.rope();
    std::set<int32_t> named;
    for (int32_t head = 0; head < heads; ++head) {
      std::vector<float> q = lane.attention.Query({.query = head}, prompt - 1);
      Rotate(rope, prompt - 1, q);
      std::vector<std::pair<double, int32_t>> logits;
      for (int32_t token = spec.sinks; token < prompt - spec.recent; ++token) {
        std::vector<float> k = lane.attention.Key(0, token);
        Rotate(rope, token, k);
        double dot = 0;
        for (size_t c = 0; c < k.size(); ++c) dot += double{q[c]} * k[c];
        logits.emplace_back(dot, token);
      }
      std::ranges::sort(logits, std::greater());
      for (int32_t i = 0; i < SageSelectedPerHead(budget, heads); ++i) named.insert(logits[i].second);
    }
    lane.Step(prompt);
    const std::vector<int32_t> live = lane.attention.LiveTokens();
    ASSERT_EQ(live.size(), static_cast<size_t>(budget));
    ASSERT_LE(spec.sinks + named.size() + spec.recent, live.size());
    for (const int32_t token : named) ASSERT_TRUE(std::ranges::binary_search(live, token)) << "token " << token;
  }
}

}  // namespace
}  // namespace ebb
