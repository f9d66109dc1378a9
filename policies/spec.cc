#include "policies/spec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <ranges>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/allocation.h"
#include "policies/check.h"
#include "policies/registry.h"
#include "policies/shortest.h"
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
                       absl::StrFormat("%s is not above 0 and at most 1", Shortest(*spec.budget_ratio)));
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

struct Protection {
  int32_t sinks = 0;
  int32_t recent = 0;
};

// Who is protected under a budget: as given, or by the scorer's default.
Protection ProtectionFor(const ScorerRow& row, const ValidSpec& spec, int32_t budget) {
  Protection by = {.sinks = spec.sinks, .recent = spec.recent};
  if (spec.sinks_follow_budget) by.sinks = row.sinks == nullptr ? 0 : row.sinks(budget);
  if (spec.recent_follows_budget) {
    by.recent = DefaultRecent(row, spec.parameters, budget, by.sinks, spec.query_heads);
  }
  return by;
}

int32_t WholeOf(const ValidSpec& spec, const char* parameter) {
  return static_cast<int32_t>(spec.allocation_parameters.at(parameter));
}

// Tokens beside the protected that a budget must have room for: one to choose where the scorer has a choice, and a part
// for the last layer of a pyramid.
int32_t ChoiceFor(const ScorerRow& row, const ValidSpec& spec) {
  if (spec.allocation == Allocation::kPyramid) return WholeOf(spec, "beta");
  return row.scored ? 1 : 0;
}

// What a streaming head of duo keeps; a length limit leaves room for one token more, or nobody would stream.
int32_t StreamingRoom(const ScorerRow& row, const ValidSpec& spec) {
  if (spec.allocation != Allocation::kDuo) return 0;
  return WholeOf(spec, "sinks") + WholeOf(spec, "recent") + (row.evicts ? 0 : 1);
}

int32_t RoomFor(const ScorerRow& row, const ValidSpec& spec, int32_t budget) {
  const Protection by = ProtectionFor(row, spec, budget);
  return std::max(by.sinks + by.recent + ChoiceFor(row, spec), StreamingRoom(row, spec));
}

// The smallest budget with room, or budget_max + 1 when none has. A budget with room keeps it as it grows, so halving
// finds the first.
int32_t SmallestBudget(const ScorerRow& row, const ValidSpec& spec) {
  const auto budgets = std::views::iota(1, spec.budget_max + 1);
  const auto lacks_room = [&](int32_t budget) { return RoomFor(row, spec, budget) > budget; };
  return 1 + static_cast<int32_t>(std::ranges::partition_point(budgets, lacks_room) - budgets.begin());
}

