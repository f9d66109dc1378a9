// Who is in which arm, what counts, and what is said of it.

#include "server/experiments/experiments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

ExperimentSpec Spec(const std::string& name, const std::string& tenant = "") {
  return {.name = name,
          .tenant = tenant,
          .arms = {{.name = "control"}, {.name = "other"}},
          .salt = name,
          .metric = TrialMetric::kScore,
          .units_min = 20};
}

// A session shows one score. Its arm.
size_t SessionOf(Experiments& experiments, const std::string& end_user, const std::string& session, double score) {
  const auto placed = experiments.Place("acme", end_user, session);
  EXPECT_TRUE(placed.has_value());
  EXPECT_TRUE(experiments.Enrol(placed->assignment));
  Observations fresh;
  fresh.Add(TrialMetric::kScore, score);
  EXPECT_TRUE(experiments.Add(placed->assignment, fresh));
  return placed->assignment.arm;
}

size_t Session(Experiments& experiments, const std::string& end_user, double score) {
  return SessionOf(experiments, end_user, "session-of-" + end_user, score);
}

const MetricResult& Score(const ExperimentView& view, size_t arm) {
  return view.arms[arm].metrics[static_cast<size_t>(TrialMetric::kScore)];
}

TEST(Experiments, AnEndUserIsOneUnitHoweverManySessionsTheyHave) {
  Experiments experiments;
  ASSERT_THAT(experiments.Start(Spec("e"), kNow), IsOk());
  std::set<size_t> arms;
  for (int session = 0; session < 10; ++session) arms.insert(Session(experiments, "ann", 0.1 * session));
  EXPECT_THAT(arms, SizeIs(1)) << "sticky";
  const ExperimentView view = *experiments.Get("e");
  EXPECT_EQ(view.arms[*arms.begin()].units, 1);
  EXPECT_EQ(view.arms[*arms.begin()].sessions, 10);
  EXPECT_FALSE(Score(view, *arms.begin()).estimate.has_value()) << "one unit does not say how units differ";
}

TEST(Experiments, SessionsOfNobodyAreUnitsAndOfTwoTenantsTwo) {
  Experiments experiments;
  ASSERT_THAT(experiments.Start(Spec("e"), kNow), IsOk());
  const auto key = [&](const std::string& tenant, const std::string& user, const std::string& session) {
    return experiments.Place(tenant, user, session)->assignment.unit;
  };
  EXPECT_EQ(key("acme", "ann", "s1"), key("acme", "ann", "s2"));
  EXPECT_NE(key("acme", "", "s1"), key("acme", "", "s2"));
  EXPECT_NE(key("acme", "ann", "s1"), key("other", "ann", "s1"));
  EXPECT_NE(key("acme", "ann", "s1"), key("acme", "", "ann")) << "a session may be called like somebody";
}

TEST(Experiments, TheTenantsOwnComesBeforeThatOfAll) {
  Experiments experiments;
  ASSERT_THAT(experiments.Start(Spec("all"), kNow), IsOk());
  ASSERT_THAT(experiments.Start(Spec("own", "acme"), kNow), IsOk());
  EXPECT_EQ(experiments.Place("acme", "", "s")->assignment.experiment, "own");
  EXPECT_EQ(experiments.Place("other", "", "s")->assignment.experiment, "all");
  EXPECT_THAT(experiments.Start(Spec("more", "acme"), kNow),
              IsRefusal(absl::StatusCode::kFailedPrecondition, "EXPERIMENT_OVERLAPS", "experiment.tenant"));
  ASSERT_THAT(experiments.Stop("own", kNow), IsOk());
  EXPECT_EQ(experiments.Place("acme", "", "s")->assignment.experiment, "all");
  ASSERT_THAT(experiments.Stop("all", kNow), IsOk());
  EXPECT_FALSE(experiments.Place("acme", "", "s").has_value());
}

