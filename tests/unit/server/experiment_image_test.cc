// An experiment goes out as it is and comes back as it was, and what is no experiment is told by where it is wrong.

#include "server/experiment_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/convert_experiment.h"
#include "server/experiment_export.h"
#include "server/experiment_parts.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1) + absl::Nanoseconds(7);

SpecLimits Limits() { return {.trained_context = 512, .query_heads = 4, .layers = 3, .kv_heads = 2}; }

ExperimentSpec Spec(const std::string& name) {
  v1::ExperimentSpec proto;
  proto.set_name(name);
  for (const char* arm : {"control", "wide", "wider"}) {
    v1::ExperimentArm& made = *proto.add_arms();
    made.set_name(arm);
    made.mutable_policy()->mutable_streaming();
    made.mutable_policy()->mutable_trigger()->set_budget(static_cast<uint32_t>(24 + 8 * proto.arms_size()));
  }
  proto.mutable_arms(1)->set_weight(2);
  proto.set_units_min(20);
  proto.set_salt("pepper");
  return *ExperimentFrom(proto, Limits());
}

// A session of the user shows this much of several metrics.
void Show(Experiments& experiments, const std::string& user, double much) {
  const auto placed = experiments.Place("acme", user, "s");
  ASSERT_TRUE(placed.has_value());
  ASSERT_TRUE(experiments.Enrol(placed->assignment));
  Observations fresh;
  fresh.Add(TrialMetric::kAttentionMassLost, 0.1 + 0.01 * much, 1 + much / 7);
  if (much > 3) fresh.Add(TrialMetric::kScore, 0.1 * much);
  if (much > 5) fresh.Add(TrialMetric::kReservedBytes, 1e9 * much, 3);
  ASSERT_TRUE(experiments.Add(placed->assignment, fresh));
}

void ShowMany(Experiments& experiments, int users) {
  for (int i = 0; i < users; ++i) Show(experiments, absl::StrCat("user-", i), i % 10);
  for (int i = 0; i < users; i += 3) Show(experiments, absl::StrCat("user-", i), i % 7);  // they come again
}

std::string ImageOf(const Experiments& experiments, const std::string& name) {
  auto parts = ExperimentExport::Of(experiments, name);
  EXPECT_THAT(parts, IsOk());
  ExperimentImage image;
  while (true) {
    auto part = parts->Next();
    EXPECT_THAT(part, IsOk());
    if (!part.ok() || !*part) return std::move(image).Seal();
    image.Add(**part);
  }
}

WholeExperiment Read(const std::string& bytes) {
  auto whole = ReadExperimentImage(bytes);
  EXPECT_THAT(whole, IsOk());
  return *std::move(whole);
}

// As a server would take it that can run it.
WholeExperiment Runnable(const std::string& bytes) {
  WholeExperiment whole = Read(bytes);
  EXPECT_THAT(TakePolicies(whole.state.spec, Limits()), IsOk());
  return whole;
}

std::string Text(const Experiments& experiments, const std::string& name) {
  return ExperimentProto(*experiments.Get(name)).DebugString();
}

// Sums that were added to and taken back are rounded otherwise than those that are added up once.
void ExpectAlike(const ExperimentView& was, const ExperimentView& is) {
  EXPECT_EQ(was.running, is.running);
  EXPECT_EQ(was.configured, is.configured);
  EXPECT_EQ(was.started, is.started);
  EXPECT_EQ(was.stopped, is.stopped);
  EXPECT_EQ(was.turned_away, is.turned_away);
  EXPECT_EQ(was.sample_ratio_p, is.sample_ratio_p);
  EXPECT_EQ(was.decision.verdict, is.decision.verdict);
  EXPECT_EQ(was.decision.arm, is.decision.arm);
  ASSERT_EQ(was.arms.size(), is.arms.size());
  for (size_t a = 0; a < was.arms.size(); ++a) {
    EXPECT_EQ(was.arms[a].units, is.arms[a].units);
    EXPECT_EQ(was.arms[a].sessions, is.arms[a].sessions);
    EXPECT_EQ(was.arms[a].verdict, is.arms[a].verdict);
    for (size_t m = 0; m < kTrialMetrics; ++m) {
      const MetricResult &one = was.arms[a].metrics[m], &other = is.arms[a].metrics[m];
      ASSERT_EQ(one.estimate.has_value(), other.estimate.has_value());
      ASSERT_EQ(one.effect.has_value(), other.effect.has_value());
      if (!one.estimate) continue;
      EXPECT_EQ(one.estimate->units, other.estimate->units);
      EXPECT_NEAR(one.estimate->value / other.estimate->value, 1, 1e-12);
      EXPECT_NEAR(one.estimate->variance / other.estimate->variance, 1, 1e-9);
      if (!one.effect) continue;
      EXPECT_NEAR(one.effect->value, other.effect->value, 1e-9 * std::abs(one.estimate->value));
    }
  }
}

