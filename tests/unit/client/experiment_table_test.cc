// How an experiment's results are drawn.

#include "client/cli/experiment_table.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_format.h"

namespace ebb::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kExperiment[] = R"(
  name: "experiments/e"
  spec {
    name: "e"
    arms { name: "control" weight: 1 policy { streaming {} } }
    arms { name: "h2o" weight: 3 policy { h2o {} trigger { budget: 64 } } }
    ramp: 0.5 metric: EXPERIMENT_METRIC_SCORE margin: 0.1 units_min: 100
  }
  state: EXPERIMENT_STATE_RUNNING
  results {
    decision: EXPERIMENT_DECISION_FAVOURS_ARM favoured_arm: "h2o" sample_ratio_p: 0.6
    arms {
      arm: "control" units: 120 expected_share: 0.25
      metrics { metric: EXPERIMENT_METRIC_SCORE units: 110 estimate: 0.5 interval { low: 0.4 high: 0.6 } }
      metrics { metric: EXPERIMENT_METRIC_INTER_TOKEN units: 90 estimate: 0.01 standard_error: 0.001 confounded: true }
    }
    arms {
      arm: "h2o" units: 360 expected_share: 0.75
      metrics {
        metric: EXPERIMENT_METRIC_SCORE units: 350 estimate: 0.75 interval { low: 0.7 high: 0.8 }
        difference: 0.25 difference_interval { low: 0.125 high: 0.5 }
      }
    }
  })";

v1::Experiment Experiment() {
  v1::Experiment experiment;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(kExperiment, &experiment));
  return experiment;
}

TEST(IntervalBar, HasNothingInItsMiddle) {
  EXPECT_EQ(IntervalBar(0.5, 0.75, 1, 1, 9), "    | =o=");
  EXPECT_EQ(IntervalBar(-1, -0.5, 0, 1, 9), "==o=|    ");
  EXPECT_EQ(IntervalBar(-0.5, 0, 0.5, 1, 9), "  ==o==  ");
  EXPECT_EQ(IntervalBar(-9, 9, 9, 1, 9), "====|===o") << "cut off";
}

TEST(ExperimentPage, SaysTheDecisionAndDrawsTheInterval) {
  const std::string page = ExperimentPage(Experiment(), 92);
  EXPECT_THAT(page, HasSubstr("running, 50 % of every tenant's units"));
  EXPECT_THAT(page, HasSubstr("h2o is better than control by score."));
  EXPECT_THAT(page, HasSubstr("control 120 (25.0 % of 25.0 %), h2o 360 (75.0 % of 75.0 %), sample ratio as it should"));
  EXPECT_THAT(page, HasSubstr("score *                control         110        0.5      in    [0.4, 0.6]\n"));
  EXPECT_THAT(page, HasSubstr("h2o             350       0.75       0.25 [0.125, 0.5]               |=o=="));
  EXPECT_THAT(page, HasSubstr("inter-token ~          control          90       0.01      +-    0.001, and intervals"));
}

TEST(ExperimentPage, MarksWhatIsConfoundedAlsoWhereItDecides) {
  v1::Experiment experiment = Experiment();
  for (const auto metric : {v1::EXPERIMENT_METRIC_TIME_TO_FIRST_TOKEN, v1::EXPERIMENT_METRIC_INTER_TOKEN}) {
    experiment.mutable_spec()->set_metric(metric);
    experiment.mutable_results()->mutable_arms(0)->mutable_metrics(1)->set_metric(metric);
    const std::string page = ExperimentPage(experiment, 92);
    EXPECT_THAT(page, HasSubstr(absl::StrFormat("\n%-22s control          90 ", MetricWord(metric) + " *~")));
    EXPECT_THAT(page, HasSubstr("\nscore                  control         110 ")) << "it decides no more";
    EXPECT_THAT(page, HasSubstr("* decides.  ~ confounded: arms share the machine"));
  }
}

TEST(ExperimentPage, SaysEveryDecisionInWords) {
  v1::Experiment experiment = Experiment();
  for (int i = 1; i < v1::ExperimentDecision_ARRAYSIZE; ++i) {
    experiment.mutable_results()->set_decision(static_cast<v1::ExperimentDecision>(i));
    const std::string sentence = DecisionSentence(experiment);
    for (int other = 1; other < i; ++other) {
      experiment.mutable_results()->set_decision(static_cast<v1::ExperimentDecision>(other));
      EXPECT_NE(DecisionSentence(experiment), sentence);
    }
  }
}

TEST(MetricWord, LeadsThereAndBack) {
  for (int i = 1; i < v1::ExperimentMetric_ARRAYSIZE; ++i) {
    const auto metric = static_cast<v1::ExperimentMetric>(i);
    EXPECT_EQ(MetricOf(MetricWord(metric)), metric);
  }
  EXPECT_EQ(MetricOf("quality"), v1::EXPERIMENT_METRIC_UNSPECIFIED);
  EXPECT_THAT(MetricWord(static_cast<v1::ExperimentMetric>(99)), Not(HasSubstr("EXPERIMENT")));
}

}  // namespace
}  // namespace ebb::cli