TEST(Experiments, AStoppedOneCountsNothingMoreAndIsNotUsedAgain) {
  Experiments experiments;
  ASSERT_THAT(experiments.Start(Spec("e"), kNow), IsOk());
  const auto placed = experiments.Place("acme", "", "s");
  const auto late = experiments.Place("acme", "", "t");
  ASSERT_TRUE(experiments.Enrol(placed->assignment));
  ASSERT_THAT(experiments.Stop("e", kNow + absl::Seconds(1)), IsOk());
  EXPECT_FALSE(experiments.Add(placed->assignment, {}));
  EXPECT_FALSE(experiments.Enrol(late->assignment)) << "placed before, opened after";
  EXPECT_THAT(experiments.Ramp("e", 0.5), IsRefusal(absl::StatusCode::kFailedPrecondition, "EXPERIMENT_STOPPED", ""));
  EXPECT_THAT(experiments.Start(Spec("e"), kNow),
              IsRefusal(absl::StatusCode::kAlreadyExists, "EXPERIMENT_EXISTS", "experiment.name"));
  EXPECT_EQ((*experiments.Stop("e", kNow + absl::Seconds(2))).stopped, kNow + absl::Seconds(1));
  EXPECT_THAT(experiments.Get("none"), IsRefusal(absl::StatusCode::kNotFound, "UNKNOWN_EXPERIMENT", "name"));
}

// Its name is free again once it has been forgotten. A session that has been open all the while has its old arm.
TEST(Experiments, WhatIsOfOneThatWasForgottenDoesNotCountForAnotherOfItsName) {
  Experiments experiments;
  ExperimentSpec spec = Spec("e");
  ASSERT_THAT(experiments.Start(spec, kNow), IsOk());
  std::vector<Experiments::Placed> old;
  for (int i = 0; i < 20; ++i) {
    old.push_back(*experiments.Place("acme", "user-" + std::to_string(i), "s"));
    ASSERT_TRUE(experiments.Enrol(old.back().assignment));
  }
  ASSERT_THAT(experiments.Stop("e", kNow), IsOk());
  for (size_t i = 0; i < Experiments::kKeptMax; ++i) {
    const std::string name = "more" + std::to_string(i);
    ASSERT_THAT(experiments.Start(Spec(name), kNow), IsOk());
    ASSERT_THAT(experiments.Stop(name, kNow + absl::Seconds(1)), IsOk());
  }
  spec.arms[1].weight = 4;  // to which some move
  ASSERT_THAT(experiments.Start(spec, kNow), IsOk());

  Observations much;
  much.Add(TrialMetric::kScore, 1000);
  int moved = 0;
  for (int i = 0; i < 20; ++i) {
    const Assignment& was = old[i].assignment;
    EXPECT_FALSE(experiments.Add(was, much)) << "nobody of this name is in yet";
    moved += Session(experiments, "user-" + std::to_string(i), 0.5) != was.arm;
    EXPECT_FALSE(experiments.Add(was, much));
    EXPECT_FALSE(experiments.Enrol(was));
  }
  EXPECT_GT(moved, 0);
  EXPECT_LT(moved, 20);
  const ExperimentView view = *experiments.Get("e");
  EXPECT_EQ(view.arms[0].units + view.arms[1].units, 20);
  EXPECT_EQ(view.arms[0].sessions + view.arms[1].sessions, 20);
  for (size_t arm : {0, 1}) EXPECT_EQ(Score(view, arm).estimate->value, 0.5) << arm;
}

TEST(Experiments, ARampOfZeroTakesNobody) {
  Experiments experiments;
  ASSERT_THAT(experiments.Start(Spec("e"), kNow), IsOk());
  ASSERT_THAT(experiments.Ramp("e", 0), IsOk());
  EXPECT_FALSE(experiments.Place("acme", "ann", "s").has_value());
  ASSERT_THAT(experiments.Ramp("e", 1), IsOk());
  EXPECT_TRUE(experiments.Place("acme", "ann", "s").has_value());
}

