#include "server/experiment_spec.h"

#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/shortest.h"
#include "policies/status.h"
#include "server/resource_name.h"

namespace ebb {
namespace {

constexpr int kArmsMax = 8;
constexpr double kMarginMax = 1e15;

static_assert(v1::ExperimentMetric_MAX == static_cast<int>(kTrialMetrics));
static_assert(v1::EXPERIMENT_METRIC_THUMBS == static_cast<int>(TrialMetric::kThumbs) + 1);
static_assert(v1::EXPERIMENT_METRIC_RESERVED_BYTES == static_cast<int>(TrialMetric::kReservedBytes) + 1);

absl::Status CheckName(const std::string& field, const std::string& name, const std::string& whose) {
  if (IsResourceName(name)) return absl::OkStatus();
  return RefuseField("INVALID_NAME", field, absl::StrFormat("%s is %s", whose, kResourceNamePattern));
}

absl::StatusOr<ExperimentArm> ArmFrom(const v1::ExperimentArm& proto) {
  ExperimentArm arm = {.name = proto.name(), .told_policy = proto.policy().SerializeAsString()};
  EBB_TRY(CheckName("name", arm.name, "an arm's name"));
  if (proto.has_weight()) {
    EBB_TRY(CheckRange("weight", proto.weight(), 1, 1000));
    arm.weight = static_cast<int32_t>(proto.weight());
  }
  return arm;
}

absl::Status ArmsFrom(const v1::ExperimentSpec& proto, ExperimentSpec& spec) {
  if (proto.arms_size() < 2)
    return RefuseField("MISSING", "arms", "two arms at least are needed; the first is the control");
  EBB_TRY(CheckRange("arms", proto.arms_size(), 2, kArmsMax));
  std::set<std::string> names;
  for (int i = 0; i < proto.arms_size(); ++i) {
    auto arm = ArmFrom(proto.arms(i));
    const std::string field = absl::StrFormat("arms[%d]", i);
    if (!arm.ok()) return AtField(field, arm.status());
    if (!names.insert(arm->name).second) {
      return RefuseField("ARMS_ALIKE", field + ".name", absl::StrFormat("another arm is called '%s'", arm->name));
    }
    spec.arms.push_back(*std::move(arm));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExperimentSpec> SpecFrom(const v1::ExperimentSpec& proto) {
  ExperimentSpec spec = {.name = proto.name(), .tenant = proto.tenant()};
  EBB_TRY(CheckName("name", spec.name, "an experiment's id"));
  if (!spec.tenant.empty() && !IsResourceName(spec.tenant)) {
    return RefuseField("INVALID_TENANT", "tenant", absl::StrFormat("a tenant's name is %s", kResourceNamePattern));
  }
  EBB_TRY(ArmsFrom(proto, spec));
  if (proto.has_ramp()) {
    EBB_TRY(CheckRange("ramp", proto.ramp(), 0, 1));
    spec.ramp = proto.ramp();
  }
  EBB_TRY(CheckTextBytes("salt", proto.salt()));
  spec.salt = proto.salt().empty() ? spec.name : proto.salt();
  if (!v1::ExperimentMetric_IsValid(proto.metric())) {
    return RefuseField("UNKNOWN_ENUM_VALUE", "metric",
                       absl::StrFormat("%d is no metric of this server", proto.metric()));
  }
  if (proto.metric() != v1::EXPERIMENT_METRIC_UNSPECIFIED) {
    spec.metric = static_cast<TrialMetric>(proto.metric() - 1);
  }
  EBB_TRY(CheckRange("margin", proto.margin(), 0, kMarginMax));
  spec.margin = proto.margin();
  if (proto.has_alpha()) spec.alpha = proto.alpha();
  EBB_TRY(CheckRange("alpha", spec.alpha, 0.0001, 0.5));
  if (proto.has_units_min()) spec.units_min = proto.units_min();
  EBB_TRY(CheckRange("units_min", static_cast<double>(spec.units_min), 20, 1e6));
  if (proto.has_units_planned()) spec.units_planned = proto.units_planned();
  EBB_TRY(CheckRange("units_planned", static_cast<double>(spec.units_planned), 100, 1e8));
  return spec;
}

absl::Status CheckRange(const std::string& field, double value, double min, double max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return RefuseField("OUT_OF_RANGE", field, absl::StrFormat("%s is not in [%g, %g]", Shortest(value), min, max));
}

absl::Status CheckTextBytes(const std::string& field, const std::string& text) {
  if (text.size() <= kExperimentTextBytesMax) return absl::OkStatus();
  return RefuseField("TOO_LONG", field, absl::StrFormat("%d bytes; at most %d", text.size(), kExperimentTextBytesMax));
}

v1::ExperimentMetric MetricProto(TrialMetric metric) {
  return static_cast<v1::ExperimentMetric>(static_cast<int>(metric) + 1);  // after UNSPECIFIED
}

}  // namespace ebb
