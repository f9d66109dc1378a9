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
#include "tests/integration/experimenting.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"
#include "tests/support/tiny_model.h"

namespace ebb {
namespace {

using ::testing::SizeIs;

class KeptExperimentsTest : public testing::Test {
 protected:
  void Open(const std::function<void(ServerOptions&)>& change = {}) {
    server_.reset();  // which has the folder
    server_ = std::make_unique<TestServer>([&](ServerOptions& options) {
      options.http_listen = {.host = "127.0.0.1", .port = 0};
      options.store_dir = folder_.path() + "/store";
      if (change) change(options);
    });
    client_ = std::make_unique<Experimenter>(server_->address());
  }
  void Drain() { server_->server().Drain(absl::Seconds(10)); }

  v1::Experiment Start(const v1::ExperimentSpec& spec) { return client_->Start(spec); }
  v1::Experiment Stop(const std::string& id) { return client_->Stop(id); }
  v1::Experiment Get(const std::string& id) { return client_->Get(id); }
  std::string Come(const std::string& user) { return client_->Come(user); }
  std::string File(const std::string& id) const { return folder_.path() + "/store/experiments/" + id + ".experiment"; }

  const TemporaryFolder folder_;
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<Experimenter> client_;
};

TEST_F(KeptExperimentsTest, GoOnInTheNextServerWithTheUnitsThatTheyHad) {
  Open();
  const v1::Experiment started = Start(TwoArms("e"));
  std::map<std::string, std::string> arms;
  for (int i = 0; i < 60; ++i) arms[absl::StrCat("user-", i)] = Come(absl::StrCat("user-", i));
  client_->Ramp("e", 0.75);
  Start(TwoArms("done", "acme"));
  const v1::Experiment stopped = Stop("done");
  const v1::Experiment before = Get("e");
  Drain();

  Open();
  const v1::Experiment after = Get("e");
  EXPECT_EQ(after.state(), v1::EXPERIMENT_STATE_RUNNING);
  EXPECT_EQ(after.spec().DebugString(), before.spec().DebugString());
  EXPECT_EQ(after.spec().ramp(), 0.75);
  EXPECT_EQ(after.start_time().DebugString(), started.start_time().DebugString());
  EXPECT_EQ(UnitsOf(after), UnitsOf(before));
  EXPECT_EQ(SessionsOf(after), SessionsOf(before));
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
  EXPECT_EQ(UnitsOf(again), 60U);
  EXPECT_GT(SessionsOf(again), 60U);
  Drain();

  Open();  // and once more
  EXPECT_EQ(UnitsOf(Get("e")), 60U);
  EXPECT_EQ(SessionsOf(Get("e")), SessionsOf(again));
}

TEST_F(KeptExperimentsTest, AreNoLongerForgottenByAServerThatIsKilled) {
  Open();
  Start(TwoArms("e"));
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
  Start(TwoArms("e"));
  Start(TwoArms("other", "acme"));
  Come("ann");
  Drain();
  std::fstream(File("e"), std::ios::in | std::ios::out | std::ios::binary).seekp(40).put('?');
  std::filesystem::copy(File("other"), File("a-copy"));  // is of `other`, whatever it is called

  Open();
  v1::Experiment none;
  EXPECT_EQ(client_->TryGet("e", &none).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(client_->TryGet("a-copy", &none).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Get("other").state(), v1::EXPERIMENT_STATE_RUNNING);
  EXPECT_FALSE(std::filesystem::exists(File("e")));
  EXPECT_TRUE(std::filesystem::exists(File("e") + ".damaged"));
  EXPECT_TRUE(std::filesystem::exists(File("a-copy") + ".damaged"));
  EXPECT_EQ(server_->Metric("ebb_experiment_files_set_aside_total"), 2);
  Start(TwoArms("e"));
  EXPECT_EQ(UnitsOf(Get("e")), 0U);
  Drain();

  Open();
  EXPECT_EQ(Get("e").state(), v1::EXPERIMENT_STATE_RUNNING);
  EXPECT_EQ(server_->Metric("ebb_experiment_files_set_aside_total"), 0);
}

TEST_F(KeptExperimentsTest, WhoseArmsTheModelCannotTakeAnyMoreHaveStopped) {
  Open();
  v1::ExperimentSpec spec = TwoArms("e");
  *spec.mutable_arms(1)->mutable_policy() = StreamingPolicy(20000);
  Start(spec);
  for (int i = 0; i < 3; ++i) Come(absl::StrCat("user-", i));
  const v1::Experiment before = Get("e");
  Drain();

  Open([](ServerOptions& options) { options.engine.arena_bytes = 1 << 20; });
  const v1::Experiment after = Get("e");
  EXPECT_EQ(after.state(), v1::EXPERIMENT_STATE_STOPPED);
  EXPECT_EQ(after.spec().DebugString(), before.spec().DebugString());
  EXPECT_EQ(UnitsOf(after), 3U);
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
  EXPECT_EQ(UnitsOf(stopped), 3U) << "with its results";
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
  Start(TwoArms("by-hand", "acme"));
  Drain();

  Open(with_file);
  EXPECT_EQ(UnitsOf(Get("e")), 5U) << "it goes on";
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
    Start(TwoArms(absl::StrCat("e", i)));
    Stop(absl::StrCat("e", i));
    if (i > 0) continue;
    ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(File("e0")); }));
  }
  Drain();
  EXPECT_FALSE(std::filesystem::exists(File("e0")));
  EXPECT_TRUE(std::filesystem::exists(File("e65")));
  Open();
  EXPECT_THAT(client_->List().experiments(), SizeIs(64));
}

}  // namespace
}  // namespace ebb
