// Experiments of this server: which run, who is in which arm, what the arms' units have shown.
//
// An experiment compares policies (arms; the first is the control) on real sessions. A unit is who is assigned: an end
// user with all their sessions, or, where callers name no end user, a session's name with all sessions that ever have
// it. What its sessions show is summed up unit by unit (metric.h, ratio.h), and a unit counts with what it has shown so
// far.
//
// Kept until the experiment stops: sums for each arm and metric, and for each unit, also while no session of it is
// open, since who comes again is the same unit. Here they are in memory; kept_experiments.h has them outlive the
// server. At most kUnitsMax: those that come when it is full are in no arm, whichever theirs would be, and those that
// are in go on. When it is full depends on how many came, not on what they showed, so that intervals and sample ratio
// hold for the units that are in.
//
// Any thread: one mutex, held for as long as it takes to look a unit up, or to copy as many as a caller asks for; and
// where one server goes on with what another saw, to look up all of those units.

#ifndef EBB_SERVER_EXPERIMENTS_EXPERIMENTS_H_
#define EBB_SERVER_EXPERIMENTS_EXPERIMENTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "policies/spec.h"
#include "server/experiments/assignment.h"
#include "server/experiments/metric.h"
#include "server/experiments/state.h"

namespace ebb {

// Of a session in an experiment.
struct Assignment {
  std::string experiment = {};
  uint64_t start = 0;  // which of the experiments that had this name, one after the other
  size_t arm = 0;
  std::string arm_name = {};
  uint64_t unit = 0;  // UnitHash::key
};

class Experiments {
 public:
  static constexpr size_t kRunningMax = 16;
  static constexpr size_t kKeptMax = 64;        // running and stopped; of the latter the oldest goes first
  static constexpr size_t kUnitsMax = 100'000;  // of one experiment; about 190 bytes each

  explicit Experiments(size_t units_max = kUnitsMax) : units_max_(units_max) {}

  // ALREADY_EXISTS EXPERIMENT_EXISTS, also when it has stopped; FAILED_PRECONDITION EXPERIMENT_OVERLAPS naming the one
  // that runs for the tenant; RESOURCE_EXHAUSTED EXPERIMENTS_FULL.
  absl::StatusOr<ExperimentView> Start(ExperimentSpec spec, absl::Time now, std::string model = {});
  // Sessions that are open keep their policies; what they show no longer counts. Once stopped, stays so. NOT_FOUND
  // UNKNOWN_EXPERIMENT.
  absl::StatusOr<ExperimentView> Stop(const std::string& name, absl::Time now);
  // NOT_FOUND UNKNOWN_EXPERIMENT; FAILED_PRECONDITION EXPERIMENT_STOPPED.
  absl::StatusOr<ExperimentView> Ramp(const std::string& name, double ramp);
  absl::StatusOr<ExperimentView> Get(const std::string& name) const;  // NOT_FOUND UNKNOWN_EXPERIMENT
  std::vector<ExperimentView> List() const;                           // by name

  // Those that a file names, of which it has the say: from now on these, and no others.
  void SetConfigured(const std::set<std::string>& names);

  // One that was read, as it was: it goes on if it runs, else its units go. Errors of Start. REQUIRES: its moments are
  // summed up, and of one that runs, policies that are not just told.
  absl::Status Restore(WholeExperiment experiment);
  // What another server has seen of one that runs here: from now on this one has seen it, too, unit by unit. All of it
  // or nothing. NOT_FOUND UNKNOWN_EXPERIMENT; without a reason FAILED_PRECONDITION (it has stopped here, its sessions
  // had another model, it has other arms, or a unit is in another one) and RESOURCE_EXHAUSTED (together they have more
  // than kUnitsMax). REQUIRES: both have the same spec, but for the ramp; it runs.
  absl::Status Absorb(const WholeExperiment& theirs);
  // As if nobody had come yet: those that run have no units, those that have stopped are forgotten. What sessions that
  // are open show no longer counts.
  void BeginAnew(absl::Time now);

  // What is there to be told of an experiment: it is another where any of it is.
  struct Revision {
    uint64_t start = 0;    // Assignment::start
    uint64_t decided = 0;  // by somebody: that it starts, stops, has another ramp, is configured
    uint64_t seen = 0;     // that, and whatever its units do
    bool running = true;

    bool operator==(const Revision&) const = default;
  };
  std::map<std::string, Revision> Revisions() const;

  // To copy one while it goes on: its state at an instant, and then its units, a few at a time. Those that have come by
  // then are the first of each arm's, as many as the state counts; what they have shown may be of a moment later.
  struct Copy {
    ExperimentState state;
    Revision revision = {};
  };
  absl::StatusOr<Copy> Look(const std::string& name) const;  // NOT_FOUND UNKNOWN_EXPERIMENT
  // Units `from` to `from + count` of an arm in the order in which they came, or up to the last. FAILED_PRECONDITION
  // EXPERIMENT_STOPPED when it has stopped since; NOT_FOUND UNKNOWN_EXPERIMENT when it was forgotten.
  absl::StatusOr<std::vector<UnitSums>> Units(const std::string& name, const Revision& revision, size_t arm,
                                              size_t from, size_t count) const;

  // The arm of a session that is to be opened, and its policy: of the experiment that runs for the tenant, if the unit
  // is in it, or may yet be. `end_user` may be empty.
  struct Placed {
    Assignment assignment = {};
    ValidSpec policy = {};
  };
  std::optional<Placed> Place(const std::string& tenant, std::string_view end_user, std::string_view session);

  // The session is open. False: the experiment has stopped meanwhile, or the last place for a unit was taken.
  bool Enrol(const Assignment& assignment);
  // What a session has shown since this was last called for it. False where it no longer counts: the experiment has
  // stopped, perhaps been forgotten and started anew.
  bool Add(const Assignment& assignment, const Observations& fresh);

 private:
  using UnitMap = std::unordered_map<uint64_t, Observations>;  // by UnitHash::key
  struct ArmUnits {
    UnitMap by_key = {};
    std::vector<const UnitMap::value_type*> in_order = {};  // in which they came; a map's entries stay where they are
  };
  struct Experiment {
    Revision revision = {};
    ExperimentState state;
    std::vector<double> weights = {};
    std::vector<ArmUnits> units = {};  // of each arm; none once it has stopped

    void Decide() { ++revision.decided, ++revision.seen; }
  };

  absl::StatusOr<Experiment*> FindLocked(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The one that this is of, if it runs; else null.
  Experiment* RunningOfLocked(const Assignment& assignment) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The one that runs for exactly this; null if there is none.
  Experiment* RunningForLocked(std::string_view tenant) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckNewLocked(const ExperimentState& state) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // REQUIRES: CheckNewLocked.
  Experiment& AddLocked(ExperimentState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A unit of this arm, which has shown `unit` so far, has shown more. Whether it has.
  static bool Count(ArmState& arm, Observations& unit, const Observations& fresh);
  // Of a unit of this arm: it is in, or can be.
  bool HasRoom(const Experiment& experiment, size_t arm, uint64_t unit) const;

  const size_t units_max_;
  mutable std::mutex mutex_;
  uint64_t starts_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::unique_ptr<Experiment>> experiments_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENTS_EXPERIMENTS_H_
