// What the statistics of experiments promise, by simulation: how often they are wrong when somebody looks every day.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/experiments/assignment.h"
#include "server/experiments/decision.h"
#include "server/experiments/ratio.h"
#include "server/experiments/sample_ratio.h"
#include "server/experiments/sequential.h"

namespace ebb {
namespace {

#ifdef EBB_SANITIZED
constexpr int kRuns = 500;
#else
constexpr int kRuns = 10'000;
#endif
constexpr uint64_t kSeed = 20;
constexpr double kAlpha = 0.05;
constexpr int kDays = 30;
constexpr int kUnitsADay = 40;  // of both arms
constexpr int64_t kUnitsMin = 100;
constexpr int64_t kPlanned = 1000;

using Random = std::mt19937_64;

// The most runs of kRuns that may show what has this chance each, but once in 30,000 times.
double MostAt(double chance) { return kRuns * chance + 4 * std::sqrt(kRuns * chance * (1 - chance)); }

// A session's score per report: units that are as different as people are, and more so the more they do.
struct Sessions {
  static constexpr double kSpread = 0.6;
  RatioSums Draw(Random& random, double scale) {
    const double events = 1 + static_cast<double>(random() % 10);
    const double more = 1 + 0.2 * (events - 5) / (5.5 + 3);  // who does more, shows more of it
    const double level = std::exp(kSpread * normal(random)) * more * scale;
    return {level * events, events};
  }
  // sum of level * events / sum of events, in the limit.
  static double Truth(double scale) {
    double weighted = 0, events = 0;
    for (int e = 1; e <= 10; ++e) {
      weighted += e * (1 + 0.2 * (e - 5) / (5.5 + 3));
      events += e;
    }
    return std::exp(kSpread * kSpread / 2) * weighted / events * scale;
  }
  std::normal_distribution<double> normal{};
};

// A thumb from each unit.
struct Thumbs {
  static constexpr double kUp = 0.3;
  RatioSums Draw(Random& random, double scale) {
    return {std::uniform_real_distribution<double>()(random) < kUp * scale ? 1.0 : 0.0, 1};
  }
  static double Truth(double scale) { return kUp * scale; }
};

struct Tally {
  int runs_wrong = 0;        // the truth was outside an interval on some day
  int runs_decided = 0;      // 0 was
  int runs_wrong_fixed = 0;  // the truth was outside 1.96 standard errors on some day
};

// Experiments of which somebody looks at the results every evening. The arm's values are `scale` times the control's.
template <typename Units>
Tally Simulate(double scale) {
  Tally tally;
  const double truth = Units::Truth(scale) - Units::Truth(1);
  for (int run = 0; run < kRuns; ++run) {
    Random random(kSeed + static_cast<uint64_t>(run));
    Units units;
    RatioMoments arms[2];
    bool wrong = false, decided = false, wrong_fixed = false;
    for (int day = 0; day < kDays; ++day) {
      for (int unit = 0; unit < kUnitsADay; ++unit) {
        const size_t arm = random() % 2;
        arms[arm].Add(units.Draw(random, arm == 1 ? scale : 1));
      }
      if (arms[0].units() < kUnitsMin || arms[1].units() < kUnitsMin) continue;
      const RatioEstimate control = *arms[0].Estimate(), treated = *arms[1].Estimate();
      const Difference effect = SequentialDifference(treated, control, kAlpha, kPlanned);
      wrong |= !effect.interval.Contains(truth);
      decided |= !effect.interval.Contains(0);
      wrong_fixed |= std::abs(effect.value - truth) > 1.96 * std::sqrt(control.variance + treated.variance);
    }
    tally.runs_wrong += wrong;
    tally.runs_decided += decided;
    tally.runs_wrong_fixed += wrong_fixed;
  }
  return tally;
}

template <typename Units>
void ExpectHonest(double scale, double found_at_least) {
  const Tally same = Simulate<Units>(1);
  EXPECT_LE(same.runs_decided, MostAt(kAlpha)) << "A/A, seed " << kSeed;
  EXPECT_GT(same.runs_decided, 0) << "a test that never rejects would be no test";
  EXPECT_EQ(same.runs_decided, same.runs_wrong);
  // Were the same data looked at every evening with an interval for one look, it would be wrong far more often.
  EXPECT_GT(same.runs_wrong_fixed, kRuns * 3 * kAlpha);

  const Tally other = Simulate<Units>(scale);
  testing::Test::RecordProperty("aa_decided", same.runs_decided);
  testing::Test::RecordProperty("aa_decided_by_fixed_intervals", same.runs_wrong_fixed);
  testing::Test::RecordProperty("ab_missed", other.runs_wrong);
  testing::Test::RecordProperty("ab_found", other.runs_decided);
  EXPECT_LE(other.runs_wrong, MostAt(kAlpha)) << "A/B, seed " << kSeed;
  EXPECT_GT(other.runs_wrong_fixed, kRuns * 3 * kAlpha);
  EXPECT_GE(other.runs_decided, kRuns * found_at_least) << "there is something to find";
}

TEST(ExperimentStatistics, IntervalsOfARatioHoldAtEveryLook) { ExpectHonest<Sessions>(1.25, 0.9); }

TEST(ExperimentStatistics, IntervalsOfAProportionHoldAtEveryLook) { ExpectHonest<Thumbs>(1.5, 0.9); }

// The margin of no difference is an interval, too: a difference beyond it is called none as seldom.
TEST(ExperimentStatistics, ADifferenceBeyondTheMarginIsSeldomCalledNone) {
  const double margin = 0.12;
  int called_same = 0, same_called_same = 0;
  for (int run = 0; run < kRuns; ++run) {
    for (const bool differs : {false, true}) {
      Random random(kSeed + static_cast<uint64_t>(run));
      Thumbs units;
      RatioMoments arms[2];
      bool same = false;
      for (int day = 0; day < kDays; ++day) {
        for (int unit = 0; unit < kUnitsADay; ++unit) {
          const size_t arm = random() % 2;
          arms[arm].Add(units.Draw(random, arm == 1 && differs ? 1 + margin / Thumbs::kUp : 1));
        }
        if (arms[0].units() < kUnitsMin || arms[1].units() < kUnitsMin) continue;
        const Difference effect = SequentialDifference(*arms[1].Estimate(), *arms[0].Estimate(), kAlpha, kPlanned);
        same |= VerdictOn(effect, 1, margin, false) == Verdict::kSame;
      }
      (differs ? called_same : same_called_same) += same;
    }
  }
  RecordProperty("called_none", called_same);
  RecordProperty("same_called_none", same_called_same);
  EXPECT_LE(called_same, MostAt(kAlpha)) << "seed " << kSeed;
  EXPECT_GT(same_called_same, kRuns * 0.8);
}

TEST(ExperimentStatistics, TheDeltaMethodAgreesWithRepeatedSampling) {
  constexpr int kUnits = 200;
  RatioMoments replicates;  // of the ratio itself
  double told = 0, naive = 0;
  for (int run = 0; run < kRuns; ++run) {
    Random random(kSeed + static_cast<uint64_t>(run));
    Sessions units;
    RatioMoments arm;
    double events = 0, values = 0, squares = 0;
    for (int unit = 0; unit < kUnits; ++unit) {
      const RatioSums sums = units.Draw(random, 1);
      arm.Add(sums);
      const double each = sums.numerator / sums.denominator;  // all of a unit's events are alike
      events += sums.denominator;
      values += sums.numerator;
      squares += sums.denominator * each * each;
    }
    replicates.Add({arm.Estimate()->value, 1});
    told += arm.Estimate()->variance;
    const double mean = values / events;
    naive += (squares / events - mean * mean) / events;  // as if every event were on its own
  }
  const double seen = replicates.Estimate()->variance * kRuns;
  RecordProperty("told_by_seen", std::to_string(told / kRuns / seen));
  RecordProperty("naive_by_seen", std::to_string(naive / kRuns / seen));
  EXPECT_NEAR(replicates.Estimate()->value, Sessions::Truth(1), 4 * std::sqrt(seen / kRuns) + 0.005);
  // A variance estimated from kRuns draws is off by about sqrt(2 / kRuns) of itself; the method's own bias is of 1/n.
  EXPECT_NEAR(told / kRuns / seen, 1, 4 * std::sqrt(2.0 / kRuns) + 0.03);
  EXPECT_LT(naive / kRuns / seen, 0.5) << "which is what it is for";
}

TEST(ExperimentStatistics, AnEvenSplitIsSeldomCalledBroken) {
  constexpr int kUnits = 2000;
  const std::vector<double> weights = {1, 1, 2};
  int broken = 0;
  for (int run = 0; run < kRuns; ++run) {
    Random random(kSeed + static_cast<uint64_t>(run));
    SampleRatio ratio(weights);
    for (int unit = 0; unit < kUnits; ++unit) ratio.Add(std::min<size_t>(random() % 4, 2));
    broken += ratio.broken();  // on any day: it is never mended
  }
  RecordProperty("broken", broken);
  EXPECT_LE(broken, MostAt(SampleRatio::kBroken)) << "seed " << kSeed;
}

TEST(ExperimentStatistics, AnUnevenSplitIsFound) {
  constexpr int kUnits = 16'000;
  const std::vector<double> weights = {1, 1};
  int broken = 0;
  for (int run = 0; run < kRuns / 10; ++run) {
    Random random(kSeed + static_cast<uint64_t>(run));
    SampleRatio ratio(weights);
    for (int unit = 0; unit < kUnits; ++unit) {
      if (random() % 10 == 0 && unit % 2 == 0) continue;  // a tenth of the control's is never seen
      ratio.Add(static_cast<size_t>(unit % 2));
    }
    broken += ratio.broken();
  }
  RecordProperty("found", broken);
  EXPECT_GE(broken, kRuns / 10 * 0.95);
}

// 64 bits of a hash are as good as dice: arms by weights, at any ramp.
TEST(ExperimentStatistics, AssignmentFollowsTheWeightsAtEveryRamp) {
  constexpr int kUnits = 40'000;
  const std::vector<double> weights = {3, 1, 6};
  for (const double ramp : {0.1, 0.5, 1.0}) {
    std::vector<double> counts(weights.size());
    double enrolled = 0;
    for (int unit = 0; unit < kUnits; ++unit) {
      const UnitHash hash = HashUnit("salt", "user-" + std::to_string(unit));
      if (!IsEnrolled(hash, ramp)) continue;
      ++enrolled;
      ++counts[ArmOf(hash, weights)];
    }
    EXPECT_NEAR(enrolled, kUnits * ramp, 4 * std::sqrt(kUnits * ramp * (1 - ramp)) + 1e-9);
    for (size_t arm = 0; arm < weights.size(); ++arm) {
      const double share = weights[arm] / 10;
      EXPECT_NEAR(counts[arm], enrolled * share, 4 * std::sqrt(enrolled * share * (1 - share))) << ramp << " " << arm;
    }
  }
}

TEST(ExperimentStatistics, ARampBringsUnitsInAndMovesNone) {
  const std::vector<double> weights = {1, 2};
  for (int unit = 0; unit < 2000; ++unit) {
    const std::string name = "user-" + std::to_string(unit);
    std::optional<size_t> arm;
    for (double ramp = 0; ramp <= 1; ramp += 0.05) {
      const UnitHash hash = HashUnit("salt", name);
      ASSERT_TRUE(!arm || IsEnrolled(hash, ramp)) << name << " left at " << ramp;
      if (!IsEnrolled(hash, ramp)) continue;
      ASSERT_TRUE(!arm || arm == ArmOf(hash, weights)) << name << " moved at " << ramp;
      arm = ArmOf(hash, weights);
    }
  }
}

TEST(ExperimentStatistics, TwoSaltsKnowNothingOfEachOther) {
  constexpr int kUnits = 40'000;
  const std::vector<double> weights = {1, 1};
  int alike = 0;
  for (int unit = 0; unit < kUnits; ++unit) {
    const std::string name = "user-" + std::to_string(unit);
    alike += ArmOf(HashUnit("one", name), weights) == ArmOf(HashUnit("two", name), weights);
  }
  EXPECT_NEAR(alike, kUnits / 2, 4 * std::sqrt(kUnits / 4.0));
}

// Welford's updates both ways, against two passes over what is left.
TEST(ExperimentStatistics, MomentsForgetWhatIsTakenBack) {
  Random random(kSeed);
  std::normal_distribution<double> normal(1000, 1);  // far from 0, where sums of squares lose digits
  std::vector<RatioSums> units;
  RatioMoments moments;
  for (int step = 0; step < 200'000; ++step) {
    if (units.size() > 500) {
      const size_t at = random() % units.size();
      moments.Remove(units[at]);
      units[at] += {normal(random), 1};
      if (units[at].denominator > 50) units[at] = {normal(random), 1};
      moments.Add(units[at]);
    } else {
      units.push_back({normal(random), 1});
      moments.Add(units.back());
    }
  }
  double x = 0, y = 0;
  for (const RatioSums& unit : units) {
    x += unit.numerator;
    y += unit.denominator;
  }
  const double ratio = x / y;
  double residuals = 0;
  for (const RatioSums& unit : units) {
    const double residual = (unit.numerator - x / units.size()) - ratio * (unit.denominator - y / units.size());
    residuals += residual * residual;
  }
  const double n = static_cast<double>(units.size());
  EXPECT_EQ(moments.units(), static_cast<int64_t>(units.size()));
  EXPECT_NEAR(moments.Estimate()->value / ratio, 1, 1e-9);
  const double variance = residuals / (n - 1) / n / (y / n) / (y / n);
  EXPECT_NEAR(moments.Estimate()->variance / variance, 1, 1e-4);
}

TEST(ExperimentStatistics, TheIntervalIsTightestWhereItWasPlanned) {
  // Against the fixed-horizon width at the same t, by the equation worked by hand: rho^2 t0 = 7.9362 for alpha 0.05.
  EXPECT_NEAR(SequentialHalfWidth(1, 1000, 0.05, 1000), 3.0352, 0.0001);
  const auto ratio = [](int64_t t) { return SequentialHalfWidth(1.0 / static_cast<double>(t), t, 0.05, 1000); };
  for (const int64_t t : {100, 300, 3000, 10'000}) {
    EXPECT_LT(SequentialHalfWidth(1.0 / static_cast<double>(t), t, 0.05, t), ratio(t)) << t;
  }
}

}  // namespace
}  // namespace ebb
