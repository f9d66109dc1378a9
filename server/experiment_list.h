// The text of `experiments.file`.

#ifndef EBB_SERVER_EXPERIMENT_LIST_H_
#define EBB_SERVER_EXPERIMENT_LIST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "policies/spec.h"
#include "server/experiments/experiments.h"

namespace ebb {

// Its experiments, each of which could run alone. `path` stands for the file in messages. INVALID_ARGUMENT
// BAD_EXPERIMENTS_FILE, field experiments.file: no JSON of config.v1.ExperimentList, or what ExperimentFrom refuses.
absl::StatusOr<std::vector<ExperimentSpec>> ExperimentsFrom(const std::string& path, const std::string& text,
                                                            const SpecLimits& limits);

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENT_LIST_H_
