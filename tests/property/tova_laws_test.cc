// What TOVA's equation promises, over random attention.

#include <gmock/gmock.h>

#include <cmath>
#include <vector>

#include "policies/hash_random.h"
#include "tests/property/policy_lane.h"
#include "tests/support/random_attention.h"

namespace ebb {
namespace {

using testing::ElementsAreArray;

ValidSpec TovaSpec(int32_t budget, int32_t query_heads = 1) {
  return Resolve({.scorer = "tova", .budget = budget}, {.query_heads = query_heads}).value();
}

// TOVA-1
TEST(TovaLaw, ScoresSumToOne) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t heads = random.Uniform(1, 4);
    const int32_t budget = random.Uniform(1, 60);
    PolicyLane lane(TovaSpec(budget, heads), {.seed = seed, .slots = budget + 16, .query_heads = heads});
    for (int step = 0; step < 20; ++step) {
      lane.Observe(random.Uniform(1, 16));
      double sum = 0;
      const std::vector<float>& keep = lane.Score();
      for (size_t slot = 0; slot < keep.size(); ++slot) sum += lane.View().token[slot] >= 0 ? keep[slot] : 0;
      ASSERT_NEAR(sum, 1, 1e-6 * std::sqrt(lane.attention.live()));
      lane.Prune(std::max(lane.attention.live() - budget, 0));
    }
  }
}

// TOVA-2: what the survivors held, renormalised, is what the last query would pay if they were all there is.
TEST(TovaLaw, SurvivorsRenormalisedAreTheSoftmaxOverSurvivors) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t budget = random.Uniform(1, 30);
    PolicyLane lane(TovaSpec(budget), {.seed = seed, .slots = 60});
    lane.Observe(random.Uniform(budget, 60));
    const std::vector<float> before = lane.Score();
    lane.Prune(lane.attention.live() - budget);
    std::vector<double> again(before.size());
    const int32_t last = lane.attention.tokens() - 1;
    lane.attention.AddProbes(0, {{last}}, lane.attention.Query({}, last), 1.0, again);
    double left = 0;
    for (size_t slot = 0; slot < before.size(); ++slot) left += lane.View().token[slot] >= 0 ? before[slot] : 0;
    for (size_t slot = 0; slot < before.size(); ++slot) {
      if (lane.View().token[slot] >= 0) {
        ASSERT_NEAR(before[slot] / left, again[slot], 1e-6);
      }
    }
  }
}

// With one KV head the paper's choice per layer is the choice per KV head.
TEST(TovaLaw, OneHeadDecidesForItsLayer) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    ValidSpec layer = TovaSpec(20);
    layer.scope = Scope::kLayer;
    PolicyLane one(TovaSpec(20), {.seed = seed, .slots = 40});
    PolicyLane other(layer, {.seed = seed, .slots = 40});
    for (int step = 0; step < 30; ++step) {
      const int32_t queries = random.Uniform(1, 12);
      const std::vector<int32_t> left = one.Step(queries);
      ASSERT_THAT(other.Step(queries), ElementsAreArray(left));
    }
  }
}

}  // namespace
}  // namespace ebb