TEST(Experiments, ANameIsOneUnitHoweverManySessionsHaveIt) {
  Experiments experiments;
  ASSERT_THAT(experiments.Start(Spec("e"), kNow), IsOk());
  std::set<size_t> arms;
  for (int night = 0; night < 10; ++night) arms.insert(SessionOf(experiments, "", "nightly", 0.1 * night));
  EXPECT_THAT(arms, SizeIs(1));
  ExperimentView view = *experiments.Get("e");
  EXPECT_EQ(view.arms[*arms.begin()].units, 1);
  EXPECT_EQ(view.arms[*arms.begin()].sessions, 10);
  EXPECT_FALSE(Score(view, *arms.begin()).estimate.has_value()) << "one unit does not say how units differ";
  for (int i = 0; Score(view, *arms.begin()).estimate == std::nullopt; ++i) {
    SessionOf(experiments, "", "job-" + std::to_string(i), 0.45);
    view = *experiments.Get("e");
  }
  EXPECT_EQ(Score(view, *arms.begin()).estimate->units, 2);
  EXPECT_NEAR(Score(view, *arms.begin()).estimate->value, 0.45, 1e-12) << "of all that both have shown";
}

TEST(Experiments, HoldOnlySoManyUnitsAndSayWhomTheyTurnedAway) {
  Experiments experiments(/*units_max=*/3);
  ASSERT_THAT(experiments.Start(Spec("e"), kNow), IsOk());
  const auto comes = [&](const std::string& user, const std::string& session) {
    const auto placed = experiments.Place("acme", user, session);
    return placed && experiments.Enrol(placed->assignment);
  };
  const auto eve = experiments.Place("acme", "eve", "s0");
  EXPECT_TRUE(comes("ann", "s1"));
  EXPECT_TRUE(comes("bob", "s2"));
  EXPECT_TRUE(comes("", "s3"));
  EXPECT_FALSE(comes("eve", "s4")) << "she is in no arm, and has no arm's policy";
  EXPECT_EQ(experiments.Get("e")->turned_away, 1);
  EXPECT_FALSE(experiments.Enrol(eve->assignment)) << "placed while there was room, opened when there was none";
  EXPECT_EQ(experiments.Get("e")->turned_away, 2);
  EXPECT_TRUE(comes("ann", "s5")) << "who is in stays in";
  EXPECT_TRUE(comes("", "s3")) << "so does a name";
  const ExperimentView view = *experiments.Get("e");
  EXPECT_EQ(view.arms[0].units + view.arms[1].units, 3);
  EXPECT_EQ(view.arms[0].sessions + view.arms[1].sessions, 5);
}

TEST(Experiments, OnlySoManyRunAndTheOldestThatStoppedAreForgotten) {
  Experiments experiments;
  std::vector<std::string> names;
  for (size_t i = 0; i < Experiments::kRunningMax; ++i) {
    names.push_back("e" + std::to_string(i));
    ASSERT_THAT(experiments.Start(Spec(names.back(), "t" + std::to_string(i)), kNow), IsOk());
  }
  EXPECT_THAT(experiments.Start(Spec("more", "more"), kNow),
              IsRefusal(absl::StatusCode::kResourceExhausted, "EXPERIMENTS_FULL", ""));
  ASSERT_THAT(experiments.Stop("e15", kNow), IsOk());
  for (int i = 0; i < 100; ++i) {
    const std::string name = "more" + std::to_string(i);
    ASSERT_THAT(experiments.Start(Spec(name, "more"), kNow), IsOk());
    ASSERT_THAT(experiments.Stop(name, kNow + absl::Seconds(i + 1)), IsOk());
  }
  EXPECT_THAT(experiments.List(), SizeIs(Experiments::kKeptMax));
  EXPECT_THAT(experiments.Get("e15"), IsRefusal(absl::StatusCode::kNotFound, "UNKNOWN_EXPERIMENT", "name"));
  EXPECT_THAT(experiments.Get("e0"), IsOk()) << "it runs";
  EXPECT_THAT(experiments.Get("more99"), IsOk());
}

