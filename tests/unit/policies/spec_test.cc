#include "policies/spec.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "policies/registry.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using testing::HasSubstr;

constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
const SpecLimits kLimits = {.trained_context = 2048, .calibration = &BlankCalibration()};

TEST(Resolve, FillsTheScorersDefaults) {
  struct Case {
    std::string name;
    PolicySpec spec;
    int32_t budget, sinks, recent;
    Positions positions;
    bool evicts, lockstep;
  };
  const std::vector<Case> cases = {
      {"nothing said is streaming over the trained context", {}, 2048, 4, 2044, Positions::kCompacted, true, true},
      {"streaming with a budget", {.scorer = "streaming", .budget = 64}, 64, 4, 60, Positions::kCompacted, true, true},
      {"streaming with sinks", {.budget = 64, .sinks = 10}, 64, 10, 54, Positions::kCompacted, true, true},
      {"streaming with fewer recent", {.budget = 64, .recent = 8}, 64, 4, 8, Positions::kCompacted, true, true},
      {"streaming at its smallest", {.budget = 5}, 5, 4, 1, Positions::kCompacted, true, true},
      {"a window without sinks", {.budget = 1, .sinks = 0}, 1, 0, 1, Positions::kCompacted, true, true},
      {"streaming filled to the brim",
       {.budget = 9, .sinks = 4, .recent = 5},
       9,
       4,
       5,
       Positions::kCompacted,
       true,
       true},
      {"h2o halves an odd budget downwards",
       {.scorer = "h2o", .budget = 9},
       9,
       0,
       4,
       Positions::kOriginal,
       true,
       false},
      {"h2o of one token", {.scorer = "h2o", .budget = 1}, 1, 0, 0, Positions::kOriginal, true, false},
      {"h2o with sinks", {.scorer = "h2o", .budget = 11, .sinks = 5}, 11, 5, 5, Positions::kOriginal, true, false},
      {"h2o without a recent window",
       {.scorer = "h2o", .budget = 8, .recent = 0},
       8,
       0,
       0,
       Positions::kOriginal,
       true,
       false},
      {"h2o compacted",
       {.scorer = "h2o", .positions = Positions::kCompacted},
       2048,
       0,
       1024,
       Positions::kCompacted,
       true,
       false},
      {"full up to the trained context", {.scorer = "full"}, 2048, 0, 0, Positions::kOriginal, false, true},
      {"full up to a longer limit",
       {.scorer = "full", .budget = 100000},
       100000,
       0,
       0,
       Positions::kOriginal,
       false,
       true},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto valid = Resolve(c.spec, kLimits);
    ASSERT_THAT(valid, IsOk());
    EXPECT_EQ(valid->scorer_name, c.spec.scorer.empty() ? "streaming" : c.spec.scorer);
    EXPECT_NE(valid->scorer, nullptr);
    EXPECT_EQ(valid->trigger.budget, c.budget);
    EXPECT_EQ(valid->trigger.overflow, 1);
    EXPECT_EQ(valid->trigger.slack, 0);
    EXPECT_EQ(valid->trigger.max_drop, 0);
    EXPECT_EQ(valid->sinks, c.sinks);
    EXPECT_EQ(valid->recent, c.recent);
    EXPECT_EQ(valid->recent_follows_budget, !c.spec.recent.has_value());
    EXPECT_EQ(valid->positions, c.positions);
    EXPECT_EQ(valid->evicts, c.evicts);
    EXPECT_EQ(valid->lockstep, c.lockstep);
  }
}

TEST(Resolve, PassesOnWhatTheCallerChose) {
  const auto valid = Resolve({.budget = 2048,
                              .overflow = 32,
                              .slack = 16,
                              .max_drop = 32,
                              .positions = Positions::kOriginal,
                              .kv_type = KvType::kF32,
                              .rope_cache = RopeCache::kRk},
                             kLimits);
  ASSERT_THAT(valid, IsOk());
  EXPECT_EQ(valid->trigger.overflow, 32);
  EXPECT_EQ(valid->trigger.slack, 16);
  EXPECT_EQ(valid->trigger.max_drop, 32);
  EXPECT_EQ(valid->positions, Positions::kOriginal);
  EXPECT_EQ(valid->kv_type, KvType::kF32);
  EXPECT_EQ(valid->rope_cache, RopeCache::kRk);
}

