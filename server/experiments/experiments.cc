#include "server/experiments/experiments.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/status.h"

namespace ebb {

absl::StatusOr<Experiments::Experiment*> Experiments::FindLocked(const std::string& name) const {
  const auto found = experiments_.find(name);
  if (found != experiments_.end()) return found->second.get();
  return Refuse(absl::StatusCode::kNotFound, absl::StrFormat("there is no experiment experiments/%s", name),
                {.reason = "UNKNOWN_EXPERIMENT", .field = "name"});
}

Experiments::Experiment* Experiments::RunningOfLocked(const Assignment& assignment) const {
  const auto found = experiments_.find(assignment.experiment);
  if (found == experiments_.end() || found->second->revision.start != assignment.start) return nullptr;
  return found->second->state.running() ? found->second.get() : nullptr;
}

Experiments::Experiment* Experiments::RunningForLocked(std::string_view tenant) const {
  for (const auto& [_, experiment] : experiments_) {
    if (experiment->state.running() && experiment->state.spec.tenant == tenant) return experiment.get();
  }
  return nullptr;
}

absl::Status Experiments::CheckNewLocked(const ExperimentState& state) const {
  const ExperimentSpec& spec = state.spec;
  if (const auto found = experiments_.find(spec.name); found != experiments_.end()) {
    return Refuse(absl::StatusCode::kAlreadyExists,
                  absl::StrFormat("experiment.name: experiments/%s %s; its results are its own, so take another name",
                                  spec.name, found->second->state.running() ? "runs" : "has stopped"),
                  {.reason = "EXPERIMENT_EXISTS", .field = "experiment.name"});
  }
  if (!state.running()) return absl::OkStatus();
  if (const Experiment* const other = RunningForLocked(spec.tenant)) {
    const std::string whose = spec.tenant.empty() ? "every tenant" : "tenant " + spec.tenant;
    const std::string& name = other->state.spec.name;
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("experiment.tenant: experiments/%s runs for %s; stop it first", name, whose),
                  {.reason = "EXPERIMENT_OVERLAPS",
                   .field = "experiment.tenant",
                   .metadata = {{"experiment", "experiments/" + name}}});
  }
  const auto running =
      std::ranges::count_if(experiments_, [](const auto& entry) { return entry.second->state.running(); });
  if (static_cast<size_t>(running) >= kRunningMax) {
    return Refuse(absl::StatusCode::kResourceExhausted,
                  absl::StrFormat("%d experiments run, which is all the server takes; stop one", running),
                  {.reason = "EXPERIMENTS_FULL", .quota = "experiments"});
  }
  return absl::OkStatus();
}

Experiments::Experiment& Experiments::AddLocked(ExperimentState state) {
  if (experiments_.size() >= kKeptMax) {
    experiments_.erase(std::ranges::min_element(experiments_, {}, [](const auto& entry) {
      return entry.second->state.stopped;
    }));  // one that runs never stopped
  }
  const std::string name = state.spec.name;
  auto experiment =
      std::make_unique<Experiment>(Experiment{.revision = {.start = ++starts_}, .state = std::move(state)});
  experiment->weights = WeightsOf(experiment->state.spec);
  experiment->units.resize(experiment->weights.size());
  return *(experiments_[name] = std::move(experiment));
}

absl::StatusOr<ExperimentView> Experiments::Start(ExperimentSpec spec, absl::Time now, std::string model) {
  ExperimentState state = BegunState(std::move(spec), now, std::move(model));
  const std::lock_guard lock(mutex_);
  EBB_TRY(CheckNewLocked(state));
  return ViewOf(AddLocked(std::move(state)).state);
}

absl::Status Experiments::Restore(WholeExperiment whole) {
  const std::lock_guard lock(mutex_);
  EBB_TRY(CheckNewLocked(whole.state));
  Experiment& experiment = AddLocked(std::move(whole.state));
  if (!experiment.state.running()) return absl::OkStatus();
  for (size_t a = 0; a < whole.units.size(); ++a) {
    ArmUnits& arm = experiment.units[a];
    arm.by_key.reserve(whole.units[a].size());
    for (const UnitSums& unit : whole.units[a]) {
      arm.in_order.push_back(&*arm.by_key.emplace(unit.key, unit.seen).first);
    }
  }
  return absl::OkStatus();
}

