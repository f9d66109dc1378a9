// What several servers have seen, added up, is what one server would have seen of it all: whoever saw whom, and however
// often.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/experiments/experiments.h"
#include "server/experiments/sum.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

constexpr int kRounds = 60;
const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

ExperimentSpec Spec(size_t arms, std::mt19937_64& random) {
  ExperimentSpec spec = {.name = "e", .salt = "salt-" + std::to_string(random() % 1000), .units_min = 20};
  spec.metric = TrialMetric::kScore;
  for (size_t a = 0; a < arms; ++a) {
    spec.arms.push_back({.name = "arm-" + std::to_string(a), .weight = static_cast<int32_t>(1 + random() % 3)});
  }
  return spec;
}

// The unit comes, and shows what `random` says: some of it little, some much, some nothing.
void Come(Experiments& experiments, const std::string& user, std::mt19937_64 random) {
  const auto placed = experiments.Place("acme", user, "s");
  ASSERT_TRUE(placed.has_value());
  ASSERT_TRUE(experiments.Enrol(placed->assignment));
  std::uniform_real_distribution<double> some(0, 1);
  Observations fresh;
  for (size_t m = 0; m < kTrialMetrics; ++m) {
    if (random() % 3 == 0) continue;
    const double scale = m == static_cast<size_t>(TrialMetric::kReservedBytes) ? 1e9 : 1;
    const double numerator = scale * some(random), denominator = 0.1 + some(random);
    fresh.Add(static_cast<TrialMetric>(m), numerator, denominator);
  }
  ASSERT_TRUE(experiments.Add(placed->assignment, fresh));
}

WholeExperiment WholeOf(const Experiments& experiments) {
  const auto copy = experiments.Look("e");
  WholeExperiment whole = {.state = copy->state};
  for (size_t a = 0; a < whole.state.arms.size(); ++a) {
    auto units = experiments.Units("e", copy->revision, a, 0, static_cast<size_t>(whole.state.ratio.count(a)));
    whole.units.push_back(*std::move(units));
  }
  return whole;
}

TEST(ExperimentSum, OverServersIsWhatOneWouldHaveSeen) {
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::mt19937_64 random(static_cast<uint64_t>(round));
    const ExperimentSpec spec = Spec(2 + random() % 3, random);
    const size_t servers = 1 + random() % 5;
    Experiments all;
    std::vector<Experiments> each(servers);
    ASSERT_THAT(all.Start(spec, kNow), IsOk());
    for (size_t s = 0; s < servers; ++s) ASSERT_THAT(each[s].Start(spec, kNow + absl::Seconds(s)), IsOk());
    const uint64_t users = 5 + random() % 300;
    for (uint64_t session = 0; session < 3 * users; ++session) {
      const std::string user = "user-" + std::to_string(random() % users);
      const std::mt19937_64 shows(random());
      Come(all, user, shows);
      Come(each[random() % servers], user, shows);
    }

    ExperimentSum sum;
    for (size_t s = 0; s < servers; ++s) ASSERT_THAT(sum.Add("server-" + std::to_string(s), WholeOf(each[s])), IsOk());
    const WholeExperiment total = std::move(sum).Total();
    const ExperimentView is = ViewOf(total.state), should = *all.Get("e");
    EXPECT_EQ(is.started, kNow);
    EXPECT_EQ(is.decision.verdict, should.decision.verdict);
    std::vector<int64_t> counts;
    for (size_t a = 0; a < spec.arms.size(); ++a) {
      counts.push_back(should.arms[a].units);
      EXPECT_EQ(is.arms[a].units, should.arms[a].units);
      EXPECT_EQ(is.arms[a].sessions, should.arms[a].sessions);
      for (size_t m = 0; m < kTrialMetrics; ++m) {
        const auto &one = is.arms[a].metrics[m].estimate, &other = should.arms[a].metrics[m].estimate;
        ASSERT_EQ(one.has_value(), other.has_value());
        if (!one) continue;
        EXPECT_EQ(one->units, other->units);
        EXPECT_NEAR(one->value / other->value, 1, 1e-9);
        EXPECT_NEAR(one->variance / other->variance, 1, 1e-9);
      }
    }
    EXPECT_EQ(is.sample_ratio_p, SampleRatio(WeightsOf(spec), counts).p_value());
    EXPECT_GE(is.sample_ratio_p * (1 + 1e-9), should.sample_ratio_p) << "who saw each unit come has seen the worst";
  }
}

