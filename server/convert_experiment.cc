#include "server/convert_experiment.h"

#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/convert.h"
#include "server/reply.h"
#include "server/resource_name.h"

namespace ebb {
namespace {

constexpr char kExperiments[] = "experiments/";
constexpr int kArmsMax = 8;
constexpr size_t kTextBytesMax = 128;  // of a salt, and of a request_id
constexpr double kMarginMax = 1e15;

absl::Status OutOfRange(const std::string& field, double value, double min, double max) {
  return RefuseField("OUT_OF_RANGE", field, absl::StrFormat("%g is not in [%g, %g]", value, min, max));
}

// NaN is in no range.
absl::Status CheckRange(const std::string& field, double value, double min, double max) {
  return value >= min && value <= max ? absl::OkStatus() : OutOfRange(field, value, min, max);
}

absl::Status CheckName(const std::string& field, const std::string& name, const std::string& whose) {
  if (IsResourceName(name)) return absl::OkStatus();
  return RefuseField("INVALID_NAME", field, absl::StrFormat("%s is %s", whose, kResourceNamePattern));
}

absl::Status CheckBytes(const std::string& field, const std::string& text) {
  if (text.size() <= kTextBytesMax) return absl::OkStatus();
  return RefuseField("TOO_LONG", field, absl::StrFormat("%d bytes; at most %d", text.size(), kTextBytesMax));
}

absl::StatusOr<ExperimentArm> ArmFrom(const v1::ExperimentArm& proto, const SpecLimits& limits) {
  ExperimentArm arm = {.name = proto.name()};
  EBB_TRY(CheckName("name", arm.name, "an arm's name"));
  if (proto.has_weight()) {
    EBB_TRY(CheckRange("weight", proto.weight(), 1, 1000));
    arm.weight = static_cast<int32_t>(proto.weight());
  }
  EBB_ASSIGN(arm.policy, ValidPolicyFrom(proto.policy(), limits));
  return arm;
}

absl::Status ArmsFrom(const v1::ExperimentSpec& proto, const SpecLimits& limits, ExperimentSpec& spec) {
  if (proto.arms_size() < 2)
    return RefuseField("MISSING", "arms", "two arms at least are needed; the first is the control");
  EBB_TRY(CheckRange("arms", proto.arms_size(), 2, kArmsMax));
  std::set<std::string> names;
  for (int i = 0; i < proto.arms_size(); ++i) {
    auto arm = ArmFrom(proto.arms(i), limits);
    const std::string field = absl::StrFormat("arms[%d]", i);
    if (!arm.ok()) return AtField(field, arm.status());
    if (!names.insert(arm->name).second) {
      return RefuseField("ARMS_ALIKE", field + ".name", absl::StrFormat("another arm is called '%s'", arm->name));
    }
    spec.arms.push_back(*std::move(arm));
  }
  return absl::OkStatus();
}

absl::StatusOr<ExperimentSpec> SpecFrom(const v1::ExperimentSpec& proto, const SpecLimits& limits) {
  ExperimentSpec spec = {.name = proto.name(), .tenant = proto.tenant()};
  EBB_TRY(CheckName("name", spec.name, "an experiment's id"));
  if (!spec.tenant.empty() && !IsResourceName(spec.tenant)) {
    return RefuseField("INVALID_TENANT", "tenant", absl::StrFormat("a tenant's name is %s", kResourceNamePattern));
  }
  EBB_TRY(ArmsFrom(proto, limits, spec));
  if (proto.has_ramp()) {
    EBB_ASSIGN(spec.ramp, RampFrom(proto.ramp(), "ramp"));
  }
  EBB_TRY(CheckBytes("salt", proto.salt()));
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

v1::ExperimentMetric MetricProto(TrialMetric metric) {
  return static_cast<v1::ExperimentMetric>(static_cast<int>(metric) + 1);  // after UNSPECIFIED
}
static_assert(v1::ExperimentMetric_MAX == static_cast<int>(kTrialMetrics));
static_assert(v1::EXPERIMENT_METRIC_THUMBS == static_cast<int>(TrialMetric::kThumbs) + 1);
static_assert(v1::EXPERIMENT_METRIC_RESERVED_BYTES == static_cast<int>(TrialMetric::kReservedBytes) + 1);

v1::ExperimentDecision DecisionProto(Verdict verdict) {
  switch (verdict) {
    case Verdict::kBroken:
      return v1::EXPERIMENT_DECISION_BROKEN_SAMPLE_RATIO;
    case Verdict::kCollecting:
      return v1::EXPERIMENT_DECISION_COLLECTING;
    case Verdict::kSame:
      return v1::EXPERIMENT_DECISION_NO_DIFFERENCE;
    case Verdict::kBetter:
      return v1::EXPERIMENT_DECISION_FAVOURS_ARM;
    case Verdict::kWorse:
      return v1::EXPERIMENT_DECISION_FAVOURS_CONTROL;
  }
  return v1::EXPERIMENT_DECISION_UNSPECIFIED;
}

v1::ExperimentSpec SpecProto(const ExperimentSpec& spec) {
  v1::ExperimentSpec proto;
  proto.set_name(spec.name);
  proto.set_tenant(spec.tenant);
  for (const ExperimentArm& arm : spec.arms) {
    v1::ExperimentArm& arm_proto = *proto.add_arms();
    arm_proto.set_name(arm.name);
    arm_proto.set_weight(static_cast<uint32_t>(arm.weight));
    *arm_proto.mutable_policy() = PolicyProto(arm.policy);
  }
  proto.set_ramp(spec.ramp);
  proto.set_salt(spec.salt);
  proto.set_metric(MetricProto(spec.metric));
  proto.set_margin(spec.margin);
  proto.set_alpha(spec.alpha);
  proto.set_units_min(static_cast<uint32_t>(spec.units_min));
  proto.set_units_planned(static_cast<uint32_t>(spec.units_planned));
  return proto;
}

void FillInterval(const Interval& interval, v1::ConfidenceInterval& proto) {
  proto.set_low(interval.low);
  proto.set_high(interval.high);
}

v1::MetricResults MetricProto(TrialMetric metric, const MetricResult& result) {
  v1::MetricResults proto;
  proto.set_metric(MetricProto(metric));
  proto.set_units(static_cast<uint64_t>(result.estimate->units));
  proto.set_estimate(result.estimate->value);
  proto.set_standard_error(std::sqrt(result.estimate->variance));
  if (result.interval) FillInterval(*result.interval, *proto.mutable_interval());
  if (result.effect) {
    proto.set_difference(result.effect->value);
    FillInterval(result.effect->interval, *proto.mutable_difference_interval());
  }
  proto.set_confounded(IsConfounded(metric));
  proto.set_more_is_better(BetterDirection(metric) > 0);
  return proto;
}

void FillResults(const ExperimentView& view, v1::ExperimentResults& proto) {
  proto.set_decision(DecisionProto(view.decision.verdict));
  if (view.decision.verdict == Verdict::kBetter || view.decision.verdict == Verdict::kWorse) {
    proto.set_favoured_arm(view.spec.arms[view.decision.arm].name);
  }
  proto.set_sample_ratio_p(view.sample_ratio_p);
  proto.set_sessions_turned_away(static_cast<uint64_t>(view.turned_away));
  for (size_t a = 0; a < view.arms.size(); ++a) {
    const ArmResult& result = view.arms[a];
    v1::ArmResults& arm = *proto.add_arms();
    arm.set_arm(view.spec.arms[a].name);
    arm.set_units(static_cast<uint64_t>(result.units));
    arm.set_sessions(static_cast<uint64_t>(result.sessions));
    arm.set_expected_share(result.expected_share);
    arm.set_decision(DecisionProto(result.verdict));
    for (size_t m = 0; m < kTrialMetrics; ++m) {
      if (result.metrics[m].estimate) *arm.add_metrics() = MetricProto(static_cast<TrialMetric>(m), result.metrics[m]);
    }
  }
}

}  // namespace

absl::StatusOr<ExperimentSpec> ExperimentFrom(const v1::ExperimentSpec& proto, const SpecLimits& limits) {
  auto spec = SpecFrom(proto, limits);
  if (!spec.ok()) return AtField("experiment", spec.status());
  return spec;
}

v1::Experiment ExperimentProto(const ExperimentView& view) {
  v1::Experiment proto;
  proto.set_name(kExperiments + view.spec.name);
  *proto.mutable_spec() = SpecProto(view.spec);
  proto.set_state(view.running ? v1::EXPERIMENT_STATE_RUNNING : v1::EXPERIMENT_STATE_STOPPED);
  *proto.mutable_start_time() = TimestampProto(view.started);
  if (!view.running) *proto.mutable_stop_time() = TimestampProto(view.stopped);
  FillResults(view, *proto.mutable_results());
  return proto;
}

absl::StatusOr<std::string> ExperimentIdFrom(const std::string& name) {
  const std::string_view prefix = kExperiments;
  if (!name.starts_with(prefix) || !IsResourceName(std::string_view(name).substr(prefix.size()))) {
    return RefuseField("INVALID_NAME", "name",
                       absl::StrFormat("an experiment's name is %s%s", kExperiments, kResourceNamePattern));
  }
  return name.substr(prefix.size());
}

absl::StatusOr<double> RampFrom(double ramp, const std::string& field) {
  EBB_TRY(CheckRange(field, ramp, 0, 1));
  return ramp;
}

absl::StatusOr<TaskOutcome> OutcomeFrom(const v1::ReportOutcomeRequest& proto) {
  TaskOutcome outcome = {.request_id = proto.request_id()};
  EBB_TRY(CheckBytes("request_id", outcome.request_id));
  switch (proto.outcome_case()) {
    case v1::ReportOutcomeRequest::kScore:
      EBB_TRY(CheckRange("score", proto.score(), 0, 1));
      outcome.score = proto.score();
      return outcome;
    case v1::ReportOutcomeRequest::kThumbUp:
      outcome.thumb_up = proto.thumb_up();
      return outcome;
    case v1::ReportOutcomeRequest::OUTCOME_NOT_SET:
      break;
  }
  return RefuseField("MISSING", "outcome", "one of score and thumb_up is needed");
}

}  // namespace ebb
