// Experiments outlive their server, where it has a folder: those that run go on with the units that they had.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"
#include "tests/support/tiny_model.h"

namespace ebb {
namespace {

using ::testing::SizeIs;

v1::ExperimentSpec SpecOf(const std::string& name, const std::string& tenant = "") {
  v1::ExperimentSpec spec;
  spec.set_name(name);
  spec.set_tenant(tenant);
  for (const char* arm : {"control", "wide"}) {
    v1::ExperimentArm& made = *spec.add_arms();
    made.set_name(arm);
    *made.mutable_policy() = StreamingPolicy(arm == std::string("wide") ? 200 : 24);
  }
  spec.set_metric(v1::EXPERIMENT_METRIC_SCORE);
  spec.set_units_min(20);
  return spec;
}

class KeptExperimentsTest : public testing::Test {
 protected:
  void Open(const std::function<void(ServerOptions&)>& change = {}) {
    server_.reset();  // which has the folder
    server_ = std::make_unique<TestServer>([&](ServerOptions& options) {
      options.http_listen = {.host = "127.0.0.1", .port = 0};
      options.store_dir = folder_.path() + "/store";
      if (change) change(options);
    });
    client_ = std::make_unique<TestClient>(server_->address());
  }
  void Drain() { server_->server().Drain(absl::Seconds(10)); }

  v1::Experiment Start(const v1::ExperimentSpec& spec) {
    v1::StartExperimentRequest request;
    *request.mutable_experiment() = spec;
    v1::Experiment experiment;
    const grpc::Status status = client_->admin().StartExperiment(client_->Context().get(), request, &experiment);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return experiment;
  }
  v1::Experiment Stop(const std::string& id) {
    v1::StopExperimentRequest request;
    request.set_name("experiments/" + id);
    v1::Experiment experiment;
    EXPECT_TRUE(client_->admin().StopExperiment(client_->Context().get(), request, &experiment).ok());
    return experiment;
  }
  grpc::Status TryGet(const std::string& id, v1::Experiment* experiment) {
    v1::GetExperimentRequest request;
    request.set_name("experiments/" + id);
    return client_->admin().GetExperiment(client_->Context().get(), request, experiment);
  }
  v1::Experiment Get(const std::string& id) {
    v1::Experiment experiment;
    EXPECT_TRUE(TryGet(id, &experiment).ok()) << id;
    return experiment;
  }
  // A session of the user, which shows a score. The arm that it is in.
  std::string Come(const std::string& user) {
    v1::CreateSessionRequest create;
    create.set_end_user(user);
    const v1::Session session = client_->Create(create);
    v1::ReportOutcomeRequest report;
    report.set_session(session.name());
    report.set_score(session.arm() == "wide" ? 0.75 : 0.25);
    v1::ReportOutcomeResponse response;
    EXPECT_TRUE(client_->inference().ReportOutcome(client_->Context().get(), report, &response).ok());
    EXPECT_TRUE(client_->Delete(session.name()).ok());
    return session.arm();
  }
  static uint64_t Units(const v1::Experiment& experiment) {
    return experiment.results().arms(0).units() + experiment.results().arms(1).units();
  }
  static uint64_t Sessions(const v1::Experiment& experiment) {
    return experiment.results().arms(0).sessions() + experiment.results().arms(1).sessions();
  }
  std::string File(const std::string& id) const { return folder_.path() + "/store/experiments/" + id + ".experiment"; }

