#include "server/start_experiment.h"

#include "absl/strings/str_format.h"
#include "policies/status.h"

namespace ebb {

absl::Status CheckArms(const Dispatcher& dispatcher, const ExperimentSpec& spec) {
  for (size_t i = 0; i < spec.arms.size(); ++i) {
    const absl::Status fits = dispatcher.CheckPolicy(spec.arms[i].policy);
    if (!fits.ok()) return AtField(absl::StrFormat("experiment.arms[%d]", i), fits);
  }
  return absl::OkStatus();
}

absl::StatusOr<ExperimentView> StartExperiment(const Dispatcher& dispatcher, Experiments& experiments,
                                               const ExperimentSpec& spec) {
  EBB_TRY(CheckArms(dispatcher, spec));
  return experiments.Start(spec, dispatcher.clock().Now(), dispatcher.model().fingerprint);
}

}  // namespace ebb
