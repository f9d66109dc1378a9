#include "server/experiment_metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "ebb/v1/experiment.pb.h"
#include "policies/check.h"
#include "server/metrics.h"

namespace ebb {
namespace {

constexpr std::pair<Verdict, std::string_view> kDecisions[] = {{Verdict::kBroken, "broken_sample_ratio"},
                                                               {Verdict::kCollecting, "collecting"},
                                                               {Verdict::kSame, "no_difference"},
                                                               {Verdict::kBetter, "favours_arm"},
                                                               {Verdict::kWorse, "favours_control"}};

// As the API calls it: attention_mass_lost.
std::string NameOf(size_t metric) {
  const std::string& name = v1::ExperimentMetric_Name(static_cast<v1::ExperimentMetric>(metric + 1));
  return absl::AsciiStrToLower(std::string(absl::StripPrefix(name, "EXPERIMENT_METRIC_")));
}

class Page {
 public:
  // REQUIRES: `name` is a row of the table, with as many labels as there are values.
  void Add(std::string_view name, std::initializer_list<std::string_view> values, double value) {
    Family& family = Find(name);
    EBB_CHECK(values.size() == family.row->labels.size());
    prometheus::ClientMetric& metric = family.series.metric.emplace_back();
    for (size_t i = 0; i < values.size(); ++i) {
      metric.label.push_back({.name = std::string(family.row->labels[i]), .value = std::string(values.begin()[i])});
    }
    metric.gauge.value = value;
  }

  std::string Text() const {
    std::vector<prometheus::MetricFamily> all;
    for (const Family& family : families_) all.push_back(family.series);
    return prometheus::TextSerializer().Serialize(all);
  }

 private:
  struct Family {
    const MetricRow* row;
    prometheus::MetricFamily series;
  };

  Family& Find(std::string_view name) {
    for (Family& family : families_) {
      if (family.row->name == name) return family;
    }
    const std::span<const MetricRow> table = MetricTable();
    const auto row = std::find_if(table.begin(), table.end(), [&](const MetricRow& each) { return each.name == name; });
    EBB_CHECK(row != table.end());
    return families_.emplace_back(Family{.row = &*row,
                                         .series = {.name = std::string(name),
                                                    .help = std::string(row->help),
                                                    .type = prometheus::MetricType::Gauge,
                                                    .metric = {}}});
  }

  std::vector<Family> families_;
};

void AddArm(Page& page, std::string_view experiment, std::string_view arm, const ArmResult& result) {
  page.Add("ebb_experiment_units", {experiment, arm}, static_cast<double>(result.units));
  page.Add("ebb_experiment_expected_share", {experiment, arm}, result.expected_share);
  for (size_t m = 0; m < kTrialMetrics; ++m) {
    const MetricResult& found = result.metrics[m];
    const std::string metric = NameOf(m);
    if (found.estimate) page.Add("ebb_experiment_value", {experiment, arm, metric, "estimate"}, found.estimate->value);
    if (found.interval) {
      page.Add("ebb_experiment_value", {experiment, arm, metric, "low"}, found.interval->low);
      page.Add("ebb_experiment_value", {experiment, arm, metric, "high"}, found.interval->high);
    }
    if (found.effect) {
      page.Add("ebb_experiment_effect", {experiment, arm, metric, "estimate"}, found.effect->value);
      page.Add("ebb_experiment_effect", {experiment, arm, metric, "low"}, found.effect->interval.low);
      page.Add("ebb_experiment_effect", {experiment, arm, metric, "high"}, found.effect->interval.high);
    }
  }
}

}  // namespace

std::string ExperimentMetrics(const std::vector<ExperimentView>& views) {
  Page page;
  for (const ExperimentView& view : views) {
    if (!view.running) continue;
    const std::string& name = view.spec.name;
    page.Add("ebb_experiment_start_timestamp_seconds", {name}, absl::ToDoubleSeconds(view.started - absl::UnixEpoch()));
    page.Add("ebb_experiment_sample_ratio_p", {name}, view.sample_ratio_p);
    for (const auto& [verdict, decision] : kDecisions) {
      page.Add("ebb_experiment_decision", {name, decision}, view.decision.verdict == verdict ? 1 : 0);
    }
    for (size_t a = 0; a < view.arms.size(); ++a) AddArm(page, name, view.spec.arms[a].name, view.arms[a]);
  }
  return page.Text();
}

}  // namespace ebb
