// Laws that every scorer of the registry obeys, whatever it computes. A new row is under test before its author writes
// one.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
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

// Each of `seeds` tries of each form has a seed of its own.
void ForEveryPolicy(uint64_t seeds, const std::function<void(const PolicyForm& form, uint64_t seed)>& law) {
  uint64_t seed = 0;
  for (const PolicyForm& form : AllForms()) {
    for (uint64_t i = 0; i < seeds; ++i, ++seed) {
      SCOPED_TRACE(testing::Message() << NameOf(form) << ", seed " << seed);
      law(form, seed);
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

// The form's policy with random numbers for the rest, and lanes for it.
struct RandomPolicy {
  RandomPolicy(const PolicyForm& form, HashRandom& random, const Trigger& trigger) {
    options.query_heads = random.Uniform(1, 4);
    options.kv_heads = form.scope == Scope::kLayer || form.row->lockstep ? random.Uniform(1, 3) : 1;
    options.positions = static_cast<Positions>(random.Uniform(0, 1));
    PolicySpec asked = SpecOf(form, trigger);
    for (const ParameterRow& parameter : form.row->parameters) {
      const double most = std::min(parameter.max - parameter.min, parameter.whole ? 8.0 : 1.0);
      const double more =
          parameter.whole ? random.Uniform(0, static_cast<int32_t>(most)) : most * random.UniformFloat();
      const double at = parameter.min + more;
      asked.parameters[std::string(parameter.name)] = parameter.odd && std::fmod(at, 2) == 0 ? at + 1 : at;
    }
    spec = ResolveWithRoom(asked, options.query_heads);
  }

  // Slots enough for any steps of up to `block` tokens, `tokens` in all.
  int32_t Slots(int32_t block, int32_t tokens) const {
    return spec.evicts ? static_cast<int32_t>(Capacity(spec.trigger, block)) : tokens;
  }

  PolicyLane Lane(uint64_t seed, int32_t slots, Placement placement = Placement::kLowest) const {
    RandomAttentionOptions at = options;
    at.seed = seed;
    at.slots = slots;
    at.placement = placement;
    return {spec, at};
  }

  RandomAttentionOptions options;
  ValidSpec spec;
};

// A lane as it may look at any time: some slots free, tokens anywhere in the log, and the scores of its policy.
struct AnyLane {
  AnyLane(const PolicyForm& form, uint64_t seed, HashRandom& random) {
    RandomPolicy policy(form, random, {.budget = random.Uniform(5, 60)});
    policy.options.first_token = random.Uniform(0, 1) == 0 ? 0 : random.Uniform(0, 1 << 25);
    lane.emplace(policy.Lane(seed, 120, Placement::kRandom));
    for (int32_t step = random.Uniform(1, 8); step > 0; --step) {
      lane->Observe(random.Uniform(1, 10));
      std::vector<int32_t> leaving;
      for (int32_t slot = 0; slot < 120; ++slot) {
        const bool live = lane->attention.View(0, 0, 0).token[slot] >= 0;
        if (live && random.Uniform(0, 5) == 0) leaving.push_back(slot);
      }
      lane->attention.Evict(leaving);
    }
    keep = lane->Score();
  }

  LaneView View(int32_t sinks, int32_t recent) const { return lane->attention.View(0, sinks, recent); }

  std::optional<PolicyLane> lane;
  std::vector<float> keep;
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
  ForEveryPolicy(20, [](const PolicyForm& form, uint64_t seed) {
    HashRandom random(seed);
    AnyLane lane(form, seed, random);
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
  ForEveryPolicy(3, [](const PolicyForm& form, uint64_t seed) {
    HashRandom random(seed);
    const RandomPolicy policy(form, random, RandomTrigger(random));
    PolicyLane lane = policy.Lane(seed, policy.Slots(20, 800));
    for (int step = 0; step < 40; ++step) {
      lane.Step(RandomQueries(random, 20));
      const std::vector<int32_t> live = lane.attention.LiveTokens();
      for (int32_t sink = 0; sink < std::min<int32_t>(policy.spec.sinks, lane.attention.live()); ++sink) {
        ASSERT_EQ(live[sink], sink);
      }
      for (int32_t back = 1; back <= std::min<int32_t>(policy.spec.recent, lane.attention.live()); ++back) {
        ASSERT_EQ(live[live.size() - back], lane.attention.tokens() - back);
      }
    }
  });
}

TEST(PolicyLaw, NanLeavesFirstAndNeverTheProtected) {
  ForEveryPolicy(10, [](const PolicyForm& form, uint64_t seed) {
    HashRandom random(seed);
    AnyLane lane(form, seed, random);
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
  ForEveryPolicy(3, [](const PolicyForm& form, uint64_t seed) {
    HashRandom random(seed);
    const RandomPolicy policy(form, random, RandomTrigger(random));
    PolicyLane one = policy.Lane(seed, policy.Slots(20, 600));
    PolicyLane other = policy.Lane(seed, policy.Slots(40, 600), Placement::kRandom);
    for (int step = 0; step < 30; ++step) {
      const int32_t queries = RandomQueries(random, 20);
      const std::vector<int32_t> left = one.Step(queries);
      ASSERT_THAT(other.Step(queries), UnorderedElementsAreArray(left));
    }
  });
}

TEST(PolicyLaw, TheSameSeedGivesTheSameVictimsInTheSameSlots) {
  ForEveryPolicy(2, [](const PolicyForm& form, uint64_t seed) {
    HashRandom random(seed);
    const RandomPolicy policy(form, random, RandomTrigger(random));
    PolicyLane one = policy.Lane(seed, policy.Slots(20, 400));
    PolicyLane other = policy.Lane(seed, policy.Slots(20, 400));
    for (int step = 0; step < 20; ++step) {
      const int32_t queries = RandomQueries(random, 20);
      one.Step(queries);
      other.Step(queries);
      ASSERT_THAT(other.victims, ElementsAreArray(one.victims));
      for (size_t track = 0; track < one.states.size(); ++track) {
        ASSERT_THAT(other.states[track].slot, ElementsAreArray(one.states[track].slot));
        ASSERT_THAT(other.states[track].lane, ElementsAreArray(one.states[track].lane));
      }
    }
  });
}

// What a slot's former token gathered never reaches the next one: a lane that never reuses a slot keeps the same state.
TEST(PolicyLaw, StateBelongsToTheTokenAndLeavesWithIt) {
  ForEveryPolicy(1, [](const PolicyForm& form, uint64_t seed) {
    HashRandom random(seed);
    const RandomPolicy policy(form, random, {.budget = random.Uniform(5, 40)});
    const int32_t floats = policy.spec.scorer->needs().state_floats;
    const int32_t tokens = policy.spec.trigger.budget + 30;
    PolicyLane reusing = policy.Lane(seed, policy.Slots(1, tokens));
    PolicyLane spacious = policy.Lane(seed, 2 * tokens, Placement::kRandom);
    for (int step = 0; step < tokens; ++step) {
      reusing.Step(1);
      spacious.Step(1);
      std::map<std::pair<size_t, int32_t>, std::vector<float>> expected;  // by track and token
      const auto gather = [&](const PolicyLane& lane, auto visit) {
        const LaneView view = lane.View();
        for (size_t slot = 0; slot < view.token.size(); ++slot) {
          for (size_t track = 0; track < lane.states.size() && view.token[slot] >= 0; ++track) {
            const auto state = lane.states[track].slot.begin() + static_cast<int64_t>(slot) * floats;
            visit(std::pair(track, view.token[slot]), std::vector<float>(state, state + floats));
          }
        }
      };
      gather(spacious, [&](const auto& key, const std::vector<float>& state) { expected[key] = state; });
      gather(reusing, [&](const auto& key, const std::vector<float>& state) { ASSERT_EQ(state, expected.at(key)); });
    }
  });
}

// length = min(tokens, budget) after each step where R = 1 and sigma = 0.
TEST(PolicyLaw, LengthIsTheBudgetAfterEveryStepWithoutOverflowAndSlack) {
  ForEveryPolicy(2, [](const PolicyForm& form, uint64_t seed) {
    if (!form.row->evicts) return;
    HashRandom random(seed);
    const RandomPolicy policy(form, random, {.budget = random.Uniform(5, 60)});
    PolicyLane lane = policy.Lane(seed, static_cast<int32_t>(Capacity(policy.spec.trigger, 20)));
    for (int step = 0; step < 40; ++step) {
      lane.Step(RandomQueries(random, 20));
      ASSERT_EQ(lane.attention.live(), std::min(lane.attention.tokens(), policy.spec.trigger.budget));
    }
  });
}

// The lane has Capacity slots and not one more: placing a token beyond them ends the test.
TEST(PolicyLaw, CapacityIsNeverExceededUnderLazyTriggers) {
  ForEveryPolicy(2, [](const PolicyForm& form, uint64_t seed) {
    if (!form.row->evicts) return;
    HashRandom random(seed);
    const RandomPolicy policy(form, random, RandomTrigger(random));
    PolicyLane lane = policy.Lane(seed, static_cast<int32_t>(Capacity(policy.spec.trigger, 20)));
    for (int step = 0; step < 40; ++step) {
      lane.Step(RandomQueries(random, 20));
      ASSERT_GE(lane.attention.live(), std::min(lane.attention.tokens(), policy.spec.trigger.budget));
      ASSERT_LE(lane.attention.live(), Capacity(policy.spec.trigger, 0));
    }
  });
}

// Callers write any number. What passes leaves room for a choice and cannot overflow; what does not says where.
TEST(PolicyLaw, AnySpecIsRefusedWithItsFieldOrSafe) {
  int passed = 0;
  for (uint64_t seed = 0; seed < 60000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const auto scorers = static_cast<int32_t>(ScorerRegistry().size());
    const ScorerRow& row = ScorerRegistry()[random.Uniform(0, scorers - 1)];
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
    if (random.Uniform(0, 4) == 0) spec.schedule = static_cast<Schedule>(random.Uniform(0, 2));
    if (random.Uniform(0, 9) == 0) spec.every_n = number().value_or(0);
    if (random.Uniform(0, 9) == 0) spec.then = static_cast<Then>(random.Uniform(0, 2));
    if (random.Uniform(0, 9) == 0) spec.grow_max = number();
    if (random.Uniform(0, 9) == 0) spec.scope = static_cast<Scope>(random.Uniform(0, 1));
    if (random.Uniform(0, 9) == 0) spec.reduction = static_cast<Reduction>(random.Uniform(0, 3));
    if (random.Uniform(0, 9) == 0) spec.modifier = static_cast<Modifier>(random.Uniform(0, 2));
    if (random.Uniform(0, 4) == 0) spec.allocation = static_cast<Allocation>(random.Uniform(0, 3));
    const bool duo = spec.allocation == Allocation::kDuo;
    if (duo) spec.allocation_parameters = {{"sinks", random.Uniform(0, 200)}, {"recent", random.Uniform(1, 200)}};
    SpecLimits limits = {.trained_context = number().value_or(2048), .query_heads = random.Uniform(1, 8)};
    limits.layers = random.Uniform(1, 5);
    limits.kv_heads = random.Uniform(1, 3);
    limits.head_gates = std::make_shared<const HeadGates>(limits.layers * limits.kv_heads, 0.5);
    limits.calibration = &TestCalibration();
    auto valid = Resolve(spec, limits);
    if (valid.ok()) valid = FixBudget(*valid, std::max(0, number().value_or(1000)));
    if (!valid.ok()) {
      const Refusal refusal = GetRefusal(valid.status());
      ASSERT_FALSE(refusal.reason.empty());
      ASSERT_EQ(refusal.field.find("policy."), 0U) << valid.status();
      continue;
    }
    ++passed;
    ASSERT_LE(valid->sinks + valid->recent + (row.scored ? 1 : 0), valid->trigger.budget);
    ASSERT_LE(Capacity(valid->trigger, 512), 2 * kBudgetMax + 512);
    ASSERT_LE(TokensToDrop(valid->trigger, 2 * kBudgetMax), 2 * kBudgetMax - valid->trigger.budget);
    ASSERT_EQ(valid->grow_max > 0, valid->schedule == Schedule::kOncePrompt && valid->then == Then::kGrow);
    ASSERT_TRUE(valid->grow_max == 0 || valid->grow_max >= valid->trigger.budget);
    ASSERT_EQ(valid->every_n > 0, valid->schedule == Schedule::kEveryN);
    ASSERT_EQ(valid->lanes_known(), spec.allocation != Allocation::kAda);
    for (const LaneRule& lane : valid->lanes) {
      ASSERT_LE(lane.sinks + lane.recent, lane.budget);
      ASSERT_TRUE(duo || lane.sinks + lane.recent < lane.budget);
      ASSERT_LE(lane.budget, kBudgetMax);
    }
  }
  EXPECT_GT(passed, 3000);
}

TEST(PolicyLaw, NobodyLeavesWhileEveryoneFits) {
  ForEveryPolicy(1, [](const PolicyForm& form, uint64_t seed) {
    HashRandom random(seed);
    PolicyLane lane = RandomPolicy(form, random, {.budget = 100}).Lane(seed, 100);
    while (lane.attention.live() < 90) {
      ASSERT_TRUE(lane.Step(RandomQueries(random, 10)).empty());
      ASSERT_EQ(lane.attention.live(), lane.attention.tokens());
    }
  });
}

// POLICIES 1.2 and 11, 7: evicting before attention, with room for one token more and one more recent, is evicting
// after it: queries see the same tokens at every step of one token. Of nacl it is not asked, whose scores count the
// budget.
TEST(PolicyLaw, EvictingBeforeAttentionIsEvictingAfterItWithOneMore) {
  for (const ScorerRow& row : ScorerRegistry()) {
    if (!row.evicts || row.name == "nacl") continue;
    for (uint64_t seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(testing::Message() << row.name << ", seed " << seed);
      HashRandom random(seed);
      PolicySpec spec = SpecOf({.row = &row}, {.budget = random.Uniform(10, 30)});
      spec.sinks = random.Uniform(0, 3);
      spec.recent = random.Uniform(1, 5);
      const ValidSpec valid = ResolveWithRoom(spec);
      PolicyLane after(valid, {.seed = seed, .slots = *spec.budget + 1});
      ++*spec.budget;
      ++*spec.recent;
      const ValidSpec roomier = ResolveWithRoom(spec);
      PolicyLane before(roomier, {.seed = seed, .slots = *spec.budget, .placement = Placement::kRandom});
      SelectScratch scratch;
      std::vector<int32_t> victims;
      for (int step = 0; step < 80; ++step) {
        if (before.attention.live() == roomier.trigger.budget) {
          LaneView lane = before.View();
          lane.recent -= 1;  // the token that comes is a recent one
          ASSERT_THAT(SelectVictims(lane, before.Score(), 1, scratch, victims), IsOk());
          before.attention.Evict(victims);
        }
        before.Observe(1);
        after.Observe(1);
        ASSERT_EQ(before.attention.LiveTokens(), after.attention.LiveTokens()) << "step " << step;
        after.Prune(TokensToDrop(valid.trigger, after.attention.live()));
      }
      EXPECT_EQ(after.attention.live(), valid.trigger.budget);
    }
  }
}

// Lanes of a lockstep policy see different attention and evict the same tokens; of another policy they do not, or the
// law would hold for nothing.
TEST(PolicyLaw, LockstepLanesEvictTheSameTokens) {
  for (const PolicyForm& form : AllForms()) {
    SCOPED_TRACE(NameOf(form));
    HashRandom random(0);
    RandomPolicy policy(form, random, {.budget = 50, .overflow = 3});
    PolicyLane one = policy.Lane(1, policy.Slots(15, 300));
    policy.options.layer = 1;
    PolicyLane other = policy.Lane(2, policy.Slots(40, 300), Placement::kRandom);
    for (int step = 0; step < 60; ++step) {
      const int32_t queries = RandomQueries(random, 15);
      one.Step(queries);
      other.Step(queries);
    }
    EXPECT_EQ(one.attention.LiveTokens() == other.attention.LiveTokens(), form.row->lockstep);
  }
}

TEST(PolicyLaw, ScoringTwiceGivesTheSameScores) {
  ForEveryPolicy(5, [](const PolicyForm& form, uint64_t seed) {
    HashRandom random(seed);
    AnyLane lane(form, seed, random);
    const std::vector<float> again = lane.lane->Score();
    for (size_t slot = 0; slot < lane.keep.size(); ++slot) {
      if (lane.View(0, 0).token[slot] >= 0) {
        ASSERT_EQ(lane.keep[slot], again[slot]);
      }
    }
  });
}

// Nothing that attention reports is NaN, so no score is.
TEST(PolicyLaw, ScoresAreNumbers) {
  ForEveryPolicy(5, [](const PolicyForm& form, uint64_t seed) {
    HashRandom random(seed);
    AnyLane lane(form, seed, random);
    for (size_t slot = 0; slot < lane.keep.size(); ++slot) {
      if (lane.View(0, 0).token[slot] >= 0) {
        ASSERT_FALSE(std::isnan(lane.keep[slot]));
      }
    }
  });
}

TEST(PolicyLaw, NonNegativeScorersNeverGoBelowZero) {
  ForEveryPolicy(5, [](const PolicyForm& form, uint64_t seed) {
    if (!form.row->non_negative) return;
    HashRandom random(seed);
    AnyLane lane(form, seed, random);
    for (size_t slot = 0; slot < lane.keep.size(); ++slot) {
      if (lane.View(0, 0).token[slot] >= 0) {
        ASSERT_GE(lane.keep[slot], 0.0F);
      }
    }
  });
}

}  // namespace
}  // namespace ebb
