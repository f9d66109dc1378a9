// One experiment of several servers: fetched from each, and added up.

#ifndef EBB_CLIENT_CLI_EXPERIMENT_SUM_H_
#define EBB_CLIENT_CLI_EXPERIMENT_SUM_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/shell.h"
#include "ebb/v1/experiment.pb.h"

namespace ebb::cli {

// Where two specs differ, but for the ramp, as paths with both values; empty: nowhere.
std::string DifferenceBetween(const v1::ExperimentSpec& one, const v1::ExperimentSpec& other);

// The experiment as one server would tell of it that had seen what all of `servers` have. Empty when one of them cannot
// be asked, tells what cannot be, or compares something else: then that has been printed, and the exit code set.
std::optional<v1::Experiment> SumOver(Shell& shell, const std::vector<std::string>& servers, const std::string& name);

}  // namespace ebb::cli

#endif  // EBB_CLIENT_CLI_EXPERIMENT_SUM_H_
