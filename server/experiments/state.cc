#include "server/experiments/state.h"

#include <algorithm>
#include <utility>

#include "policies/check.h"

namespace ebb {

std::vector<double> WeightsOf(const ExperimentSpec& spec) {
  std::vector<double> weights;
  for (const ExperimentArm& arm : spec.arms) weights.push_back(arm.weight);
  return weights;
}

ExperimentState BegunState(ExperimentSpec spec, absl::Time now, std::string model) {
  const std::vector<double> weights = WeightsOf(spec);
  return {.spec = std::move(spec),
          .model = std::move(model),
          .started = now,
          .ratio = SampleRatio(weights),
          .arms = std::vector<ArmState>(weights.size())};
}

void SumUp(WholeExperiment& experiment) {
  EBB_CHECK(experiment.units.size() == experiment.state.arms.size());
  for (size_t a = 0; a < experiment.units.size(); ++a) {
    ArmState& arm = experiment.state.arms[a];
    arm.moments = {};
    for (const UnitSums& unit : experiment.units[a]) {
      for (size_t m = 0; m < kTrialMetrics; ++m) arm.moments[m].Add(unit.seen.sums[m]);
    }
  }
}

ExperimentView ViewOf(const ExperimentState& experiment) {
  const ExperimentSpec& spec = experiment.spec;
  ExperimentView view = {.spec = spec,
                         .configured = experiment.configured,
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
