#include "server/experiments/experiments.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

std::vector<double> WeightsOf(const ExperimentSpec& spec) {
  std::vector<double> weights;
  for (const ExperimentArm& arm : spec.arms) weights.push_back(arm.weight);
  return weights;
}

}  // namespace

absl::StatusOr<Experiments::Experiment*> Experiments::FindLocked(const std::string& name) const {
  const auto found = experiments_.find(name);
  if (found != experiments_.end()) return found->second.get();
  return Refuse(absl::StatusCode::kNotFound, absl::StrFormat("there is no experiment experiments/%s", name),
                {.reason = "UNKNOWN_EXPERIMENT", .field = "name"});
}

Experiments::Experiment* Experiments::RunningOfLocked(const Assignment& assignment) const {
  const auto found = experiments_.find(assignment.experiment);
  if (found == experiments_.end() || found->second->start != assignment.start) return nullptr;
  return found->second->running() ? found->second.get() : nullptr;
}

Experiments::Experiment* Experiments::RunningForLocked(std::string_view tenant) const {
  for (const auto& [_, experiment] : experiments_) {
    if (experiment->running() && experiment->spec.tenant == tenant) return experiment.get();
  }
  return nullptr;
}

absl::StatusOr<ExperimentView> Experiments::Start(ExperimentSpec spec, absl::Time now) {
  const std::lock_guard lock(mutex_);
  if (const auto found = experiments_.find(spec.name); found != experiments_.end()) {
    return Refuse(absl::StatusCode::kAlreadyExists,
                  absl::StrFormat("experiment.name: experiments/%s %s; its results are its own, so take another name",
                                  spec.name, found->second->running() ? "runs" : "has stopped"),
                  {.reason = "EXPERIMENT_EXISTS", .field = "experiment.name"});
  }
  if (const Experiment* const other = RunningForLocked(spec.tenant)) {
    const std::string whose = spec.tenant.empty() ? "every tenant" : "tenant " + spec.tenant;
    return Refuse(
        absl::StatusCode::kFailedPrecondition,
        absl::StrFormat("experiment.tenant: experiments/%s runs for %s; stop it first", other->spec.name, whose),
        {.reason = "EXPERIMENT_OVERLAPS",
         .field = "experiment.tenant",
         .metadata = {{"experiment", "experiments/" + other->spec.name}}});
  }
  const auto running = std::ranges::count_if(experiments_, [](const auto& entry) { return entry.second->running(); });
  if (static_cast<size_t>(running) >= kRunningMax) {
    return Refuse(absl::StatusCode::kResourceExhausted,
                  absl::StrFormat("%d experiments run, which is all the server takes; stop one", running),
                  {.reason = "EXPERIMENTS_FULL", .quota = "experiments"});
  }
  if (experiments_.size() >= kKeptMax) {
    experiments_.erase(std::ranges::min_element(
        experiments_, {}, [](const auto& entry) { return entry.second->stopped; }));  // one that runs never stopped
  }
  const std::vector<double> weights = WeightsOf(spec);
  const std::string name = spec.name;
  auto experiment = std::make_unique<Experiment>(Experiment{
      .start = ++starts_, .spec = std::move(spec), .weights = weights, .ratio = SampleRatio(weights), .started = now});
  experiment->arms.resize(weights.size());
  return ViewOf(*(experiments_[name] = std::move(experiment)));
}

absl::StatusOr<ExperimentView> Experiments::Stop(const std::string& name, absl::Time now) {
  const std::lock_guard lock(mutex_);
  EBB_ASSIGN(Experiment* const experiment, FindLocked(name));
  if (experiment->running()) experiment->stopped = now;
  for (Arm& arm : experiment->arms) arm.units = {};
  return ViewOf(*experiment);
}

absl::StatusOr<ExperimentView> Experiments::Ramp(const std::string& name, double ramp) {
  const std::lock_guard lock(mutex_);
  EBB_ASSIGN(Experiment* const experiment, FindLocked(name));
  if (!experiment->running()) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("experiments/%s has stopped; start another", name), {.reason = "EXPERIMENT_STOPPED"});
  }
  experiment->spec.ramp = ramp;
  return ViewOf(*experiment);
}

absl::StatusOr<ExperimentView> Experiments::Get(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  EBB_ASSIGN(const Experiment* const experiment, FindLocked(name));
  return ViewOf(*experiment);
}

std::vector<ExperimentView> Experiments::List() const {
  const std::lock_guard lock(mutex_);
  std::vector<ExperimentView> views;
  for (const auto& [_, experiment] : experiments_) views.push_back(ViewOf(*experiment));
  return views;
}

bool Experiments::HasRoom(const Experiment& experiment, size_t arm, uint64_t unit) const {
  return experiment.arms[arm].units.contains(unit) || experiment.ratio.total() < static_cast<int64_t>(units_max_);
}