// The Bayes factor is the same whether units are counted as they come or at once.
TEST(SampleRatio, OfCountsIsThatOfTheUnitsInWhateverOrder) {
  std::mt19937_64 random(7);
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<double> weights = {1, 1.0 + static_cast<double>(random() % 3), 2};
    SampleRatio one_by_one(weights);
    std::vector<int64_t> counts(3);
    const int units = static_cast<int>(random() % 3000);
    for (int unit = 0; unit < units; ++unit) {
      const size_t arm = unit + 20 < units && random() % 10 == 0 ? random() % 3 : 0;  // log B is largest at the end
      one_by_one.Add(arm);
      ++counts[arm];
    }
    const SampleRatio at_once(weights, counts);
    EXPECT_EQ(at_once.total(), one_by_one.total());
    if (units < 100) continue;
    EXPECT_NEAR(at_once.log_factor_max() / one_by_one.log_factor_max(), 1, 1e-9) << "round " << round;
    SampleRatio goes_on(weights, counts, one_by_one.log_factor_max());
    EXPECT_EQ(goes_on.p_value(), one_by_one.p_value());
    goes_on.Add(0);
    one_by_one.Add(0);
    EXPECT_NEAR(goes_on.log_factor_max() / one_by_one.log_factor_max(), 1, 1e-9);
  }
}

TEST(ExperimentSum, OfServersThatDoNotAssignAlikeIsNone) {
  std::mt19937_64 random(1);
  const ExperimentSpec spec = Spec(2, random);
  Experiments one;
  ASSERT_THAT(one.Start(spec, kNow), IsOk());
  for (int i = 0; i < 20; ++i) Come(one, "user-" + std::to_string(i), random);
  WholeExperiment whole = WholeOf(one), moved = whole;
  ASSERT_FALSE(moved.units[0].empty());
  moved.units[1].push_back(moved.units[0].back());
  moved.units[0].pop_back();
  moved.state.started += absl::Nanoseconds(1);
  ExperimentSum sum;
  ASSERT_THAT(sum.Add("a:7700", whole), IsOk());
  const absl::Status refused = sum.Add("b:7700", moved);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              testing::HasSubstr("is in arm arm-0 at a:7700 and in arm arm-1 at b:7700: they do not assign alike"));
}

TEST(ExperimentSum, OfOneServerUnderTwoNamesIsNone) {
  std::mt19937_64 random(1);
  Experiments one;
  ASSERT_THAT(one.Start(Spec(2, random), kNow), IsOk());
  ExperimentSum sum;
  ASSERT_THAT(sum.Add("a:7700", WholeOf(one)), IsOk());
  const absl::Status refused = sum.Add("b:7700", WholeOf(one));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("a:7700 and b:7700 tell of one and the same start"));
}

TEST(ExperimentSum, OfSessionsOfTwoModelsIsNone) {
  std::mt19937_64 random(1);
  const ExperimentSpec spec = Spec(2, random);
  Experiments one, other;
  ASSERT_THAT(one.Start(spec, kNow, "0123"), IsOk());
  ASSERT_THAT(other.Start(spec, kNow + absl::Seconds(1), "4567"), IsOk());
  ExperimentSum sum;
  ASSERT_THAT(sum.Add("a:7700", WholeOf(one)), IsOk());
  const absl::Status refused = sum.Add("b:7700", WholeOf(other));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              testing::HasSubstr("another model at b:7700 (4567) than at a:7700 (0123)"));
}

TEST(ExperimentSum, OfOneThatHasStoppedIsNone) {
  std::mt19937_64 random(1);
  Experiments one;
  ASSERT_THAT(one.Start(Spec(2, random), kNow), IsOk());
  Come(one, "ann", random);
  ASSERT_THAT(one.Stop("e", kNow), IsOk());
  ExperimentSum sum;
  const absl::Status refused = sum.Add("a:7700", {.state = one.Look("e")->state});
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("experiments/e has stopped at a:7700"));
}

}  // namespace
}  // namespace ebb
