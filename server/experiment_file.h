// Experiments that an operator configures: a file of them, read at the start and whenever it changes.
//
// What the file names runs, in the shares that it says; what it named before and names no more is stopped. Experiments
// that were started by AdminService are nobody's business here, and one of the file that was stopped there stays so.
// Which it named, the experiments know (ExperimentState::configured), so that it holds over a restart, too.

#ifndef EBB_SERVER_EXPERIMENT_FILE_H_
#define EBB_SERVER_EXPERIMENT_FILE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/experiments/experiments.h"
#include "server/live_file.h"
#include "server/worker.h"

namespace ebb {

struct ExperimentFileOptions {
  std::string path = {};
  absl::Duration reload = absl::Seconds(10);  // between two looks at it
};

// Has `experiments` be what is configured: starts, ramps and stops. Errors of StartExperiment, INVALID_ARGUMENT
// BAD_EXPERIMENTS_FILE where a name is there twice, and ALREADY_EXISTS EXPERIMENT_EXISTS where one that is known has
// other arms; then nothing has changed. `at_start` one that has stopped may have others, as where the model is another
// than the one whose context its arms' budgets came from: it stays stopped, and is no reason not to serve. The worker's
// thread.
absl::Status ApplyExperiments(const std::vector<ExperimentSpec>& specs, const Dispatcher& dispatcher,
                              Experiments& experiments, bool at_start);

class ExperimentFile {
 public:
  // Errors of Read, and of taking it. `worker` and `experiments` outlive it.
  static absl::StatusOr<std::unique_ptr<ExperimentFile>> Open(const ExperimentFileOptions& options, Worker& worker,
                                                              Experiments& experiments);

  // The file as it is now. NOT_FOUND NO_EXPERIMENTS_FILE, INVALID_ARGUMENT BAD_EXPERIMENTS_FILE. What only the worker
  // can say of it, the errors of ApplyExperiments, it says when the change is taken. One thread at a time, for both.
  absl::StatusOr<FileChange> Read();

 private:
  ExperimentFile(const ExperimentFileOptions& options, Worker& worker, Experiments& experiments)
      : options_(options), worker_(worker), experiments_(experiments) {}
  absl::Status Take(std::string text, std::vector<ExperimentSpec> specs);

  const ExperimentFileOptions options_;
  Worker& worker_;
  Experiments& experiments_;
  std::optional<std::string> text_ = {};  // of the file, as it was last applied
};

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENT_FILE_H_
