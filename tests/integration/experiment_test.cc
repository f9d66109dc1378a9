// Experiments over gRPC: who is in which arm, what real sessions show, and what is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "tests/integration/experimenting.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const v1::MetricResults* Find(const v1::ArmResults& arm, v1::ExperimentMetric metric) {
  for (const v1::MetricResults& results : arm.metrics()) {
    if (results.metric() == metric) return &results;
  }
  return nullptr;
}

class Experiment : public testing::Test {
 protected:
  Experiment()
      : server_([](ServerOptions& options) {
          options.http_listen = {.host = "127.0.0.1", .port = 0};
          options.work.live.measure_every = 1;
          options.work.live.shadow = {.share = 1, .tokens_max = 256};
        }),
        experimenter_(server_.address()) {}

  grpc::Status Start(const v1::ExperimentSpec& spec) {
    v1::Experiment ignored;
    return Start(spec, &ignored);
  }
  grpc::Status Start(const v1::ExperimentSpec& spec, v1::Experiment* experiment) {
    return experimenter_.TryStart(spec, experiment);
  }
  grpc::Status Stop(const std::string& name) {
    v1::Experiment experiment;
    return experimenter_.TryStop(name, &experiment);
  }
  grpc::Status Ramp(const std::string& name, double ramp) {
    v1::Experiment experiment;
    return experimenter_.TryRamp(name, ramp, &experiment);
  }
  v1::Experiment Get(const std::string& id) { return experimenter_.Get(id); }
  static v1::CreateSessionRequest For(const std::string& end_user) {
    v1::CreateSessionRequest request;
    request.set_end_user(end_user);
    request.set_block_size(16);
    return request;
  }
  static grpc::Status Report(TestClient& client, const std::string& session, double score,
                             const std::string& request_id = "", v1::ReportOutcomeResponse* response = nullptr) {
    v1::ReportOutcomeResponse ignored;
    v1::ReportOutcomeRequest request;
    request.set_session(session);
    request.set_score(score);
    request.set_request_id(request_id);
    return client.inference().ReportOutcome(client.Context().get(), request, response == nullptr ? &ignored : response);
  }
  void ExpectRefused(const grpc::Status& status, grpc::StatusCode code, const std::string& reason,
                     const std::string& field) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_EQ(ReadDetails(status).reason, reason) << status.error_message();
    EXPECT_EQ(ReadDetails(status).field, field) << status.error_message();
  }

  TestServer server_;
  Experimenter experimenter_;
  TestClient& client_ = experimenter_.client();
};

TEST_F(Experiment, PutsEndUsersIntoArmsByWeightForAllTheirSessions) {
  v1::ExperimentSpec spec = TwoArms("e");
  spec.mutable_arms(1)->set_weight(3);
  v1::Experiment started;
  ASSERT_TRUE(Start(spec, &started).ok());
  EXPECT_EQ(started.name(), "experiments/e");
  EXPECT_EQ(started.state(), v1::EXPERIMENT_STATE_RUNNING);
  EXPECT_EQ(started.spec().salt(), "e");
  EXPECT_EQ(started.spec().arms(1).policy().trigger().budget(), 200U);

  std::map<std::string, std::string> arm_of;
  for (int session = 0; session < 120; ++session) {
    const std::string user = absl::StrFormat("user-%d", session % 60);
    const v1::Session made = client_.Create(For(user));
    EXPECT_EQ(made.experiment(), "experiments/e");
    EXPECT_EQ(made.policy().trigger().budget(), made.arm() == "wide" ? 200U : 24U);
    EXPECT_EQ(client_.Get(made.name()).arm(), made.arm());
    const auto [known, is_new] = arm_of.emplace(user, made.arm());
    EXPECT_EQ(known->second, made.arm()) << user;
    EXPECT_TRUE(client_.Delete(made.name()).ok());
  }
  int wide = 0;
  for (const auto& [user, arm] : arm_of) wide += arm == "wide";
  EXPECT_GT(wide, 32) << "45 are expected; the hash is what it is";
  EXPECT_LT(wide, 57);
  const v1::ExperimentResults results = Get("e").results();
  EXPECT_EQ(results.arms(0).units() + results.arms(1).units(), 60U);
  EXPECT_EQ(results.arms(0).sessions() + results.arms(1).sessions(), 120U);
  EXPECT_EQ(results.arms(1).units(), static_cast<uint64_t>(wide));
  EXPECT_EQ(results.arms(1).expected_share(), 0.75);
  EXPECT_GT(results.sample_ratio_p(), 0.001);
  EXPECT_EQ(server_.Metric("ebb_experiment_sessions_total{experiment=\"e\",arm=\"wide\"}"), 2 * wide);
}

