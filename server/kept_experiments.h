// Experiments that outlive the server, as files in its own folder.
//
//   DIR/experiments/NAME.experiment           an experiment, as experiment_image.h has it
//   DIR/experiments/NAME.experiment.damaged   one that could not be read; nobody looks at it again
//
// A thread of its own writes them: within kLookEvery what somebody has decided (a start, a stop, another ramp), about
// every kWriteEvery what units have shown, and all of it when the server drains. A file is written beside the one that
// it replaces, synced, and put in its place. So who kills the process takes at most the last minute's units from it,
// and of what was decided the last second's.

#ifndef EBB_SERVER_KEPT_EXPERIMENTS_H_
#define EBB_SERVER_KEPT_EXPERIMENTS_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/experiments/experiments.h"
#include "server/files.h"
#include "server/metrics.h"
#include "server/repeater.h"
#include "server/worker.h"

namespace ebb {

class KeptExperiments {
 public:
  static constexpr absl::Duration kLookEvery = absl::Seconds(1);
  static constexpr absl::Duration kWriteEvery = absl::Minutes(1);

  // Makes DIR/experiments in a folder that is there and this server's alone, removes what was left half written, and
  // reads what is there; what is damaged is set aside. UNAVAILABLE STORE_UNUSABLE, also where the system does not let a
  // file be read, which another time it may. `experiments` and `metrics` outlive it.
  static absl::StatusOr<std::unique_ptr<KeptExperiments>> Open(const std::string& dir, Experiments& experiments,
                                                               const ExperimentFileMetrics& metrics);

  // Those of the server before this one. One that ran goes on, unless its sessions had another model, an arm's policy
  // is none of this one, it overlaps with one that was started later, or a file named it and there is no such file any
  // more
  // (`has_file`): then it has stopped now, with its results. Once. REQUIRES: nobody uses the experiments yet. Waits for
  // the worker.
  void BringBack(Worker& worker, bool has_file);

  // From now on the thread writes.
  void Start();
  // It no longer does, and all that has changed is written now. REQUIRES: no more will change.
  void Finish();

 private:
  struct Written {
    Experiments::Revision revision = {};
    absl::Time at = absl::InfinitePast();
    bool whole = true;  // false: it failed
  };

  KeptExperiments(std::string dir, OpenFile folder, Experiments& experiments, const ExperimentFileMetrics& metrics)
      : dir_(std::move(dir)), folder_(std::move(folder)), experiments_(experiments), metrics_(metrics) {}

  absl::StatusOr<std::vector<WholeExperiment>> ReadAll(const std::vector<std::string>& names) const;
  absl::StatusOr<WholeExperiment> Read(const std::string& id) const;
  void SetAside(const std::string& id, const absl::Status& why) const;
  void WriteChanged(absl::Time now, absl::Duration every);
  absl::Status Write(const std::string& id, Written& written);
  void RemoveForgotten(const std::map<std::string, Experiments::Revision>& revisions);

  const std::string dir_;
  const OpenFile folder_;  // within it
  Experiments& experiments_;
  const ExperimentFileMetrics& metrics_;
  std::vector<WholeExperiment> found_ = {};    // until they are brought back
  std::map<std::string, Written> files_ = {};  // the thread's, once it runs
  std::optional<Repeater> thread_ = {};        // last: it uses what stands above
};

}  // namespace ebb

#endif  // EBB_SERVER_KEPT_EXPERIMENTS_H_