// LAZY's ablation sets one without the other; neither has an effect alone.
TEST(Resolve, AllowsSlackAndMaxDropAlone) {
  EXPECT_THAT(Resolve({.slack = 16}, kLimits), IsOk());
  EXPECT_THAT(Resolve({.max_drop = 16}, kLimits), IsOk());
}

TEST(Resolve, CutsTheDefaultBudgetToTheLargestAllowed) {
  EXPECT_EQ(Resolve({}, {.trained_context = 4096, .budget_max = 1000})->trigger.budget, 1000);
  EXPECT_EQ(Resolve({}, {.trained_context = kMax, .budget_max = kMax})->trigger.budget, kBudgetMax);
}

TEST(Resolve, RefusesWithReasonFieldAndWhatWouldBeRight) {
  struct Case {
    std::string name;
    PolicySpec spec;
    std::string reason, field, message;
  };
  const std::string small = "BUDGET_TOO_SMALL", large = "VALUE_TOO_LARGE", negative = "NEGATIVE_VALUE";
  const std::string budget = "policy.trigger.budget", meaningless = "MEANINGLESS_COMBINATION";
  const std::vector<Case> cases = {
      {"h2o without a choice",
       {.scorer = "h2o", .budget = 64, .sinks = 4, .recent = 64},
       small,
       budget,
       "policy.trigger.budget: 64 is below sinks 4 + recent 64 + 1; use at least 69"},
      {"h2o, one short of a choice",
       {.scorer = "h2o", .budget = 68, .sinks = 4, .recent = 64},
       small,
       budget,
       "use at least 69"},
      {"h2o whose recent follows the budget",
       {.scorer = "h2o", .budget = 10, .sinks = 5},
       small,
       budget,
       "10 is below sinks 5 + recent 5 + 1; use at least 11"},
      {"streaming below its sinks", {.budget = 3}, small, budget, "3 is below sinks 4 + recent 1; use at least 5"},
      {"streaming without a recent token", {.budget = 4}, small, budget, "use at least 5"},
      {"streaming below protection",
       {.budget = 63, .recent = 60},
       small,
       budget,
       "63 is below sinks 4 + recent 60; use at least 64"},
      {"streaming of nothing", {.budget = 0}, small, budget, "use at least 5"},
      {"a negative budget", {.scorer = "h2o", .budget = kMin}, small, budget, "use at least 1"},
      {"full of nothing", {.scorer = "full", .budget = 0}, small, budget, "0 is below 1; use at least 1"},
      {"the default budget is below the sinks asked for", {.sinks = 3000}, small, budget, "use at least 3001"},
      {"a budget above the largest", {.budget = kMax}, "BUDGET_TOO_LARGE", budget, "above the largest budget 16777216"},
      {"full above the largest", {.scorer = "full", .budget = kBudgetMax + 1}, "BUDGET_TOO_LARGE", budget, "16777217"},
      {"protection that no budget holds",
       {.scorer = "h2o", .sinks = kBudgetMax, .recent = 1},
       "BUDGET_TOO_LARGE",
       "policy.protect",
       "above the largest, 16777216"},
      {"sinks that no budget holds", {.sinks = kBudgetMax}, "BUDGET_TOO_LARGE", "policy.protect", "sinks 16777216"},
      {"overflow of zero", {.overflow = 0}, "OVERFLOW_ZERO", "policy.trigger.overflow", "use 1"},
      {"negative overflow", {.overflow = -1}, negative, "policy.trigger.overflow", "-1 is below 0"},
      {"negative slack", {.slack = kMin}, negative, "policy.trigger.slack", "-2147483648 is below 0"},
      {"negative max_drop", {.max_drop = -1}, negative, "policy.trigger.max_drop", "-1"},
      {"negative sinks", {.sinks = -1}, negative, "policy.protect.sinks", "-1"},
      {"negative recent", {.recent = -1}, negative, "policy.protect.recent", "-1"},
      {"huge overflow", {.overflow = kMax}, large, "policy.trigger.overflow", "2147483647 is above 16777216"},
      {"huge slack", {.slack = kMax}, large, "policy.trigger.slack", "above 16777216"},
      {"huge max_drop", {.max_drop = kMax}, large, "policy.trigger.max_drop", "above 16777216"},
      {"huge sinks", {.sinks = kMax}, large, "policy.protect.sinks", "above 16777216"},
      {"huge recent", {.recent = kMax}, large, "policy.protect.recent", "above 16777216"},
      {"both kinds of budget",
       {.budget = 64, .budget_ratio = 0.5},
       "BUDGET_AMBIGUOUS",
       "policy.trigger.budget_ratio",
       "not both"},
      {"a ratio of zero", {.budget_ratio = 0}, "RATIO_OUT_OF_RANGE", "policy.trigger.budget_ratio", "0 is not above 0"},
      {"a ratio above one", {.budget_ratio = 1.5}, "RATIO_OUT_OF_RANGE", "policy.trigger.budget_ratio", "1.5"},
      {"a ratio just above one",
       {.budget_ratio = std::nextafter(1, 2)},
       "RATIO_OUT_OF_RANGE",
       "policy.trigger.budget_ratio",
       "1.0000000000000002 is not"},
      {"a ratio that is no number", {.budget_ratio = kNan}, "RATIO_OUT_OF_RANGE", "policy.trigger.budget_ratio", "nan"},
      {"a parameter that nobody knows",
       {.scorer = "h2o", .parameters = {{"decay", 0.5}}},
       "UNKNOWN_PARAMETER",
       "policy.h2o.decay",
       "h2o takes no parameters"},
      {"streaming without recent tokens", {.recent = 0}, meaningless, "policy.protect.recent", "use at least 1"},
      {"a ratio on full", {.scorer = "full", .budget_ratio = 0.5}, meaningless, "policy.trigger.budget_ratio", "full"},
      {"overflow on full", {.scorer = "full", .overflow = 1}, meaningless, "policy.trigger.overflow", "never evicts"},
      {"slack on full", {.scorer = "full", .slack = 1}, meaningless, "policy.trigger.slack", "never evicts"},
      {"max_drop on full", {.scorer = "full", .max_drop = 1}, meaningless, "policy.trigger.max_drop", "leave it out"},
      {"sinks on full", {.scorer = "full", .sinks = 0}, meaningless, "policy.protect.sinks", "never evicts"},
      {"recent on full", {.scorer = "full", .recent = 0}, meaningless, "policy.protect.recent", "never evicts"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto valid = Resolve(c.spec, kLimits);
    ASSERT_THAT(valid, IsRefusal(absl::StatusCode::kInvalidArgument, c.reason, c.field));
    EXPECT_EQ(GetRefusal(valid.status()).field, c.field);
    EXPECT_THAT(std::string(valid.status().message()), HasSubstr(c.message));
  }
}

// What the choices beside trigger and protection belong to; the accepted neighbours are in the test below.
TEST(Resolve, RefusesCombinationsThatMeanNothing) {
  struct Case {
    std::string name;
    PolicySpec spec;
    std::string field, message;
    std::string reason = "MEANINGLESS_COMBINATION";
  };
  const std::string every_n = "policy.schedule.every_n", then = "policy.schedule.then";
  const std::string grow_max = "policy.schedule.grow_max", reduction = "policy.reduction";
  const Schedule once = Schedule::kOncePrompt;
  const std::vector<Case> cases = {
      {"a schedule on full", {.scorer = "full", .schedule = once}, "policy.schedule", "never evicts"},
      {"every_n on full", {.scorer = "full", .every_n = 4}, every_n, "never evicts"},
      {"then on full", {.scorer = "full", .then = Then::kSame}, then, "never evicts"},
      {"grow_max on full", {.scorer = "full", .grow_max = 9}, grow_max, "never evicts"},
      {"a scope on full", {.scorer = "full", .scope = Scope::kLayer}, "policy.scope", "never evicts"},
      {"a reduction on full", {.scorer = "full", .reduction = Reduction::kMax}, reduction, "never evicts"},
      {"a modifier on full", {.scorer = "full", .modifier = Modifier::kCaote}, "policy.modifier", "never evicts"},

      {"a kernel without pooling",
       {.scorer = "snapkv", .parameters = {{"pooling", 0}, {"kernel", 5}}},
       "policy.snapkv.kernel",
       "nothing is pooled"},
      {"queries of no kind",
       {.scorer = "semantic", .parameters = {{"semantic_ratio", 0}, {"recent_ratio", 0}}},
       "policy.semantic.semantic_ratio",
       "no query is left"},

      {"every_n without a schedule", {.scorer = "h2o", .every_n = 4}, every_n, "only the schedule EVERY_N"},
      {"every_n at every step",
       {.scorer = "h2o", .schedule = Schedule::kEveryStep, .every_n = 4},
       every_n,
       "only the schedule EVERY_N"},
      {"every_n once", {.scorer = "h2o", .schedule = once, .every_n = 4}, every_n, "only the schedule EVERY_N"},
      {"every_n on what runs once by default", {.scorer = "sage", .every_n = 4}, every_n, "only the schedule EVERY_N"},
      {"every n of nothing", {.scorer = "h2o", .schedule = Schedule::kEveryN}, every_n, "at least 1"},
      {"every n below 0",
       {.scorer = "h2o", .schedule = Schedule::kEveryN, .every_n = -4},
       every_n,
       "-4 is below 0",
       "NEGATIVE_VALUE"},
      {"every n above all budgets",
       {.scorer = "h2o", .schedule = Schedule::kEveryN, .every_n = kMax},
       every_n,
       "above 16777216",
       "VALUE_TOO_LARGE"},

      {"then at every step", {.scorer = "h2o", .then = Then::kSame}, then, "only the schedule ONCE_AFTER_PROMPT"},
      {"then every n",
       {.scorer = "h2o", .schedule = Schedule::kEveryN, .every_n = 4, .then = Then::kGrow},
       then,
       "only the schedule ONCE_AFTER_PROMPT"},
      {"sliding an empty window",
       {.scorer = "h2o", .recent = 0, .schedule = once, .then = Then::kSlideRecent},
       then,
       "protect.recent of at least 1"},
      {"sliding a window that the budget leaves empty",
       {.scorer = "h2o", .budget = 1, .schedule = once, .then = Then::kSlideRecent},
       then,
       "protect.recent of at least 1"},
      {"sliding an empty window, whatever the prompt",
       {.scorer = "h2o", .budget_ratio = 0.5, .recent = 0, .schedule = once, .then = Then::kSlideRecent},
       then,
       "protect.recent of at least 1"},

      {"grow_max at every step", {.scorer = "h2o", .grow_max = 3000}, grow_max, "only THEN_GROW"},
      {"grow_max on what slides", {.scorer = "sage", .grow_max = 3000}, grow_max, "only THEN_GROW"},
      {"grow_max on what stays",
       {.scorer = "h2o", .schedule = once, .then = Then::kSame, .grow_max = 3000},
       grow_max,
       "only THEN_GROW"},
      {"growing to less than the budget",
       {.scorer = "h2o", .budget = 64, .schedule = once, .then = Then::kGrow, .grow_max = 63},
       grow_max,
       "63 is below the budget; use at least 64",
       "BUDGET_TOO_SMALL"},
      {"growing below 0",
       {.scorer = "h2o", .schedule = once, .then = Then::kGrow, .grow_max = -1},
       grow_max,
       "-1 is below 0",
       "NEGATIVE_VALUE"},
      {"growing without end",
       {.scorer = "h2o", .schedule = once, .then = Then::kGrow, .grow_max = kMax},
       grow_max,
       "above 16777216",
       "VALUE_TOO_LARGE"},

      {"one decision for lanes that agree", {.scope = Scope::kLayer}, "policy.scope", "streaming"},
      {"L2 of what are no errors",
       {.scorer = "h2o", .reduction = Reduction::kL2},
       reduction,
       "need a modifier; use MEAN or MAX"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto valid = Resolve(c.spec, kLimits);
    ASSERT_THAT(valid, IsRefusal(absl::StatusCode::kInvalidArgument, c.reason, c.field));
    EXPECT_EQ(GetRefusal(valid.status()).field, c.field);
    EXPECT_THAT(std::string(valid.status().message()), HasSubstr(c.message));
  }
}

// Modifiers weigh attention received, and reductions what each query head's attention said.
TEST(Resolve, RefusesFormsThatTheScoresHaveNoPartIn) {
  int32_t refused = 0;
  for (const ScorerRow& row : ScorerRegistry()) {
    if (!row.evicts) continue;
    SCOPED_TRACE(row.name);
    const bool by_attention =
        MakeScorer(row, ResolveParameters(row, {}).value(), BlankCalibration()).value()->needs().attention();
    PolicySpec spec = {.scorer = std::string(row.name)};
    EXPECT_THAT(Resolve(spec, kLimits), IsOk());
    for (const Modifier modifier : {Modifier::kCaote, Modifier::kFastCaote}) {
      spec.modifier = modifier;
      spec.reduction.reset();
      const auto modified = Resolve(spec, kLimits);
      EXPECT_EQ(modified.ok(), row.non_negative);
      if (!row.non_negative) {
        EXPECT_THAT(modified,
                    IsRefusal(absl::StatusCode::kInvalidArgument, "MEANINGLESS_COMBINATION", "policy.modifier"));
        EXPECT_THAT(std::string(modified.status().message()), HasSubstr(std::string(row.name)));
        ++refused;
      }
      spec.reduction = Reduction::kL2;
      EXPECT_EQ(Resolve(spec, kLimits).ok(), row.non_negative && by_attention);
    }
    spec.modifier = Modifier::kNone;
    for (const Reduction reduction : {Reduction::kMax, Reduction::kUnion}) {
      spec.reduction = reduction;
      const auto reduced = Resolve(spec, kLimits);
      EXPECT_EQ(reduced.ok(), by_attention);
      if (!by_attention) {
        EXPECT_THAT(reduced,
                    IsRefusal(absl::StatusCode::kInvalidArgument, "MEANINGLESS_COMBINATION", "policy.reduction"));
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 10);
}

TEST(Resolve, PassesOnChoicesThatMeanSomething) {
  const auto every_n = Resolve({.scorer = "h2o", .schedule = Schedule::kEveryN, .every_n = 4}, kLimits);
  ASSERT_THAT(every_n, IsOk());
  EXPECT_EQ(every_n->schedule, Schedule::kEveryN);
  EXPECT_EQ(every_n->every_n, 4);
  const auto grow =
      Resolve({.scorer = "h2o", .budget = 64, .schedule = Schedule::kOncePrompt, .then = Then::kGrow}, kLimits);
  ASSERT_THAT(grow, IsOk());
  EXPECT_EQ(grow->then, Then::kGrow);
  EXPECT_EQ(grow->grow_max, 2048);
  EXPECT_EQ(Resolve({.scorer = "h2o", .budget = 3000, .schedule = Schedule::kOncePrompt, .then = Then::kGrow}, kLimits)
                ->grow_max,
            3000);
  EXPECT_EQ(
      Resolve({.scorer = "h2o", .budget = 64, .schedule = Schedule::kOncePrompt, .then = Then::kGrow, .grow_max = 64},
              kLimits)
          ->grow_max,
      64);
  const auto caote =
      Resolve({.scorer = "h2o", .scope = Scope::kLayer, .reduction = Reduction::kL2, .modifier = Modifier::kCaote},
              {.trained_context = 2048, .query_heads = 7});
  ASSERT_THAT(caote, IsOk());
  EXPECT_EQ(caote->scope, Scope::kLayer);
  EXPECT_EQ(caote->reduction, Reduction::kL2);
  EXPECT_EQ(caote->modifier, Modifier::kCaote);
  EXPECT_EQ(caote->query_heads, 7);
  EXPECT_TRUE(caote->heads_apart());
  EXPECT_TRUE(caote->needs().memory);
  const auto sage = Resolve({.scorer = "sage", .budget = 64}, {.trained_context = 2048, .query_heads = 4});
  ASSERT_THAT(sage, IsOk());
  EXPECT_EQ(sage->schedule, Schedule::kOncePrompt);
  EXPECT_EQ(sage->then, Then::kSlideRecent);
  EXPECT_EQ(sage->reduction, Reduction::kUnion);
  EXPECT_EQ(sage->sinks, 16);
  EXPECT_EQ(sage->recent, 16);
}

TEST(Resolve, NamesTheKnownScorersWhenOneIsUnknown) {
  const auto valid = Resolve({.scorer = "h20"}, kLimits);
  ASSERT_THAT(valid, IsRefusal(absl::StatusCode::kNotFound, "UNKNOWN_SCORER", "policy.scorer"));
  const std::string message(valid.status().message());
  EXPECT_THAT(message, HasSubstr("policy.scorer: no scorer named 'h20'; use full, streaming, h2o"));
  for (const ScorerRow& row : ScorerRegistry()) EXPECT_THAT(message, HasSubstr(std::string(row.name)));
}

// The budget that a refusal names is accepted, as are those above it, and none below it is.
TEST(Resolve, NamesTheSmallestBudgetExactly) {
  for (const ScorerRow& row : ScorerRegistry()) {
    if (!row.evicts) continue;
    for (const std::optional<int32_t> recent : {std::optional<int32_t>(), std::optional<int32_t>(7)}) {
      for (int32_t sinks = 0; sinks < 40; ++sinks) {
        SCOPED_TRACE(testing::Message() << row.name << ", sinks " << sinks << ", recent " << recent.value_or(-1));
        PolicySpec spec = {.scorer = std::string(row.name), .budget = 1, .sinks = sinks, .recent = recent};
        while (!Resolve(spec, kLimits).ok()) ++*spec.budget;
        const int32_t smallest = *spec.budget;
        ASSERT_LE(smallest, 100);
        for (int32_t budget = 0; budget < smallest; ++budget) {
          spec.budget = budget;
          EXPECT_THAT(std::string(Resolve(spec, kLimits).status().message()),
                      HasSubstr("use at least " + std::to_string(smallest)));
        }
        for (int32_t budget = smallest; budget < smallest + 70; ++budget) {
          spec.budget = budget;
          EXPECT_THAT(Resolve(spec, kLimits), IsOk()) << "budget " << budget;
        }
      }
    }
  }
}

TEST(FixBudget, TakesTheFloorOfTheRatioOnceThePromptIsKnown) {
  struct Case {
    std::string name;
    double ratio;
    int32_t prompt, budget, recent;
  };
  const std::vector<Case> cases = {
      {"a product that floats miss from below", 0.29, 100, 29, 14},
      {"and one that they meet", 0.1, 100, 10, 5},
      {"a fraction is dropped", 0.3, 11, 3, 1},
      {"the whole prompt", 1.0, 77, 77, 38},
      {"the smallest that works", 0.5, 2, 1, 0},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto open = Resolve({.scorer = "h2o", .budget_ratio = c.ratio}, kLimits);
    ASSERT_THAT(open, IsOk());
    EXPECT_EQ(open->trigger.budget, 0);
    EXPECT_EQ(open->budget_ratio, c.ratio);
    const auto fixed = FixBudget(*open, c.prompt);
    ASSERT_THAT(fixed, IsOk());
    EXPECT_EQ(fixed->trigger.budget, c.budget);
    EXPECT_EQ(fixed->recent, c.recent);
  }
}

TEST(FixBudget, KeepsARecentWindowThatWasGiven) {
  const auto open = Resolve({.scorer = "h2o", .budget_ratio = 0.5, .recent = 10}, kLimits);
  EXPECT_EQ(FixBudget(open.value(), 100)->recent, 10);
}

// A scorer whose sinks follow the budget gets them once it is known, unless the caller gave them.
TEST(FixBudget, RecomputesSinksThatFollowTheBudget) {
  const SpecLimits limits = {.trained_context = 2048, .query_heads = 4};
  const auto open = Resolve({.scorer = "sage", .budget_ratio = 0.5}, limits);
  ASSERT_THAT(open, IsOk());
  EXPECT_TRUE(open->sinks_follow_budget);
  const auto fixed = FixBudget(*open, 128);
  ASSERT_THAT(fixed, IsOk());
  EXPECT_EQ(fixed->trigger.budget, 64);
  EXPECT_EQ(fixed->sinks, 16);
  EXPECT_EQ(fixed->recent, 16);
  const auto given = Resolve({.scorer = "sage", .budget_ratio = 0.5, .sinks = 3}, limits);
  ASSERT_THAT(given, IsOk());
  EXPECT_FALSE(given->sinks_follow_budget);
  EXPECT_EQ(FixBudget(*given, 128)->sinks, 3);
}

TEST(FixBudget, RefusesToGrowToLessThanTheBudget) {
  const auto open = Resolve(
      {.scorer = "h2o", .budget_ratio = 0.5, .schedule = Schedule::kOncePrompt, .then = Then::kGrow, .grow_max = 100},
      kLimits);
  ASSERT_THAT(open, IsOk());
  EXPECT_EQ(FixBudget(*open, 200)->grow_max, 100);
  EXPECT_THAT(FixBudget(*open, 202),
              IsRefusal(absl::StatusCode::kInvalidArgument, "BUDGET_TOO_SMALL", "policy.schedule.grow_max"));
}

TEST(FixBudget, LeavesAKnownBudgetAlone) {
  const auto known = Resolve({.budget = 64}, kLimits);
  EXPECT_EQ(FixBudget(known.value(), 10)->trigger.budget, 64);
  const auto fixed = FixBudget(Resolve({.budget_ratio = 0.5}, kLimits).value(), 100);
  EXPECT_EQ(FixBudget(fixed.value(), 1000)->trigger.budget, 50);
}

TEST(FixBudget, RefusesAShareThatIsTooSmallOrTooLarge) {
  const auto streaming = Resolve({.budget_ratio = 0.1}, kLimits).value();
  const auto few = FixBudget(streaming, 49);
  ASSERT_THAT(few, IsRefusal(absl::StatusCode::kInvalidArgument, "BUDGET_TOO_SMALL", "policy.trigger.budget_ratio"));
  EXPECT_THAT(std::string(few.status().message()), HasSubstr("4 is below sinks 4 + recent 1; use at least 5"));
  EXPECT_THAT(FixBudget(streaming, 50), IsOk());
  EXPECT_THAT(FixBudget(streaming, 0), IsRefusal(absl::StatusCode::kInvalidArgument, "BUDGET_TOO_SMALL", "ratio"));
  EXPECT_THAT(FixBudget(streaming, kMax), IsRefusal(absl::StatusCode::kInvalidArgument, "BUDGET_TOO_LARGE", "ratio"));
}

// Whatever a caller writes, a spec that passes keeps later arithmetic small.
TEST(Resolve, BoundsEveryNumberThatPasses) {
  const auto valid = Resolve({.scorer = "h2o",
                              .budget = kBudgetMax,
                              .overflow = kBudgetMax,
                              .slack = kBudgetMax,
                              .max_drop = kBudgetMax,
                              .sinks = 1,
                              .recent = kBudgetMax - 2},
                             {.trained_context = kMax, .budget_max = kMax});
  ASSERT_THAT(valid, IsOk());
  EXPECT_EQ(Capacity(valid->trigger, 512), int64_t{2} * kBudgetMax + 512);
  EXPECT_EQ(TokensToDrop(valid->trigger, 2 * kBudgetMax), kBudgetMax);
}

}  // namespace
}  // namespace ebb
