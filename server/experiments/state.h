// An experiment as a value: what was asked for, what its units have shown in sums, and all that may be said of it. What
// is kept over a restart, and what several servers have seen together, is the same value, and says the same.

#ifndef EBB_SERVER_EXPERIMENTS_STATE_H_
#define EBB_SERVER_EXPERIMENTS_STATE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "policies/spec.h"
#include "server/experiments/decision.h"
#include "server/experiments/metric.h"
#include "server/experiments/ratio.h"
#include "server/experiments/sample_ratio.h"
#include "server/experiments/sequential.h"

namespace ebb {

struct ExperimentArm {
  std::string name = {};
  int32_t weight = 1;  // share among the arms, >= 1
  ValidSpec policy = {};
  // The policy as the API told it, a message, where `policy` is none that could run: of an experiment that has stopped
  // or is another server's.
  std::optional<std::string> told_policy = {};
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
  bool configured = false;
  bool running = true;
  absl::Time started = {};
  absl::Time stopped = absl::InfiniteFuture();
  int64_t turned_away = 0;  // sessions of units beyond kUnitsMax, which are in no arm
  double sample_ratio_p = 1;
  Decision decision = {};
  std::vector<ArmResult> arms = {};
};

// A unit of an arm, and what it has shown so far.
struct UnitSums {
  uint64_t key = 0;  // UnitHash::key
  Observations seen = {};
};

struct ArmState {
  int64_t sessions = 0;
  std::array<RatioMoments, kTrialMetrics> moments = {};
};

struct ExperimentState {
  ExperimentSpec spec = {};
  std::string model = {};   // whose sessions its units had: a digest of the weights; another one's are not comparable
  bool configured = false;  // by a file of experiments, which stops it when it names it no more
  absl::Time started = {};
  absl::Time stopped = absl::InfiniteFuture();
  int64_t turned_away = 0;
  SampleRatio ratio;
  std::vector<ArmState> arms = {};  // as many as the spec has

  bool running() const { return stopped == absl::InfiniteFuture(); }
};

// Of the arms, in order.
std::vector<double> WeightsOf(const ExperimentSpec& spec);

// Of which nothing is known yet.
ExperimentState BegunState(ExperimentSpec spec, absl::Time now, std::string model = {});

// What the numbers allow to be said.
ExperimentView ViewOf(const ExperimentState& state);

// A whole experiment: with the units that are behind its sums.
struct WholeExperiment {
  ExperimentState state;
  std::vector<std::vector<UnitSums>> units = {};  // of each arm, in the order in which they came; none once it stopped
};

// Works the arms' moments out of the units, so that there is one truth. REQUIRES: as many lists as arms.
void SumUp(WholeExperiment& experiment);

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENTS_STATE_H_
