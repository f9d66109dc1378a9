// What the metrics page says of experiments is what their results say, while they run.

#include "server/experiment_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

// `users` end users, each with one session that shows a score: 1 in the arm `other`, 0 in the control, nearly.
void ShowScores(Experiments& experiments, int users) {
  for (int user = 0; user < users; ++user) {
    const std::string name = absl::StrCat("user", user);
    const auto placed = experiments.Place("acme", name, "session-of-" + name);
    ASSERT_TRUE(placed.has_value());
    ASSERT_TRUE(experiments.Enrol(placed->assignment));
    Observations fresh;
    fresh.Add(TrialMetric::kScore, static_cast<double>(placed->assignment.arm) + 0.001 * (user % 7));
    ASSERT_TRUE(experiments.Add(placed->assignment, fresh));
  }
}

ExperimentSpec Spec() {
  return {.name = "trial",
          .arms = {{.name = "control"}, {.name = "other"}},
          .salt = "trial",
          .metric = TrialMetric::kScore,
          .units_min = 20,
          .units_planned = 100};
}

TEST(ExperimentMetrics, NothingWhereNoneRuns) {
  Experiments experiments;
  EXPECT_EQ(ExperimentMetrics(experiments.List()), "");
  ASSERT_THAT(experiments.Start(Spec(), kNow), IsOk());
  EXPECT_THAT(ExperimentMetrics(experiments.List()),
              AllOf(HasSubstr("ebb_experiment_sample_ratio_p{experiment=\"trial\"} 1\n"),
                    HasSubstr("ebb_experiment_start_timestamp_seconds{experiment=\"trial\"} 3600\n")));
  ASSERT_THAT(experiments.Stop("trial", kNow), IsOk());
  EXPECT_EQ(ExperimentMetrics(experiments.List()), "");
}

TEST(ExperimentMetrics, NoIntervalBeforeThereAreEnoughUnits) {
  Experiments experiments;
  ASSERT_THAT(experiments.Start(Spec(), kNow), IsOk());
  ShowScores(experiments, 10);
  const std::string text = ExperimentMetrics(experiments.List());
  EXPECT_THAT(text, HasSubstr("ebb_experiment_decision{experiment=\"trial\",decision=\"collecting\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("ebb_experiment_value{experiment=\"trial\",arm=\"other\",metric=\"score\",stat=\"estimate\"}"));
  EXPECT_THAT(text, Not(HasSubstr("stat=\"low\"")));
  EXPECT_THAT(text, Not(HasSubstr("ebb_experiment_effect")));
}

TEST(ExperimentMetrics, TheNumbersOfTheResults) {
  Experiments experiments;
  ASSERT_THAT(experiments.Start(Spec(), kNow), IsOk());
  ShowScores(experiments, 200);
  const ExperimentView view = *experiments.Get("trial");
  const std::string text = ExperimentMetrics(experiments.List());
  EXPECT_THAT(text, HasSubstr("# TYPE ebb_experiment_effect gauge\n"));
  EXPECT_THAT(text, HasSubstr("ebb_experiment_decision{experiment=\"trial\",decision=\"favours_arm\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ebb_experiment_decision{experiment=\"trial\",decision=\"collecting\"} 0\n"));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("ebb_experiment_units{experiment=\"trial\",arm=\"other\"} ",
                                           view.arms[1].units, "\n")));
  EXPECT_THAT(text, HasSubstr("ebb_experiment_expected_share{experiment=\"trial\",arm=\"control\"} 0.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("ebb_experiment_effect{experiment=\"trial\",arm=\"control\"")))
      << "it is what others differ from";
  const std::string low = "ebb_experiment_effect{experiment=\"trial\",arm=\"other\",metric=\"score\",stat=\"low\"} ";
  ASSERT_THAT(text, HasSubstr(low));
  const double printed = std::stod(text.substr(text.find(low) + low.size()));
  EXPECT_DOUBLE_EQ(printed, view.arms[1].metrics[static_cast<size_t>(TrialMetric::kScore)].effect->interval.low);
  EXPECT_GT(printed, 0.5);
}

}  // namespace
}  // namespace ebb