TEST(Experiments, ResultsAreRatiosOfSumsAndDecideWhenTheyMay) {
  Experiments experiments;
  ASSERT_THAT(experiments.Start(Spec("e"), kNow), IsOk());
  const auto scores = [&](int from, int to) {
    for (int i = from; i < to; ++i) {
      const std::string user = "user-" + std::to_string(i);
      const auto placed = experiments.Place("acme", user, user);
      const double spread = 0.02 * (i % 5);
      Session(experiments, user, placed->assignment.arm == 1 ? 0.8 + spread : 0.3 + spread);
    }
  };
  scores(0, 20);
  EXPECT_EQ(experiments.Get("e")->decision.verdict, Verdict::kCollecting) << "too few in each arm";
  EXPECT_FALSE(Score(*experiments.Get("e"), 1).effect.has_value());
  scores(20, 200);
  const ExperimentView view = *experiments.Get("e");
  EXPECT_EQ(view.arms[0].units + view.arms[1].units, 200);
  EXPECT_NEAR(Score(view, 1).effect->value, 0.5, 0.02);
  EXPECT_TRUE(Score(view, 1).effect->interval.Contains(0.5));
  EXPECT_TRUE(Score(view, 0).interval->Contains(0.34));
  EXPECT_EQ(view.decision.verdict, Verdict::kBetter);
  EXPECT_EQ(view.decision.arm, 1U);
  EXPECT_GT(view.sample_ratio_p, SampleRatio::kBroken);
}

Difference Of(double low, double high) { return {.value = (low + high) / 2, .interval = {low, high}}; }

TEST(ExperimentVerdict, IsWhatTheWholeIntervalAllows) {
  struct Row {
    std::optional<Difference> effect;
    int direction;
    double margin;
    Verdict verdict;
  };
  const std::vector<Row> rows = {
      {std::nullopt, 1, 0, Verdict::kCollecting},
      {Of(-1, 1), 1, 0, Verdict::kCollecting},
      {Of(0.1, 1), 1, 0, Verdict::kBetter},
      {Of(0.1, 1), -1, 0, Verdict::kWorse},
      {Of(-1, -0.1), 1, 0, Verdict::kWorse},
      {Of(-1, -0.1), -1, 0, Verdict::kBetter},
      {Of(-0.1, 0.1), 1, 0.2, Verdict::kSame},
      {Of(0.05, 0.1), 1, 0.2, Verdict::kSame},  // it is there, and does not matter
      {Of(-0.1, 0.3), 1, 0.2, Verdict::kCollecting},
      {Of(0, 0), 1, 0.2, Verdict::kCollecting},  // no two units differed: nobody knows how much others may
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(VerdictOn(rows[i].effect, rows[i].direction, rows[i].margin, false), rows[i].verdict) << "row " << i;
    EXPECT_EQ(VerdictOn(rows[i].effect, rows[i].direction, rows[i].margin, true), Verdict::kBroken) << "row " << i;
  }
}

TEST(ExperimentDecision, IsOfAllArms) {
  constexpr Verdict kB = Verdict::kBetter, kW = Verdict::kWorse, kS = Verdict::kSame, kC = Verdict::kCollecting;
  const std::vector<std::optional<Difference>> effects = {Of(0, 1), Of(0, 3), Of(0, 2)};
  const auto decide = [&](std::vector<Verdict> verdicts, int direction = 1) {
    const Decision decision = DecisionOf(verdicts, std::span(effects).first(verdicts.size()), direction);
    return std::pair(decision.verdict, decision.arm);
  };
  EXPECT_EQ(decide({kC, kB, kB}), std::pair(kB, size_t{2})) << "the best of those that are better";
  EXPECT_EQ(decide({kB, kW, kB}, -1), std::pair(kB, size_t{1})) << "less is better";
  EXPECT_EQ(decide({kW, kS, kW}), std::pair(kW, size_t{0}));
  EXPECT_EQ(decide({kW, kC}), std::pair(kC, size_t{0}));
  EXPECT_EQ(decide({kS, kS}), std::pair(kS, size_t{0}));
  EXPECT_EQ(decide({kB, Verdict::kBroken}), std::pair(Verdict::kBroken, size_t{0}));
}

