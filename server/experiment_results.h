// What an experiment has shown, as ebb.v1 says it.

#ifndef EBB_SERVER_EXPERIMENT_RESULTS_H_
#define EBB_SERVER_EXPERIMENT_RESULTS_H_

#include "ebb/v1/experiment.pb.h"
#include "server/experiments/state.h"

namespace ebb {

// All of it, but for the spec.
v1::Experiment ResultsProto(const ExperimentView& view);

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENT_RESULTS_H_