TEST_F(Experiment, TakesANameThatComesAgainForTheSameUnit) {
  ASSERT_TRUE(Start(TwoArms("e")).ok());
  v1::CreateSessionRequest nightly = For("");
  nightly.set_session_id("nightly");
  std::set<std::string> arms;
  for (int night = 0; night < 5; ++night) {
    const v1::Session made = client_.Create(nightly);
    arms.insert(made.arm());
    EXPECT_TRUE(Report(client_, made.name(), 0.25 * night).ok());
    EXPECT_TRUE(client_.Delete(made.name()).ok());
  }
  EXPECT_THAT(arms, SizeIs(1));
  const v1::ExperimentResults results = Get("e").results();
  EXPECT_EQ(results.arms(0).units() + results.arms(1).units(), 1U);
  EXPECT_EQ(results.arms(0).sessions() + results.arms(1).sessions(), 5U);
}

TEST_F(Experiment, TakesOnlyWhoDoesNotSayAPolicy) {
  ASSERT_TRUE(Start(TwoArms("e")).ok());
  const v1::Session own = client_.Create(SessionWith(StreamingPolicy(40)));
  EXPECT_EQ(own.experiment(), "");
  EXPECT_EQ(own.arm(), "");
  const v1::Session taken = client_.Create(For(""));
  EXPECT_EQ(taken.experiment(), "experiments/e");
  // From here on it shows another policy's results; its branch never showed the arm's.
  v1::ForkSessionRequest fork;
  fork.set_session(taken.name());
  v1::Session branch;
  ASSERT_TRUE(client_.sessions().ForkSession(client_.Context().get(), fork, &branch).ok());
  EXPECT_EQ(branch.experiment(), "");
  v1::SetPolicyRequest set;
  set.set_session(taken.name());
  *set.mutable_policy() = StreamingPolicy(48);
  v1::SetPolicyResponse response;
  ASSERT_TRUE(client_.eviction().SetPolicy(client_.Context().get(), set, &response).ok());
  EXPECT_EQ(client_.Get(taken.name()).experiment(), "");
}

TEST_F(Experiment, OfOneTenantIsNoneOfAnothers) {
  ASSERT_TRUE(Start(TwoArms("e", "acme")).ok());
  TestClient acme(server_.address(), "acme"), other(server_.address(), "other");
  const v1::Session session = acme.Create(For("ann"));
  EXPECT_EQ(session.experiment(), "experiments/e");
  EXPECT_EQ(other.Create(For("ann")).experiment(), "");
  ExpectRefused(Report(other, session.name(), 1), grpc::StatusCode::NOT_FOUND, "UNKNOWN_SESSION", "");
  EXPECT_TRUE(Report(acme, session.name(), 1).ok());
  const v1::ExperimentResults results = Get("e").results();
  EXPECT_EQ(results.arms(0).units() + results.arms(1).units(), 1U);
}