TEST(ExperimentImage, OfOneThatRunsComesBackAsItWasAndGoesOn) {
  Experiments before(/*units_max=*/2500), after(/*units_max=*/2500);
  ASSERT_THAT(before.Start(Spec("e"), kNow), IsOk());
  before.SetConfigured({"e"});
  ShowMany(before, 2500);  // more than one part has of an arm
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(before.Place("acme", absl::StrCat("late-", i), "s").has_value());
  const std::string bytes = ImageOf(before, "e");
  ASSERT_THAT(after.Restore(Runnable(bytes)), IsOk());

  const ExperimentView view = *after.Get("e");
  EXPECT_EQ(view.turned_away, 3);
  EXPECT_EQ(ExperimentProto(view).spec().DebugString(), ExperimentProto(*before.Get("e")).spec().DebugString());
  ExpectAlike(*before.Get("e"), view);
  EXPECT_EQ(ImageOf(after, "e"), bytes) << "to the last bit, but for what follows from it";
  for (Experiments* each : {&before, &after}) {
    EXPECT_FALSE(each->Place("acme", "late-9", "s").has_value()) << "it is as full as it was";
  }

  Show(before, "user-8", 9);
  Show(after, "user-8", 9);
  ExpectAlike(*before.Get("e"), *after.Get("e"));
  EXPECT_EQ(ImageOf(after, "e"), ImageOf(before, "e")) << "the same unit, which counts once";
  int64_t units = 0;
  for (size_t arm = 0; arm < 3; ++arm) units += after.Get("e")->arms[arm].units;
  EXPECT_EQ(units, 2500);
}

TEST(ExperimentImage, OfOneThatHasStoppedKeepsItsResultsWithoutItsUnits) {
  Experiments before, after;
  ASSERT_THAT(before.Start(Spec("e"), kNow), IsOk());
  ShowMany(before, 300);
  ASSERT_THAT(before.Stop("e", kNow + absl::Hours(2)), IsOk());
  const std::string bytes = ImageOf(before, "e");
  EXPECT_LT(bytes.size(), 4096U);
  WholeExperiment whole = Read(bytes);
  EXPECT_THAT(whole.units, SizeIs(0));
  ASSERT_THAT(after.Restore(std::move(whole)), IsOk());
  EXPECT_EQ(Text(after, "e"), Text(before, "e")) << "in its policies, which nobody has to be able to run, too";
  EXPECT_EQ(ImageOf(after, "e"), bytes);
  EXPECT_THAT(after.Start(Spec("e"), kNow),
              IsRefusal(absl::StatusCode::kAlreadyExists, "EXPERIMENT_EXISTS", "experiment.name"));
  EXPECT_THAT(after.Start(Spec("f"), kNow), IsOk()) << "it is in nobody's way";
}

TEST(ExperimentImage, OfOneThatRanMayBeRestoredAsStopped) {
  Experiments before, after;
  ASSERT_THAT(before.Start(Spec("e"), kNow), IsOk());
  ShowMany(before, 300);
  WholeExperiment whole = Read(ImageOf(before, "e"));
  whole.state.stopped = kNow + absl::Hours(2);
  ASSERT_THAT(after.Restore(std::move(whole)), IsOk());
  ASSERT_THAT(before.Stop("e", kNow + absl::Hours(2)), IsOk());
  ExpectAlike(*before.Get("e"), *after.Get("e"));
  EXPECT_FALSE(after.Place("acme", "user-1", "s").has_value());
}

TEST(ExperimentImage, OfTwoForOneTenantOneIsTaken) {
  Experiments one, other, both;
  ASSERT_THAT(one.Start(Spec("e"), kNow), IsOk());
  ASSERT_THAT(other.Start(Spec("f"), kNow), IsOk());
  ASSERT_THAT(both.Restore(Runnable(ImageOf(one, "e"))), IsOk());
  EXPECT_THAT(both.Restore(Runnable(ImageOf(other, "f"))),
              IsRefusal(absl::StatusCode::kFailedPrecondition, "EXPERIMENT_OVERLAPS", "experiment.tenant"));
}