absl::Status Experiments::Absorb(const WholeExperiment& theirs) {
  const ExperimentState& state = theirs.state;
  const std::string& name = state.spec.name;
  const std::lock_guard lock(mutex_);
  EBB_ASSIGN(Experiment* const ours, FindLocked(name));
  if (!ours->state.running()) {
    return absl::FailedPreconditionError(absl::StrFormat("experiments/%s has stopped here", name));
  }
  if (ours->state.model != state.model) {
    return absl::FailedPreconditionError(
        absl::StrFormat("its sessions had the model %s, and those here have %s", state.model, ours->state.model));
  }
  if (ours->units.size() != theirs.units.size()) {  // it was forgotten, and started anew, since somebody looked
    return absl::FailedPreconditionError(
        absl::StrFormat("it has %d arms, and here %d", theirs.units.size(), ours->units.size()));
  }
  std::vector<int64_t> counts;
  int64_t total = 0;
  for (size_t a = 0; a < theirs.units.size(); ++a) {
    counts.push_back(ours->state.ratio.count(a));
    for (const UnitSums& unit : theirs.units[a]) {
      for (size_t other = 0; other < ours->units.size(); ++other) {
        if (other == a || !ours->units[other].by_key.contains(unit.key)) continue;
        return absl::FailedPreconditionError(
            absl::StrFormat("the unit %016x is in arm %s, and here in arm %s: they do not assign alike", unit.key,
                            state.spec.arms[a].name, state.spec.arms[other].name));
      }
      counts[a] += ours->units[a].by_key.contains(unit.key) ? 0 : 1;
    }
    total += counts[a];
  }
  if (total > static_cast<int64_t>(units_max_)) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("with those here it has %d units; at most %d", total, units_max_));
  }
  ours->state.started = std::min(ours->state.started, state.started);
  ours->state.turned_away += state.turned_away;
  for (size_t a = 0; a < theirs.units.size(); ++a) {
    ours->state.arms[a].sessions += state.arms[a].sessions;
    for (const UnitSums& unit : theirs.units[a]) {
      const auto [mine, is_new] = ours->units[a].by_key.try_emplace(unit.key);
      if (is_new) ours->units[a].in_order.push_back(&*mine);
      Count(ours->state.arms[a], mine->second, unit.seen);
    }
  }
  // As if the units of the one that has seen more had come first, and then all others at once: in which order these
  // came nobody knows, and which server's are the more says nothing of arms.
  const SampleRatio& first = state.ratio.total() > ours->state.ratio.total() ? state.ratio : ours->state.ratio;
  const double now = SampleRatio(ours->weights, counts).log_factor_max();
  ours->state.ratio = SampleRatio(ours->weights, counts, std::max(first.log_factor_max(), now));
  ours->Decide();
  return absl::OkStatus();
}

void Experiments::BeginAnew(absl::Time now) {
  const std::lock_guard lock(mutex_);
  std::erase_if(experiments_, [](const auto& entry) { return !entry.second->state.running(); });
  for (const auto& [_, experiment] : experiments_) {
    ExperimentState& state = experiment->state;
    const bool configured = state.configured;
    state = BegunState(ExperimentSpec(state.spec), now, std::string(state.model));
    state.configured = configured;
    for (ArmUnits& arm : experiment->units) arm = {};
    experiment->revision.start = ++starts_;
    experiment->Decide();
  }
}

absl::StatusOr<ExperimentView> Experiments::Stop(const std::string& name, absl::Time now) {
  const std::lock_guard lock(mutex_);
  EBB_ASSIGN(Experiment* const experiment, FindLocked(name));
  if (experiment->state.running()) {
    experiment->state.stopped = now;
    for (ArmUnits& arm : experiment->units) arm = {};
    experiment->Decide();
  }
  return ViewOf(experiment->state);
}

absl::StatusOr<ExperimentView> Experiments::Ramp(const std::string& name, double ramp) {
  const std::lock_guard lock(mutex_);
  EBB_ASSIGN(Experiment* const experiment, FindLocked(name));
  if (!experiment->state.running()) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("experiments/%s has stopped; start another", name), {.reason = "EXPERIMENT_STOPPED"});
  }
  experiment->state.spec.ramp = ramp;
  experiment->Decide();
  return ViewOf(experiment->state);
}

absl::StatusOr<ExperimentView> Experiments::Get(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  EBB_ASSIGN(const Experiment* const experiment, FindLocked(name));
  return ViewOf(experiment->state);
}

std::vector<ExperimentView> Experiments::List() const {
  const std::lock_guard lock(mutex_);
  std::vector<ExperimentView> views;
  for (const auto& [_, experiment] : experiments_) views.push_back(ViewOf(experiment->state));
  return views;
}

void Experiments::SetConfigured(const std::set<std::string>& names) {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, experiment] : experiments_) {
    const bool configured = names.contains(name);
    if (experiment->state.configured == configured) continue;
    experiment->state.configured = configured;
    experiment->Decide();
  }
}

