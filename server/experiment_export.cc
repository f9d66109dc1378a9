#include "server/experiment_export.h"

#include <algorithm>
#include <vector>

#include "policies/status.h"
#include "server/convert_experiment.h"
#include "server/experiment_spec.h"
#include "server/proto_time.h"

namespace ebb {
namespace {

void FillMoments(const ArmState& arm, v1::ExperimentArmHead& proto) {
  for (size_t m = 0; m < kTrialMetrics; ++m) {
    const RatioMoments::Sums& sums = arm.moments[m].sums();
    if (!sums.AreSomething()) continue;
    v1::MetricMoments& moments = *proto.add_moments();
    moments.set_metric(MetricProto(static_cast<TrialMetric>(m)));
    moments.set_units(static_cast<uint64_t>(sums.units));
    moments.set_mean_numerator(sums.mean_x);
    moments.set_mean_denominator(sums.mean_y);
    moments.set_numerator_squares(sums.xx);
    moments.set_products(sums.xy);
    moments.set_denominator_squares(sums.yy);
  }
}

v1::ExperimentPart HeadPart(const ExperimentState& state) {
  v1::ExperimentPart part;
  v1::ExperimentHead& head = *part.mutable_head();
  *head.mutable_spec() = SpecProto(state.spec);
  head.set_configured(state.configured);
  head.set_model(state.model);
  *head.mutable_start_time() = TimestampProto(state.started);
  if (!state.running()) *head.mutable_stop_time() = TimestampProto(state.stopped);
  head.set_sessions_turned_away(static_cast<uint64_t>(state.turned_away));
  head.set_log_factor_max(state.ratio.log_factor_max());
  for (size_t a = 0; a < state.arms.size(); ++a) {
    v1::ExperimentArmHead& arm = *head.add_arms();
    arm.set_units(static_cast<uint64_t>(state.ratio.count(a)));
    arm.set_sessions(static_cast<uint64_t>(state.arms[a].sessions));
    if (!state.running()) FillMoments(state.arms[a], arm);
  }
  return part;
}

v1::ExperimentPart UnitsPart(size_t arm, const std::vector<UnitSums>& units) {
  v1::ExperimentPart part;
  part.mutable_units()->set_arm(static_cast<uint32_t>(arm));
  for (const UnitSums& unit : units) {
    v1::ExperimentUnit& proto = *part.mutable_units()->add_units();
    proto.set_key(unit.key);
    for (size_t m = 0; m < kTrialMetrics; ++m) {
      const RatioSums& sums = unit.seen.sums[m];
      if (!sums.IsSomething()) continue;
      v1::UnitMetric& metric = *proto.add_metrics();
      metric.set_metric(MetricProto(static_cast<TrialMetric>(m)));
      metric.set_numerator(sums.numerator);
      metric.set_denominator(sums.denominator);
    }
  }
  return part;
}

}  // namespace

absl::StatusOr<ExperimentExport> ExperimentExport::Of(const Experiments& experiments, const std::string& name) {
  EBB_ASSIGN(Experiments::Copy copy, experiments.Look(name));
  return ExperimentExport(experiments, std::move(copy));
}

absl::StatusOr<std::optional<v1::ExperimentPart>> ExperimentExport::Next() {
  const ExperimentState& state = copy_.state;
  if (!std::exchange(begun_, true)) return HeadPart(state);
  if (!state.running()) return std::nullopt;
  for (; arm_ < state.arms.size(); ++arm_, unit_ = 0) {
    const auto all = static_cast<size_t>(state.ratio.count(arm_));
    const size_t count = std::min(kUnitsOfPart, all - unit_);
    if (count == 0) continue;
    EBB_ASSIGN(const std::vector<UnitSums> units,
               experiments_->Units(state.spec.name, copy_.revision, arm_, unit_, count));
    unit_ += count;
    return UnitsPart(arm_, units);
  }
  return std::nullopt;
}

}  // namespace ebb
