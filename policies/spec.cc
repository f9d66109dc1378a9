#include "policies/spec.h"

#include <algorithm>
#include <cmath>
#include <ranges>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/registry.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr char kBudget[] = "policy.trigger.budget";
constexpr char kBudgetRatio[] = "policy.trigger.budget_ratio";
constexpr char kOverflow[] = "policy.trigger.overflow";
constexpr char kSlack[] = "policy.trigger.slack";
constexpr char kMaxDrop[] = "policy.trigger.max_drop";
constexpr char kProtect[] = "policy.protect";
constexpr char kSinks[] = "policy.protect.sinks";
constexpr char kRecent[] = "policy.protect.recent";
constexpr char kSchedule[] = "policy.schedule";
constexpr char kEveryNField[] = "policy.schedule.every_n";
constexpr char kThen[] = "policy.schedule.then";
constexpr char kGrowMax[] = "policy.schedule.grow_max";
constexpr char kScope[] = "policy.scope";
constexpr char kReduction[] = "policy.reduction";
constexpr char kModifier[] = "policy.modifier";

// The numbers on their own, before anything is computed from them.
absl::Status CheckNumbers(const PolicySpec& spec, int32_t budget_max) {
  const std::pair<const char*, int32_t> counts[] = {{kOverflow, spec.overflow.value_or(1)},
                                                    {kSlack, spec.slack},
                                                    {kMaxDrop, spec.max_drop},
                                                    {kSinks, spec.sinks.value_or(0)},
                                                    {kRecent, spec.recent.value_or(0)},
                                                    {kEveryNField, spec.every_n},
                                                    {kGrowMax, spec.grow_max.value_or(0)}};
  for (const auto& [field, value] : counts) {
    if (value < 0) return RefuseField("NEGATIVE_VALUE", field, absl::StrFormat("%d is below 0", value));
    if (value > budget_max) {
      return RefuseField("VALUE_TOO_LARGE", field, absl::StrFormat("%d is above %d", value, budget_max));
    }
  }
  if (spec.overflow == 0) {
    return RefuseField("OVERFLOW_ZERO", kOverflow, "0 would never prune; use 1 to prune at every step");
  }
  if (spec.budget && spec.budget_ratio) {
    return RefuseField("BUDGET_AMBIGUOUS", kBudgetRatio, "give either budget or budget_ratio, not both");
  }
  if (spec.budget_ratio && !(*spec.budget_ratio > 0 && *spec.budget_ratio <= 1)) {  // so that NaN is out of range
    return RefuseField("RATIO_OUT_OF_RANGE", kBudgetRatio,
                       absl::StrFormat("%g is not above 0 and at most 1", *spec.budget_ratio));
  }
  return absl::OkStatus();
}

// A policy that never evicts takes a length limit and nothing else of trigger and protection.
absl::Status CheckUnevicted(const ScorerRow& row, const PolicySpec& spec) {
  const std::pair<const char*, bool> given[] = {
      {kBudgetRatio, spec.budget_ratio.has_value()},
      {kOverflow, spec.overflow.has_value()},
      {kSlack, spec.slack != 0},
      {kMaxDrop, spec.max_drop != 0},
      {kSinks, spec.sinks.has_value()},
      {kRecent, spec.recent.has_value()},
      {kSchedule, spec.schedule.value_or(Schedule::kEveryStep) != Schedule::kEveryStep},
      {kEveryNField, spec.every_n != 0},
      {kThen, spec.then.has_value()},
      {kGrowMax, spec.grow_max.has_value()},
      {kScope, spec.scope != Scope::kKvHead},
      {kReduction, spec.reduction.value_or(Reduction::kMean) != Reduction::kMean},
      {kModifier, spec.modifier != Modifier::kNone}};
  for (const auto& [field, is_given] : given) {
    if (is_given) {
      return RefuseField("MEANINGLESS_COMBINATION", field,
                         absl::StrFormat("the scorer %s never evicts; leave it out", row.name));
    }
  }
  return absl::OkStatus();
}

struct Protected {
  int32_t sinks = 0;
  int32_t recent = 0;
};

// Who is protected under a budget: as given, or by the scorer's default.
Protected ProtectionFor(const ScorerRow& row, const ValidSpec& spec, int32_t budget) {
  Protected by = {.sinks = spec.sinks, .recent = spec.recent};
  if (spec.sinks_follow_budget) by.sinks = row.sinks == nullptr ? 0 : row.sinks(budget);
  if (spec.recent_follows_budget) {
    by.recent = DefaultRecent(row, spec.parameters, budget, by.sinks, spec.query_heads);
  }
  return by;
}

