// Experiments that an operator configures: a file of them, read at the start and whenever it changes.
//
// What the file names runs, in the shares that it says; what it named before and names no more is stopped. Experiments
// that were started by AdminService are nobody's business here, and one of the file that was stopped there stays so.

#ifndef EBB_SERVER_EXPERIMENT_FILE_H_
#define EBB_SERVER_EXPERIMENT_FILE_H_

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/experiments/experiments.h"
#include "server/repeater.h"
#include "server/worker.h"

namespace ebb {

struct ExperimentFileOptions {
  std::string path = {};
  absl::Duration reload = absl::Seconds(10);  // between two looks at it
};

// Has `experiments` be what is configured: starts, ramps and stops. `applied`: names that were configured before, and
// are afterwards. Errors of StartExperiment, and ALREADY_EXISTS EXPERIMENT_EXISTS where one that runs has other arms;
// then nothing has changed, but where two of the list are for one tenant, or they are more than may run: those in front
// of it run. The worker's thread.
absl::Status ApplyExperiments(const std::vector<ExperimentSpec>& specs, const Dispatcher& dispatcher,
                              Experiments& experiments, std::set<std::string>& applied);

class ExperimentFile {
 public:
  // Errors of Reload. `worker` and `experiments` outlive it.
  static absl::StatusOr<std::unique_ptr<ExperimentFile>> Open(const ExperimentFileOptions& options, Worker& worker,
                                                              Experiments& experiments);

  // Reads the file now, and applies it where it differs from what was applied before. NOT_FOUND NO_EXPERIMENTS_FILE,
  // INVALID_ARGUMENT BAD_EXPERIMENTS_FILE, and those of ApplyExperiments. One thread at a time: once open, the one that
  // looks for changes.
  absl::Status Reload();

 private:
  ExperimentFile(const ExperimentFileOptions& options, Worker& worker, Experiments& experiments)
      : options_(options), worker_(worker), experiments_(experiments) {}

  const ExperimentFileOptions options_;
  Worker& worker_;
  Experiments& experiments_;
  std::optional<std::string> text_ = {};  // of the file, as it was last applied
  std::set<std::string> applied_ = {};
  std::string complaint_ = {};
  std::optional<Repeater> repeater_;  // last: it uses what stands above
};

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENT_FILE_H_
