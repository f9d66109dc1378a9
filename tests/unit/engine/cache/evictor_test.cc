#include "engine/cache/evictor.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/cache/page_pool.h"
#include "policies/registry.h"
#include "policies/trigger.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ValidSpec Spec(const PolicySpec& spec) {
  const auto valid = Resolve(spec, {.trained_context = 4096});
  EXPECT_THAT(valid, IsOk());
  return *valid;
}

// The lane's tokens in order of age.
std::vector<int32_t> Tokens(const SlotMap& map) {
  std::vector<int32_t> tokens;
  for (const int32_t token : map.token()) {
    if (token >= 0) tokens.push_back(token);
  }
  std::ranges::sort(tokens);
  return tokens;
}

// One lane under a policy, without K and V.
class Lane {
 public:
  Lane(const PolicySpec& spec, int32_t capacity)
      : policy(Spec(spec)),
        pool_(*PagePool::Create(1 << 20, 4096)),
        shape_({.layers = 1,
                .kv_heads = 1,
                .format = {.type = KvType::kF32, .head_dim = 8, .page_tiles = 4},
                .capacity = capacity,
                .block_max = capacity}),
        cache_(shape_, *pool_->Reserve(shape_.pages()), policy) {}

  SlotMap& map() { return cache_.maps()[0]; }

  // Adds tokens, and evicts what the trigger asks for. Returns how many left.
  Evicted Step(int32_t tokens) {
    map().Place(next_, next_, tokens);
    next_ += tokens;
    return Prune();
  }

  Evicted Prune() {
    const int32_t count = TokensToDrop(policy.trigger, map().live());
    if (count == 0) return {};
    const Evicted evicted = ChooseDue(candidates(), count, scratch);
    map().Free(scratch.victims);
    return evicted;
  }

  Candidates candidates() const { return {.policy = &policy, .cache = &cache_, .tokens = next_}; }

  ValidSpec policy;
  EvictScratch scratch;

 private:
  std::unique_ptr<PagePool> pool_;
  CacheShape shape_;
  SessionCache cache_;
  int32_t next_ = 0;
};

TEST(ChooseDue, FreesTheOldestBetweenSinksAndRecent) {
  Lane lane({.scorer = "streaming", .budget = 8, .overflow = 3}, 16);
  EXPECT_EQ(lane.Step(10).tokens, 0);
  EXPECT_EQ(lane.Step(1).tokens, 3);
  EXPECT_THAT(Tokens(lane.map()), ElementsAre(0, 1, 2, 3, 7, 8, 9, 10));
}

TEST(ChooseDue, GoesByTheStateOfTheSlotAndCountsNotANumber) {
  Lane lane({.scorer = "h2o", .budget = 4, .recent = 1}, 8);
  lane.map().Place(0, 0, 7);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> sums = {5, 1, nan, 4, 3, 2, 0};  // token 6 is protected
  std::ranges::copy(sums, lane.map().state(0).slot.begin());
  const Evicted evicted = lane.Prune();
  EXPECT_EQ(evicted.tokens, 3);
  EXPECT_EQ(evicted.nan_scores, 1);
  EXPECT_THAT(Tokens(lane.map()), ElementsAre(0, 3, 4, 6));
  EXPECT_THAT(lane.scratch.victims, ElementsAre(1, 2, 5));
}

TEST(ChooseVictims, RefusesWhatProtectionForbids) {
  Lane lane({.scorer = "h2o", .budget = 8, .sinks = 2, .recent = 4}, 8);
  lane.map().Place(0, 0, 8);
  EXPECT_THAT(ChooseVictims(lane.candidates(), 3, lane.scratch),
              IsRefusal(absl::StatusCode::kInvalidArgument, "NOT_ENOUGH_CANDIDATES", ""));
  EXPECT_THAT(lane.scratch.victims, IsEmpty());
}

// The Lazy paper's worked example, through a real lane: (S, W, R, sigma, delta) = (4, 2044, 32, 16, 32).
TEST(ChooseDue, FollowsTheLazySequenceOfTheWorkedExample) {
  Lane lane({.scorer = "streaming", .budget = 2048, .overflow = 32, .slack = 16, .max_drop = 32, .sinks = 4}, 2138);
  EXPECT_EQ(lane.Step(2048).tokens, 0);
  EXPECT_EQ(lane.Step(42).tokens, 32);  // 2090 -> 2058
  EXPECT_EQ(lane.map().live(), 2058);
  for (int period = 0; period < 3; ++period) {
    const int32_t quiet = period == 0 ? 21 : 31;
    for (int32_t i = 0; i < quiet; ++i) ASSERT_EQ(lane.Step(1).tokens, 0);
    EXPECT_EQ(lane.Step(1).tokens, 32);  // 2080 -> 2048
    EXPECT_EQ(lane.map().live(), 2048);
  }
}

}  // namespace
}  // namespace ebb