absl::Status CheckBudget(const ScorerRow& row, const ValidSpec& spec, int32_t budget, const char* field) {
  const int32_t smallest = SmallestBudget(row, spec);
  if (budget < smallest) {
    const Protection by = ProtectionFor(row, spec, std::max(budget, 0));
    const int32_t choice = ChoiceFor(row, spec);
    const std::string room = choice == 0 ? "" : choice == 1 ? " + 1" : absl::StrFormat(" + beta %d", choice);
    std::string what = row.evicts ? absl::StrFormat("sinks %d + recent %d%s", by.sinks, by.recent, room) : "1";
    if (StreamingRoom(row, spec) > by.sinks + by.recent + choice) {
      what = absl::StrFormat("the %d tokens of a streaming head%s", WholeOf(spec, "sinks") + WholeOf(spec, "recent"),
                             row.evicts ? "" : " and one more");
    }
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
    const Protection by = ProtectionFor(row, spec, spec.budget_max);
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

absl::Status CheckAllocation(const ScorerRow& row, const ValidSpec& valid, const SpecLimits& limits) {
  if (valid.allocation == Allocation::kUniform) return absl::OkStatus();
  const bool by_heads = valid.allocation == Allocation::kAda || valid.allocation == Allocation::kDuo;
  const std::string field = absl::StrFormat("policy.%s", RowOf(valid.allocation).name);
  const auto meaningless = [&](const std::string& what) { return RefuseField("MEANINGLESS_COMBINATION", field, what); };
  if (row.lockstep && valid.allocation != Allocation::kDuo) {
    return meaningless(absl::StrFormat("under the scorer %s all lanes keep the same tokens; leave it out", row.name));
  }
  if (by_heads && valid.scope == Scope::kLayer) {
    return Meaningless(kScope, absl::StrFormat("LAYER keeps the same tokens in all heads of a layer, and %s gives them "
                                               "different budgets; use KV_HEAD",
                                               RowOf(valid.allocation).name));
  }
  switch (valid.allocation) {
    case Allocation::kUniform:
      return absl::OkStatus();
    case Allocation::kPyramid:
      return valid.layers > 1 ? absl::OkStatus() : meaningless("the model has one layer, which gets it all");
    case Allocation::kAda:
      if (valid.kv_heads < 2) return meaningless("a layer of the model has one KV head, which gets it all");
      if (valid.schedule != Schedule::kOncePrompt) {
        return Meaningless(kSchedule,
                           "heads share by their scores at the end of the prompt; use ONCE_AFTER_PROMPT, the default");
      }
      if (valid.reduction != Reduction::kUnion) return absl::OkStatus();
      return Meaningless(kReduction, "UNION ranks the tokens of each head alone, and heads share by scores; use MEAN");
    case Allocation::kDuo:
      return limits.head_gates.status();
  }
  return absl::OkStatus();
}

// How many tokens a conversation may have: as many as the prompt, where the policy waits for its end.
constexpr int32_t kNoEnd = std::numeric_limits<int32_t>::max();

// The policy with its budget shared among the lanes that have no window.
absl::StatusOr<ValidSpec> SharedByAllocation(ValidSpec spec, int32_t tokens) {
  if (spec.allocation == Allocation::kDuo) {
    const int32_t sinks = WholeOf(spec, "sinks");
    const int32_t recent = WholeOf(spec, "recent");
    for (const bool streams : spec.streams) {
      spec.lanes.push_back(streams
                               ? LaneRule{.budget = sinks + recent, .sinks = sinks, .recent = recent}
                               : LaneRule{.budget = spec.trigger.budget, .sinks = spec.sinks, .recent = spec.recent});
    }
  }
  if (spec.allocation != Allocation::kPyramid) return spec;
  const PyramidShape shape = {.layers = spec.layers,
                              .beta = WholeOf(spec, "beta"),
                              .exact_total = spec.allocation_parameters.at("exact_total") == 1};
  const int32_t kept = spec.sinks + spec.recent;
  const std::vector<int32_t> rooms = PyramidRooms(shape, spec.trigger.budget - kept, tokens - kept);
  if (kept + rooms.front() > spec.budget_max) {
    return RefuseField("BUDGET_TOO_LARGE", kBudget,
                       absl::StrFormat("%d gives the first layer of the pyramid %d, above the largest budget %d",
                                       spec.trigger.budget, kept + rooms.front(), spec.budget_max));
  }
  spec.lanes.reserve(rooms.size() * spec.kv_heads);
  for (const int32_t room : rooms) {
    spec.lanes.insert(spec.lanes.end(), spec.kv_heads,
                      {.budget = kept + room, .sinks = spec.sinks, .recent = spec.recent});
  }
  return spec;
}

// The policy with all lanes' budgets, but for those that wait for scores.
absl::StatusOr<ValidSpec> Shared(ValidSpec spec, int32_t tokens) {
  EBB_ASSIGN(spec, SharedByAllocation(std::move(spec), tokens));
  if (spec.evicts && !spec.lanes_follow_scores()) spec.lanes = WithWindows(spec, std::move(spec.lanes));
  return spec;
}

absl::StatusOr<Positions> PositionsFor(const ScorerRow& row, const PolicySpec& spec, const SpecLimits& limits) {
  if (limits.learned_positions == 0) return spec.positions.value_or(row.positions);
  if (spec.positions != Positions::kCompacted) return Positions::kOriginal;
  return Refuse(absl::StatusCode::kFailedPrecondition,
                "policy.positions: the model learned its positions, and what a cached token is holds where it stood; "
                "use ORIGINAL, or leave it out",
                {.reason = "POSITIONS_FIXED", .field = "policy.positions"});
}

// The policy under a budget that has room, and the checks that only a known budget allows. `tokens`: how many there may
// be, or that the prompt has, if it has ended.
absl::StatusOr<ValidSpec> WithBudget(const ScorerRow& row, ValidSpec spec, int32_t budget, int32_t tokens) {
  spec.trigger.budget = budget;
  const Protection by = ProtectionFor(row, spec, budget);
  spec.sinks = by.sinks;
  spec.recent = by.recent;
  EBB_TRY(CheckSlide(spec));
  if (spec.grow_max_follows_budget) spec.grow_max = std::max(spec.grow_max, budget);
  if (spec.schedule == Schedule::kOncePrompt && spec.then == Then::kGrow && spec.grow_max < budget) {
    return RefuseField("BUDGET_TOO_SMALL", kGrowMax,
                       absl::StrFormat("%d is below the budget; use at least %d", spec.grow_max, budget));
  }
  const bool waits = spec.schedule == Schedule::kOncePrompt && tokens == kNoEnd;
  return waits ? spec : Shared(spec, tokens);
}

}  // namespace

std::vector<LaneRule> WithWindows(const ValidSpec& spec, std::vector<LaneRule> lanes) {
  if (std::ranges::count(spec.windows, 0) == std::ssize(spec.windows)) return lanes;
  if (lanes.empty()) lanes.assign(static_cast<size_t>(spec.layers) * spec.kv_heads, spec.rule(0));
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    const int32_t window = spec.windows[lane / static_cast<size_t>(spec.kv_heads)];
    if (window > 0) lanes[lane] = {.budget = window, .sinks = 0, .recent = window};
  }
  return lanes;
}