// Tokens that a budget must have room for: who is protected, and one to choose where the scorer has a choice.
int32_t RoomFor(const ScorerRow& row, const ValidSpec& spec, int32_t budget) {
  const Protected by = ProtectionFor(row, spec, budget);
  return by.sinks + by.recent + (row.scored ? 1 : 0);
}

// The smallest budget with room, or budget_max + 1 when none has. A budget with room keeps it as it grows, so halving
// finds the first.
int32_t SmallestBudget(const ScorerRow& row, const ValidSpec& spec) {
  const auto budgets = std::views::iota(1, spec.budget_max + 1);
  const auto lacks_room = [&](int32_t budget) { return RoomFor(row, spec, budget) > budget; };
  return 1 + static_cast<int32_t>(std::ranges::partition_point(budgets, lacks_room) - budgets.begin());
}

absl::Status CheckBudget(const ScorerRow& row, const ValidSpec& spec, int32_t budget, const char* field) {
  const int32_t smallest = row.evicts ? SmallestBudget(row, spec) : 1;
  if (budget < smallest) {
    const Protected by = ProtectionFor(row, spec, std::max(budget, 0));
    const std::string what =
        row.evicts ? absl::StrFormat("sinks %d + recent %d%s", by.sinks, by.recent, row.scored ? " + 1" : "") : "1";
    return RefuseField("BUDGET_TOO_SMALL", field,
                       absl::StrFormat("%d is below %s; use at least %d", budget, what, smallest));
  }
  if (budget > spec.budget_max) {
    return RefuseField("BUDGET_TOO_LARGE", field,
                       absl::StrFormat("%d is above the largest budget %d", budget, spec.budget_max));
  }
  return absl::OkStatus();
}

absl::Status Meaningless(const char* field, const std::string& what) {
  return RefuseField("MEANINGLESS_COMBINATION", field, what);
}

absl::Status CheckSlide(const ValidSpec& spec) {
  const bool slides = spec.schedule == Schedule::kOncePrompt && spec.then == Then::kSlideRecent;
  if (!slides || spec.recent > 0) return absl::OkStatus();
  return Meaningless(kThen, "SLIDE_RECENT slides the recent window, which is empty; use protect.recent of at least 1");
}

absl::Status CheckProtection(const ScorerRow& row, const ValidSpec& spec) {
  if (!spec.recent_follows_budget) EBB_TRY(CheckSlide(spec));
  if (!row.scored && !spec.recent_follows_budget && spec.recent == 0) {
    return Meaningless(kRecent, absl::StrFormat("the scorer %s keeps its newest tokens; use at least 1", row.name));
  }
  if (SmallestBudget(row, spec) > spec.budget_max) {
    const Protected by = ProtectionFor(row, spec, spec.budget_max);
    return RefuseField("BUDGET_TOO_LARGE", kProtect,
                       absl::StrFormat("sinks %d and recent %d need a budget above the largest, %d", by.sinks,
                                       by.recent, spec.budget_max));
  }
  return absl::OkStatus();
}

// What each field of the schedule belongs to.
absl::Status CheckSchedule(const PolicySpec& spec, const ValidSpec& valid) {
  const bool once = valid.schedule == Schedule::kOncePrompt;
  if (spec.every_n != 0 && valid.schedule != Schedule::kEveryN) {
    return Meaningless(kEveryNField, "only the schedule EVERY_N reads it; leave it out");
  }
  if (valid.schedule == Schedule::kEveryN && spec.every_n < 1) {
    return Meaningless(kEveryNField, "the schedule EVERY_N needs a number of steps, at least 1");
  }
  if (spec.then && !once) return Meaningless(kThen, "only the schedule ONCE_AFTER_PROMPT reads it; leave it out");
  if (spec.grow_max && !(once && valid.then == Then::kGrow)) {
    return Meaningless(kGrowMax, "only THEN_GROW after the schedule ONCE_AFTER_PROMPT reads it; leave it out");
  }
  return absl::OkStatus();
}

absl::Status CheckForms(const ScorerRow& row, const ValidSpec& valid) {
  const Needs needs = valid.scorer->needs();
  if (valid.modifier != Modifier::kNone && !row.non_negative) {
    return Meaningless(kModifier, absl::StrFormat("CAOTE weighs attention received, and the scorer %s does not score "
                                                  "by it; use a scorer that does, or no modifier",
                                                  row.name));
  }
  if (valid.scope == Scope::kLayer && row.lockstep) {
    return Meaningless(kScope,
                       absl::StrFormat("under the scorer %s all lanes keep the same tokens; leave it out", row.name));
  }
  if (valid.reduction != Reduction::kMean && !needs.attention()) {
    return Meaningless(
        kReduction,
        absl::StrFormat("the scorer %s does not go by what attention reports of each query head; leave it out",
                        row.name));
  }
  if (valid.reduction == Reduction::kL2 && valid.modifier == Modifier::kNone) {
    return Meaningless(kReduction, "L2 adds up output errors, which need a modifier; use MEAN or MAX");
  }
  return absl::OkStatus();
}

