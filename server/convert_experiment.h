// Experiments of ebb.v1 to plain structs, checked, and back.

#ifndef EBB_SERVER_CONVERT_EXPERIMENT_H_
#define EBB_SERVER_CONVERT_EXPERIMENT_H_

#include <string>

#include "absl/status/statusor.h"
#include "ebb/v1/experiment.pb.h"
#include "ebb/v1/inference.pb.h"
#include "policies/spec.h"
#include "server/dispatcher.h"
#include "server/experiments/experiments.h"

namespace ebb {

// INVALID_ARGUMENT with a field path that begins with `experiment`: MISSING, INVALID_NAME, INVALID_TENANT,
// OUT_OF_RANGE, TOO_LONG, ARMS_ALIKE, UNKNOWN_ENUM_VALUE, and what ValidPolicyFrom refuses of an arm's policy.
absl::StatusOr<ExperimentSpec> ExperimentFrom(const v1::ExperimentSpec& proto, const SpecLimits& limits);
// Makes of the policies that its arms were told to have those that run. Errors of ValidPolicyFrom, with a field path
// that begins with `arms`; then nothing has changed.
absl::Status TakePolicies(ExperimentSpec& spec, const SpecLimits& limits);

// Every default filled in.
v1::ExperimentSpec SpecProto(const ExperimentSpec& spec);
// That one of these goes on as the other: only their ramps may differ.
bool AreAlike(const ExperimentSpec& one, const ExperimentSpec& other);
v1::Experiment ExperimentProto(const ExperimentView& view);

// The id of `experiments/{id}`. INVALID_ARGUMENT INVALID_NAME, field `name`.
absl::StatusOr<std::string> ExperimentIdFrom(const std::string& name);
// INVALID_ARGUMENT OUT_OF_RANGE, `field`.
absl::StatusOr<double> RampFrom(double ramp, const std::string& field);

// INVALID_ARGUMENT MISSING, OUT_OF_RANGE, TOO_LONG.
absl::StatusOr<TaskOutcome> OutcomeFrom(const v1::ReportOutcomeRequest& proto);

}  // namespace ebb

#endif  // EBB_SERVER_CONVERT_EXPERIMENT_H_
