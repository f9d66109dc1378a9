// What is asked for of an experiment, ebb.v1.ExperimentSpec, checked but for what only a model can say of the arms'
// policies.

#ifndef EBB_SERVER_EXPERIMENT_SPEC_H_
#define EBB_SERVER_EXPERIMENT_SPEC_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ebb/v1/experiment.pb.h"
#include "server/experiments/state.h"

namespace ebb {

inline constexpr size_t kExperimentTextBytesMax = 128;  // of a salt, and of a report's request_id

// Its arms' policies are told_policy. INVALID_ARGUMENT with a field path: MISSING, INVALID_NAME, INVALID_TENANT,
// OUT_OF_RANGE, TOO_LONG, ARMS_ALIKE, UNKNOWN_ENUM_VALUE.
absl::StatusOr<ExperimentSpec> SpecFrom(const v1::ExperimentSpec& proto);

// INVALID_ARGUMENT OUT_OF_RANGE, `field`. NaN is in no range.
absl::Status CheckRange(const std::string& field, double value, double min, double max);
// INVALID_ARGUMENT TOO_LONG.
absl::Status CheckTextBytes(const std::string& field, const std::string& text);

// As the API numbers it.
v1::ExperimentMetric MetricProto(TrialMetric metric);

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENT_SPEC_H_