  const TemporaryFolder folder_;
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<TestClient> client_;
};

TEST_F(KeptExperimentsTest, GoOnInTheNextServerWithTheUnitsThatTheyHad) {
  Open();
  const v1::Experiment started = Start(SpecOf("e"));
  std::map<std::string, std::string> arms;
  for (int i = 0; i < 60; ++i) arms[absl::StrCat("user-", i)] = Come(absl::StrCat("user-", i));
  v1::RampExperimentRequest ramp;
  ramp.set_name("experiments/e");
  ramp.set_ramp(0.75);
  v1::Experiment ramped;
  ASSERT_TRUE(client_->admin().RampExperiment(client_->Context().get(), ramp, &ramped).ok());
  Start(SpecOf("done", "acme"));
  const v1::Experiment stopped = Stop("done");
  const v1::Experiment before = Get("e");
  Drain();

  Open();
  const v1::Experiment after = Get("e");
  EXPECT_EQ(after.state(), v1::EXPERIMENT_STATE_RUNNING);
  EXPECT_EQ(after.spec().DebugString(), before.spec().DebugString());
  EXPECT_EQ(after.spec().ramp(), 0.75);
  EXPECT_EQ(after.start_time().DebugString(), started.start_time().DebugString());
  EXPECT_EQ(Units(after), Units(before));
  EXPECT_EQ(Sessions(after), Sessions(before));
  EXPECT_EQ(after.results().decision(), before.results().decision());
  EXPECT_EQ(after.results().sample_ratio_p(), before.results().sample_ratio_p());
  const v1::MetricResults& score = *after.results().arms(1).metrics().rbegin();
  EXPECT_EQ(score.metric(), v1::EXPERIMENT_METRIC_SCORE);
  EXPECT_EQ(score.difference(), 0.5);
  EXPECT_EQ(Get("done").DebugString(), stopped.DebugString());

  for (int i = 0; i < 60; ++i) {  // who is within the ramp comes again, and is who they were
    const std::string user = absl::StrCat("user-", i);
    const std::string arm = Come(user);
    EXPECT_EQ(arm, arm.empty() ? "" : arms[user]) << user;
  }
  const v1::Experiment again = Get("e");
  EXPECT_EQ(Units(again), 60U);
  EXPECT_GT(Sessions(again), 60U);
  Drain();

  Open();  // and once more
  EXPECT_EQ(Units(Get("e")), 60U);
  EXPECT_EQ(Sessions(Get("e")), Sessions(again));
}

TEST_F(KeptExperimentsTest, AreNoLongerForgottenByAServerThatIsKilled) {
  Open();
  Start(SpecOf("e"));
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(File("e")); })) << "nobody drained it";
  server_.reset();
  Open();
  EXPECT_EQ(Get("e").state(), v1::EXPERIMENT_STATE_RUNNING);
  Stop("e");
  ASSERT_TRUE(Eventually([&] {
    return server_->Metric("ebb_experiment_file_writes_total{result=\"ok\"}") >= 1;  // the start's was another server's
  }));
  server_.reset();
  Open();
  EXPECT_EQ(Get("e").state(), v1::EXPERIMENT_STATE_STOPPED);
}