// A whole one, as it is kept.
WholeExperiment WholeOf(const Experiments& experiments, const std::string& name) {
  const Experiments::Copy copy = *experiments.Look(name);
  WholeExperiment whole = {.state = copy.state};
  for (size_t a = 0; a < copy.state.arms.size(); ++a) {
    whole.units.push_back(
        *experiments.Units(name, copy.revision, a, 0, static_cast<size_t>(copy.state.ratio.count(a))));
  }
  return whole;
}

TEST(Experiments, WhatAnotherServerHasSeenIsAsIfItHadBeenSeenHere) {
  Experiments all;
  Experiments here;
  Experiments there;
  const absl::Time earlier = kNow - absl::Minutes(1);
  ASSERT_THAT(all.Start(Spec("e"), earlier), IsOk());
  ASSERT_THAT(here.Start(Spec("e"), kNow), IsOk());
  ASSERT_THAT(there.Start(Spec("e"), earlier), IsOk());
  for (int i = 0; i < 400; ++i) {
    const std::string user = "user-" + std::to_string(i % 150);  // who come to both
    const double score = 0.01 * ((i * 37) % 101);
    Session(all, user, score);
    Session(i % 3 == 0 ? there : here, user, score);
  }
  const auto before = here.Revisions().at("e");
  ASSERT_THAT(here.Absorb(WholeOf(there, "e")), IsOk());
  EXPECT_NE(here.Revisions().at("e").decided, before.decided) << "it is written at once";
  const ExperimentView expected = *all.Get("e");
  const ExperimentView sum = *here.Get("e");
  EXPECT_EQ(sum.started, earlier);
  for (size_t a = 0; a < 2; ++a) {
    EXPECT_EQ(sum.arms[a].units, expected.arms[a].units);
    EXPECT_EQ(sum.arms[a].sessions, expected.arms[a].sessions);
    EXPECT_NEAR(Score(sum, a).estimate->value, Score(expected, a).estimate->value, 1e-12);
    EXPECT_NEAR(Score(sum, a).estimate->variance, Score(expected, a).estimate->variance, 1e-12);
  }
  EXPECT_EQ(sum.decision.verdict, expected.decision.verdict);
  Session(here, "user-1", 0.5);
  EXPECT_EQ(here.Get("e")->arms[0].units + here.Get("e")->arms[1].units, 150) << "and goes on with them";
}

TEST(Experiments, WhatAnotherServerHasSeenDoesNotBreakTheSampleRatioNorMendIt) {
  const auto with_units = [](int control, int other, double log_factor_max) {
    WholeExperiment whole = {.state = BegunState(Spec("e"), kNow)};
    whole.units.resize(2);
    for (int i = 0; i < control; ++i) whole.units[0].push_back({.key = 1000000 + static_cast<uint64_t>(i)});
    for (int i = 0; i < other; ++i) whole.units[1].push_back({.key = 2000000 + static_cast<uint64_t>(i)});
    const std::vector<int64_t> counts = {control, other};
    whole.state.ratio = SampleRatio(WeightsOf(whole.state.spec), counts, log_factor_max);
    return whole;
  };
  const double broken = 20;
  for (const auto& [control, other, max, is_broken] :
       {std::tuple(2000, 2000, 0.0, false), std::tuple(2000, 2000, broken, true), std::tuple(2000, 1000, 0.0, true)}) {
    Experiments experiments;
    ASSERT_THAT(experiments.Start(Spec("e"), kNow), IsOk());
    for (int i = 0; i < 30; ++i) Session(experiments, "user-" + std::to_string(i), 0.5);
    ASSERT_THAT(experiments.Absorb(with_units(control, other, max)), IsOk());
    EXPECT_EQ(experiments.Get("e")->sample_ratio_p < SampleRatio::kBroken, is_broken) << control << " " << max;
  }
  Experiments experiments;  // nor do some broken ones take from many what they remember
  ASSERT_THAT(experiments.Restore(with_units(2000, 2000, broken)), IsOk());
  WholeExperiment few = with_units(0, 0, 0);
  few.units[0].push_back({.key = 7});
  ASSERT_THAT(experiments.Absorb(few), IsOk());
  EXPECT_LT(experiments.Get("e")->sample_ratio_p, SampleRatio::kBroken);
}

