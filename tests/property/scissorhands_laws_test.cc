// What Scissorhands' definition promises, over random attention.

#include <gmock/gmock.h>

#include <cmath>
#include <deque>
#include <map>
#include <vector>

#include "policies/hash_random.h"
#include "tests/property/policy_lane.h"
#include "tests/support/random_attention.h"

namespace ebb {
namespace {

// SCI-1: counts are those of a history written down token by token, through blocks, evictions and reused slots.
TEST(ScissorhandsLaw, CountsAreThoseOfTheHistory) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t window = random.Uniform(1, 60);
    const int32_t heads = random.Uniform(1, 3);
    const int32_t budget = random.Uniform(11, 50);
    const ValidSpec spec = Resolve({.scorer = "scissorhands", .parameters = {{"window", window}}, .budget = budget},
                                   {.query_heads = heads})
                               .value();
    PolicyLane lane(spec, {.seed = seed, .slots = budget + 12, .query_heads = heads});
    // Of the last rows, oldest first, what each thought of the tokens that it saw: 1 where unimportant.
    std::deque<std::map<int32_t, int32_t>> history;
    for (int step = 0; step < 40; ++step) {
      const int32_t queries = random.Uniform(0, 3) == 0 ? random.Uniform(1, 12) : 1;
      lane.Observe(queries);
      const LaneView view = lane.View();
      for (int32_t row = 0; row < queries; ++row) {
        const int32_t token = lane.attention.tokens() - queries + row;
        const auto saw = static_cast<float>(lane.attention.live() - (queries - 1 - row));
        std::map<int32_t, int32_t> thought;
        for (size_t slot = 0; slot < view.token.size(); ++slot) {
          if (view.token[slot] < 0 || view.token[slot] > token) continue;
          double p = 0;
          for (int32_t head = 0; head < heads; ++head) p += lane.attention.Row({.query = head}, row)[slot] / heads;
          thought[view.token[slot]] = static_cast<float>(p) < 1 / saw ? 1 : 0;
        }
        history.push_back(thought);
        if (static_cast<int32_t>(history.size()) > window) history.pop_front();
      }
      const std::vector<float>& keep = lane.Score();
      for (size_t slot = 0; slot < view.token.size(); ++slot) {
        if (view.token[slot] < 0) continue;
        int32_t expected = 0;
        for (const auto& thought : history) {
          const auto at = thought.find(view.token[slot]);
          expected += at == thought.end() ? 0 : at->second;
        }
        ASSERT_LE(expected, window);
        ASSERT_EQ(std::ceil(-keep[slot]), expected) << "token " << view.token[slot];
      }
      lane.Prune(std::max(lane.attention.live() - budget, 0));
    }
  }
}

}  // namespace
}  // namespace ebb
