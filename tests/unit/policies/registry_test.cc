#include "policies/registry.h"

#include <gmock/gmock.h>

#include <limits>
#include <optional>
#include <regex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;

// Everything that a reference page says is there: sentences end in a full stop, a title does not.
void ExpectComplete(const About& about) {
  for (const std::string_view sentence : {about.summary, about.when, about.cost, about.turns}) {
    EXPECT_THAT(sentence, EndsWith("."));
  }
  EXPECT_THAT(about.equation, HasSubstr(" = "));
  EXPECT_THAT(about.equation, Not(EndsWith("\n")));
  EXPECT_THAT(about.origin, Not(IsEmpty()));
  if (about.paper.empty()) return;
  EXPECT_TRUE(std::regex_match(std::string(about.paper), std::regex("arXiv:[0-9]{4}\\.[0-9]{5}"))) << about.paper;
}

void ExpectComplete(std::span<const ParameterRow> parameters) {
  std::set<std::string_view> names;
  for (const ParameterRow& parameter : parameters) {
    SCOPED_TRACE(parameter.name);
    EXPECT_THAT(parameter.name, Not(IsEmpty()));
    EXPECT_TRUE(names.insert(parameter.name).second) << "two parameters of one name";
    EXPECT_THAT(parameter.help, Not(IsEmpty()));
    EXPECT_LE(parameter.min, parameter.preset);
    EXPECT_LE(parameter.preset, parameter.max);
    EXPECT_LT(parameter.min, parameter.max) << "nothing to choose";
    if (parameter.choices.empty()) continue;
    EXPECT_TRUE(parameter.whole);
    EXPECT_EQ(parameter.min, 0);
    EXPECT_EQ(parameter.max, static_cast<double>(parameter.choices.size()) - 1);
  }
}

TEST(ScorerRegistry, EveryRowIsComplete) {
  std::set<std::string_view> names;
  for (const ScorerRow& row : ScorerRegistry()) {
    SCOPED_TRACE(row.name);
    EXPECT_TRUE(names.insert(row.name).second) << "two rows of one name";
    ExpectComplete(row.about);
    ExpectComplete(row.parameters);
    EXPECT_EQ(FindScorer(row.name), &row);
    const auto presets = ResolveParameters(row, {});
    ASSERT_THAT(presets, IsOk());
    EXPECT_NE(MakeScorer(row, *presets, BlankCalibration()).value(), nullptr);
    EXPECT_NE(row.make == nullptr, row.make_calibrated == nullptr);
    for (const ParameterRow& parameter : row.parameters) {
      EXPECT_THAT(ResolveParameters(row, {{std::string(parameter.name), parameter.preset}}), IsOk()) << parameter.name;
    }
    if (!row.recent_parameter.empty()) {
      EXPECT_EQ(row.recent, nullptr);
      EXPECT_TRUE(presets->contains(std::string(row.recent_parameter)));
    }
  }
}

// What a modifier's row says it needs is what a policy with it needs beyond the scorer alone.
TEST(ModifierRegistry, EveryRowIsComplete) {
  std::set<Modifier> modifiers = {Modifier::kNone};
  for (const ModifierRow& row : ModifierRegistry()) {
    SCOPED_TRACE(row.name);
    EXPECT_TRUE(modifiers.insert(row.modifier).second) << "two rows of one modifier";
    ExpectComplete(row.about);
    const auto alone = Resolve({.scorer = "h2o", .budget = 64}, {});
    const auto changed = Resolve({.scorer = "h2o", .budget = 64, .modifier = row.modifier}, {});
    ASSERT_THAT(alone, IsOk());
    ASSERT_THAT(changed, IsOk());
    EXPECT_FALSE(alone->needs().memory);
    EXPECT_EQ(changed->needs().memory, row.needs.memory);
    EXPECT_EQ(changed->needs().attention(), alone->needs().attention() || row.needs.attention());
  }
}

TEST(AllocationRegistry, EveryRowIsComplete) {
  std::set<Allocation> allocations;
  for (const AllocationRow& row : AllocationRegistry()) {
    SCOPED_TRACE(row.name);
    EXPECT_TRUE(allocations.insert(row.allocation).second) << "two rows of one allocation";
    ExpectComplete(row.about);
    ExpectComplete(row.parameters);
  }
  EXPECT_TRUE(allocations.contains(PolicySpec().allocation)) << "the default has no row";
}

// Resolve halves its way to the smallest budget under this assumption.
TEST(ScorerRegistry, ABudgetWithRoomKeepsItAsItGrows) {
  for (const ScorerRow& row : ScorerRegistry()) {
    SCOPED_TRACE(row.name);
    for (const std::optional<int32_t> given : {std::optional<int32_t>(), {0}, {4}, {100}}) {
      for (const int32_t query_heads : {1, 4, 7}) {
        bool had_room = false;
        for (int32_t budget = 1; budget < 3000; ++budget) {
          const int32_t sinks = given.value_or(row.sinks == nullptr ? 0 : row.sinks(budget));
          const int32_t recent = row.recent == nullptr ? 0 : row.recent(budget, sinks, query_heads);
          EXPECT_GE(sinks, 0);
          EXPECT_GE(recent, 0);
          const bool has_room = sinks + recent + (row.scored ? 1 : 0) <= budget;
          EXPECT_TRUE(has_room || !had_room) << "budget " << budget;
          had_room = has_room;
        }
        EXPECT_TRUE(had_room || !row.evicts);
      }
    }
  }
}

