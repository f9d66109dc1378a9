#include "server/describe.h"

#include <string>

#include "policies/registry.h"
#include "policies/status.h"
#include "server/reply.h"

namespace ebb {
namespace {

template <typename Description>
void Tell(std::string_view name, const About& about, Description& proto) {
  proto.set_name(std::string(name));
  proto.set_summary(std::string(about.summary));
  proto.set_when(std::string(about.when));
  proto.set_equation(std::string(about.equation));
  proto.set_origin(std::string(about.origin));
  proto.set_paper(std::string(about.paper));
  proto.set_cost(std::string(about.cost));
  proto.set_turns(std::string(about.turns));
}

template <typename Description>
void TellParameters(std::span<const ParameterRow> rows, Description& proto) {
  for (const ParameterRow& row : rows) {
    v1::ParameterDescription& parameter = *proto.add_parameters();
    parameter.set_name(std::string(row.name));
    parameter.set_help(std::string(row.help));
    parameter.set_default_(row.preset);
    parameter.set_min(row.min);
    parameter.set_max(row.max);
    parameter.set_whole(row.whole);
    parameter.set_odd(row.odd);
    for (const std::string_view choice : row.choices) parameter.add_choices(std::string(choice));
  }
}

template <typename Description>
void TellNeeds(const Needs& needs, Description& proto) {
  if (needs.column_sums) proto.add_observations("column_sums");
  if (needs.last_row) proto.add_observations("last_row");
  if (needs.window_rows > 0) proto.add_observations("window");
  if (needs.probes) proto.add_observations("probes");
  if (needs.queries) proto.add_observations("queries");
  if (needs.memory) proto.add_observations("keys_values");
}

// Resolve's refusals end once there is room, and a budget of kBudgetMax has it.
uint32_t SmallestBudget(const ScorerRow& row, int32_t query_heads) {
  PolicySpec spec = {.scorer = std::string(row.name), .budget = 1};
  while (!Resolve(spec, {.query_heads = query_heads, .calibration = &BlankCalibration()}).ok()) ++*spec.budget;
  return static_cast<uint32_t>(*spec.budget);
}

v1::ScorerDescription DescribeScorer(const ScorerRow& row, const ValidSpec& defaults, const LaneShape& lane) {
  v1::ScorerDescription proto;
  Tell(row.name, row.about, proto);
  proto.set_evicts(row.evicts);
  proto.set_safe_across_turns(row.safe_across_turns);
  proto.set_takes_modifiers(row.evicts && row.non_negative);
  proto.set_budget_min(SmallestBudget(row, lane.query_heads));
  const Needs needs = defaults.scorer->needs();
  TellNeeds(needs, proto);
  const auto bytes = sizeof(float) * static_cast<size_t>(defaults.heads_apart() ? lane.query_heads : 1);
  proto.set_state_bytes_per_slot(static_cast<uint32_t>(bytes * static_cast<size_t>(needs.state_floats)));
  proto.set_state_bytes_per_lane(bytes * static_cast<size_t>(defaults.scorer->lane_floats(lane)));
  *proto.mutable_defaults() = PolicyProto(defaults);
  TellParameters(row.parameters, proto);
  return proto;
}

}  // namespace

absl::StatusOr<v1::ListPoliciesResponse> DescribePolicies(const SpecLimits& limits, const LaneShape& lane) {
  v1::ListPoliciesResponse proto;
  // What a policy needs and defaults to does not hang on what was learned of the model.
  SpecLimits described = limits;
  described.calibration = &BlankCalibration();
  for (const ScorerRow& row : ScorerRegistry()) {
    EBB_ASSIGN(const ValidSpec defaults, Resolve({.scorer = std::string(row.name)}, described));
    *proto.add_scorers() = DescribeScorer(row, defaults, lane);
  }
  for (const ModifierRow& row : ModifierRegistry()) {
    v1::ModifierDescription& modifier = *proto.add_modifiers();
    Tell(row.name, row.about, modifier);
    TellNeeds(row.needs, modifier);
  }
  for (const AllocationRow& row : AllocationRegistry()) {
    v1::AllocationDescription& allocation = *proto.add_allocations();
    Tell(row.name, row.about, allocation);
    TellParameters(row.parameters, allocation);
  }
  return proto;
}

}  // namespace ebb
