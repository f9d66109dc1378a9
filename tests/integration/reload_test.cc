// The shipped server takes a changed configuration while it runs: all of it, or nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/ebbd_process.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using client::ReadDetails;
using Code = grpc::StatusCode;
using ::testing::HasSubstr;

constexpr char kNeverLooks[] = "1h";

class Reload : public testing::Test {
 protected:
  // In the place of the file before, in one go.
  void Write(const std::string& text) const {
    std::ofstream(path_ + ".new") << text;
    fs::rename(path_ + ".new", path_);
  }
  static std::string Sessions(int max) { return "tenants:\n  acme:\n    sessions_max: " + std::to_string(max) + "\n"; }

  void Start(const std::string& looks_every) {
    ebbd_ = std::make_unique<EbbdProcess>(
        EBBD_BINARY, std::vector<std::string>{"--config=" + path_, "--model=" + model_.path(), "--cache.arena=32MiB",
                                              "--server.reload=" + looks_every});
    ASSERT_FALSE(ebbd_->address().empty()) << ebbd_->log();
    acme_ = std::make_unique<TestClient>(ebbd_->address(), "acme");
  }

  bool MayHaveAnother() const {
    v1::Session session;
    const grpc::Status status = acme_->Create(SessionWith(StreamingPolicy(16)), &session);
    EXPECT_TRUE(status.ok() || ReadDetails(status).reason == "TENANT_SESSIONS") << client::Describe(status);
    return status.ok();
  }
  // The quota becomes `max`, whose sessions are not all there yet, some time.
  void ExpectRoom() const {
    while (!MayHaveAnother()) continue;  // until the test's own time is up
  }

  grpc::Status Ask(v1::ReloadConfigResponse* response) const {
    response->Clear();
    return acme_->admin().ReloadConfig(acme_->Context().get(), {}, response);
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/ebb.yaml";
  const TinyModelFile model_{{}};
  std::unique_ptr<EbbdProcess> ebbd_;
  std::unique_ptr<TestClient> acme_;
};

TEST_F(Reload, AChangedFileIsTakenByItself) {
  Write(Sessions(1));
  Start("100ms");
  EXPECT_TRUE(MayHaveAnother());
  EXPECT_FALSE(MayHaveAnother());
  Write("tenants: {acme: {sessions_max: many}}");  // is passed over
  Write(Sessions(2));
  ExpectRoom();
  EXPECT_FALSE(MayHaveAnother());
}

// Kubernetes mounts a ConfigMap as links through a link to a folder, and turns that one.
TEST_F(Reload, AConfigMapThatIsReplacedIsTaken) {
  const auto version = [&](const std::string& name, int max) {
    fs::create_directory(folder_.path() + "/" + name);
    std::ofstream(folder_.path() + "/" + name + "/ebb.yaml") << Sessions(max);
  };
  version("..1", 1);
  version("..2", 2);
  fs::create_symlink("..1", folder_.path() + "/..data");
  fs::create_symlink("..data/ebb.yaml", path_);
  Start("100ms");
  EXPECT_TRUE(MayHaveAnother());
  EXPECT_FALSE(MayHaveAnother());
  fs::create_symlink("..2", folder_.path() + "/..data_tmp");
  fs::rename(folder_.path() + "/..data_tmp", folder_.path() + "/..data");
  fs::remove_all(folder_.path() + "/..1");
  ExpectRoom();
}

TEST_F(Reload, AHangupHasItReadAgainAndDoesNotEndTheServer) {
  Write(Sessions(1));
  Start(kNeverLooks);
  EXPECT_TRUE(MayHaveAnother());
  EXPECT_FALSE(MayHaveAnother());
  Write(Sessions(2));
  EXPECT_FALSE(MayHaveAnother());
  ebbd_->Signal(SIGHUP);
  ExpectRoom();
  ebbd_->Signal(SIGTERM);
  EXPECT_EQ(ebbd_->Wait(), 0);
  EXPECT_THAT(ebbd_->log(), HasSubstr("tenants.acme.sessions_max: 1 -> 2"));
}

TEST_F(Reload, AnAdminIsToldWhatHasChanged) {
  Write(Sessions(1) + "log: {level: debug}\n");
  Start(kNeverLooks);
  v1::ReloadConfigResponse response;
  ASSERT_TRUE(Ask(&response).ok());
  EXPECT_EQ(response.changes_size(), 0);
  Write("tenants:\n  acme: {weight: 3, tokens_per_minute: 600, policy: '{\"h2o\": {}}'}\nlog: {level: warn}\n");
  ASSERT_TRUE(Ask(&response).ok());
  std::string text;
  for (const v1::ConfigChange& change : response.changes()) {
    text += change.key() + ": " + change.before() + " -> " + change.after() + "\n";
  }
  EXPECT_EQ(text,
            "log.level: debug -> warn\n"
            "tenants.acme.weight: 1 -> 3\n"
            "tenants.acme.sessions_max: 1 -> 0\n"
            "tenants.acme.policy:  -> {\"h2o\": {}}\n"
            "tenants.acme.tokens_per_minute: 0 -> 600\n");
  Write("");
  ASSERT_TRUE(Ask(&response).ok()) << "a tenant may go";
  EXPECT_EQ(response.changes_size(), 4) << "and what is not said is the default again";
}

TEST_F(Reload, WhatCannotBeTakenChangesNothingAndSaysWhy) {
  Write(Sessions(1));
  Start(kNeverLooks);
  EXPECT_TRUE(MayHaveAnother());
  struct Case {
    std::string text;
    Code code;
    std::string reason, message;
  };
  const std::string bad_policy =
      "tenants: {acme: {sessions_max: 9, policy: "
      "'{\"h2o\": {}, \"trigger\": {\"budget\": 4}, \"protect\": {\"sinks\": 4, \"recent\": 2}}'}}";
  const std::vector<Case> cases = {
      {"tenants: {acme: {sessions_max: 9", Code::INVALID_ARGUMENT, "BAD_YAML", "/ebb.yaml:1: "},
      {Sessions(9) + "tenant: {}", Code::INVALID_ARGUMENT, "BAD_CONFIG", "/ebb.yaml:4: tenant: there is no such key"},
      {Sessions(9) + "log: {level: loud}", Code::INVALID_ARGUMENT, "BAD_CONFIG", "'loud' is none of"},
      {bad_policy, Code::INVALID_ARGUMENT, "BUDGET_TOO_SMALL", "tenants.acme.policy.trigger.budget: "},
      {Sessions(9) + "server: {stream_buffer: 32}\nmodel: {name: story}", Code::FAILED_PRECONDITION, "NEEDS_RESTART",
       "server.stream_buffer: 64 -> 32, model.name: \"\" -> story: only a restart can change that; nothing was "
       "changed"},
  };
  v1::ReloadConfigResponse response;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    Write(c.text);
    const grpc::Status status = Ask(&response);
    EXPECT_EQ(status.error_code(), c.code);
    EXPECT_EQ(ReadDetails(status).reason, c.reason);
    EXPECT_THAT(status.error_message(), HasSubstr(c.message));
    EXPECT_FALSE(MayHaveAnother());
  }
  fs::remove(path_);
  EXPECT_THAT(Ask(&response).error_message(), HasSubstr("cannot read " + path_));
  Write(Sessions(2));
  EXPECT_TRUE(Ask(&response).ok());
  EXPECT_TRUE(MayHaveAnother());
}

