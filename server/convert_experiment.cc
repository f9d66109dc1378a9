#include "server/convert_experiment.h"

#include <google/protobuf/util/message_differencer.h>

#include <utility>

#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/convert.h"
#include "server/experiment_results.h"
#include "server/experiment_spec.h"
#include "server/reply.h"
#include "server/resource_name.h"

namespace ebb {
namespace {

constexpr char kExperiments[] = "experiments/";

v1::PolicySpec PolicyOf(const ExperimentArm& arm) {
  if (!arm.told_policy) return PolicyProto(arm.policy);
  v1::PolicySpec policy;
  policy.ParseFromString(*arm.told_policy);
  return policy;
}

}  // namespace

absl::Status TakePolicies(ExperimentSpec& spec, const SpecLimits& limits) {
  std::vector<ExperimentArm> arms = spec.arms;
  for (size_t i = 0; i < arms.size(); ++i) {
    auto policy = ValidPolicyFrom(PolicyOf(arms[i]), limits);
    if (!policy.ok()) return AtField(absl::StrFormat("arms[%d]", i), policy.status());
    arms[i].policy = *std::move(policy);
    arms[i].told_policy.reset();
  }
  spec.arms = std::move(arms);
  return absl::OkStatus();
}

absl::StatusOr<ExperimentSpec> ExperimentFrom(const v1::ExperimentSpec& proto, const SpecLimits& limits) {
  auto spec = SpecFrom(proto);
  const absl::Status status = spec.ok() ? TakePolicies(*spec, limits) : spec.status();
  if (!status.ok()) return AtField("experiment", status);
  return spec;
}

v1::ExperimentSpec SpecProto(const ExperimentSpec& spec) {
  v1::ExperimentSpec proto;
  proto.set_name(spec.name);
  proto.set_tenant(spec.tenant);
  for (const ExperimentArm& arm : spec.arms) {
    v1::ExperimentArm& arm_proto = *proto.add_arms();
    arm_proto.set_name(arm.name);
    arm_proto.set_weight(static_cast<uint32_t>(arm.weight));
    *arm_proto.mutable_policy() = PolicyOf(arm);
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

bool AreAlike(const ExperimentSpec& one, const ExperimentSpec& other) {
  v1::ExperimentSpec asked = SpecProto(other);
  asked.set_ramp(one.ramp);
  return google::protobuf::util::MessageDifferencer::Equals(SpecProto(one), asked);
}

v1::Experiment ExperimentProto(const ExperimentView& view) {
  v1::Experiment proto = ResultsProto(view);
  *proto.mutable_spec() = SpecProto(view.spec);
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
  EBB_TRY(CheckTextBytes("request_id", outcome.request_id));
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