// The policy under a budget that has room, and the checks that only a known budget allows.
absl::StatusOr<ValidSpec> WithBudget(const ScorerRow& row, ValidSpec spec, int32_t budget) {
  spec.trigger.budget = budget;
  const Protected by = ProtectionFor(row, spec, budget);
  spec.sinks = by.sinks;
  spec.recent = by.recent;
  EBB_TRY(CheckSlide(spec));
  if (spec.grow_max_follows_budget) spec.grow_max = std::max(spec.grow_max, budget);
  if (spec.schedule == Schedule::kOncePrompt && spec.then == Then::kGrow && spec.grow_max < budget) {
    return RefuseField("BUDGET_TOO_SMALL", kGrowMax,
                       absl::StrFormat("%d is below the budget; use at least %d", spec.grow_max, budget));
  }
  return spec;
}

}  // namespace

absl::StatusOr<ValidSpec> Resolve(const PolicySpec& spec, const SpecLimits& limits) {
  const std::string name = spec.scorer.empty() ? "streaming" : spec.scorer;
  const ScorerRow* row = FindScorer(name);
  if (row == nullptr) return UnknownScorer("policy.scorer", name);
  const int32_t budget_max = std::min(limits.budget_max, kBudgetMax);
  EBB_ASSIGN(ScorerParameters parameters, ResolveParameters(*row, spec.parameters));
  EBB_TRY(CheckNumbers(spec, budget_max));
  if (!row->evicts) EBB_TRY(CheckUnevicted(*row, spec));
  EBB_ASSIGN(
      std::shared_ptr<const Scorer> scorer,
      MakeScorer(*row, parameters, limits.calibration == nullptr ? CalibrationMissing("") : *limits.calibration));

  ValidSpec valid = {
      .scorer_name = name,
      .parameters = parameters,
      .scorer = std::move(scorer),
      .evicts = row->evicts,
      .lockstep = row->lockstep,
      .trigger = {.budget = 0, .overflow = spec.overflow.value_or(1), .slack = spec.slack, .max_drop = spec.max_drop},
      .budget_ratio = spec.budget_ratio.value_or(0),
      .budget_max = budget_max,
      .sinks = spec.sinks.value_or(0),
      .recent = spec.recent.value_or(0),
      .sinks_follow_budget = !spec.sinks.has_value(),
      .recent_follows_budget = !spec.recent.has_value(),
      .query_heads = limits.query_heads,
      .positions = spec.positions.value_or(row->positions),
      .schedule = spec.schedule.value_or(row->schedule),
      .every_n = spec.every_n,
      .then = spec.then.value_or(row->then),
      .scope = spec.scope,
      .reduction = spec.reduction.value_or(row->reduction),
      .modifier = spec.modifier,
      .allocation = spec.allocation,
      .kv_type = spec.kv_type,
      .rope_cache = spec.rope_cache};
  EBB_CHECK(valid.scorer != nullptr);
  EBB_TRY(CheckSchedule(spec, valid));
  EBB_TRY(CheckForms(*row, valid));
  if (row->evicts) EBB_TRY(CheckProtection(*row, valid));
  if (valid.schedule == Schedule::kOncePrompt && valid.then == Then::kGrow) {
    valid.grow_max = spec.grow_max.value_or(std::min(limits.trained_context, budget_max));
    valid.grow_max_follows_budget = !spec.grow_max.has_value();
  }
  if (spec.budget_ratio) return valid;

  const int32_t budget = spec.budget.value_or(std::min(limits.trained_context, budget_max));
  EBB_TRY(CheckBudget(*row, valid, budget, kBudget));
  return WithBudget(*row, valid, budget);
}

absl::StatusOr<ValidSpec> FixBudget(const ValidSpec& spec, int32_t prompt_tokens) {
  EBB_CHECK(prompt_tokens >= 0);
  if (spec.trigger.budget > 0 || spec.budget_ratio == 0) return spec;
  const ScorerRow* row = FindScorer(spec.scorer_name);
  EBB_CHECK(row != nullptr);
  // 1e-9 is what rounding may take from a product that is whole on paper: 100 * 0.29 keeps its 29.
  const auto budget = static_cast<int32_t>(std::floor(prompt_tokens * spec.budget_ratio + 1e-9));
  EBB_TRY(CheckBudget(*row, spec, budget, kBudgetRatio));
  return WithBudget(*row, spec, budget);
}

}  // namespace ebb