TEST_F(Reload, AFlagStaysOverTheFile) {
  Write("log: {format: text}");
  ebbd_ = std::make_unique<EbbdProcess>(
      EBBD_BINARY, std::vector<std::string>{"--config=" + path_, "--model=" + model_.path(), "--cache.arena=32MiB",
                                            "--tenants.acme.sessions_max=1"});
  acme_ = std::make_unique<TestClient>(ebbd_->address(), "acme");
  EXPECT_TRUE(MayHaveAnother());
  Write(Sessions(2));
  v1::ReloadConfigResponse response;
  ASSERT_TRUE(Ask(&response).ok());
  EXPECT_FALSE(MayHaveAnother());
}

TEST_F(Reload, TheCommandPrintsIt) {
  Write(Sessions(1));
  Start(kNeverLooks);
  const auto reload = [&](const std::string& says) {
    return ChildProcess({EBB_BINARY, "--addr", ebbd_->address(), "reload"}).WaitForLine(says);
  };
  EXPECT_EQ(reload("nothing"), "nothing has changed");
  Write(Sessions(2));
  EXPECT_EQ(reload("sessions_max"), "tenants.acme.sessions_max: 1 -> 2");
  Write("server: {listen: 127.0.0.1:1}\n");  // the flag is stronger: no change of it
  EXPECT_EQ(reload("sessions_max"), "tenants.acme.sessions_max: 2 -> 0");
  Write("cache: {arena: 1GiB}\nstore: {lease: 20s}\n");  // likewise the arena
  EXPECT_THAT(reload("NEEDS_RESTART"), HasSubstr("store.lease: 10s -> 20s: only a restart can change that"));
}

TEST(ReloadWithoutAFile, IsRefused) {
  const TestServer server;
  TestClient client(server.address());
  v1::ReloadConfigResponse response;
  const grpc::Status status = client.admin().ReloadConfig(client.Context().get(), {}, &response);
  EXPECT_EQ(status.error_code(), Code::FAILED_PRECONDITION);
  EXPECT_EQ(ReadDetails(status).reason, "NO_CONFIG_FILE");
}

}  // namespace
}  // namespace ebb
