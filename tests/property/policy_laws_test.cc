// Laws that every scorer of the registry obeys, whatever it computes. A new row is under test before its author writes
// one.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "policies/hash_random.h"
#include "policies/registry.h"
#include "tests/property/policy_lane.h"
#include "tests/support/random_attention.h"

namespace ebb {
namespace {

using testing::ElementsAreArray;
using testing::UnorderedElementsAreArray;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

using Law = std::function<void(const ScorerRow& row, uint64_t seed)>;

void ForEveryScorer(uint64_t seeds, const Law& law) {
  for (const ScorerRow& row : ScorerRegistry()) {
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      SCOPED_TRACE(testing::Message() << row.name << ", seed " << seed);
      law(row, seed);
      if (testing::Test::HasFailure()) return;
    }
  }
}

Trigger RandomTrigger(HashRandom& random) {
  return {.budget = random.Uniform(5, 60),
          .overflow = random.Uniform(1, 12),
          .slack = random.Uniform(0, 12),
          .max_drop = random.Uniform(0, 12)};
}

// Prompts in blocks, then decode, then the next turn.
int32_t RandomQueries(HashRandom& random, int32_t block_max) {
  return random.Uniform(0, 5) == 0 ? random.Uniform(1, block_max) : 1;
}

// A lane as it may look at any time, with random state, and the scores that the scorer gives it.
struct RandomLane {
  RandomLane(const ScorerRow& row, HashRandom& random) {
    const auto slots = static_cast<size_t>(random.Uniform(1, 120));
    const int32_t first = random.Uniform(0, 1) == 0 ? 0 : random.Uniform(0, 1 << 25);
    token.assign(slots, -1);
    for (size_t slot = 0; slot < slots; ++slot) token[slot] = first + static_cast<int32_t>(slot) * 3;
    for (size_t slot = slots; slot-- > 1;) {
      std::swap(token[slot], token[random.Uniform(0, static_cast<int32_t>(slot))]);
    }
    for (int32_t& t : token) t = random.Uniform(0, 4) == 0 ? -1 : t;
    const auto scorer = row.make(ResolveParameters(row, {}).value());
    std::vector<float> state(slots * scorer->needs().state_floats);
    for (float& value : state) value = random.UniformFloat() * 50;
    keep.resize(slots);
    live = static_cast<int32_t>(std::ranges::count_if(token, [](int32_t t) { return t >= 0; }));
    scorer->Score(View(0, 0), {.slot = state}, keep);
  }

  LaneView View(int32_t sinks, int32_t recent) const {
    return {.token = token, .live = live, .sinks = sinks, .recent = recent};
  }

