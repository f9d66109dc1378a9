// Starts an experiment whose arms' policies a session could have.

#ifndef EBB_SERVER_START_EXPERIMENT_H_
#define EBB_SERVER_START_EXPERIMENT_H_

#include "absl/status/statusor.h"
#include "server/dispatcher.h"
#include "server/experiments/experiments.h"

namespace ebb {

// The worker's thread. What Dispatcher::CheckPolicy refuses of an arm, with a field path that begins with
// `experiment.arms`.
absl::Status CheckArms(const Dispatcher& dispatcher, const ExperimentSpec& spec);

// The worker's thread. Errors of CheckArms and Experiments::Start.
absl::StatusOr<ExperimentView> StartExperiment(const Dispatcher& dispatcher, Experiments& experiments,
                                               const ExperimentSpec& spec);

}  // namespace ebb

#endif  // EBB_SERVER_START_EXPERIMENT_H_
