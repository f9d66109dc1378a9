// What experiments promise of units that go on showing, by simulation through Experiments itself: sessions come and go,
// and their units' sums grow, while somebody looks every evening.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/experiments/experiments.h"

namespace ebb {
namespace {

#ifdef EBB_SANITIZED
constexpr int kRuns = 100;
#else
constexpr int kRuns = 1000;
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
  bool named = true;  // sessions name an end user; else their own name is the unit's, and comes again
  int units_at_once = 0;
  int units_a_day = 0;
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

struct Tally {
  int drawn = 0;                            // runs in which an interval of a difference was drawn
  int wrong = 0;                            // the truth was outside one on some day
  int decided = 0;                          // 0 was
  int claimed = 0;                          // the decision was in favour of an arm, or of the control
  int broken = 0;                           // the sample ratio was
  int wrong_fixed = 0;                      // the truth was outside 1.96 standard errors on some day
  int64_t units_most = 0, turned_away = 0;  // of any run
};

Tally Simulate(const World& world) {
  Tally tally;
  for (int run = 0; run < kRuns; ++run) {
    Random random(kSeed + static_cast<uint64_t>(run));
    std::normal_distribution<double> normal;
    Experiments experiments(world.units_max);
    EXPECT_TRUE(experiments.Start(SpecOf(world, run), absl::UnixEpoch()).ok());
    std::vector<Unit> units;
    const auto come = [&](int count) {
      for (int i = 0; i < count; ++i) units.push_back(NewUnit(static_cast<int>(units.size()), random, normal));
    };
    come(world.units_at_once);
    bool drawn = false, wrong = false, decided = false, claimed = false, wrong_fixed = false;
    for (int day = 0; day < world.days; ++day) {
      come(world.units_a_day);
      for (const Unit& unit : units) {
        if (static_cast<int>(random() % 10) < unit.often) ShowSession(experiments, world, unit, random);
      }
      const ExperimentView view = *experiments.Get("e");
      for (size_t arm = 1; arm < view.arms.size(); ++arm) {
        const MetricResult& control = Score(view, 0);
        const MetricResult& treated = Score(view, arm);
        if (!treated.effect) continue;
        const double truth = Truth(world.scales[arm]) - Truth(1);
        const double error = std::sqrt(control.estimate->variance + treated.estimate->variance);
        drawn = true;
        wrong |= !treated.effect->interval.Contains(truth);
        decided |= !treated.effect->interval.Contains(0);
        wrong_fixed |= std::abs(treated.effect->value - truth) > 1.96 * error;
      }
      claimed |= view.decision.verdict == Verdict::kBetter || view.decision.verdict == Verdict::kWorse;
    }
    const ExperimentView view = *experiments.Get("e");
    int64_t counted = 0;
    for (const ArmResult& arm : view.arms) counted += arm.units;
    tally.drawn += drawn;
    tally.wrong += wrong;
    tally.decided += decided;
    tally.claimed += claimed;
    tally.wrong_fixed += wrong_fixed;
    tally.broken += view.sample_ratio_p < SampleRatio::kBroken;
    tally.units_most = std::max(tally.units_most, counted);
    tally.turned_away = std::max(tally.turned_away, view.turned_away);
  }
  for (const auto& [name, count] : {std::pair("drawn", tally.drawn),
                                    {"wrong", tally.wrong},
                                    {"decided", tally.decided},
                                    {"claimed", tally.claimed},
                                    {"broken", tally.broken},
                                    {"wrong_by_fixed_intervals", tally.wrong_fixed}}) {
    testing::Test::RecordProperty(name, count);
  }
  return tally;
}

// The truth was in all intervals at once as often as they say, of units of which an interval for one look was not.
void ExpectHonest(const Tally& tally) {
  EXPECT_EQ(tally.drawn, kRuns);
  EXPECT_LE(tally.wrong, MostAt(kAlpha)) << "seed " << kSeed;
  EXPECT_GT(tally.wrong_fixed, kRuns * 2 * kAlpha) << "or there is nothing to be seen";
  EXPECT_LE(tally.broken, MostAt(SampleRatio::kBroken)) << "seed " << kSeed;
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
  ExpectHonest(tally);
  EXPECT_EQ(tally.decided, tally.wrong);
  EXPECT_LE(tally.claimed, MostAt(kAlpha)) << "seed " << kSeed;
}

}  // namespace
}  // namespace ebb
