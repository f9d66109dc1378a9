// What experiments promise of units that go on showing, by simulation through Experiments itself: sessions come and go,
// and their units' sums grow, while somebody looks every evening.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "server/experiments/experiments.h"

namespace ebb {
namespace {

#ifdef EBB_SANITIZED
constexpr int kRuns = 100;
#else
constexpr int kRuns = 500;
#endif
constexpr uint64_t kSeed = 20;
constexpr double kAlpha = 0.05;

using Random = std::mt19937_64;

// The most runs of kRuns that may show what has this chance each, but once in 30,000 times.
double MostAt(double chance) { return kRuns * chance + 4 * std::sqrt(kRuns * chance * (1 - chance)); }

// Experiments that are all alike but for their salt and their units.
struct World {
  std::vector<double> scales = {1, 1};  // what an arm's units show, times the control's
  std::vector<int32_t> weights = {1, 1};
  bool named = true;      // sessions name an end user; else their own name is the unit's, and comes again
  int units_at_once = 0;  // on the first day
  int units_a_day = 0;    // on each after that
  int days = 30;
  size_t units_max = Experiments::kUnitsMax;
  int64_t units_min = 100;
};

// Who comes on a day with a chance of their own, and then shows some events, alike within themselves. Who comes more
// often shows more.
struct Unit {
  std::string name = {};
  int often = 1;  // 1 .. 5, in tenths
  double level = 1;
};
constexpr double kSpread = 0.6;

Unit NewUnit(int number, Random& random, std::normal_distribution<double>& normal) {
  const int often = 1 + static_cast<int>(random() % 5);
  return {.name = "unit-" + std::to_string(number),
          .often = often,
          .level = std::exp(kSpread * normal(random)) * (0.8 + 0.1 * often)};
}

// sum of what is shown / sum of events, in the limit, on every day: chances do not change.
double Truth(double scale) {
  double shown = 0, events = 0;
  for (int often = 1; often <= 5; ++often) {
    shown += often * (0.8 + 0.1 * often);
    events += often;
  }
  return std::exp(kSpread * kSpread / 2) * shown / events * scale;
}

ExperimentSpec SpecOf(const World& world, int run) {
  ExperimentSpec spec = {.name = "e",
                         .salt = "run-" + std::to_string(run),
                         .metric = TrialMetric::kScore,
                         .alpha = kAlpha,
                         .units_min = world.units_min};
  for (size_t arm = 0; arm < world.weights.size(); ++arm) {
    spec.arms.push_back({.name = "arm-" + std::to_string(arm), .weight = world.weights[arm]});
  }
  return spec;
}

// A session of the unit from its beginning to its end.
void ShowSession(Experiments& experiments, const World& world, const Unit& unit, Random& random) {
  const auto placed = experiments.Place("acme", world.named ? unit.name : "", world.named ? "session" : unit.name);
  if (!placed || !experiments.Enrol(placed->assignment)) return;
  const double events = 1 + static_cast<double>(random() % 4);
  const double noise = 0.5 + std::uniform_real_distribution<double>()(random);
  Observations fresh;
  fresh.Add(TrialMetric::kScore, unit.level * noise * world.scales[placed->assignment.arm] * events, events);
  experiments.Add(placed->assignment, fresh);
}

const MetricResult& Score(const ExperimentView& view, size_t arm) {
  return view.arms[arm].metrics[static_cast<size_t>(TrialMetric::kScore)];
}

// Of runs: in how many of them.
struct Tally {
  int drawn = 0;                            // an interval of a difference was drawn
  int wrong = 0;                            // the truth was outside one on some day
  int decided = 0;                          // 0 was
  int claimed = 0;                          // the decision favoured an arm, or the control, on some day
  int found = 0;                            // it favoured the last arm, on the last
  int broken = 0;                           // the sample ratio was
  int wrong_fixed = 0;                      // the truth was outside 1.96 standard errors on some day
  int64_t units_most = 0, turned_away = 0;  // of any
};

void Look(const ExperimentView& view, const World& world, Tally& run) {
  for (size_t arm = 1; arm < view.arms.size(); ++arm) {
    const MetricResult& control = Score(view, 0);
    const MetricResult& treated = Score(view, arm);
    if (!treated.effect) continue;
    const double truth = Truth(world.scales[arm]) - Truth(1);
    const double error = std::sqrt(control.estimate->variance + treated.estimate->variance);
    run.drawn = 1;
    run.wrong |= !treated.effect->interval.Contains(truth);
    run.decided |= !treated.effect->interval.Contains(0);
    run.wrong_fixed |= std::abs(treated.effect->value - truth) > 1.96 * error;
  }
  const Decision& decision = view.decision;
  run.claimed |= decision.verdict == Verdict::kBetter || decision.verdict == Verdict::kWorse;
  run.found = decision.verdict == Verdict::kBetter && decision.arm == view.arms.size() - 1;
  run.broken = view.sample_ratio_p < SampleRatio::kBroken;
  run.units_most = 0;
  for (const ArmResult& arm : view.arms) run.units_most += arm.units;
  run.turned_away = view.turned_away;
}

Tally Run(const World& world, int number) {
  Random random(kSeed + static_cast<uint64_t>(number));
  std::normal_distribution<double> normal;
  Experiments experiments(world.units_max);
  EXPECT_TRUE(experiments.Start(SpecOf(world, number), absl::UnixEpoch()).ok());
  std::vector<Unit> units;
  Tally run;
  for (int day = 0; day < world.days; ++day) {
    for (int come = day == 0 ? world.units_at_once : world.units_a_day; come > 0; --come) {
      units.push_back(NewUnit(static_cast<int>(units.size()), random, normal));
    }
    for (const Unit& unit : units) {
      if (static_cast<int>(random() % 10) < unit.often) ShowSession(experiments, world, unit, random);
    }
    Look(*experiments.Get("e"), world, run);
  }
  return run;
}

Tally Simulate(const World& world) {
  constexpr int Tally::*kCounts[] = {&Tally::drawn, &Tally::wrong,  &Tally::decided,    &Tally::claimed,
                                     &Tally::found, &Tally::broken, &Tally::wrong_fixed};
  constexpr const char* kNames[] = {"drawn", "wrong", "decided", "claimed", "found", "broken", "wrong_fixed"};
  Tally tally;
  for (int number = 0; number < kRuns; ++number) {
    const Tally run = Run(world, number);
    for (int Tally::*count : kCounts) tally.*count += run.*count;
    tally.units_most = std::max(tally.units_most, run.units_most);
    tally.turned_away = std::max(tally.turned_away, run.turned_away);
  }
  for (size_t i = 0; i < std::size(kCounts); ++i) testing::Test::RecordProperty(kNames[i], tally.*kCounts[i]);
  return tally;
}

// The truth was in all intervals at once as often as they say, of units of which an interval for one look was not.
void ExpectHonest(const Tally& tally) {
  EXPECT_EQ(tally.drawn, kRuns);
  EXPECT_LE(tally.wrong, MostAt(kAlpha)) << "seed " << kSeed;
  EXPECT_GT(tally.wrong_fixed, kRuns * kAlpha) << "or there is nothing to be seen";
  EXPECT_LE(tally.broken, MostAt(SampleRatio::kBroken)) << "seed " << kSeed;
}

// And there is no difference.
void ExpectNoneIsFound(const Tally& tally) {
  ExpectHonest(tally);
  EXPECT_EQ(tally.decided, tally.wrong);
  EXPECT_LE(tally.claimed, MostAt(kAlpha)) << "seed " << kSeed;
}

// Forty jobs that run every night make sessions of the same forty names: that is all there is to compare.
TEST(ExperimentSimulation, TheSameJobsEveryNightAreAsManyUnitsAsJobs) {
  const Tally tally = Simulate({.named = false, .units_at_once = 40, .days = 60});
  EXPECT_EQ(tally.units_most, 40);
  EXPECT_EQ(tally.drawn, 0) << "too few in each arm, on every night";
  EXPECT_EQ(tally.claimed, 0);
  EXPECT_LE(tally.broken, MostAt(SampleRatio::kBroken)) << "seed " << kSeed;
}

TEST(ExperimentSimulation, NamesThatComeAgainAreCalledDifferentAtTheStatedRate) {
  const Tally tally = Simulate({.named = false, .units_at_once = 100, .days = 60, .units_min = 20});
  EXPECT_EQ(tally.units_most, 100);
  ExpectNoneIsFound(tally);
}

TEST(ExperimentSimulation, UsersWhoGoOnAreCalledDifferentAtTheStatedRate) {
  ExpectNoneIsFound(Simulate({.units_at_once = 20, .units_a_day = 20}));
}

// No unit is added, and all of them grow.
TEST(ExperimentSimulation, SoAreThoseWhoWereAllThereOnTheFirstDay) {
  ExpectNoneIsFound(Simulate({.units_at_once = 300}));
}

TEST(ExperimentSimulation, SoAreTheFirstOfMoreThanAnExperimentHolds) {
  const Tally tally = Simulate({.units_at_once = 20, .units_a_day = 20, .units_max = 300});
  EXPECT_EQ(tally.units_most, 300);
  EXPECT_GT(tally.turned_away, 0);
  ExpectNoneIsFound(tally);
}

TEST(ExperimentSimulation, ADifferenceBetweenUsersWhoGoOnIsCovered) {
  const Tally tally = Simulate({.scales = {1, 1.6}, .units_at_once = 20, .units_a_day = 20});
  ExpectHonest(tally);
  EXPECT_GE(tally.found, kRuns * 0.9) << "there is something to find";
}

// Two differences and one alpha.
TEST(ExperimentSimulation, ThreeArmsAreCalledDifferentAtTheStatedRate) {
  ExpectNoneIsFound(Simulate({.scales = {1, 1, 1}, .weights = {1, 1, 2}, .units_at_once = 24, .units_a_day = 24}));
}

TEST(ExperimentSimulation, DifferencesOfThreeArmsAreCoveredAtOnce) {
  const Tally tally = Simulate({.scales = {1, 1.2, 1.6}, .weights = {1, 1, 2}, .units_at_once = 24, .units_a_day = 24});
  ExpectHonest(tally);
  EXPECT_GE(tally.found, kRuns * 0.9) << "there is something to find";
}

}  // namespace
}  // namespace ebb