  std::vector<int32_t> token;
  std::vector<float> keep;
  int32_t live = 0;
};

// Slots in the order in which select.h lets them go, by sorting everything.
std::vector<int32_t> EvictionOrder(const LaneView& lane, const std::vector<float>& keep) {
  std::vector<int32_t> order;
  for (size_t slot = 0; slot < lane.token.size(); ++slot) {
    if (lane.token[slot] >= 0) order.push_back(static_cast<int32_t>(slot));
  }
  std::ranges::sort(order, {}, [&](int32_t slot) { return lane.token[slot]; });
  const auto sinks = std::min<size_t>(order.size(), lane.sinks);
  order.erase(order.begin(), order.begin() + static_cast<int64_t>(sinks));
  order.resize(order.size() - std::min<size_t>(order.size(), lane.recent));
  const auto place = [&](int32_t slot) {
    const bool is_nan = std::isnan(keep[slot]);
    return std::tuple(!is_nan, is_nan ? 0.0F : keep[slot], lane.token[slot]);
  };
  std::ranges::sort(order, std::less(), place);
  return order;
}

TEST(PolicyLaw, VictimsAreTheSmallestOfTheTotalOrder) {
  ForEveryScorer(500, [](const ScorerRow& row, uint64_t seed) {
    HashRandom random(seed);
    RandomLane lane(row, random);
    // Ties, zeros of both signs and what is not a number, as a broken model would give them.
    const std::vector<float> odd = {kNan, -kNan, kInf, -kInf, 0.0F, -0.0F, 1.0F};
    const int32_t share = random.Uniform(1, 6);
    for (float& score : lane.keep) {
      if (random.Uniform(0, share) == 0) score = odd[random.Uniform(0, static_cast<int32_t>(odd.size()) - 1)];
    }
    const LaneView view = lane.View(random.Uniform(0, 20), random.Uniform(0, 60));
    const std::vector<int32_t> order = EvictionOrder(view, lane.keep);
    SelectScratch scratch;
    std::vector<int32_t> victims;
    std::vector<int32_t> expected;
    for (size_t count = 0; count <= order.size(); ++count) {
      ASSERT_THAT(SelectVictims(view, lane.keep, static_cast<int32_t>(count), scratch, victims), IsOk());
      ASSERT_THAT(victims, ElementsAreArray(expected));
      if (count < order.size()) expected.insert(std::ranges::upper_bound(expected, order[count]), order[count]);
    }
    EXPECT_THAT(SelectVictims(view, lane.keep, static_cast<int32_t>(order.size()) + 1, scratch, victims),
                IsRefusal(absl::StatusCode::kInvalidArgument, "NOT_ENOUGH_CANDIDATES", ""));
  });
}

TEST(PolicyLaw, SinksAndRecentAreNeverChosen) {
  ForEveryScorer(60, [](const ScorerRow& row, uint64_t seed) {
    HashRandom random(seed);
    const ValidSpec spec = SpecFor(row, RandomTrigger(random));
    PolicyLane lane(spec, {.seed = seed, .slots = 700});
    for (int step = 0; step < 60; ++step) {
      lane.Step(RandomQueries(random, 20));
      const std::vector<int32_t> live = lane.attention.LiveTokens();
      for (int32_t sink = 0; sink < std::min<int32_t>(spec.sinks, lane.attention.live()); ++sink) {
        ASSERT_EQ(live[sink], sink);
      }
      for (int32_t back = 1; back <= std::min<int32_t>(spec.recent, lane.attention.live()); ++back) {
        ASSERT_EQ(live[live.size() - back], lane.attention.tokens() - back);
      }
    }
  });
}

TEST(PolicyLaw, NanLeavesFirstAndNeverTheProtected) {
  ForEveryScorer(200, [](const ScorerRow& row, uint64_t seed) {
    HashRandom random(seed);
    RandomLane lane(row, random);
    const LaneView view = lane.View(2, 3);
    const std::vector<int32_t> candidates = EvictionOrder(view, lane.keep);
    if (candidates.empty()) return;
    const int32_t chosen = candidates[random.Uniform(0, static_cast<int32_t>(candidates.size()) - 1)];
    for (size_t slot = 0; slot < lane.keep.size(); ++slot) {
      if (std::ranges::find(candidates, static_cast<int32_t>(slot)) == candidates.end()) lane.keep[slot] = kNan;
    }
    lane.keep[chosen] = kNan;
    SelectScratch scratch;
    std::vector<int32_t> victims;
    ASSERT_THAT(SelectVictims(view, lane.keep, 1, scratch, victims), IsOk());
    EXPECT_THAT(victims, ElementsAreArray({chosen}));
  });
}

TEST(PolicyLaw, WhoLeavesDoesNotDependOnTheLayoutOfSlots) {
  ForEveryScorer(30, [](const ScorerRow& row, uint64_t seed) {
    HashRandom random(seed);
    const ValidSpec spec = SpecFor(row, RandomTrigger(random));
    const RandomAttentionOptions ordered = {.seed = seed, .slots = 500, .query_heads = random.Uniform(1, 4)};
    RandomAttentionOptions scattered = ordered;
    scattered.placement = Placement::kRandom;
    PolicyLane one(spec, ordered);
    PolicyLane other(spec, scattered);
    for (int step = 0; step < 40; ++step) {
      const int32_t queries = RandomQueries(random, 20);
      const std::vector<int32_t> left = one.Step(queries);
      ASSERT_THAT(other.Step(queries), UnorderedElementsAreArray(left));
    }
  });
}

TEST(PolicyLaw, TheSameSeedGivesTheSameVictimsInTheSameSlots) {
  ForEveryScorer(20, [](const ScorerRow& row, uint64_t seed) {
    HashRandom random(seed);
    const ValidSpec spec = SpecFor(row, RandomTrigger(random));
    const RandomAttentionOptions options = {.seed = seed, .slots = 500};
    PolicyLane one(spec, options);
    PolicyLane other(spec, options);
    for (int step = 0; step < 40; ++step) {
      const int32_t queries = RandomQueries(random, 20);
      one.Step(queries);
      other.Step(queries);
      ASSERT_THAT(other.victims, ElementsAreArray(one.victims));
      ASSERT_THAT(other.state, ElementsAreArray(one.state));
    }
  });
}

// What a slot's former token gathered never reaches the next one: a lane that never reuses a slot keeps the same state.
TEST(PolicyLaw, StateBelongsToTheTokenAndLeavesWithIt) {
  ForEveryScorer(30, [](const ScorerRow& row, uint64_t seed) {
    HashRandom random(seed);
    const ValidSpec spec = SpecFor(row, {.budget = random.Uniform(5, 40)});
    const int32_t floats = spec.scorer->needs().state_floats;
    constexpr int32_t kTokens = 150;
    const int32_t slots = row.evicts ? static_cast<int32_t>(Capacity(spec.trigger, 1)) : kTokens;
    PolicyLane reusing(spec, {.seed = seed, .slots = slots});
    PolicyLane spacious(spec, {.seed = seed, .slots = 2 * kTokens, .placement = Placement::kRandom});
    for (int step = 0; step < kTokens; ++step) {
      reusing.Step(1);
      spacious.Step(1);
      std::map<int32_t, std::vector<float>> expected;
      const auto gather = [&](const PolicyLane& lane, auto visit) {
        const LaneView view = lane.attention.View(0, 0);
        for (size_t slot = 0; slot < view.token.size(); ++slot) {
          const auto state = lane.state.begin() + static_cast<int64_t>(slot) * floats;
          if (view.token[slot] >= 0) visit(view.token[slot], std::vector<float>(state, state + floats));
        }
      };
      gather(spacious, [&](int32_t token, const std::vector<float>& state) { expected[token] = state; });
      gather(reusing, [&](int32_t token, const std::vector<float>& state) { ASSERT_EQ(state, expected.at(token)); });
    }
  });
}

// length = min(tokens, budget) after each step where R = 1 and sigma = 0.
TEST(PolicyLaw, LengthIsTheBudgetAfterEveryStepWithoutOverflowAndSlack) {
  ForEveryScorer(30, [](const ScorerRow& row, uint64_t seed) {
    if (!row.evicts) return;
    HashRandom random(seed);
    const ValidSpec spec = SpecFor(row, {.budget = random.Uniform(5, 60)});
    PolicyLane lane(spec, {.seed = seed, .slots = static_cast<int32_t>(Capacity(spec.trigger, 20))});
    for (int step = 0; step < 60; ++step) {
      lane.Step(RandomQueries(random, 20));
      ASSERT_EQ(lane.attention.live(), std::min(lane.attention.tokens(), spec.trigger.budget));
    }
  });
}

// The lane has Capacity slots and not one more: placing a token beyond them ends the test.
TEST(PolicyLaw, CapacityIsNeverExceededUnderLazyTriggers) {
  ForEveryScorer(60, [](const ScorerRow& row, uint64_t seed) {
    if (!row.evicts) return;
    HashRandom random(seed);
    const ValidSpec spec = SpecFor(row, RandomTrigger(random));
    PolicyLane lane(spec, {.seed = seed, .slots = static_cast<int32_t>(Capacity(spec.trigger, 20))});
    for (int step = 0; step < 60; ++step) {
      lane.Step(RandomQueries(random, 20));
      ASSERT_GE(lane.attention.live(), std::min(lane.attention.tokens(), spec.trigger.budget));
      ASSERT_LE(lane.attention.live(), Capacity(spec.trigger, 0));
    }
  });
}

// Callers write any number. What passes leaves room for a choice and cannot overflow; what does not says where.
TEST(PolicyLaw, AnySpecIsRefusedWithItsFieldOrSafe) {
  int passed = 0;
  ForEveryScorer(20000, [&](const ScorerRow& row, uint64_t seed) {
    HashRandom random(seed);
    constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
    constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
    const std::vector<int32_t> odd = {kMin, -1, 0, 1, kBudgetMax - 1, kBudgetMax, kBudgetMax + 1, kMax};
    const auto number = [&]() -> std::optional<int32_t> {
      const int32_t kind = random.Uniform(0, 9);
      if (kind < 4) return std::nullopt;
      return kind == 4 ? odd[random.Uniform(0, static_cast<int32_t>(odd.size()) - 1)] : random.Uniform(1, 300);
    };
    PolicySpec spec = {.scorer = std::string(row.name), .budget = number(), .overflow = number()};
    spec.slack = number().value_or(0);
    spec.max_drop = number().value_or(0);
    spec.sinks = number();
    spec.recent = number();
    if (random.Uniform(0, 4) == 0) spec.budget_ratio = random.UniformFloat() * 1.2 - 0.1;
    auto valid = Resolve(spec, {.trained_context = number().value_or(2048)});
    if (valid.ok()) valid = FixBudget(*valid, std::max(0, number().value_or(1000)));
    if (!valid.ok()) {
      const Refusal refusal = GetRefusal(valid.status());
      ASSERT_FALSE(refusal.reason.empty());
      ASSERT_EQ(refusal.field.find("policy."), 0U) << valid.status();
      return;
    }
    ++passed;
    ASSERT_LE(valid->sinks + valid->recent + (row.scored ? 1 : 0), valid->trigger.budget);
    ASSERT_LE(Capacity(valid->trigger, 512), 2 * kBudgetMax + 512);
    ASSERT_LE(TokensToDrop(valid->trigger, 2 * kBudgetMax), 2 * kBudgetMax - valid->trigger.budget);
  });
  EXPECT_GT(passed, 3000);
}

TEST(PolicyLaw, NobodyLeavesWhileEveryoneFits) {
  ForEveryScorer(10, [](const ScorerRow& row, uint64_t seed) {
    HashRandom random(seed);
    PolicyLane lane(SpecFor(row, {.budget = 200}), {.seed = seed, .slots = 200});
    while (lane.attention.live() < 190) {
      ASSERT_TRUE(lane.Step(RandomQueries(random, 10)).empty());
      ASSERT_EQ(lane.attention.live(), lane.attention.tokens());
    }
  });
}

// Lanes of a lockstep policy see different attention and evict the same tokens; of another policy they do not, or the
// law would hold for nothing.
TEST(PolicyLaw, LockstepLanesEvictTheSameTokens) {
  for (const ScorerRow& row : ScorerRegistry()) {
    SCOPED_TRACE(row.name);
    const ValidSpec spec = SpecFor(row, {.budget = 30, .overflow = 3});
    PolicyLane one(spec, {.seed = 1, .slots = 300});
    PolicyLane other(spec, {.seed = 2, .slots = 300, .placement = Placement::kRandom});
    HashRandom random(0);
    for (int step = 0; step < 60; ++step) {
      const int32_t queries = RandomQueries(random, 15);
      one.Step(queries);
      other.Step(queries);
    }
    EXPECT_EQ(one.attention.LiveTokens() == other.attention.LiveTokens(), row.lockstep);
  }
}

TEST(PolicyLaw, ScoringTwiceGivesTheSameScores) {
  ForEveryScorer(20, [](const ScorerRow& row, uint64_t seed) {
    HashRandom first(seed);
    HashRandom second(seed);
    const RandomLane lane(row, first);
    const RandomLane again(row, second);
    for (size_t slot = 0; slot < lane.keep.size(); ++slot) {
      if (lane.token[slot] >= 0) {
        ASSERT_EQ(lane.keep[slot], again.keep[slot]);
      }
    }
  });
}

TEST(PolicyLaw, NonNegativeScorersNeverGoBelowZero) {
  ForEveryScorer(20, [](const ScorerRow& row, uint64_t seed) {
    if (!row.non_negative) return;
    const ValidSpec spec = SpecFor(row, {.budget = 20});
    PolicyLane lane(spec, {.seed = seed, .slots = 100});
    std::vector<float> keep(100);
    HashRandom random(seed);
    for (int step = 0; step < 60; ++step) {
      lane.Step(RandomQueries(random, 20));
      const LaneView view = lane.attention.View(0, 0);
      spec.scorer->Score(view, {.slot = lane.state, .lane = lane.lane_state}, keep);
      for (size_t slot = 0; slot < keep.size(); ++slot) {
        if (view.token[slot] >= 0) {
          ASSERT_GE(keep[slot], 0.0F);
        }
      }
    }
  });
}

}  // namespace
}  // namespace ebb
