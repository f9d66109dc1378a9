// What SnapKV's definition promises, over random attention.

#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "policies/hash_random.h"
#include "tests/property/policy_lane.h"
#include "tests/support/random_attention.h"

namespace ebb {
namespace {

using testing::ElementsAreArray;

ValidSpec SnapkvSpec(int32_t budget, int32_t query_heads, const ScorerParameters& parameters) {
  return Resolve({.scorer = "snapkv", .parameters = parameters, .budget = budget}, {.query_heads = query_heads})
      .value();
}

// SNAP-1, as the paper runs it: once over the whole prompt.
TEST(SnapkvLaw, KeepsTheWindowAndExactlyTheBudget) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t window = random.Uniform(1, 20);
    const int32_t budget = window + random.Uniform(1, 40);
    const int32_t prompt = budget + random.Uniform(1, 60);
    const ValidSpec spec = SnapkvSpec(budget, 2, {{"window", window}});
    EXPECT_EQ(spec.recent, window);
    PolicyLane lane(spec, {.seed = seed, .slots = prompt, .query_heads = 2});
    EXPECT_EQ(lane.Step(prompt).size(), static_cast<size_t>(prompt - budget));
    const std::vector<int32_t> live = lane.attention.LiveTokens();
    ASSERT_EQ(live.size(), static_cast<size_t>(budget));
    for (int32_t back = 1; back <= window; ++back) ASSERT_EQ(live[budget - back], prompt - back);
  }
}

// A kernel of one is the window's sum, whatever the form; who is kept is its largest.
TEST(SnapkvLaw, AKernelOfOneRanksByTheWindowsSum) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    constexpr int32_t kPrompt = 70;
    const int32_t window = random.Uniform(1, 20);
    const int32_t budget = window + random.Uniform(1, 30);
    PolicyLane lane(SnapkvSpec(budget, 2, {{"window", window}, {"kernel", 1}, {"pooling", random.Uniform(0, 2)}}),
                    {.seed = seed, .slots = kPrompt, .query_heads = 2, .placement = Placement::kRandom});
    lane.Observe(kPrompt);
    std::vector<double> sum(kPrompt);  // by token
    for (int32_t row = kPrompt - window; row < kPrompt; ++row) {
      for (int32_t head = 0; head < 2; ++head) {
        const std::span<const double> p = lane.attention.Row({.query = head}, row);
        for (int32_t slot = 0; slot < kPrompt; ++slot) sum[lane.View().token[slot]] += p[slot] / 2;
      }
    }
    std::vector<int32_t> order;
    for (int32_t token = 0; token < kPrompt - window; ++token) order.push_back(token);
    std::ranges::sort(order, std::greater(), [&](int32_t token) { return sum[token]; });
    order.resize(budget - window);
    for (int32_t token = kPrompt - window; token < kPrompt; ++token) order.push_back(token);
    std::ranges::sort(order);
    lane.Prune(kPrompt - budget);
    ASSERT_THAT(lane.attention.LiveTokens(), ElementsAreArray(order));
  }
}

// Over all rows, SnapKV's window is H2O's sum.
TEST(SnapkvLaw, AWindowOverAllRowsIsH2o) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const RandomAttentionOptions options = {.seed = seed, .slots = 300, .query_heads = 2};
    PolicyLane snapkv(SnapkvSpec(300, 2, {{"window", 256}, {"pooling", 0}}), options);
    PolicyLane h2o(Resolve({.scorer = "h2o", .budget = 300}, {.query_heads = 2}).value(), options);
    for (int step = 0; step < 8; ++step) {
      const int32_t queries = random.Uniform(1, 30);
      snapkv.Observe(queries);
      h2o.Observe(queries);
    }
    const std::vector<float> expected = h2o.Score();
    const std::vector<float>& keep = snapkv.Score();
    for (int32_t slot = 0; slot < h2o.attention.live(); ++slot) {
      ASSERT_NEAR(keep[slot], expected[slot], 1e-5 * (1 + expected[slot]));
    }
  }
}

}  // namespace
}  // namespace ebb
