#include "engine/snapshot/policy_record.h"

#include <bit>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/hash_random.h"
#include "policies/registry.h"
#include "policies/status.h"

namespace ebb {
namespace {

// Of the weights that `calibrated` goes by; 0 for a scorer that goes by none.
uint64_t CalibrationHash(const ValidSpec& policy, const SpecLimits& limits) {
  const ScorerRow* const row = FindScorer(policy.scorer_name);
  if (row == nullptr || row->make_calibrated == nullptr) return 0;
  if (limits.calibration == nullptr || !limits.calibration->ok()) return 0;
  uint64_t hash = 1;
  const auto add = [&hash](const FeatureWeights& weights) {
    hash = HashBits(hash, 0, std::bit_cast<uint64_t>(weights.bias));
    for (const double weight : weights.weight) hash = HashBits(hash, 0, std::bit_cast<uint64_t>(weight));
  };
  for (const LaneWeights& lane : (**limits.calibration)->lanes) {
    add(lane.with_attention);
    add(lane.unseen);
  }
  return hash;
}

void WriteNumbers(const std::map<std::string, double>& numbers, SnapshotWriter& to) {
  to.Add(static_cast<uint32_t>(numbers.size()));
  for (const auto& [name, value] : numbers) {
    to.AddText(name);
    to.Add(value);
  }
}

std::map<std::string, double> ReadNumbers(RecordReader& from) {
  std::map<std::string, double> numbers;
  for (auto left = from.Read<uint32_t>(); left > 0; --left) {
    const std::string name = from.ReadText();
    if (name.empty()) break;  // what follows does not either
    numbers[name] = from.Read<double>();
  }
  return numbers;
}

// A choice between `count` values; beyond them it is the last, which `known` then tells.
template <typename Choice>
Choice ReadChoice(RecordReader& from, uint8_t count, bool& known) {
  const auto value = from.Read<uint8_t>();
  known = known && value < count;
  return static_cast<Choice>(value < count ? value : count - 1);
}

// What is written, in this order: the choices, and then the numbers.
struct Choices {
  std::string scorer = {};
  std::map<std::string, double> parameters = {};
  Positions positions = {};
  Schedule schedule = {};
  Then then = {};
  Scope scope = {};
  Reduction reduction = {};
  Modifier modifier = {};
  Allocation allocation = {};
  KvType kv_type = {};
  RopeCache rope_cache = {};
  std::map<std::string, double> allocation_parameters = {};
  bool evicts = false;
  bool sinks_follow_budget = false;
  bool recent_follows_budget = false;
  bool grow_max_follows_budget = false;
  uint64_t calibration = 0;
  bool known = true;
};

Choices ReadChoices(RecordReader& from) {
  Choices choices;
  bool& known = choices.known;
  choices.scorer = from.ReadText();
  choices.parameters = ReadNumbers(from);
  choices.positions = ReadChoice<Positions>(from, 2, known);
  choices.schedule = ReadChoice<Schedule>(from, 3, known);
  choices.then = ReadChoice<Then>(from, 3, known);
  choices.scope = ReadChoice<Scope>(from, 2, known);
  choices.reduction = ReadChoice<Reduction>(from, 4, known);
  choices.modifier = ReadChoice<Modifier>(from, 3, known);
  choices.allocation = ReadChoice<Allocation>(from, 4, known);
  choices.kv_type = ReadChoice<KvType>(from, 5, known);
  choices.rope_cache = ReadChoice<RopeCache>(from, 2, known);
  choices.allocation_parameters = ReadNumbers(from);
  choices.evicts = ReadChoice<bool>(from, 2, known);
  choices.sinks_follow_budget = ReadChoice<bool>(from, 2, known);
  choices.recent_follows_budget = ReadChoice<bool>(from, 2, known);
  choices.grow_max_follows_budget = ReadChoice<bool>(from, 2, known);
  choices.calibration = from.Read<uint64_t>();
  return choices;
}

// The numbers of a policy, into one that was resolved from its choices.
void ReadAmounts(RecordReader& from, ValidSpec& policy) {
  for (int32_t* const number :
       {&policy.trigger.budget, &policy.trigger.overflow, &policy.trigger.slack, &policy.trigger.max_drop,
        &policy.budget_max, &policy.sinks, &policy.recent, &policy.every_n, &policy.grow_max}) {
    *number = from.Read<int32_t>();
  }
  policy.budget_ratio = from.Read<double>();
  const std::vector<int32_t> lanes = from.ReadAll<int32_t>();
  policy.lanes.clear();
  for (size_t i = 0; i + 2 < lanes.size(); i += 3) {
    policy.lanes.push_back({.budget = lanes[i], .sinks = lanes[i + 1], .recent = lanes[i + 2]});
  }
  const std::vector<uint8_t> streams = from.ReadAll<uint8_t>();
  policy.streams.assign(streams.begin(), streams.end());
}

bool InRange(int32_t value, int32_t least) { return value >= least && value <= kBudgetMax; }

bool HasRoom(int32_t budget, int32_t sinks, int32_t recent) {
  return InRange(budget, 1) && InRange(sinks, 0) && InRange(recent, 0) && sinks + recent <= budget;
}

// What Resolve, FixBudget and the end of a prompt leave, whatever they were given.
absl::Status CheckAmounts(const ValidSpec& policy) {
  const auto refuse = [](const char* what) {
    return SnapshotDamaged(absl::StrFormat("the policy's %s is out of range", what));
  };
  const Trigger& trigger = policy.trigger;
  const bool waits = trigger.budget == 0;
  if (waits && !(policy.budget_ratio > 0 && policy.budget_ratio <= 1)) return refuse("budget");
  if (!(policy.budget_ratio >= 0 && policy.budget_ratio <= 1)) return refuse("budget_ratio");
  if (!waits && !HasRoom(trigger.budget, policy.sinks, policy.recent)) return refuse("budget");
  if (waits && !(InRange(policy.sinks, 0) && InRange(policy.recent, 0))) return refuse("protection");
  if (!InRange(trigger.overflow, 1) || !InRange(trigger.slack, 0) || !InRange(trigger.max_drop, 0)) {
    return refuse("trigger");
  }
  if (!InRange(policy.budget_max, 1) || !InRange(policy.grow_max, 0)) return refuse("limit");
  if (!InRange(policy.every_n, policy.schedule == Schedule::kEveryN ? 1 : 0)) return refuse("every_n");
  const auto lanes = static_cast<size_t>(policy.layers) * policy.kv_heads;
  if (!policy.lanes.empty() && (policy.lanes.size() != lanes || waits)) return refuse("list of lanes");
  for (const LaneRule& lane : policy.lanes) {
    if (!HasRoom(lane.budget, lane.sinks, lane.recent)) return refuse("lane");
  }
  if (policy.streams.size() != (policy.allocation == Allocation::kDuo ? lanes : 0)) return refuse("list of heads");
  // A pyramid that is yet to be built has something to share.
  const bool builds = policy.allocation == Allocation::kPyramid && policy.lanes.empty() && !waits;
  if (builds && policy.trigger.budget - policy.sinks - policy.recent < 1) return refuse("budget");
  return absl::OkStatus();
}

// The choices as a caller would write them. What the budget is comes later, so that there is none yet; where there must
// be one, it is given.
PolicySpec SpecFrom(const Choices& choices, bool evicts, const ValidSpec& amounts) {
  PolicySpec spec = {.scorer = choices.scorer,
                     .parameters = choices.parameters,
                     .positions = choices.positions,
                     .allocation = choices.allocation,
                     .allocation_parameters = choices.allocation_parameters,
                     .kv_type = choices.kv_type,
                     .rope_cache = choices.rope_cache};
  if (!evicts) {
    spec.budget = amounts.trigger.budget;
    return spec;
  }
  spec.budget_ratio = 1;
  if (!choices.recent_follows_budget) spec.recent = amounts.recent;
  spec.schedule = choices.schedule;
  if (choices.schedule == Schedule::kEveryN) spec.every_n = amounts.every_n;
  if (choices.schedule == Schedule::kOncePrompt) spec.then = choices.then;
  spec.scope = choices.scope;
  spec.reduction = choices.reduction;
  spec.modifier = choices.modifier;
  return spec;
}

}  // namespace

void WritePolicy(const ValidSpec& policy, const SpecLimits& limits, SnapshotWriter& to) {
  to.Begin(RecordKind::kPolicy);
  to.AddText(policy.scorer_name);
  WriteNumbers(policy.parameters, to);
  for (const int choice :
       {static_cast<int>(policy.positions), static_cast<int>(policy.schedule), static_cast<int>(policy.then),
        static_cast<int>(policy.scope), static_cast<int>(policy.reduction), static_cast<int>(policy.modifier),
        static_cast<int>(policy.allocation), static_cast<int>(policy.kv_type), static_cast<int>(policy.rope_cache)}) {
    to.Add(static_cast<uint8_t>(choice));
  }
  WriteNumbers(policy.allocation_parameters, to);
  for (const bool fact :
       {policy.evicts, policy.sinks_follow_budget, policy.recent_follows_budget, policy.grow_max_follows_budget}) {
    to.Add(uint8_t{fact});
  }
  to.Add(CalibrationHash(policy, limits));
  for (const int32_t number :
       {policy.trigger.budget, policy.trigger.overflow, policy.trigger.slack, policy.trigger.max_drop,
        policy.budget_max, policy.sinks, policy.recent, policy.every_n, policy.grow_max}) {
    to.Add(number);
  }
  to.Add(policy.budget_ratio);
  std::vector<int32_t> lanes;
  for (const LaneRule& lane : policy.lanes) lanes.insert(lanes.end(), {lane.budget, lane.sinks, lane.recent});
  to.AddAll(std::span<const int32_t>(lanes));
  const std::vector<uint8_t> streams(policy.streams.begin(), policy.streams.end());
  to.AddAll(std::span<const uint8_t>(streams));
}

absl::StatusOr<ValidSpec> ReadPolicy(const SnapshotRecord& record, const SpecLimits& limits) {
  RecordReader from(record.payload);
  const Choices choices = ReadChoices(from);
  ValidSpec amounts;
  ReadAmounts(from, amounts);
  EBB_TRY(from.Finish("policy"));
  if (!choices.known) return SnapshotDamaged("the policy makes a choice that there is not");
  const ScorerRow* const row = FindScorer(choices.scorer);
  if (row == nullptr) return UnknownScorer("policy.scorer", choices.scorer);
  auto resolved = Resolve(SpecFrom(choices, row->evicts, amounts), limits);
  if (absl::IsInvalidArgument(resolved.status())) {
    return SnapshotDamaged("its policy is none: " + std::string(resolved.status().message()));
  }
  EBB_ASSIGN(ValidSpec policy, std::move(resolved));
  if (CalibrationHash(policy, limits) != choices.calibration) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  "the snapshot's policy goes by another calibration of the model than this server has",
                  {.reason = "SNAPSHOT_FOREIGN", .field = "policy.scorer"});
  }
  const bool grew = policy.schedule == Schedule::kOncePrompt && policy.then == Then::kGrow;
  if (choices.evicts != policy.evicts && !(grew && policy.evicts)) {
    return SnapshotDamaged("its policy evicts where its scorer does not, or the other way round");
  }
  policy.evicts = choices.evicts;
  policy.sinks_follow_budget = choices.sinks_follow_budget;
  policy.recent_follows_budget = choices.recent_follows_budget;
  policy.grow_max_follows_budget = choices.grow_max_follows_budget;
  policy.trigger = amounts.trigger;
  policy.budget_ratio = amounts.budget_ratio;
  policy.budget_max = amounts.budget_max;
  policy.sinks = amounts.sinks;
  policy.recent = amounts.recent;
  policy.every_n = amounts.every_n;
  policy.grow_max = amounts.grow_max;
  policy.lanes = std::move(amounts.lanes);
  policy.streams = std::move(amounts.streams);
  EBB_TRY(CheckAmounts(policy));
  return policy;
}

}  // namespace ebb
