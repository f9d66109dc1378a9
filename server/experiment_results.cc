#include "server/experiment_results.h"

#include <cmath>

#include "server/experiment_spec.h"
#include "server/proto_time.h"

namespace ebb {
namespace {

v1::ExperimentDecision DecisionProto(Verdict verdict) {
  switch (verdict) {
    case Verdict::kBroken:
      return v1::EXPERIMENT_DECISION_BROKEN_SAMPLE_RATIO;
    case Verdict::kCollecting:
      return v1::EXPERIMENT_DECISION_COLLECTING;
    case Verdict::kSame:
      return v1::EXPERIMENT_DECISION_NO_DIFFERENCE;
    case Verdict::kBetter:
      return v1::EXPERIMENT_DECISION_FAVOURS_ARM;
    case Verdict::kWorse:
      return v1::EXPERIMENT_DECISION_FAVOURS_CONTROL;
  }
  return v1::EXPERIMENT_DECISION_UNSPECIFIED;
}

void FillInterval(const Interval& interval, v1::ConfidenceInterval& proto) {
  proto.set_low(interval.low);
  proto.set_high(interval.high);
}

v1::MetricResults MetricResultsProto(TrialMetric metric, const MetricResult& result) {
  v1::MetricResults proto;
  proto.set_metric(MetricProto(metric));
  proto.set_units(static_cast<uint64_t>(result.estimate->units));
  proto.set_estimate(result.estimate->value);
  proto.set_standard_error(std::sqrt(result.estimate->variance));
  if (result.interval) FillInterval(*result.interval, *proto.mutable_interval());
  if (result.effect) {
    proto.set_difference(result.effect->value);
    FillInterval(result.effect->interval, *proto.mutable_difference_interval());
  }
  proto.set_confounded(IsConfounded(metric));
  proto.set_more_is_better(BetterDirection(metric) > 0);
  return proto;
}

void FillResults(const ExperimentView& view, v1::ExperimentResults& proto) {
  proto.set_decision(DecisionProto(view.decision.verdict));
  if (view.decision.verdict == Verdict::kBetter || view.decision.verdict == Verdict::kWorse) {
    proto.set_favoured_arm(view.spec.arms[view.decision.arm].name);
  }
  proto.set_sample_ratio_p(view.sample_ratio_p);
  proto.set_sessions_turned_away(static_cast<uint64_t>(view.turned_away));
  for (size_t a = 0; a < view.arms.size(); ++a) {
    const ArmResult& result = view.arms[a];
    v1::ArmResults& arm = *proto.add_arms();
    arm.set_arm(view.spec.arms[a].name);
    arm.set_units(static_cast<uint64_t>(result.units));
    arm.set_sessions(static_cast<uint64_t>(result.sessions));
    arm.set_expected_share(result.expected_share);
    arm.set_decision(DecisionProto(result.verdict));
    for (size_t m = 0; m < kTrialMetrics; ++m) {
      if (result.metrics[m].estimate) {
        *arm.add_metrics() = MetricResultsProto(static_cast<TrialMetric>(m), result.metrics[m]);
      }
    }
  }
}

}  // namespace

v1::Experiment ResultsProto(const ExperimentView& view) {
  v1::Experiment proto;
  proto.set_name("experiments/" + view.spec.name);
  proto.set_state(view.running ? v1::EXPERIMENT_STATE_RUNNING : v1::EXPERIMENT_STATE_STOPPED);
  *proto.mutable_start_time() = TimestampProto(view.started);
  if (!view.running) *proto.mutable_stop_time() = TimestampProto(view.stopped);
  FillResults(view, *proto.mutable_results());
  return proto;
}

}  // namespace ebb