TEST_F(KeptExperimentsTest, WhoseFileIsDamagedAreSetAsideAndBeginAnew) {
  Open();
  Start(SpecOf("e"));
  Start(SpecOf("other", "acme"));
  Come("ann");
  Drain();
  std::fstream(File("e"), std::ios::in | std::ios::out | std::ios::binary).seekp(40).put('?');
  std::filesystem::copy(File("other"), File("a-copy"));  // is of `other`, whatever it is called

  Open();
  v1::Experiment none;
  EXPECT_EQ(TryGet("e", &none).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(TryGet("a-copy", &none).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Get("other").state(), v1::EXPERIMENT_STATE_RUNNING);
  EXPECT_FALSE(std::filesystem::exists(File("e")));
  EXPECT_TRUE(std::filesystem::exists(File("e") + ".damaged"));
  EXPECT_TRUE(std::filesystem::exists(File("a-copy") + ".damaged"));
  EXPECT_EQ(server_->Metric("ebb_experiment_files_set_aside_total"), 2);
  Start(SpecOf("e"));
  EXPECT_EQ(Units(Get("e")), 0U);
  Drain();

  Open();
  EXPECT_EQ(Get("e").state(), v1::EXPERIMENT_STATE_RUNNING);
  EXPECT_EQ(server_->Metric("ebb_experiment_files_set_aside_total"), 0);
}

TEST_F(KeptExperimentsTest, WhoseArmsTheModelCannotTakeAnyMoreHaveStopped) {
  Open();
  v1::ExperimentSpec spec = SpecOf("e");
  *spec.mutable_arms(1)->mutable_policy() = StreamingPolicy(20000);
  Start(spec);
  for (int i = 0; i < 3; ++i) Come(absl::StrCat("user-", i));
  const v1::Experiment before = Get("e");
  Drain();

  Open([](ServerOptions& options) { options.engine.arena_bytes = 1 << 20; });
  const v1::Experiment after = Get("e");
  EXPECT_EQ(after.state(), v1::EXPERIMENT_STATE_STOPPED);
  EXPECT_EQ(after.spec().DebugString(), before.spec().DebugString());
  EXPECT_EQ(Units(after), 3U);
  EXPECT_EQ(Come("user-1"), "") << "nobody is assigned";
  Drain();

  Open();
  EXPECT_EQ(Get("e").state(), v1::EXPERIMENT_STATE_STOPPED) << "once stopped, it stays so";
}

// Also where arms take what the file leaves out from the model, so that they are others now: the server starts.
TEST_F(KeptExperimentsTest, OfAnotherModelHaveStoppedAndAFileThatStillNamesThemIsNoReasonNotToServe) {
  const std::string path = folder_.path() + "/experiments.json";
  std::ofstream(path) << R"({"experiments": [{"name": "e", "arms": [{"name": "control", "policy": {"full": {}}},)"
                         R"({"name": "b", "policy": {"streaming": {}, "trigger": {"budget": 24}}}]}]})";
  const auto follows = [&](ServerOptions& options) { options.experiments = {.path = path}; };
  Open(follows);
  for (int i = 0; i < 3; ++i) Come(absl::StrCat("user-", i));
  Drain();

  const TinyModelFile other({.context = 128, .seed = 5});
  Open([&](ServerOptions& options) {
    follows(options);
    options.engine.model_path = other.path();
  });
  const v1::Experiment stopped = Get("e");
  EXPECT_EQ(stopped.state(), v1::EXPERIMENT_STATE_STOPPED);
  EXPECT_EQ(Units(stopped), 3U) << "with its results";
  EXPECT_EQ(Come("user-1"), "") << "nobody is assigned";
}

TEST_F(KeptExperimentsTest, ThatAFileNamedFollowItWhileNoServerRuns) {
  const std::string path = folder_.path() + "/experiments.json";
  const auto with_file = [&](ServerOptions& options) { options.experiments = {.path = path}; };
  const auto write = [&](const std::string& name, int budget) {
    std::ofstream(path) << R"({"experiments": [{"name": ")" << name << R"(", "units_min": 20, "arms": [)"
                        << R"({"name": "control", "policy": {"streaming": {}, "trigger": {"budget": 24}}},)"
                        << R"({"name": "wide", "policy": {"streaming": {}, "trigger": {"budget": )" << budget
                        << "}}}]}]}";
  };
  write("e", 200);
  Open(with_file);
  for (int i = 0; i < 5; ++i) Come(absl::StrCat("user-", i));
  Start(SpecOf("by-hand", "acme"));
  Drain();

  Open(with_file);
  EXPECT_EQ(Units(Get("e")), 5U) << "it goes on";
  Drain();

  write("f", 200);
  Open(with_file);
  EXPECT_EQ(Get("e").state(), v1::EXPERIMENT_STATE_STOPPED) << "the file names it no more";
  EXPECT_EQ(Get("f").state(), v1::EXPERIMENT_STATE_RUNNING);
  EXPECT_EQ(Get("by-hand").state(), v1::EXPERIMENT_STATE_RUNNING) << "that is none of the file's";
  Drain();

  Open();
  EXPECT_EQ(Get("f").state(), v1::EXPERIMENT_STATE_STOPPED) << "there is no file any more";
  EXPECT_EQ(Get("by-hand").state(), v1::EXPERIMENT_STATE_RUNNING);
}

TEST_F(KeptExperimentsTest, OfWhichTooManyHaveStoppedLeaveNoFileEither) {
  Open();
  for (int i = 0; i < 66; ++i) {
    Start(SpecOf(absl::StrCat("e", i)));
    Stop(absl::StrCat("e", i));
    if (i > 0) continue;
    ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(File("e0")); }));
  }
  Drain();
  EXPECT_FALSE(std::filesystem::exists(File("e0")));
  EXPECT_TRUE(std::filesystem::exists(File("e65")));
  Open();
  v1::ListExperimentsResponse list;
  ASSERT_TRUE(client_->admin().ListExperiments(client_->Context().get(), {}, &list).ok());
  EXPECT_THAT(list.experiments(), SizeIs(64));
}

}  // namespace
}  // namespace ebb
