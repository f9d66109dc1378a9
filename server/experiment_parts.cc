#include "server/experiment_parts.h"

#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/shortest.h"
#include "policies/status.h"
#include "server/experiment_spec.h"
#include "server/proto_time.h"

namespace ebb {
namespace {

constexpr uint64_t kCountMax = uint64_t{1} << 53;  // of anything; sums of a few of them stay far below 2^63
constexpr int32_t kNanos = 1'000'000'000;          // of a second
constexpr int64_t kSecondsEnd = 253402300800;      // of a time: the year 10000, which JSON has no text for

absl::Status Wrong(const std::string& where, const std::string& what) {
  return absl::InvalidArgumentError(where.empty() ? what : where + ": " + what);
}

absl::Status CheckCount(const std::string& where, uint64_t count) {
  if (count <= kCountMax) return absl::OkStatus();
  return Wrong(where, absl::StrFormat("%d; at most 2^53", count));
}

absl::StatusOr<absl::Time> TimeAt(const std::string& where, const google::protobuf::Timestamp& time) {
  const bool is_far = time.seconds() < 0 || time.seconds() >= kSecondsEnd;
  if (is_far || time.nanos() < 0 || time.nanos() >= kNanos) return Wrong(where, "it is no time since 1970");
  return TimeFrom(time);
}

// Which of an Observations' sums, of those that were not there before.
absl::StatusOr<size_t> NewMetric(v1::ExperimentMetric metric, std::set<int>& seen) {
  if (metric == v1::EXPERIMENT_METRIC_UNSPECIFIED || !v1::ExperimentMetric_IsValid(metric)) {
    return Wrong("metric", absl::StrFormat("%d is none that is known here", metric));
  }
  if (!seen.insert(metric).second) return Wrong("metric", v1::ExperimentMetric_Name(metric) + " is there twice");
  return static_cast<size_t>(metric) - 1;
}

absl::Status TakeMoments(const v1::ExperimentArmHead& head, ArmState& arm) {
  std::set<int> seen;
  for (const v1::MetricMoments& proto : head.moments()) {
    EBB_ASSIGN(const size_t metric, NewMetric(proto.metric(), seen));
    if (proto.units() == 0 || proto.units() > head.units()) {
      return Wrong("moments", absl::StrFormat("of %d units, where the arm has %d", proto.units(), head.units()));
    }
    const RatioMoments::Sums sums = {.units = static_cast<int64_t>(proto.units()),
                                     .mean_x = proto.mean_numerator(),
                                     .mean_y = proto.mean_denominator(),
                                     .xx = proto.numerator_squares(),
                                     .xy = proto.products(),
                                     .yy = proto.denominator_squares()};
    if (!sums.AreSomething()) {
      return Wrong("moments", "they cannot be of sums whose denominators are above 0");
    }
    arm.moments[metric] = RatioMoments::Of(sums);
  }
  return absl::OkStatus();
}

absl::StatusOr<Observations> SeenFrom(const v1::ExperimentUnit& unit) {
  Observations seen;
  std::set<int> metrics;
  for (const v1::UnitMetric& proto : unit.metrics()) {
    EBB_ASSIGN(const size_t metric, NewMetric(proto.metric(), metrics));
    const RatioSums sums = {.numerator = proto.numerator(), .denominator = proto.denominator()};
    if (!sums.IsSomething()) {
      return Wrong("metrics", absl::StrFormat("%s over %s is no ratio of sums", Shortest(proto.numerator()),
                                              Shortest(proto.denominator())));
    }
    seen.sums[metric] = sums;
  }
  return seen;
}

absl::Status At(const std::string& where, const absl::Status& status) {
  return status.ok() ? status : Wrong(where, std::string(status.message()));
}

}  // namespace

absl::Status ExperimentParts::Take(const v1::ExperimentPart& part) {
  switch (part.part_case()) {
    case v1::ExperimentPart::kHead:
      return At("head", TakeHead(part.head()));
    case v1::ExperimentPart::kUnits:
      return At("units", TakeUnits(part.units()));
    case v1::ExperimentPart::PART_NOT_SET:
      break;
  }
  return Wrong("", "a part is neither a head nor units");
}

absl::Status ExperimentParts::TakeHead(const v1::ExperimentHead& head) {
  if (whole_) return Wrong("", "it is there twice");
  auto spec = SpecFrom(head.spec());
  if (!spec.ok()) return At("spec", spec.status());
  EBB_ASSIGN(const absl::Time started, TimeAt("start_time", head.start_time()));
  ExperimentState state = BegunState(*std::move(spec), started);
  if (head.has_stop_time()) {
    EBB_ASSIGN(state.stopped, TimeAt("stop_time", head.stop_time()));
  }
  state.configured = head.configured();
  state.model = head.model();
  EBB_TRY(CheckCount("sessions_turned_away", head.sessions_turned_away()));
  state.turned_away = static_cast<int64_t>(head.sessions_turned_away());
  if (!std::isfinite(head.log_factor_max()) || head.log_factor_max() < 0) {
    return Wrong("log_factor_max", absl::StrFormat("%s is not a number from 0 on", Shortest(head.log_factor_max())));
  }
  if (static_cast<size_t>(head.arms_size()) != state.arms.size()) {
    return Wrong("arms", absl::StrFormat("%d, where the spec has %d", head.arms_size(), state.arms.size()));
  }
  std::vector<int64_t> counts;
  for (size_t a = 0; a < state.arms.size(); ++a) {
    const v1::ExperimentArmHead& arm = head.arms(static_cast<int>(a));
    EBB_TRY(CheckCount("units", arm.units()));
    EBB_TRY(CheckCount("sessions", arm.sessions()));
    counts.push_back(static_cast<int64_t>(arm.units()));
    state.arms[a].sessions = static_cast<int64_t>(arm.sessions());
    if (state.running() && arm.moments_size() > 0) return Wrong("moments", "one that runs has units instead");
    EBB_TRY(TakeMoments(arm, state.arms[a]));
  }
  state.ratio = SampleRatio(WeightsOf(state.spec), counts, head.log_factor_max());
  const size_t with_units = state.running() ? state.arms.size() : 0;
  whole_.emplace(WholeExperiment{.state = std::move(state)});
  whole_->units.resize(with_units);
  keys_.resize(with_units);
  return absl::OkStatus();
}

absl::Status ExperimentParts::TakeUnits(const v1::ExperimentUnits& units) {
  if (!whole_) return Wrong("", "they come before the head");
  if (units.arm() >= whole_->units.size()) {
    return Wrong("arm", whole_->state.running()
                            ? absl::StrFormat("%d, where there are %d", units.arm(), whole_->units.size())
                            : "it has stopped, and no arm has units");
  }
  std::vector<UnitSums>& arm = whole_->units[units.arm()];
  for (const v1::ExperimentUnit& unit : units.units()) {
    if (!keys_[units.arm()].insert(unit.key()).second)
      return Wrong("key", absl::StrFormat("%x is there twice", unit.key()));
    EBB_ASSIGN(Observations seen, SeenFrom(unit));
    arm.push_back({.key = unit.key(), .seen = seen});
  }
  if (arm.size() > static_cast<size_t>(whole_->state.ratio.count(units.arm()))) {
    return Wrong("", absl::StrFormat("arm %d has more than the head counts", units.arm()));
  }
  return absl::OkStatus();
}

absl::StatusOr<WholeExperiment> ExperimentParts::Finish() {
  if (!whole_) return Wrong("", "it has no head");
  for (size_t a = 0; a < whole_->units.size(); ++a) {
    const auto counted = static_cast<size_t>(whole_->state.ratio.count(a));
    if (whole_->units[a].size() == counted) continue;
    return Wrong("units",
                 absl::StrFormat("arm %d has %d, where the head counts %d", a, whole_->units[a].size(), counted));
  }
  if (!whole_->units.empty()) SumUp(*whole_);
  return *std::move(whole_);
}

}  // namespace ebb
