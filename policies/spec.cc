#include "policies/spec.h"

#include <algorithm>
#include <cmath>
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

absl::Status UnknownScorer(const std::string& name) {
  std::string known;
  for (const ScorerRow& row : ScorerRegistry()) {
    known += absl::StrFormat("%s%s", known.empty() ? "" : ", ", row.name);
  }
  const std::string field = "policy.scorer";
  return Refuse(absl::StatusCode::kNotFound, absl::StrFormat("%s: no scorer named '%s'; use %s", field, name, known),
                {.reason = "UNKNOWN_SCORER", .field = field});
}

// The numbers on their own, before anything is computed from them.
absl::Status CheckNumbers(const PolicySpec& spec, int32_t budget_max) {
  const std::pair<const char*, int32_t> counts[] = {{kOverflow, spec.overflow.value_or(1)},
                                                    {kSlack, spec.slack},
                                                    {kMaxDrop, spec.max_drop},
                                                    {kSinks, spec.sinks.value_or(0)},
                                                    {kRecent, spec.recent.value_or(0)}};
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
  const std::pair<const char*, bool> given[] = {{kBudgetRatio, spec.budget_ratio.has_value()},
                                                {kOverflow, spec.overflow.has_value()},
                                                {kSlack, spec.slack != 0},
                                                {kMaxDrop, spec.max_drop != 0},
                                                {kSinks, spec.sinks.has_value()},
                                                {kRecent, spec.recent.has_value()}};
  for (const auto& [field, is_given] : given) {
    if (is_given) {
      return RefuseField("MEANINGLESS_COMBINATION", field,
                         absl::StrFormat("the scorer %s never evicts; leave it out", row.name));
    }
  }
  return absl::OkStatus();
}

int32_t RecentFor(const ScorerRow& row, const ValidSpec& spec, int32_t budget) {
  if (!spec.recent_follows_budget) return spec.recent;
  return row.recent == nullptr ? 0 : row.recent(budget, spec.sinks);
}

// Tokens that a budget must have room for: who is protected, and one to choose where the scorer has a choice.
int32_t RoomFor(const ScorerRow& row, const ValidSpec& spec, int32_t budget) {
  return spec.sinks + RecentFor(row, spec, budget) + (row.scored ? 1 : 0);
}

// The smallest budget with room, or some number above budget_max when none has. Climbs to the least fixed point of
// RoomFor, which never falls as the budget grows; ends because each turn climbs.
int32_t SmallestBudget(const ScorerRow& row, const ValidSpec& spec) {
  int32_t budget = 1;
  while (budget <= spec.budget_max && RoomFor(row, spec, budget) > budget) budget = RoomFor(row, spec, budget);
  return budget;
}

absl::Status CheckBudget(const ScorerRow& row, const ValidSpec& spec, int32_t budget, const char* field) {
  const int32_t smallest = row.evicts ? SmallestBudget(row, spec) : 1;
  if (budget < smallest) {
    const std::string what = row.evicts
                                 ? absl::StrFormat("sinks %d + recent %d%s", spec.sinks,
                                                   RecentFor(row, spec, std::max(budget, 0)), row.scored ? " + 1" : "")
                                 : "1";
    return RefuseField("BUDGET_TOO_SMALL", field,
                       absl::StrFormat("%d is below %s; use at least %d", budget, what, smallest));
  }
  if (budget > spec.budget_max) {
    return RefuseField("BUDGET_TOO_LARGE", field,
                       absl::StrFormat("%d is above the largest budget %d", budget, spec.budget_max));
  }
  return absl::OkStatus();
}

absl::Status CheckProtection(const ScorerRow& row, const ValidSpec& spec) {
  if (!row.scored && !spec.recent_follows_budget && spec.recent == 0) {
    return RefuseField("MEANINGLESS_COMBINATION", kRecent,
                       absl::StrFormat("the scorer %s keeps its newest tokens; use at least 1", row.name));
  }
  if (SmallestBudget(row, spec) > spec.budget_max) {
    return RefuseField("BUDGET_TOO_LARGE", kProtect,
                       absl::StrFormat("sinks %d and recent %d need a budget above the largest, %d", spec.sinks,
                                       RecentFor(row, spec, spec.budget_max), spec.budget_max));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ValidSpec> Resolve(const PolicySpec& spec, const SpecLimits& limits) {
  const std::string name = spec.scorer.empty() ? "streaming" : spec.scorer;
  const ScorerRow* row = FindScorer(name);
  if (row == nullptr) return UnknownScorer(name);
  const int32_t budget_max = std::min(limits.budget_max, kBudgetMax);
  EBB_ASSIGN(ScorerParameters parameters, ResolveParameters(*row, spec.parameters));
  EBB_TRY(CheckNumbers(spec, budget_max));
  if (!row->evicts) EBB_TRY(CheckUnevicted(*row, spec));

  ValidSpec valid = {
      .scorer_name = name,
      .parameters = parameters,
      .scorer = row->make(parameters),
      .evicts = row->evicts,
      .lockstep = row->lockstep,
      .trigger = {.budget = 0, .overflow = spec.overflow.value_or(1), .slack = spec.slack, .max_drop = spec.max_drop},
      .budget_ratio = spec.budget_ratio.value_or(0),
      .budget_max = budget_max,
      .sinks = spec.sinks.value_or(row->sinks),
      .recent = spec.recent.value_or(0),
      .recent_follows_budget = !spec.recent.has_value(),
      .positions = spec.positions.value_or(row->positions),
      .schedule = spec.schedule,
      .modifier = spec.modifier,
      .allocation = spec.allocation,
      .kv_type = spec.kv_type,
      .rope_cache = spec.rope_cache};
  EBB_CHECK(valid.scorer != nullptr);
  if (row->evicts) EBB_TRY(CheckProtection(*row, valid));
  if (spec.budget_ratio) return valid;

  const int32_t budget = spec.budget.value_or(std::min(limits.trained_context, budget_max));
  EBB_TRY(CheckBudget(*row, valid, budget, kBudget));
  valid.trigger.budget = budget;
  valid.recent = RecentFor(*row, valid, budget);
  return valid;
}

absl::StatusOr<ValidSpec> FixBudget(const ValidSpec& spec, int32_t prompt_tokens) {
  EBB_CHECK(prompt_tokens >= 0);
  if (spec.trigger.budget > 0 || spec.budget_ratio == 0) return spec;
  const ScorerRow* row = FindScorer(spec.scorer_name);
  EBB_CHECK(row != nullptr);
  // 1e-9 is what rounding may take from a product that is whole on paper: 100 * 0.29 keeps its 29.
  const auto budget = static_cast<int32_t>(std::floor(prompt_tokens * spec.budget_ratio + 1e-9));
  EBB_TRY(CheckBudget(*row, spec, budget, kBudgetRatio));
  ValidSpec fixed = spec;
  fixed.trigger.budget = budget;
  fixed.recent = RecentFor(*row, spec, budget);
  return fixed;
}

}  // namespace ebb