TEST_F(Experiment, ShowsWhatRealSessionsDidAndDecides) {
  ASSERT_TRUE(Start(TwoArms("e")).ok());
  constexpr int kThreads = 3, kUsers = 24;
  std::vector<std::thread> callers;
  for (int thread = 0; thread < kThreads; ++thread) {
    callers.emplace_back([&, thread] {
      TestClient client(server_.address());
      for (int user = 0; user < kUsers; ++user) {
        const v1::Session session = client.Create(For(absl::StrFormat("user-%d-%d", thread, user)));
        EXPECT_TRUE(client.Prefill(PrefillText(session.name(), kStormyNight)).ok());
        EXPECT_THAT(client.Decode(DecodeTokens(session.name(), 4 + user % 3)).tokens, SizeIs(4 + user % 3));
        EXPECT_TRUE(Report(client, session.name(), (session.arm() == "wide" ? 0.8 : 0.2) + 0.02 * (user % 5)).ok());
        v1::ReportOutcomeRequest thumb;
        thumb.set_session(session.name());
        thumb.set_thumb_up(user % 2 == 0);
        v1::ReportOutcomeResponse response;
        EXPECT_TRUE(client.inference().ReportOutcome(client.Context().get(), thumb, &response).ok());
        EXPECT_EQ(response.experiment(), "experiments/e");
        EXPECT_EQ(response.arm(), session.arm());
        if (user % 2 != 0) continue;  // results come of those that are open, too
        EXPECT_TRUE(client.Delete(session.name()).ok());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();

  const v1::Experiment experiment = Get("e");
  const v1::ExperimentResults& results = experiment.results();
  EXPECT_EQ(results.decision(), v1::EXPERIMENT_DECISION_FAVOURS_ARM) << results.DebugString();
  EXPECT_EQ(results.favoured_arm(), "wide");
  const v1::ArmResults &control = results.arms(0), &wide = results.arms(1);
  EXPECT_EQ(control.units() + wide.units(), static_cast<uint64_t>(kThreads * kUsers));
  for (const v1::ArmResults* arm : {&control, &wide}) {
    const std::string calls = "ebb_experiment_calls_total{experiment=\"e\",arm=\"" + arm->arm() + "\",result=";
    EXPECT_EQ(server_.Metric(calls + "\"ok\"}"), 2.0 * arm->units()) << "a Prefill and a Decode of each user";
    EXPECT_EQ(server_.Metric(calls + "\"failed\"}") + server_.Metric(calls + "\"cancelled\"}"), 0);
    for (const v1::ExperimentMetric metric :
         {v1::EXPERIMENT_METRIC_SHADOW_KL, v1::EXPERIMENT_METRIC_SHADOW_AGREEMENT, v1::EXPERIMENT_METRIC_RESERVED_BYTES,
          v1::EXPERIMENT_METRIC_TIME_TO_FIRST_TOKEN, v1::EXPERIMENT_METRIC_INTER_TOKEN, v1::EXPERIMENT_METRIC_SCORE,
          v1::EXPERIMENT_METRIC_THUMBS}) {
      SCOPED_TRACE(arm->arm() + " " + v1::ExperimentMetric_Name(metric));
      ASSERT_NE(Find(*arm, metric), nullptr);
      EXPECT_GE(Find(*arm, metric)->units(), 20U);
      EXPECT_TRUE(Find(*arm, metric)->has_interval());
      EXPECT_EQ(Find(*arm, metric)->has_difference(), arm == &wide);
      EXPECT_EQ(Find(*arm, metric)->confounded(),
                metric == v1::EXPERIMENT_METRIC_TIME_TO_FIRST_TOKEN || metric == v1::EXPERIMENT_METRIC_INTER_TOKEN);
    }
  }
  const v1::MetricResults& score = *Find(wide, v1::EXPERIMENT_METRIC_SCORE);
  EXPECT_NEAR(score.difference(), 0.6, 0.02);
  EXPECT_LT(score.difference_interval().low(), 0.6);
  EXPECT_GT(score.difference_interval().high(), 0.6);
  // 200 slots evict nobody here, so they cost more, lose nothing, and agree with the shadow to the last bit.
  EXPECT_EQ(Find(wide, v1::EXPERIMENT_METRIC_ATTENTION_MASS_LOST), nullptr);
  EXPECT_EQ(Find(wide, v1::EXPERIMENT_METRIC_SHADOW_KL)->estimate(), 0);
  EXPECT_EQ(Find(wide, v1::EXPERIMENT_METRIC_SHADOW_AGREEMENT)->estimate(), 1);
  EXPECT_GT(Find(wide, v1::EXPERIMENT_METRIC_RESERVED_BYTES)->difference(), 0);
  EXPECT_GT(Find(control, v1::EXPERIMENT_METRIC_SHADOW_KL)->estimate(), 0);
  ASSERT_NE(Find(control, v1::EXPERIMENT_METRIC_ATTENTION_MASS_LOST), nullptr);
  EXPECT_GT(Find(control, v1::EXPERIMENT_METRIC_ATTENTION_MASS_LOST)->estimate(), 0);
  EXPECT_GT(Find(control, v1::EXPERIMENT_METRIC_OUTPUT_ERROR)->estimate(), 0);
}

TEST_F(Experiment, CountsARepeatedReportOnceAndOneOfNobodyNot) {
  const v1::Session before = client_.Create(For("ann"));
  ASSERT_TRUE(Start(TwoArms("e")).ok());
  v1::ReportOutcomeResponse response;
  ASSERT_TRUE(Report(client_, before.name(), 1, "", &response).ok());
  EXPECT_EQ(response.experiment(), "");
  // Two users of one arm, so that it has an estimate.
  std::map<std::string, std::vector<std::string>> sessions;
  for (int i = 0; sessions["wide"].size() < 2; ++i) {
    const v1::Session session = client_.Create(For(absl::StrFormat("user-%d", i)));
    sessions[session.arm()].push_back(session.name());
  }
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Report(client_, sessions["wide"][0], 1, "once", &response).ok());
    EXPECT_EQ(response.arm(), "wide");
  }
  ASSERT_TRUE(Report(client_, sessions["wide"][1], 0, "once").ok());
  const v1::Experiment experiment = Get("e");
  EXPECT_EQ(Find(experiment.results().arms(1), v1::EXPERIMENT_METRIC_SCORE)->estimate(), 0.5) << "1 and 0, once each";

  v1::ReportOutcomeRequest empty;
  empty.set_session(before.name());
  const auto report = [&] { return client_.inference().ReportOutcome(client_.Context().get(), empty, &response); };
  ExpectRefused(report(), grpc::StatusCode::INVALID_ARGUMENT, "MISSING", "outcome");
  ExpectRefused(Report(client_, before.name(), 1.5), grpc::StatusCode::INVALID_ARGUMENT, "OUT_OF_RANGE", "score");
  ExpectRefused(Report(client_, before.name(), std::nan("")), grpc::StatusCode::INVALID_ARGUMENT, "OUT_OF_RANGE",
                "score");
  ExpectRefused(Report(client_, before.name(), 1, std::string(129, 'x')), grpc::StatusCode::INVALID_ARGUMENT,
                "TOO_LONG", "request_id");
}

TEST_F(Experiment, RampsUpWithoutMovingAnybodyAndStopsWithoutChangingAnybody) {
  v1::ExperimentSpec spec = TwoArms("e");
  spec.set_ramp(0);
  ASSERT_TRUE(Start(spec).ok());
  std::map<std::string, std::string> arm_of;
  for (const double ramp : {0.0, 0.5, 1.0}) {
    ASSERT_TRUE(Ramp("experiments/e", ramp).ok());
    EXPECT_EQ(Get("e").spec().ramp(), ramp);
    size_t taken = 0;
    for (int i = 0; i < 20; ++i) {
      const v1::Session session = client_.Create(For(absl::StrFormat("user-%d", i)));
      EXPECT_TRUE(client_.Delete(session.name()).ok());
      taken += session.arm().empty() ? 0 : 1;
      if (arm_of.contains(session.tenant() + absl::StrFormat("user-%d", i))) {
        EXPECT_EQ(session.arm(), arm_of[session.tenant() + absl::StrFormat("user-%d", i)]);
      } else if (!session.arm().empty()) {
        arm_of[session.tenant() + absl::StrFormat("user-%d", i)] = session.arm();
      }
    }
    if (ramp == 0) {
      EXPECT_EQ(taken, 0U);
    } else if (ramp == 1) {
      EXPECT_EQ(taken, 20U);
    }
  }
  const v1::Session open = client_.Create(For("user-1"));
  ASSERT_TRUE(Stop("experiments/e").ok());
  EXPECT_EQ(client_.Get(open.name()).policy().trigger().budget(), open.policy().trigger().budget());
  EXPECT_EQ(client_.Create(For("user-1")).experiment(), "");
  EXPECT_EQ(Get("e").state(), v1::EXPERIMENT_STATE_STOPPED);
  EXPECT_TRUE(Get("e").has_stop_time());
  v1::ReportOutcomeResponse response;
  ASSERT_TRUE(Report(client_, open.name(), 1, "", &response).ok());
  EXPECT_EQ(response.experiment(), "") << "it counts nothing more";
  ExpectRefused(Ramp("experiments/e", 0.5), grpc::StatusCode::FAILED_PRECONDITION, "EXPERIMENT_STOPPED", "");
}

TEST_F(Experiment, RefusesWhatItCannotCompare) {
  const auto refused = [&](const char* reason, const char* field,
                           const std::function<void(v1::ExperimentSpec&)>& change) {
    v1::ExperimentSpec spec = TwoArms("e");
    change(spec);
    SCOPED_TRACE(field);
    ExpectRefused(Start(spec), grpc::StatusCode::INVALID_ARGUMENT, reason, field);
  };
  refused("INVALID_NAME", "experiment.name", [](auto& spec) { spec.set_name("E"); });
  refused("INVALID_TENANT", "experiment.tenant", [](auto& spec) { spec.set_tenant("A B"); });
  refused("MISSING", "experiment.arms", [](auto& spec) { spec.mutable_arms()->RemoveLast(); });
  refused("OUT_OF_RANGE", "experiment.arms", [](auto& spec) {
    while (spec.arms_size() < 9) *spec.add_arms() = spec.arms(0);
  });
  refused("INVALID_NAME", "experiment.arms[1].name", [](auto& spec) { spec.mutable_arms(1)->clear_name(); });
  refused("ARMS_ALIKE", "experiment.arms[1].name", [](auto& spec) { spec.mutable_arms(1)->set_name("control"); });
  refused("OUT_OF_RANGE", "experiment.arms[0].weight", [](auto& spec) { spec.mutable_arms(0)->set_weight(0); });
  refused("BUDGET_TOO_SMALL", "experiment.arms[1].policy.trigger.budget",
          [](auto& spec) { spec.mutable_arms(1)->mutable_policy()->mutable_trigger()->set_budget(2); });
  refused("SESSION_TOO_LARGE", "experiment.arms[1].policy.trigger.budget",
          [](auto& spec) { spec.mutable_arms(1)->mutable_policy()->mutable_trigger()->set_budget(1 << 23); });
  refused("OUT_OF_RANGE", "experiment.ramp", [](auto& spec) { spec.set_ramp(1.1); });
  refused("TOO_LONG", "experiment.salt", [](auto& spec) { spec.set_salt(std::string(129, 's')); });
  refused("UNKNOWN_ENUM_VALUE", "experiment.metric",
          [](auto& spec) { spec.set_metric(static_cast<v1::ExperimentMetric>(77)); });
  refused("OUT_OF_RANGE", "experiment.margin", [](auto& spec) { spec.set_margin(-1); });
  refused("OUT_OF_RANGE", "experiment.alpha", [](auto& spec) { spec.set_alpha(0.9); });
  refused("OUT_OF_RANGE", "experiment.units_min", [](auto& spec) { spec.set_units_min(1); });
  refused("OUT_OF_RANGE", "experiment.units_planned", [](auto& spec) { spec.set_units_planned(1); });

  ASSERT_TRUE(Start(TwoArms("e")).ok());
  ExpectRefused(Start(TwoArms("e")), grpc::StatusCode::ALREADY_EXISTS, "EXPERIMENT_EXISTS", "experiment.name");
  ExpectRefused(Start(TwoArms("f")), grpc::StatusCode::FAILED_PRECONDITION, "EXPERIMENT_OVERLAPS", "experiment.tenant");
  for (int i = 1; i < 16; ++i) ASSERT_TRUE(Start(TwoArms(absl::StrFormat("e%d", i), absl::StrFormat("t%d", i))).ok());
  ExpectRefused(Start(TwoArms("more", "more")), grpc::StatusCode::RESOURCE_EXHAUSTED, "EXPERIMENTS_FULL", "");
  ExpectRefused(Stop("experiments/none"), grpc::StatusCode::NOT_FOUND, "UNKNOWN_EXPERIMENT", "name");
  ExpectRefused(Stop("e"), grpc::StatusCode::INVALID_ARGUMENT, "INVALID_NAME", "name");
  ExpectRefused(Ramp("experiments/e", 2), grpc::StatusCode::INVALID_ARGUMENT, "OUT_OF_RANGE", "ramp");
  v1::ListExperimentsResponse list;
  ASSERT_TRUE(client_.admin().ListExperiments(client_.Context().get(), {}, &list).ok());
  EXPECT_THAT(list.experiments(), SizeIs(16));
  v1::Session session;
  ExpectRefused(client_.Create(For(std::string(257, 'u')), &session), grpc::StatusCode::INVALID_ARGUMENT, "TOO_LONG",
                "end_user");
}

class ExperimentFileTest : public testing::Test {
 protected:
  void Write(const std::string& text) const {
    std::ofstream(path_ + ".new") << text;
    std::filesystem::rename(path_ + ".new", path_);
  }
  static std::string Named(const std::string& name, double ramp, uint32_t budget = 200) {
    return absl::StrFormat(R"({"name": "%s", "ramp": %g, "arms": [{"name": "a", "policy": {"streaming": {}, "trigger":
      {"budget": 24}}}, {"name": "b", "policy": {"streaming": {}, "trigger": {"budget": %d}}}]})",
                           name, ramp, budget);
  }
  static std::string All(const std::string& experiments) { return "{\"experiments\": [" + experiments + "]}"; }
  void Open() {
    server_ = std::make_unique<TestServer>(
        [this](ServerOptions& options) { options.experiments = {.path = path_, .reload = absl::Milliseconds(10)}; });
    client_ = std::make_unique<TestClient>(server_->address());
  }
  // "e running 0.5, f stopped 1"
  std::string State() const {
    v1::ListExperimentsResponse list;
    EXPECT_TRUE(client_->admin().ListExperiments(client_->Context().get(), {}, &list).ok());
    std::string text;
    for (const v1::Experiment& experiment : list.experiments()) {
      text += absl::StrFormat("%s%s %s %g", text.empty() ? "" : ", ", experiment.spec().name(),
                              experiment.state() == v1::EXPERIMENT_STATE_RUNNING ? "running" : "stopped",
                              experiment.spec().ramp());
    }
    return text;
  }
  std::string StateBecomes(const std::string& wanted) const {
    const absl::Time end = absl::Now() + absl::Seconds(60);
    while (State() != wanted && absl::Now() < end) absl::SleepFor(absl::Milliseconds(5));
    return State();
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/experiments.json";
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<TestClient> client_;
};