std::map<std::string, Experiments::Revision> Experiments::Revisions() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, Revision> revisions;
  for (const auto& [name, experiment] : experiments_) {
    revisions[name] = experiment->revision;
    revisions[name].running = experiment->state.running();
  }
  return revisions;
}

absl::StatusOr<Experiments::Copy> Experiments::Look(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  EBB_ASSIGN(const Experiment* const experiment, FindLocked(name));
  Copy copy = {.state = experiment->state, .revision = experiment->revision};
  copy.revision.running = copy.state.running();
  return copy;
}

absl::StatusOr<std::vector<UnitSums>> Experiments::Units(const std::string& name, const Revision& revision, size_t arm,
                                                         size_t from, size_t count) const {
  const std::lock_guard lock(mutex_);
  EBB_ASSIGN(const Experiment* const experiment, FindLocked(name));
  if (!experiment->state.running() || experiment->revision.start != revision.start) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("experiments/%s has just stopped, and its units are gone", name),
                  {.reason = "EXPERIMENT_STOPPED"});
  }
  const auto& all = experiment->units[arm].in_order;
  std::vector<UnitSums> units;
  units.reserve(count);
  for (size_t i = from; i < std::min(all.size(), from + count); ++i) units.push_back({all[i]->first, all[i]->second});
  return units;
}

bool Experiments::HasRoom(const Experiment& experiment, size_t arm, uint64_t unit) const {
  return experiment.units[arm].by_key.contains(unit) ||
         experiment.state.ratio.total() < static_cast<int64_t>(units_max_);
}

std::optional<Experiments::Placed> Experiments::Place(const std::string& tenant, std::string_view end_user,
                                                      std::string_view session) {
  const std::lock_guard lock(mutex_);
  Experiment* experiment = RunningForLocked(tenant);
  if (experiment == nullptr) experiment = RunningForLocked("");
  if (experiment == nullptr) return std::nullopt;
  const ExperimentSpec& spec = experiment->state.spec;
  // Tenants name their users and sessions as they like: those of two are different units.
  const std::string name =
      end_user.empty() ? absl::StrFormat("%s\2%s", tenant, session) : absl::StrFormat("%s\1%s", tenant, end_user);
  const UnitHash unit = HashUnit(spec.salt, name);
  if (!IsEnrolled(unit, spec.ramp)) return std::nullopt;
  const size_t arm = ArmOf(unit, experiment->weights);
  if (!HasRoom(*experiment, arm, unit.key)) {
    ++experiment->state.turned_away;
    ++experiment->revision.seen;
    return std::nullopt;
  }
  return Placed{.assignment = {.experiment = spec.name,
                               .start = experiment->revision.start,
                               .arm = arm,
                               .arm_name = spec.arms[arm].name,
                               .unit = unit.key},
                .policy = spec.arms[arm].policy};
}

bool Experiments::Enrol(const Assignment& assignment) {
  const std::lock_guard lock(mutex_);
  Experiment* const experiment = RunningOfLocked(assignment);
  if (experiment == nullptr) return false;
  ++experiment->revision.seen;
  if (!HasRoom(*experiment, assignment.arm, assignment.unit)) {
    ++experiment->state.turned_away;
    return false;
  }
  ArmUnits& units = experiment->units[assignment.arm];
  const auto [unit, is_new] = units.by_key.try_emplace(assignment.unit);
  if (is_new) {
    units.in_order.push_back(&*unit);
    experiment->state.ratio.Add(assignment.arm);
  }
  ++experiment->state.arms[assignment.arm].sessions;
  return true;
}

bool Experiments::Add(const Assignment& assignment, const Observations& fresh) {
  const std::lock_guard lock(mutex_);
  Experiment* const experiment = RunningOfLocked(assignment);
  if (experiment == nullptr) return false;
  UnitMap& units = experiment->units[assignment.arm].by_key;
  const auto unit = units.find(assignment.unit);
  if (unit == units.end()) return false;
  if (Count(experiment->state.arms[assignment.arm], unit->second, fresh)) ++experiment->revision.seen;
  return true;
}

bool Experiments::Count(ArmState& arm, Observations& unit, const Observations& fresh) {
  bool any = false;
  for (size_t i = 0; i < kTrialMetrics; ++i) {
    if (fresh.sums[i].denominator == 0) continue;
    arm.moments[i].Remove(unit.sums[i]);
    unit.sums[i] += fresh.sums[i];
    arm.moments[i].Add(unit.sums[i]);
    any = true;
  }
  return any;
}

}  // namespace ebb