absl::StatusOr<ValidSpec> Resolve(const PolicySpec& spec, const SpecLimits& limits) {
  const std::string name = spec.scorer.empty() ? "streaming" : spec.scorer;
  const ScorerRow* row = FindScorer(name);
  if (row == nullptr) return UnknownScorer("policy.scorer", name);
  const int32_t budget_max = std::min(limits.budget_max, kBudgetMax);
  EBB_ASSIGN(ScorerParameters parameters, ResolveParameters(*row, spec.parameters));
  const AllocationRow& allocation = RowOf(spec.allocation);
  EBB_ASSIGN(const ScorerParameters allocation_parameters,
             ResolveParameters(absl::StrFormat("allocation %s", allocation.name), allocation.name,
                               allocation.parameters, spec.allocation_parameters));
  EBB_TRY(CheckNumbers(spec, budget_max));
  if (!row->evicts) EBB_TRY(CheckUnevicted(*row, spec));
  EBB_ASSIGN(
      std::shared_ptr<const Scorer> scorer,
      MakeScorer(*row, parameters, limits.calibration == nullptr ? CalibrationMissing("") : *limits.calibration));

  EBB_ASSIGN(const Positions positions, PositionsFor(*row, spec, limits));
  ValidSpec valid = {
      .scorer_name = name,
      .parameters = parameters,
      .scorer = std::move(scorer),
      .evicts = row->evicts || spec.allocation == Allocation::kDuo,
      .bounded = !row->evicts,
      .lockstep = row->lockstep,
      .trigger = {.budget = 0, .overflow = spec.overflow.value_or(1), .slack = spec.slack, .max_drop = spec.max_drop},
      .budget_ratio = spec.budget_ratio.value_or(0),
      .budget_max = budget_max,
      .sinks = spec.sinks.value_or(0),
      .recent = spec.recent.value_or(0),
      .sinks_follow_budget = !spec.sinks.has_value(),
      .recent_follows_budget = !spec.recent.has_value(),
      .query_heads = limits.query_heads,
      .layers = limits.layers,
      .kv_heads = limits.kv_heads,
      .positions = positions,
      .schedule = spec.schedule.value_or(spec.allocation == Allocation::kAda ? Schedule::kOncePrompt : row->schedule),
      .every_n = spec.every_n,
      .then = spec.then.value_or(row->then),
      .scope = spec.scope,
      .reduction = spec.reduction.value_or(row->reduction),
      .modifier = spec.modifier,
      .allocation = spec.allocation,
      .allocation_parameters = allocation_parameters,
      .windows = limits.windows,
      .learned_positions = limits.learned_positions,
      .kv_type = spec.kv_type,
      .rope_cache = spec.rope_cache};
  EBB_CHECK(valid.scorer != nullptr);
  EBB_TRY(CheckSchedule(spec, valid));
  EBB_TRY(CheckForms(*row, valid));
  EBB_TRY(CheckAllocation(*row, valid, limits));
  if (valid.allocation == Allocation::kDuo) {
    valid.streams = StreamingHeads(**limits.head_gates, allocation_parameters.at("threshold"));
    EBB_CHECK(static_cast<int32_t>(valid.streams.size()) == valid.layers * valid.kv_heads);
  }
  if (row->evicts) EBB_TRY(CheckProtection(*row, valid));
  for (int32_t& window : valid.windows) window = std::min({window, limits.trained_context, budget_max});
  if (valid.schedule == Schedule::kOncePrompt && valid.then == Then::kGrow) {
    valid.grow_max = spec.grow_max.value_or(std::min(limits.trained_context, budget_max));
    valid.grow_max_follows_budget = !spec.grow_max.has_value();
  }
  if (spec.budget_ratio) return valid;

  const int32_t budget = spec.budget.value_or(std::min(limits.trained_context, budget_max));
  EBB_TRY(CheckBudget(*row, valid, budget, kBudget));
  return WithBudget(*row, valid, budget, kNoEnd);
}

absl::StatusOr<ValidSpec> FixBudget(const ValidSpec& spec, int32_t prompt_tokens) {
  EBB_CHECK(prompt_tokens >= 0);
  if (spec.trigger.budget > 0) return spec.lanes.empty() ? Shared(spec, prompt_tokens) : spec;
  const ScorerRow* row = FindScorer(spec.scorer_name);
  EBB_CHECK(row != nullptr);
  // 1e-9 is what rounding may take from a product that is whole on paper: 100 * 0.29 keeps its 29.
  const auto budget = static_cast<int32_t>(std::floor(prompt_tokens * spec.budget_ratio + 1e-9));
  EBB_TRY(CheckBudget(*row, spec, budget, kBudgetRatio));
  return WithBudget(*row, spec, budget, prompt_tokens);
}

void SettleAfterPrompt(ValidSpec& spec) {
  if (spec.schedule != Schedule::kOncePrompt) return;
  // What was selected and the sinks are the oldest budget - recent tokens, and stay; protecting them leaves the recent
  // window to slide.
  if (spec.then == Then::kSlideRecent) {
    spec.sinks = spec.trigger.budget - spec.recent;
    for (LaneRule& lane : spec.lanes) lane.sinks = lane.budget - lane.recent;
  }
  if (spec.then == Then::kGrow) spec.evicts = false;
}

}  // namespace ebb