TEST_F(ExperimentFileTest, IsFollowedWhileTheServerRuns) {
  Write(All(Named("e", 0.5)));
  Open();
  EXPECT_EQ(State(), "e running 0.5");
  Write(All(Named("e", 1)));
  EXPECT_EQ(StateBecomes("e running 1"), "e running 1");
  Write(All(Named("e", 1, 100)));  // other arms: refused, and nothing changes
  Write(All(Named("f", 0.25)));
  EXPECT_EQ(StateBecomes("e stopped 1, f running 0.25"), "e stopped 1, f running 0.25");
  Write("{");
  Write(All(""));
  EXPECT_EQ(StateBecomes("e stopped 1, f stopped 0.25"), "e stopped 1, f stopped 0.25");
}

// Two that are each fine and do not go together: neither is started, and what runs is not stopped.
TEST_F(ExperimentFileTest, IsAppliedAsAWholeOrNotAtAll) {
  Write(All(Named("e", 0.5)));
  Open();
  const auto reload = [&] {
    v1::ReloadConfigResponse response;
    return client_->admin().ReloadConfig(client_->Context().get(), {}, &response);
  };
  Write(All(Named("f", 1) + "," + Named("g", 1)));
  EXPECT_EQ(ReadDetails(reload()).reason, "EXPERIMENT_OVERLAPS");
  EXPECT_EQ(State(), "e running 0.5");
  Write(All(Named("f", 1) + "," + Named("f", 1)));
  EXPECT_EQ(ReadDetails(reload()).reason, "BAD_EXPERIMENTS_FILE");
  EXPECT_EQ(State(), "e running 0.5");
  Write(All(Named("f", 1)));
  EXPECT_TRUE(reload().ok());
  EXPECT_EQ(State(), "e stopped 0.5, f running 1");
}