// A scorer that says it looks at positions alone asks nothing of attention, and keeps nothing.
TEST(ScorerRegistry, LockstepScorersNeedNoObservation) {
  for (const ScorerRow& row : ScorerRegistry()) {
    SCOPED_TRACE(row.name);
    const Needs needs = MakeScorer(row, *ResolveParameters(row, {}), BlankCalibration()).value()->needs();
    if (!row.lockstep) continue;
    EXPECT_FALSE(needs.observes());
    EXPECT_FALSE(needs.memory);
    EXPECT_EQ(needs.state_floats, 0);
  }
}

TEST(FindScorer, IsNullForWhatIsNotThere) {
  EXPECT_EQ(FindScorer("nope"), nullptr);
  EXPECT_EQ(FindScorer(""), nullptr);
  EXPECT_EQ(FindScorer("H2O"), nullptr);
}

constexpr ParameterRow kParameters[] = {
    {.name = "kernel", .help = "width of the pooling", .preset = 7, .min = 1, .max = 63, .whole = true, .odd = true},
    {.name = "window", .help = "rows that vote", .preset = 32, .min = 1, .max = 512},
};
constexpr std::string_view kPools[] = {"none", "mean", "max"};
constexpr ParameterRow kChoice[] = {{.name = "pool", .help = "form", .max = 2, .whole = true, .choices = kPools}};
constexpr ScorerRow kChooser = {.name = "choosy", .parameters = kChoice};
constexpr ScorerRow kRow = {.name = "snap", .parameters = kParameters};
constexpr ParameterRow kSeed[] = {{.name = "seed", .help = "of the draws", .max = 0x1p53, .whole = true}};
constexpr ScorerRow kLarge = {.name = "dice", .parameters = kSeed};

TEST(ResolveParameters, FillsPresetsAroundWhatWasGiven) {
  EXPECT_THAT(ResolveParameters(kRow, {}).value(), ElementsAre(Pair("kernel", 7), Pair("window", 32)));
  EXPECT_THAT(ResolveParameters(kRow, {{"window", 512}}).value(), ElementsAre(Pair("kernel", 7), Pair("window", 512)));
  EXPECT_THAT(ResolveParameters({.name = "bare"}, {}).value(), IsEmpty());
}

TEST(ResolveParameters, RefusesWithNameAndRange) {
  struct Case {
    std::string name;
    ScorerRow row;
    ScorerParameters given;
    std::string reason, field, message;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Case> cases = {
      {"unknown name", kRow, {{"widow", 3}}, "UNKNOWN_PARAMETER", "policy.snap.widow", "snap takes kernel, window"},
      {"a scorer without any", {.name = "bare"}, {{"x", 3}}, "UNKNOWN_PARAMETER", "policy.bare.x", "no parameters"},
      {"below", kRow, {{"window", 0}}, "PARAMETER_OUT_OF_RANGE", "policy.snap.window", "0 is not in [1, 512]"},
      {"above", kRow, {{"kernel", 64}}, "PARAMETER_OUT_OF_RANGE", "policy.snap.kernel", "64 is not in [1, 63]"},
      {"a half", kRow, {{"kernel", 3.5}}, "PARAMETER_OUT_OF_RANGE", "policy.snap.kernel", "3.5 is not a whole number"},
      {"even", kRow, {{"kernel", 6}}, "PARAMETER_OUT_OF_RANGE", "policy.snap.kernel", "6 is even; use 5 or 7"},
      {"above a large range",
       kLarge,
       {{"seed", 0x1p54}},
       "PARAMETER_OUT_OF_RANGE",
       "policy.dice.seed",
       "18014398509481984 is not in [0, 9007199254740992]"},
      {"far above", kLarge, {{"seed", 1e300}}, "PARAMETER_OUT_OF_RANGE", "policy.dice.seed", "1e+300 is not in [0, 9"},
      {"not a number", kRow, {{"kernel", nan}}, "PARAMETER_OUT_OF_RANGE", "policy.snap.kernel", "nan is not in"},
      {"no choice",
       kChooser,
       {{"pool", 3}},
       "PARAMETER_OUT_OF_RANGE",
       "policy.choosy.pool",
       "3 is no choice; use 0 (none), 1 (mean) or 2 (max)"},
      {"between two choices",
       kChooser,
       {{"pool", 1.5}},
       "PARAMETER_OUT_OF_RANGE",
       "policy.choosy.pool",
       "1.5 is no choice; use 0 (none), 1 (mean) or 2 (max)"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto resolved = ResolveParameters(c.row, c.given);
    ASSERT_THAT(resolved, IsRefusal(absl::StatusCode::kInvalidArgument, c.reason, c.field));
    EXPECT_THAT(std::string(resolved.status().message()), HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace ebb
