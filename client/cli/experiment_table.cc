#include "client/cli/experiment_table.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/cli/policy_flags.h"
#include "client/cli/shell.h"
#include "client/cli/terminal.h"

namespace ebb::cli {
namespace {

constexpr char kPrefix[] = "EXPERIMENT_METRIC_";
constexpr size_t kBeside = 88;  // columns of a row in front of its bar
constexpr size_t kBarMin = 9, kBarMax = 41;

std::string Number(v1::ExperimentMetric metric, double value) {
  if (metric != v1::EXPERIMENT_METRIC_RESERVED_BYTES) return absl::StrFormat("%.4g", value);
  return value < 0 ? "-" + Bytes(-value) : Bytes(value);
}

const v1::MetricResults* Find(const v1::ArmResults& arm, v1::ExperimentMetric metric) {
  const auto found = std::ranges::find(arm.metrics(), metric, &v1::MetricResults::metric);
  return found == arm.metrics().end() ? nullptr : &*found;
}

std::string PercentOf(double part, double whole) {
  return whole == 0 ? "-" : absl::StrFormat("%.1f %%", 100 * part / whole);
}

// How many of the sessions came to each arm, and whether that is what was asked for.
std::string SampleRatio(const v1::ExperimentResults& results) {
  double units = 0;
  for (const v1::ArmResults& arm : results.arms()) units += static_cast<double>(arm.units());
  std::string text = Styled("1", "UNITS    ");
  for (const v1::ArmResults& arm : results.arms()) {
    absl::StrAppend(
        &text, absl::StrFormat(" %s %d (%s of %s),", arm.arm(), arm.units(),
                               PercentOf(static_cast<double>(arm.units()), units), PercentOf(arm.expected_share(), 1)));
  }
  const bool broken = results.decision() == v1::EXPERIMENT_DECISION_BROKEN_SAMPLE_RATIO;
  absl::StrAppend(&text, absl::StrFormat(" sample ratio %s (p %.3g)\n", broken ? "BROKEN" : "as it should be",
                                         results.sample_ratio_p()));
  if (results.sessions_turned_away() > 0) {
    absl::StrAppend(&text, absl::StrFormat("          %d sessions found no room in the experiment\n",
                                           results.sessions_turned_away()));
  }
  return text;
}

std::string Interval(v1::ExperimentMetric metric, const v1::ConfidenceInterval& interval) {
  return absl::StrFormat("[%s, %s]", Number(metric, interval.low()), Number(metric, interval.high()));
}

void AddMetric(const v1::Experiment& experiment, v1::ExperimentMetric metric, size_t bar, std::string& text) {
  double scale = 0;
  for (const v1::ArmResults& arm : experiment.results().arms()) {
    const v1::MetricResults* const row = Find(arm, metric);
    if (row == nullptr || !row->has_difference_interval()) continue;
    scale = std::max({scale, std::abs(row->difference_interval().low()), std::abs(row->difference_interval().high())});
  }
  bool first = true;
  for (const v1::ArmResults& arm : experiment.results().arms()) {
    const v1::MetricResults* const row = Find(arm, metric);
    if (row == nullptr) continue;
    const std::string marks =
        absl::StrCat(metric == experiment.spec().metric() ? "*" : "", row->confounded() ? "~" : "");
    const std::string name = absl::StrCat(MetricWord(metric), marks.empty() ? "" : " ", marks);
    absl::StrAppend(&text, absl::StrFormat("%-22s %-12s %6d %10s", first ? name : "", arm.arm(), row->units(),
                                           Number(metric, row->estimate())));
    first = false;
    if (row->has_difference_interval()) {
      absl::StrAppend(&text, absl::StrFormat(" %10s %-22s ", Number(metric, row->difference()),
                                             Interval(metric, row->difference_interval())));
      if (scale > 0) {
        absl::StrAppend(&text, IntervalBar(row->difference_interval().low(), row->difference(),
                                           row->difference_interval().high(), scale, bar));
      }
    } else if (row->has_interval()) {
      absl::StrAppend(&text, "      in    ", Interval(metric, row->interval()));
    } else {
      absl::StrAppend(&text, absl::StrFormat("      +-    %.2g, and intervals from %d units of each arm on",
                                             row->standard_error(), experiment.spec().units_min()));
    }
    text = std::string(absl::StripTrailingAsciiWhitespace(text)) + "\n";
  }
}

}  // namespace

std::string MetricWord(v1::ExperimentMetric metric) {
  const std::string name = v1::ExperimentMetric_Name(metric);
  if (!name.starts_with(kPrefix)) return absl::StrFormat("metric-%d", static_cast<int>(metric));  // a newer server's
  return absl::StrReplaceAll(absl::AsciiStrToLower(name.substr(sizeof(kPrefix) - 1)), {{"_", "-"}});
}

v1::ExperimentMetric MetricOf(const std::string& word) {
  v1::ExperimentMetric metric = v1::EXPERIMENT_METRIC_UNSPECIFIED;
  const std::string name = kPrefix + absl::StrReplaceAll(absl::AsciiStrToUpper(word), {{"-", "_"}});
  return v1::ExperimentMetric_Parse(name, &metric) ? metric : v1::EXPERIMENT_METRIC_UNSPECIFIED;
}

std::string IntervalBar(double low, double value, double high, double scale, size_t columns) {
  const auto middle = static_cast<double>(columns / 2);
  const auto column = [&](double at) {
    return static_cast<size_t>(std::lround(std::clamp(at / scale, -1.0, 1.0) * middle + middle));
  };
  std::string bar(columns, ' ');
  std::fill(bar.begin() + static_cast<ptrdiff_t>(column(low)), bar.begin() + static_cast<ptrdiff_t>(column(high)) + 1,
            '=');
  bar[columns / 2] = '|';
  bar[column(value)] = 'o';
  return bar;
}

std::string DecisionSentence(const v1::Experiment& experiment) {
  const v1::ExperimentSpec& spec = experiment.spec();
  const std::string metric = MetricWord(spec.metric());
  const std::string& arm = experiment.results().favoured_arm();
  switch (experiment.results().decision()) {
    case v1::EXPERIMENT_DECISION_FAVOURS_ARM:
      return absl::StrFormat("%s is better than %s by %s.", arm, spec.arms(0).name(), metric);
    case v1::EXPERIMENT_DECISION_FAVOURS_CONTROL:
      return absl::StrFormat("keep %s: no other arm is better by %s, and one at least is worse.", arm, metric);
    case v1::EXPERIMENT_DECISION_NO_DIFFERENCE:
      return absl::StrFormat("no difference in %s that matters: it is within the margin of %.4g.", metric,
                             spec.margin());
    case v1::EXPERIMENT_DECISION_BROKEN_SAMPLE_RATIO:
      return "none may be made: units did not come to the arms in the shares of their weights. Find out why first.";
    default:
      return absl::StrFormat("none yet: too few units, or %s may still go either way.", metric);
  }
}

std::string ExperimentLine(const v1::Experiment& experiment) {
  const v1::ExperimentSpec& spec = experiment.spec();
  std::vector<std::string> arms;
  for (const v1::ExperimentArm& arm : spec.arms()) arms.push_back(arm.name());
  const bool running = experiment.state() == v1::EXPERIMENT_STATE_RUNNING;
  std::string text = absl::StrFormat("%-25s %-8s %5.0f %%  %-12s ", spec.name(), running ? "running" : "stopped",
                                     100 * spec.ramp(), spec.tenant().empty() ? "(every)" : spec.tenant());
  for (size_t i = 0; i < arms.size(); ++i) absl::StrAppend(&text, i == 0 ? "" : " against ", arms[i]);
  return text;
}

std::string ExperimentPage(const v1::Experiment& experiment, size_t columns) {
  const v1::ExperimentSpec& spec = experiment.spec();
  const bool running = experiment.state() == v1::EXPERIMENT_STATE_RUNNING;
  std::string text = absl::StrFormat(
      "%s  %s, %.0f %% of %s\n", Styled("1", experiment.name()), running ? "running" : "stopped", 100 * spec.ramp(),
      spec.tenant().empty() ? "every tenant's units" : "the units of tenant " + spec.tenant());
  for (const v1::ExperimentArm& arm : spec.arms()) {
    absl::StrAppend(&text,
                    absl::StrFormat("  %-12s weight %-4d %s\n", arm.name(), arm.weight(), Summary(arm.policy())));
  }
  absl::StrAppend(&text, Styled("1", "DECISION "), " ", DecisionSentence(experiment), "\n",
                  SampleRatio(experiment.results()));
  absl::StrAppend(&text,
                  Styled("1", absl::StrFormat("%-22s %-12s %6s %10s %10s %-22s", "METRIC", "ARM", "UNITS", "ESTIMATE",
                                              "DIFFERENCE", "AT EVERY LOOK IN")),
                  "\n");
  size_t bar = std::clamp(columns > kBeside ? columns - kBeside : 0, kBarMin, kBarMax);
  bar -= (bar + 1) % 2;
  for (int i = 1; i < v1::ExperimentMetric_ARRAYSIZE; ++i) {
    AddMetric(experiment, static_cast<v1::ExperimentMetric>(i), bar, text);
  }
  absl::StrAppend(&text, "* decides.  ~ confounded: arms share the machine; compare latency between servers.\n");
  return text;
}

}  // namespace ebb::cli