std::optional<Experiments::Placed> Experiments::Place(const std::string& tenant, std::string_view end_user,
                                                      std::string_view session) {
  const std::lock_guard lock(mutex_);
  Experiment* experiment = RunningForLocked(tenant);
  if (experiment == nullptr) experiment = RunningForLocked("");
  if (experiment == nullptr) return std::nullopt;
  // Tenants name their users and sessions as they like: those of two are different units.
  const std::string name =
      end_user.empty() ? absl::StrFormat("%s\2%s", tenant, session) : absl::StrFormat("%s\1%s", tenant, end_user);
  const UnitHash unit = HashUnit(experiment->spec.salt, name);
  if (!IsEnrolled(unit, experiment->spec.ramp)) return std::nullopt;
  const size_t arm = ArmOf(unit, experiment->weights);
  if (!HasRoom(*experiment, arm, unit.key)) {
    ++experiment->turned_away;
    return std::nullopt;
  }
  return Placed{.assignment = {.experiment = experiment->spec.name,
                               .start = experiment->start,
                               .arm = arm,
                               .arm_name = experiment->spec.arms[arm].name,
                               .unit = unit.key},
                .policy = experiment->spec.arms[arm].policy};
}

bool Experiments::Enrol(const Assignment& assignment) {
  const std::lock_guard lock(mutex_);
  Experiment* const experiment = RunningOfLocked(assignment);
  if (experiment == nullptr) return false;
  if (!HasRoom(*experiment, assignment.arm, assignment.unit)) {
    ++experiment->turned_away;
    return false;
  }
  Arm& arm = experiment->arms[assignment.arm];
  if (arm.units.try_emplace(assignment.unit).second) experiment->ratio.Add(assignment.arm);
  ++arm.sessions;
  return true;
}

bool Experiments::Add(const Assignment& assignment, const Observations& fresh) {
  const std::lock_guard lock(mutex_);
  Experiment* const experiment = RunningOfLocked(assignment);
  if (experiment == nullptr) return false;
  Arm& arm = experiment->arms[assignment.arm];
  const auto unit = arm.units.find(assignment.unit);
  if (unit == arm.units.end()) return false;
  for (size_t i = 0; i < kTrialMetrics; ++i) {
    if (fresh.sums[i].denominator == 0) continue;
    arm.moments[i].Remove(unit->second.sums[i]);
    unit->second.sums[i] += fresh.sums[i];
    arm.moments[i].Add(unit->second.sums[i]);
  }
  return true;
}

ExperimentView Experiments::ViewOf(const Experiment& experiment) {
  const ExperimentSpec& spec = experiment.spec;
  ExperimentView view = {.spec = spec,
                         .running = experiment.running(),
                         .started = experiment.started,
                         .stopped = experiment.stopped,
                         .turned_away = experiment.turned_away,
                         .sample_ratio_p = experiment.ratio.p_value()};
  // With several arms beside the control, all of their intervals hold at once with 1 - alpha.
  const double alpha = spec.alpha / static_cast<double>(experiment.arms.size() - 1);
  const int64_t arm_planned = std::max<int64_t>(spec.units_planned / static_cast<int64_t>(experiment.arms.size()), 1);
  for (size_t a = 0; a < experiment.arms.size(); ++a) {
    ArmResult result = {.units = experiment.ratio.count(a),
                        .sessions = experiment.arms[a].sessions,
                        .expected_share = experiment.ratio.expected_share(a)};
    for (size_t m = 0; m < kTrialMetrics; ++m) {
      MetricResult& metric = result.metrics[m];
      metric.estimate = experiment.arms[a].moments[m].Estimate();
      if (!metric.estimate || metric.estimate->units < spec.units_min) continue;
      const double half =
          SequentialHalfWidth(metric.estimate->variance, metric.estimate->units, spec.alpha, arm_planned);
      metric.interval = {.low = metric.estimate->value - half, .high = metric.estimate->value + half};
      if (a == 0 || !view.arms[0].metrics[m].interval) continue;
      metric.effect = SequentialDifference(*metric.estimate, *view.arms[0].metrics[m].estimate, alpha, 2 * arm_planned);
    }
    view.arms.push_back(std::move(result));
  }
  std::vector<Verdict> verdicts;
  std::vector<std::optional<Difference>> effects;
  const int direction = BetterDirection(spec.metric);
  for (size_t a = 1; a < view.arms.size(); ++a) {
    effects.push_back(view.arms[a].metrics[static_cast<size_t>(spec.metric)].effect);
    verdicts.push_back(VerdictOn(effects.back(), direction, spec.margin, experiment.ratio.broken()));
    view.arms[a].verdict = verdicts.back();
  }
  view.decision = DecisionOf(verdicts, effects, direction);
  return view;
}

}  // namespace ebb
