// Experiments that outlive the server: in its own folder, or without one in the Redis that it shares with others.
//
// A thread of its own writes them: within kLookEvery what somebody has decided (a start, a stop, another ramp), about
// every kWriteEvery what units have shown, and all of it when the server drains. So who kills the process takes at most
// the last minute's units from it, and of what was decided the last second's.
//
// Of a folder the next server goes on with what it finds there at the start. In Redis the experiments of a server that
// is gone are any other's: the thread looks for them once in a lease. One that is not known here goes on here; one that
// runs here, too, with the same spec, has the units of both from then on. What cannot go on here is left to the
// others for kPatience leases, and then it has stopped, with its results; beside one that is known here by that name it
// gets another, so that nothing of it is lost.

#ifndef EBB_SERVER_KEPT_EXPERIMENTS_H_
#define EBB_SERVER_KEPT_EXPERIMENTS_H_

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/experiment_store.h"
#include "server/experiments/experiments.h"
#include "server/metrics.h"
#include "server/redis_store.h"
#include "server/repeater.h"
#include "server/worker.h"

namespace ebb {

class KeptExperiments {
 public:
  static constexpr absl::Duration kLookEvery = absl::Seconds(1);
  static constexpr absl::Duration kWriteEvery = absl::Minutes(1);
  static constexpr int kPatience = 12;  // leases; of the usual ones, two minutes

  // In `dir`, a folder that is there and this server's alone; where it is empty, in `shared`, which may be null: then
  // null, they end with the server. Reads what is in a folder; what is damaged is set aside. UNAVAILABLE
  // STORE_UNUSABLE, also where the system does not let a file be read, which another time it may. The others outlive
  // it.
  static absl::StatusOr<std::unique_ptr<KeptExperiments>> Open(const std::string& dir, const RedisStore* shared,
                                                               Experiments& experiments, Worker& worker,
                                                               const ExperimentFileMetrics& metrics);

  // Those in a folder of the server before this one. One that ran goes on, unless its sessions had another model, an
  // arm's policy is none of this one, it overlaps with one that was started later, or a file named it and there is no
  // such file any more (`has_file`): then it has stopped now, with its results. Once. REQUIRES: nobody uses the
  // experiments yet. Waits for the worker.
  void BringBack(bool has_file);

  // Takes what others have left in Redis. From now on the thread does so, and writes. REQUIRES: a file of experiments,
  // if there is one, was read. Waits for the worker, and for Redis.
  void Start();
  // It no longer does, and all that has changed is written now. REQUIRES: no more will change.
  void Finish();

 private:
  using Left = ExperimentStore::Left;
  struct Written {
    Experiments::Revision revision = {};
    absl::Time at = absl::InfinitePast();
    bool whole = true;  // false: it failed
  };

  KeptExperiments(std::unique_ptr<ExperimentStore> store, absl::Duration lease, Experiments& experiments,
                  Worker& worker, const ExperimentFileMetrics& metrics)
      : store_(std::move(store)), lease_(lease), experiments_(experiments), worker_(worker), metrics_(metrics) {}

  // Empty: it is damaged, and was set aside.
  absl::StatusOr<std::optional<WholeExperiment>> Read(const Left& left);
  void SetAside(const Left& left, const absl::Status& why);
  // Whether one that ran may go on with what this server has; then its arms' policies are this one's.
  absl::Status CheckGoesOn(ExperimentState& state);

  void TakeLeft(absl::Time now);
  // Has it here: what was left goes with the next write. False: it is left to others, or to another time.
  bool Take(const Left& left, WholeExperiment whole, bool is_patient);
  absl::Status Join(WholeExperiment& whole);
  // One that has stopped. RESOURCE_EXHAUSTED: another would be forgotten for it.
  absl::Status Shelve(const WholeExperiment& whole);

  // What is in this one, and not yet written with it.
  ExperimentStore::Lefts MergedInto(const std::string& id) const;
  void WriteChanged(absl::Time now, absl::Duration every);
  absl::Status Write(const std::string& id, Written& written);
  absl::Status RemoveForgotten(const std::map<std::string, Experiments::Revision>& revisions);
  void BeginAnew(absl::Time now, const absl::Status& why);

  const std::unique_ptr<ExperimentStore> store_;
  const absl::Duration lease_;  // of servers that share the store; infinite: none do
  Experiments& experiments_;
  Worker& worker_;
  const ExperimentFileMetrics& metrics_;
  std::vector<WholeExperiment> found_ = {};                    // until they are brought back
  std::map<std::string, Written> files_ = {};                  // the thread's, once it runs, like the next
  std::map<std::string, ExperimentStore::Lefts> merged_ = {};  // by the experiment that has them, until it is written
  // What was taken, by its name and when its server began it, which no other did; and the experiment that has it here.
  std::map<std::pair<std::string, absl::Time>, std::string> taken_ = {};
  std::map<std::string, absl::Time> left_since_ = {};  // places whose experiments could not all be taken
  absl::Time look_at_ = absl::InfinitePast();          // for what others left
  std::optional<Repeater> thread_ = {};                // last: it uses what stands above
};

}  // namespace ebb

#endif  // EBB_SERVER_KEPT_EXPERIMENTS_H_
