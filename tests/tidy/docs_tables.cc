// Prints the tables that scripts/docs makes reference pages of, as one JSON object: {"metrics": [rows], "policies":
// [ListPoliciesResponse for each of kBudgets], "models": [families], "formats": [tensor types]}.

#include <google/protobuf/util/json_util.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/model/architecture_table.h"
#include "engine/model/ggml_types.h"
#include "engine/model/hub_table.h"
#include "engine/model/quantization.h"
#include "policies/check.h"
#include "server/describe.h"
#include "server/metrics.h"

namespace ebb {
namespace {

using nlohmann::json;

constexpr int32_t kBudgets[] = {256, 1024};                       // examples; protection follows from the budget
constexpr LaneShape kLane = {.query_heads = 4, .head_dim = 128};  // and state from the model

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

// What ListPolicies answers for a model of kLane that was trained for `context` tokens.
json PoliciesJson(int32_t context) {
  const auto policies = DescribePolicies({.trained_context = context, .query_heads = kLane.query_heads}, kLane);
  EBB_CHECK(policies.ok());
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  EBB_CHECK(google::protobuf::util::MessageToJsonString(*policies, &text, options).ok());
  return json::parse(text);
}

json ModelJson(const ArchitectureRow& row) {
  json hub = json::array();
  for (const HubFamily& family : HubFamilies()) {
    if (family.architecture == row.name) hub.push_back(family.model_type);
  }
  constexpr std::string_view kPositions[] = {"rope", "learned", "alibi"};  // PositionKind
  return {{"name", row.name},
          {"models", row.models},
          {"hub", hub},
          {"positions", kPositions[static_cast<size_t>(row.positions)]},
          {"layer_norm", row.norm == NormKind::kLayer},
          {"windows", row.Reads(kWindowKey)},
          {"window_pattern", row.window_pattern},
          {"experts", row.Reads(kExpertsKey)}};
}

json Tables() {
  json tables = {{"metrics", json::array()}, {"policies", json::array()}};
  for (const ArchitectureRow& row : Architectures()) tables["models"].push_back(ModelJson(row));
  for (const GgmlType& type : GgmlTypes()) {
    if (!type.type) continue;
    const DType kept = WidenedType(*type.type);
    tables["formats"].push_back(
        {{"name", type.name},
         {"values", type.values},
         {"bytes", type.bytes},
         {"kept", TypeName(kept)},
         {"kept_bits", 8.0 * static_cast<double>(BlockBytes(kept)) / static_cast<double>(BlockValues(kept))}});
  }
  for (const MetricRow& row : MetricTable()) tables["metrics"].push_back(MetricJson(row));
  for (const int32_t budget : kBudgets) tables["policies"].push_back(PoliciesJson(budget));
  return tables;
}

}  // namespace
}  // namespace ebb

int main() { std::printf("%s\n", ebb::Tables().dump(1).c_str()); }