TEST(Experiments, WhatCannotBeAddedChangesNothing) {
  Experiments there;
  ASSERT_THAT(there.Start(Spec("e"), kNow, "model"), IsOk());
  for (int i = 0; i < 8; ++i) Session(there, "user-" + std::to_string(i), 0.5);
  const WholeExperiment theirs = WholeOf(there, "e");

  Experiments here(10);
  EXPECT_THAT(here.Absorb(theirs), IsRefusal(absl::StatusCode::kNotFound, "UNKNOWN_EXPERIMENT", "name"));
  ASSERT_THAT(here.Start(Spec("e"), kNow, "model"), IsOk());
  for (int i = 5; i < 10; ++i) Session(here, "user-" + std::to_string(i), 0.5);
  WholeExperiment many = theirs;
  many.units[0].push_back({.key = 7});
  EXPECT_EQ(here.Absorb(many).code(), absl::StatusCode::kResourceExhausted) << "11, of which three are in both";
  WholeExperiment strange = theirs;
  std::swap(strange.units[0], strange.units[1]);
  EXPECT_EQ(here.Absorb(strange).code(), absl::StatusCode::kFailedPrecondition) << "they are in other arms";
  WholeExperiment of_another = theirs;
  of_another.state.model = "another";
  EXPECT_EQ(here.Absorb(of_another).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(here.Get("e")->arms[0].units + here.Get("e")->arms[1].units, 5);
  EXPECT_EQ(here.Get("e")->arms[0].sessions + here.Get("e")->arms[1].sessions, 5);
  EXPECT_THAT(here.Absorb(theirs), IsOk());
  EXPECT_EQ(here.Get("e")->arms[0].units + here.Get("e")->arms[1].units, 10) << "which is all that it takes";
  ASSERT_THAT(here.Stop("e", kNow), IsOk());
  EXPECT_EQ(here.Absorb(theirs).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Experiments, ThatBeginAnewHaveNobodyAndCountNobodyWhoCameBefore) {
  Experiments experiments;
  ASSERT_THAT(experiments.Start(Spec("e"), kNow), IsOk());
  ASSERT_THAT(experiments.Start(Spec("done", "other"), kNow), IsOk());
  ASSERT_THAT(experiments.Stop("done", kNow), IsOk());
  experiments.SetConfigured({"e"});
  const auto before = experiments.Place("acme", "ann", "s");
  ASSERT_TRUE(experiments.Enrol(before->assignment));
  const absl::Time later = kNow + absl::Minutes(1);
  experiments.BeginAnew(later);
  EXPECT_THAT(experiments.List(), SizeIs(1));
  const ExperimentView view = *experiments.Get("e");
  EXPECT_TRUE(view.running && view.configured);
  EXPECT_EQ(view.started, later);
  EXPECT_EQ(view.arms[0].units + view.arms[1].units, 0);
  EXPECT_FALSE(experiments.Add(before->assignment, Observations())) << "that session is another server's to count";
  EXPECT_EQ(Session(experiments, "ann", 0.5), before->assignment.arm);
}

}  // namespace
}  // namespace ebb
