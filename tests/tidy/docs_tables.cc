// Prints the tables that scripts/docs makes reference pages of, as one JSON object: {"metrics": [...], "policies":
// [...]}.

#include <cstdio>
#include <nlohmann/json.hpp>

#include "policies/check.h"
#include "policies/registry.h"
#include "policies/spec.h"
#include "server/metrics.h"

namespace ebb {
namespace {

using nlohmann::json;

constexpr int32_t kBudgets[] = {256, 1024};  // examples; protection may follow from the budget

const char* KindName(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kGauge:
      return "gauge";
    case MetricKind::kHistogram:
      return "histogram";
  }
  return "";
}

json MetricJson(const MetricRow& row) {
  return {{"name", row.name},
          {"kind", KindName(row.kind)},
          {"unit", row.unit},
          {"labels", row.labels},
          {"buckets", std::vector<double>(row.buckets.begin(), row.buckets.end())},
          {"help", row.help}};
}

ValidSpec Defaults(const ScorerRow& row, int32_t budget) {
  const absl::StatusOr<ValidSpec> spec = Resolve({.scorer = std::string(row.name), .budget = budget}, {});
  EBB_CHECK(spec.ok());
  return *spec;
}

int32_t SmallestBudget(const ScorerRow& row) {
  int32_t budget = 1;
  while (!Resolve({.scorer = std::string(row.name), .budget = budget}, {}).ok()) ++budget;
  return budget;
}

json ObservationsJson(const Needs& needs) {
  json names = json::array();
  if (needs.column_sums) names.push_back("column_sums");
  if (needs.last_row) names.push_back("last_row");
  if (needs.window_rows > 0) names.push_back("window");
  if (needs.queries) names.push_back("queries");
  if (needs.probes) names.push_back("probes");
  if (needs.memory) names.push_back("keys and values");
  return names;
}

std::string ScheduleText(const ValidSpec& spec) {
  if (spec.schedule != Schedule::kOncePrompt) return "after every block and step";
  switch (spec.then) {
    case Then::kSame:
      return "once after the prompt, then after every step";
    case Then::kSlideRecent:
      return "once after the prompt, then the recent window slides";
    case Then::kGrow:
      return "once after the prompt, then the cache grows";
  }
  return "";
}

json ScorerJson(const ScorerRow& row) {
  json parameters = json::array();
  for (const ParameterRow& each : row.parameters) {
    parameters.push_back(
        {{"name", each.name}, {"help", each.help}, {"default", each.preset}, {"min", each.min}, {"max", each.max}});
    parameters.back()["choices"] = std::vector<std::string>(each.choices.begin(), each.choices.end());
  }
  json protection = json::array();
  for (const int32_t budget : kBudgets) {
    const ValidSpec spec = Defaults(row, budget);
    protection.push_back({{"budget", budget}, {"sinks", spec.sinks}, {"recent", spec.recent}});
  }
  const ValidSpec spec = Defaults(row, kBudgets[0]);
  const Needs needs = spec.scorer->needs();
  return {{"name", row.name},
          {"summary", row.summary},
          {"paper", row.paper},
          {"evicts", row.evicts},
          {"safe_across_turns", row.safe_across_turns},
          {"takes_modifiers", row.non_negative},
          {"schedule", ScheduleText(spec)},
          {"positions", spec.positions == Positions::kCompacted ? "compacted" : "original"},
          {"observations", ObservationsJson(needs)},
          {"state_bytes_per_slot", needs.state_floats * sizeof(float)},
          {"smallest_budget", SmallestBudget(row)},
          {"protection", protection},
          {"parameters", parameters}};
}

json Tables() {
  json tables = {{"metrics", json::array()}, {"policies", json::array()}};
  for (const MetricRow& row : MetricTable()) tables["metrics"].push_back(MetricJson(row));
  for (const ScorerRow& row : ScorerRegistry()) tables["policies"].push_back(ScorerJson(row));
  return tables;
}

}  // namespace
}  // namespace ebb

int main() { std::printf("%s\n", ebb::Tables().dump(1).c_str()); }
