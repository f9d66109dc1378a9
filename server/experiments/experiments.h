// Experiments of this server: which run, who is in which arm, what the arms' units have shown.
//
// An experiment compares policies (arms; the first is the control) on real sessions. A unit is who is assigned: an end
// user with all their sessions, or, where callers name no end user, a session's name with all sessions that ever have
// it. What its sessions show is summed up unit by unit (metric.h, ratio.h), and a unit counts with what it has shown so
// far.
//
// Kept in memory until the experiment stops: sums for each arm and metric, and for each unit, also while no session of
// it is open, since who comes again is the same unit. At most kUnitsMax: those that come when it is full are in no arm,
// whichever theirs would be, and those that are in go on. When it is full depends on how many came, not on what they
// showed, so that intervals and sample ratio hold for the units that are in.
//
// Any thread: one mutex, held for as long as it takes to look a unit up.

#ifndef EBB_SERVER_EXPERIMENTS_EXPERIMENTS_H_
#define EBB_SERVER_EXPERIMENTS_EXPERIMENTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "policies/spec.h"
#include "server/experiments/assignment.h"
#include "server/experiments/decision.h"
#include "server/experiments/metric.h"
#include "server/experiments/ratio.h"
#include "server/experiments/sample_ratio.h"

namespace ebb {

struct ExperimentArm {
  std::string name = {};
  int32_t weight = 1;  // share among the arms, >= 1
  ValidSpec policy = {};
};

// What is asked for. Checked by ExperimentFrom (server/convert_experiment.h).
struct ExperimentSpec {
  std::string name = {};
  std::string tenant = {};               // empty: every tenant that has no experiment of its own
  std::vector<ExperimentArm> arms = {};  // at least two, of different names; the first is the control
  double ramp = 1;                       // share of the units that are in it, 0 .. 1
  std::string salt = {};
  TrialMetric metric = TrialMetric::kAttentionMassLost;  // that decides
  double margin = 0;                                     // difference in it that does not matter, >= 0
  double alpha = 0.05;                                   // of all intervals of one metric together
  int64_t units_min = 100;                               // of each arm, before anything is said
  int64_t units_planned = 1000;                          // of all arms: where the intervals are tightest
};

// Of a session in an experiment.
struct Assignment {
  std::string experiment = {};
  uint64_t start = 0;  // which of the experiments that had this name, one after the other
  size_t arm = 0;
  std::string arm_name = {};
  uint64_t unit = 0;  // UnitHash::key
};

struct MetricResult {
  std::optional<RatioEstimate> estimate = {};  // empty: too few units to say how sure it is
  std::optional<Interval> interval = {};       // of the estimate; empty below units_min, like the next
  std::optional<Difference> effect = {};       // against the control; empty for it
};

struct ArmResult {
  int64_t units = 0;     // that were assigned
  int64_t sessions = 0;  // of theirs that were opened
  double expected_share = 0;
  Verdict verdict = Verdict::kCollecting;  // against the control; of no meaning for it
  std::array<MetricResult, kTrialMetrics> metrics = {};
};

struct ExperimentView {
  ExperimentSpec spec = {};
  bool running = true;
  absl::Time started = {};
  absl::Time stopped = absl::InfiniteFuture();
  int64_t turned_away = 0;  // sessions of units beyond kUnitsMax, which are in no arm
  double sample_ratio_p = 1;
  Decision decision = {};
  std::vector<ArmResult> arms = {};
};

class Experiments {
 public:
  static constexpr size_t kRunningMax = 16;
  static constexpr size_t kKeptMax = 64;        // running and stopped; of the latter the oldest goes first
  static constexpr size_t kUnitsMax = 100'000;  // of one experiment; about 180 bytes each

  explicit Experiments(size_t units_max = kUnitsMax) : units_max_(units_max) {}

  // ALREADY_EXISTS EXPERIMENT_EXISTS, also when it has stopped; FAILED_PRECONDITION EXPERIMENT_OVERLAPS naming the one
  // that runs for the tenant; RESOURCE_EXHAUSTED EXPERIMENTS_FULL.
  absl::StatusOr<ExperimentView> Start(ExperimentSpec spec, absl::Time now);
  // Sessions that are open keep their policies; what they show no longer counts. Once stopped, stays so. NOT_FOUND
  // UNKNOWN_EXPERIMENT.
  absl::StatusOr<ExperimentView> Stop(const std::string& name, absl::Time now);
  // NOT_FOUND UNKNOWN_EXPERIMENT; FAILED_PRECONDITION EXPERIMENT_STOPPED.
  absl::StatusOr<ExperimentView> Ramp(const std::string& name, double ramp);
  absl::StatusOr<ExperimentView> Get(const std::string& name) const;  // NOT_FOUND UNKNOWN_EXPERIMENT
  std::vector<ExperimentView> List() const;                           // by name

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
  struct Arm {
    std::array<RatioMoments, kTrialMetrics> moments = {};
    int64_t sessions = 0;
    std::unordered_map<uint64_t, Observations> units = {};  // by UnitHash::key; none once it has stopped
  };
  struct Experiment {
    uint64_t start = 0;  // no two experiments of this server have the same
    ExperimentSpec spec = {};
    std::vector<double> weights = {};
    SampleRatio ratio;
    absl::Time started = {};
    absl::Time stopped = absl::InfiniteFuture();
    int64_t turned_away = 0;
    std::vector<Arm> arms = {};

    bool running() const { return stopped == absl::InfiniteFuture(); }
  };

  absl::StatusOr<Experiment*> FindLocked(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The one that this is of, if it runs; else null.
  Experiment* RunningOfLocked(const Assignment& assignment) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The one that runs for exactly this; null if there is none.
  Experiment* RunningForLocked(std::string_view tenant) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a unit of this arm: it is in, or can be.
  bool HasRoom(const Experiment& experiment, size_t arm, uint64_t unit) const;
  static ExperimentView ViewOf(const Experiment& experiment);

  const size_t units_max_;
  mutable std::mutex mutex_;
  uint64_t starts_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::unique_ptr<Experiment>> experiments_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENTS_EXPERIMENTS_H_