TEST(ExperimentImage, DamagedAtAnyByteOrCutAnywhereIsRefused) {
  Experiments experiments;
  ASSERT_THAT(experiments.Start(Spec("e"), kNow), IsOk());
  ShowMany(experiments, 12);
  const std::string bytes = ImageOf(experiments, "e");
  ASSERT_THAT(ReadExperimentImage(bytes), IsOk());
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int change : {0x01, 0x80, 0xFF}) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ change);
      EXPECT_EQ(ReadExperimentImage(damaged).status().code(), absl::StatusCode::kInvalidArgument) << "byte " << i;
    }
    EXPECT_EQ(ReadExperimentImage(bytes.substr(0, i)).status().code(), absl::StatusCode::kInvalidArgument)
        << "cut at " << i;
  }
  EXPECT_EQ(ReadExperimentImage(bytes + '\0').status().code(), absl::StatusCode::kInvalidArgument);
  std::string newer = bytes;
  newer[7] = '2';
  EXPECT_THAT(ReadExperimentImage(newer).status().message(), HasSubstr("its version is '2'; this server reads 1"));
  EXPECT_THAT(ReadExperimentImage("{}").status().message(), HasSubstr("\"ebb exp1\""));
}

// What a checksum does not tell: somebody wrote it so.
TEST(ExperimentParts, SayWhatCannotBe) {
  Experiments experiments;
  ASSERT_THAT(experiments.Start(Spec("e"), kNow), IsOk());
  ShowMany(experiments, 9);
  std::vector<v1::ExperimentPart> parts;
  auto told = ExperimentExport::Of(experiments, "e");
  ASSERT_THAT(told, IsOk());
  for (auto part = told->Next(); part.ok() && *part; part = told->Next()) parts.push_back(**part);
  ASSERT_THAT(parts, SizeIs(4));
  ASSERT_GT(parts[1].units().units(0).metrics_size(), 0);

  const auto refused = [&](const std::string& what,
                           const std::function<void(std::vector<v1::ExperimentPart>&)>& change) {
    std::vector<v1::ExperimentPart> changed = parts;
    change(changed);
    ExperimentParts reader;
    absl::Status status;
    for (const v1::ExperimentPart& part : changed) {
      status = reader.Take(part);
      if (!status.ok()) break;
    }
    if (status.ok()) status = reader.Finish().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  refused("it has no head", [](auto& all) { all.clear(); });
  refused("neither a head nor units", [](auto& all) { all[1].Clear(); });
  refused("head: it is there twice", [](auto& all) { all[1] = all[0]; });
  refused("they come before the head", [](auto& all) { std::swap(all[0], all[1]); });
  refused("head: spec: name", [](auto& all) { all[0].mutable_head()->mutable_spec()->set_name("../e"); });
  refused("head: spec: arms[2].name",
          [](auto& all) { all[0].mutable_head()->mutable_spec()->mutable_arms(2)->set_name("wide"); });
  refused("start_time: it is no time",
          [](auto& all) { all[0].mutable_head()->mutable_start_time()->set_seconds(int64_t{1} << 62); });
  refused("stop_time: it is no time",
          [](auto& all) { all[0].mutable_head()->mutable_stop_time()->set_nanos(-2'000'000'000); });
  refused("sessions_turned_away", [](auto& all) { all[0].mutable_head()->set_sessions_turned_away(~uint64_t{0}); });
  refused("log_factor_max", [&](auto& all) { all[0].mutable_head()->set_log_factor_max(nan); });
  refused("log_factor_max", [&](auto& all) { all[0].mutable_head()->set_log_factor_max(infinity); });
  refused("arms: 2, where the spec has 3", [](auto& all) { all[0].mutable_head()->mutable_arms()->RemoveLast(); });
  refused("units: 9223372036854775808; at most 2^53",
          [](auto& all) { all[0].mutable_head()->mutable_arms(0)->set_units(uint64_t{1} << 63); });
  refused("where the head counts", [](auto& all) { all.pop_back(); });
  refused("has more than the head counts", [](auto& all) { all[0].mutable_head()->mutable_arms(1)->set_units(0); });
  refused("one that runs has units instead", [](auto& all) {
    all[0].mutable_head()->mutable_arms(0)->add_moments()->set_metric(v1::EXPERIMENT_METRIC_SCORE),
        all[0].mutable_head()->mutable_arms(0)->mutable_moments(0)->set_units(1);
  });
  refused("no arm has units",
          [](auto& all) { *all[0].mutable_head()->mutable_stop_time() = all[0].head().start_time(); });
  refused("arm: 3, where there are 3", [](auto& all) { all[1].mutable_units()->set_arm(3); });
  refused("is there twice", [](auto& all) { *all[1].mutable_units()->add_units() = all[1].units().units(0); });
  const auto metric = [](auto& all) { return all[1].mutable_units()->mutable_units(0)->mutable_metrics(0); };
  refused("is no ratio of sums", [&](auto& all) { metric(all)->set_numerator(nan); });
  refused("is no ratio of sums", [&](auto& all) { metric(all)->set_denominator(0); });
  refused("is no ratio of sums", [&](auto& all) { metric(all)->set_denominator(-1); });
  refused("77 is none that is known",
          [&](auto& all) { metric(all)->set_metric(static_cast<v1::ExperimentMetric>(77)); });
  refused("0 is none that is known", [&](auto& all) { metric(all)->clear_metric(); });
  refused("ATTENTION_MASS_LOST is there twice",
          [&](auto& all) { *all[1].mutable_units()->mutable_units(0)->add_metrics() = *metric(all); });

  const auto stopped = [&](const std::string& what, const std::function<void(v1::MetricMoments&)>& change) {
    refused(what, [&](auto& all) {
      all.resize(1);
      v1::ExperimentHead& head = *all[0].mutable_head();
      *head.mutable_stop_time() = head.start_time();
      head.mutable_arms(0)->set_units(5);
      v1::MetricMoments& moments = *head.mutable_arms(0)->add_moments();
      moments.set_metric(v1::EXPERIMENT_METRIC_SCORE);
      moments.set_units(5);
      moments.set_mean_numerator(1);
      moments.set_mean_denominator(2);
      change(moments);
    });
  };
  stopped("of 6 units, where the arm has 5", [](auto& moments) { moments.set_units(6); });
  stopped("of 0 units", [](auto& moments) { moments.set_units(0); });
  stopped("they cannot be of sums", [](auto& moments) { moments.set_numerator_squares(-1); });
  stopped("they cannot be of sums", [&](auto& moments) { moments.set_products(nan); });
  stopped("they cannot be of sums", [](auto& moments) { moments.set_mean_denominator(0); });
}

// Sums so large that no double holds their squares say nothing, instead of ending whoever looks.
TEST(ExperimentImage, OfNumbersBeyondAllMeasureIsTakenAndShowsNothing) {
  Experiments experiments;
  ASSERT_THAT(experiments.Start(Spec("e"), kNow), IsOk());
  for (int i = 0; i < 200; ++i) {
    const auto placed = experiments.Place("acme", absl::StrCat("user-", i), "s");
    ASSERT_TRUE(experiments.Enrol(placed->assignment));
    Observations fresh;
    fresh.Add(TrialMetric::kOutputError, (i % 2 == 0 ? 1 : -1) * 1e300);
    ASSERT_TRUE(experiments.Add(placed->assignment, fresh));
  }
  Experiments after;
  ASSERT_THAT(after.Restore(Runnable(ImageOf(experiments, "e"))), IsOk());
  const ExperimentView view = *after.Get("e");
  for (const ArmResult& arm : view.arms) {
    EXPECT_FALSE(arm.metrics[static_cast<size_t>(TrialMetric::kOutputError)].estimate.has_value());
  }
}

TEST(ExperimentExport, SaysWhenTheUnitsHaveGoneMeanwhile) {
  Experiments experiments;
  ASSERT_THAT(experiments.Start(Spec("e"), kNow), IsOk());
  ShowMany(experiments, 20);
  auto parts = ExperimentExport::Of(experiments, "e");
  ASSERT_THAT(parts, IsOk());
  ASSERT_THAT(parts->Next(), IsOk());
  Show(experiments, "one-more", 1);  // is not of what the head counts
  ASSERT_THAT(experiments.Stop("e", kNow), IsOk());
  EXPECT_THAT(parts->Next(), IsRefusal(absl::StatusCode::kFailedPrecondition, "EXPERIMENT_STOPPED", ""));
  EXPECT_THAT(ExperimentExport::Of(experiments, "none"),
              IsRefusal(absl::StatusCode::kNotFound, "UNKNOWN_EXPERIMENT", "name"));
}

TEST(ExperimentExport, TellsWhoWasThereWhenItBegan) {
  Experiments experiments;
  ASSERT_THAT(experiments.Start(Spec("e"), kNow), IsOk());
  ShowMany(experiments, 50);
  auto told = ExperimentExport::Of(experiments, "e");
  ASSERT_THAT(told, IsOk());
  ExperimentParts parts;
  for (int i = 0;; ++i) {
    const auto part = told->Next();
    ASSERT_THAT(part, IsOk());
    if (!*part) break;
    ASSERT_THAT(parts.Take(**part), IsOk());
    Show(experiments, absl::StrCat("late-", i), 1);
  }
  const auto whole = parts.Finish();
  ASSERT_THAT(whole, IsOk());
  EXPECT_EQ(whole->state.ratio.total(), 50);
}

}  // namespace
}  // namespace ebb
