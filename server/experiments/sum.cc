#include "server/experiments/sum.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/check.h"

namespace ebb {

absl::Status ExperimentSum::Add(const std::string& server, const WholeExperiment& seen) {
  const ExperimentState& state = seen.state;
  if (!state.running()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("experiments/%s has stopped at %s, which has kept its results and not its units: what several "
                        "servers have seen can be added up until they stop",
                        state.spec.name, server));
  }
  if (const auto [other, is_new] = starts_.try_emplace(state.started, server); !is_new) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s and %s tell of one and the same start of experiments/%s, whose units would count twice: "
                        "name each server once",
                        other->second, server, state.spec.name));
  }
  if (state_ && state_->model != state.model) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "experiments/%s is of sessions of another model at %s (%s) than at %s (%s), and these do not compare",
        state.spec.name, server, state.model, servers_.front(), state_->model));
  }
  if (!state_) {
    state_ = BegunState(state.spec, state.started, state.model);
    units_.resize(state.arms.size());
  }
  EBB_CHECK(seen.units.size() == units_.size());
  state_->spec.ramp = std::max(state_->spec.ramp, state.spec.ramp);
  state_->started = std::min(state_->started, state.started);
  state_->turned_away += state.turned_away;
  servers_.push_back(server);
  for (size_t a = 0; a < seen.units.size(); ++a) {
    state_->arms[a].sessions += state.arms[a].sessions;
    for (const UnitSums& unit : seen.units[a]) {
      const auto [found, is_new] =
          places_.try_emplace(unit.key, Place{.arm = a, .index = units_[a].size(), .server = servers_.size() - 1});
      const Place& place = found->second;
      if (is_new) {
        units_[a].push_back(unit);
      } else if (place.arm == a) {
        units_[a][place.index].seen += unit.seen;
      } else {
        return absl::FailedPreconditionError(
            absl::StrFormat("the unit %016x is in arm %s at %s and in arm %s at %s: they do not assign alike", unit.key,
                            state.spec.arms[place.arm].name, servers_[place.server], state.spec.arms[a].name, server));
      }
    }
  }
  return absl::OkStatus();
}

WholeExperiment ExperimentSum::Total() && {
  EBB_CHECK(state_.has_value());
  std::vector<int64_t> counts;
  for (const std::vector<UnitSums>& arm : units_) counts.push_back(static_cast<int64_t>(arm.size()));
  WholeExperiment total = {.state = *std::move(state_), .units = std::move(units_)};
  total.state.ratio = SampleRatio(WeightsOf(total.state.spec), counts);
  SumUp(total);
  return total;
}

}  // namespace ebb