TEST_F(ExperimentFileTest, OfNonsenseStartsNoServer) {
  const auto start = [&] {
    const TinyModelFile model((TinyModel()));
    return Server::Start({.listen = {.host = "127.0.0.1", .port = 0},
                          .engine = {.model_path = model.path(), .threads = 1, .arena_bytes = 64 << 20},
                          .experiments = ExperimentFileOptions{.path = path_}})
        .status();
  };
  EXPECT_THAT(start(), IsRefusal(absl::StatusCode::kNotFound, "NO_EXPERIMENTS_FILE", "experiments.file"));
  for (const std::string text : {"{", "[]", "{\"experiments\": [{\"named\": \"e\"}]}"}) {
    Write(text);
    EXPECT_THAT(start(), IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_EXPERIMENTS_FILE", "experiments.file"))
        << text;
  }
  Write(All(Named("e", 1) + "," + Named("f", 7)));
  const absl::Status refused = start();
  EXPECT_THAT(refused, IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_EXPERIMENTS_FILE", "experiments.file"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("index 1: experiment.ramp: 7 is not in [0, 1]"));
  Write(All(Named("e", 1, 1 << 23)));
  EXPECT_THAT(start(), IsRefusal(absl::StatusCode::kInvalidArgument, "SESSION_TOO_LARGE",
                                 "experiment.arms[1].policy.trigger.budget"));
}

}  // namespace
}  // namespace ebb
