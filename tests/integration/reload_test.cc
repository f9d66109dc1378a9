// The shipped server takes changed files while it runs, its configuration and those that it names: all of them, or
// none.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "tests/integration/reloading.h"
#include "tests/support/certificates.h"
#include "tests/support/ebbd_process.h"
#include "tests/support/eventually.h"
#include "tests/support/hung_file.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using client::ReadDetails;
using Code = grpc::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

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

TEST_F(Reload, WhatAllTenantsTogetherMayHaveIsTaken) {
  Write("cache: {sessions_max: 1}");
  Start(kNeverLooks);
  const auto may_have_another = [&] { return MayHaveAnother("SESSIONS_FULL"); };
  EXPECT_TRUE(may_have_another());
  EXPECT_FALSE(may_have_another());
  Write("cache: {sessions_max: 2}\nserver: {watchers_max: 0}");
  v1::ReloadConfigResponse response;
  ASSERT_TRUE(Ask(&response).ok());
  EXPECT_TRUE(Eventually(may_have_another));
  EXPECT_FALSE(may_have_another());
  const auto context = acme_->Context();
  v1::WatchEvictionsResponse told;
  const auto watch = acme_->eviction().WatchEvictions(context.get(), {});
  EXPECT_FALSE(watch->Read(&told));
  EXPECT_EQ(ReadDetails(watch->Finish()).reason, "WATCHERS_FULL");
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

TEST_F(Reload, WhatTenantsHaveThatAreNotListedIsTaken) {
  Write("tenant_defaults: {sessions_max: 1}");
  Start(kNeverLooks);
  EXPECT_TRUE(MayHaveAnother());
  EXPECT_FALSE(MayHaveAnother());
  Write("tenant_defaults: {sessions_max: 2}");
  v1::ReloadConfigResponse response;
  ASSERT_TRUE(Ask(&response).ok());
  ASSERT_EQ(response.changes_size(), 1);
  EXPECT_EQ(response.changes(0).key(), "tenant_defaults.sessions_max");
  EXPECT_TRUE(MayHaveAnother());
  EXPECT_FALSE(MayHaveAnother());
  Write("tenant_defaults: {sessions_max: 1}\ntenants: {acme: {sessions_max: 3}}");
  ASSERT_TRUE(Ask(&response).ok());
  EXPECT_TRUE(MayHaveAnother()) << "a listed one has its own";
  EXPECT_FALSE(MayHaveAnother());
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

TEST_F(Reload, WhatIsMeasuredOfEvictionsChangesWhileASessionRuns) {
  const auto quality = [&](int measure_every) {
    Write("quality: {measure_every: " + std::to_string(measure_every) + ", shadow_share: 0.5}\n");
  };
  quality(0);
  Start(kNeverLooks);
  const std::string name = acme_->Create(SessionWith(StreamingPolicy(24))).name();
  ASSERT_TRUE(acme_->Prefill(PrefillText(name, kStormyNight)).ok());
  const auto measured = [&] { return Metric("ebb_eviction_attention_mass_lost_count{policy=\"streaming\"}"); };
  EXPECT_EQ(measured(), 0);
  quality(1);
  v1::ReloadConfigResponse response;
  ASSERT_TRUE(Ask(&response).ok());
  ASSERT_THAT(response.changes(), SizeIs(1));
  EXPECT_EQ(response.changes(0).key(), "quality.measure_every");
  ASSERT_EQ(acme_->Decode(DecodeTokens(name, 10)).tokens.size(), 10U);
  EXPECT_EQ(measured(), 10);
}

TEST_F(Reload, AModelWhoseFileIsNotThereChangesNothingAndTheOneThatServesGoesOn) {
  const TinyModelFile other({.seed = 2});
  const auto models = [](const std::string& path) { return "models: {other: {path: " + path + ", arena: 16MiB}}\n"; };
  const auto states = [&] {
    v1::ListModelsResponse response;
    EXPECT_TRUE(acme_->admin().ListModels(acme_->Context().get(), {}, &response).ok());
    std::string text;
    for (const v1::Model& model : response.models())
      text += model.name() + " " + v1::ModelState_Name(model.state()) + "\n";
    return text;
  };
  Write(Sessions(1) + models(other.path()));
  Start(kNeverLooks);
  EXPECT_TRUE(Eventually([&] { return states().ends_with("other MODEL_STATE_SERVING\n"); }));
  EXPECT_TRUE(MayHaveAnother());
  const std::string before = states();

  const std::string mistyped = folder_.path() + "/othr.gguf";
  Write(Sessions(2) + models(mistyped));
  v1::ReloadConfigResponse response;
  const grpc::Status refused = Ask(&response);
  EXPECT_EQ(refused.error_code(), Code::INVALID_ARGUMENT);
  EXPECT_EQ(ReadDetails(refused).reason, "BAD_VALUE");
  EXPECT_EQ(ReadDetails(refused).field, "models.other.path");
  EXPECT_THAT(refused.error_message(), HasSubstr("models.other.path: " + mistyped + ": open failed: No such file"));
  EXPECT_FALSE(MayHaveAnother()) << "nothing of the file was taken";
  EXPECT_EQ(states(), before);

  fs::copy_file(other.path(), mistyped);
  ASSERT_TRUE(Ask(&response).ok());
  EXPECT_TRUE(MayHaveAnother());
  EXPECT_TRUE(Eventually([&] { return states() == before; }));
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

// What sha256sum makes of the tokens ops-1, acme-1 and acme-2.
constexpr char kOps[] = "ops sha256:81df83b16fd9c8888b6f555bf83d48575bda41d58115f2e4276bc57b01a892a3 admin\n";
constexpr char kAcme1[] = "acme sha256:7974d1de1641df0234e124a5d0f4acfacfc40c99ea69f0295f943074816d1091\n";
constexpr char kAcme2[] = "acme sha256:89683d3644595c8bdbd401e8dc978888cda6f2a5b35edb9ce2dbce87d3f6d239\n";

// Tokens in a file of their own, which the server never looks at by itself unless it is told.
class ReloadOfTokens : public Reload {
 protected:
  void WriteTokens(const std::string& text) const {
    std::ofstream(tokens_ + ".new") << text;
    fs::rename(tokens_ + ".new", tokens_);
  }
  void StartWithTokens(std::vector<std::string> arguments, const std::string& looks_every = kNeverLooks) {
    for (const std::string& more :
         {"--model=" + model_.path(), std::string("--cache.arena=32MiB"), std::string("--auth.mode=token"),
          "--auth.token_file=" + tokens_, "--auth.reload=" + looks_every, "--server.reload=" + looks_every}) {
      arguments.push_back(more);
    }
    ebbd_ = std::make_unique<EbbdProcess>(EBBD_BINARY, arguments);
    ASSERT_FALSE(ebbd_->address().empty()) << ebbd_->log();
    acme_ = std::make_unique<TestClient>(ebbd_->address());
  }

  static std::unique_ptr<grpc::ClientContext> With(const std::string& token) {
    auto context = std::make_unique<grpc::ClientContext>();
    context->AddMetadata("authorization", "Bearer " + token);
    return context;
  }
  bool IsLetIn(const std::string& token) const {
    v1::ListSessionsResponse response;
    const grpc::Status status = acme_->sessions().ListSessions(With(token).get(), {}, &response);
    EXPECT_TRUE(status.ok() || ReadDetails(status).reason == "BAD_CREDENTIAL") << client::Describe(status);
    return status.ok();
  }
  grpc::Status Ask(v1::ReloadConfigResponse* response) const {
    response->Clear();
    return acme_->admin().ReloadConfig(With("ops-1").get(), {}, response);
  }
  // The limit in force.
  uint32_t SessionsMax() const {
    v1::ListTenantsResponse response;
    EXPECT_TRUE(acme_->admin().ListTenants(With("ops-1").get(), {}, &response).ok());
    for (const v1::Tenant& tenant : response.tenants()) {
      if (tenant.name() == "tenants/acme") return tenant.sessions_max();
    }
    return 0;
  }
  // While the file of tokens is not to be had: what was read before holds, the configuration is taken by itself, who
  // asks for all files is told, and the server ends when it is told to.
  void ExpectToGoOnWithoutTheFile(const std::string& why) const {
    Write(Sessions(2));
    EXPECT_TRUE(Eventually([&] { return SessionsMax() == 2; }));
    EXPECT_TRUE(Eventually([&] { return Metric("ebb_config_failing") == 1; }));
    EXPECT_TRUE(IsLetIn("acme-1"));
    v1::ReloadConfigResponse response;
    const grpc::Status asked = Ask(&response);
    EXPECT_EQ(ReadDetails(asked).reason, "NO_TOKEN_FILE");
    EXPECT_THAT(asked.error_message(), HasSubstr("cannot read " + tokens_ + ": " + why));
    ebbd_->Signal(SIGTERM);
    EXPECT_EQ(ebbd_->Wait(), 0) << ebbd_->log();
  }

  const std::string tokens_ = folder_.path() + "/tokens";
};

TEST_F(ReloadOfTokens, AHangupTakesANewToken) {
  WriteTokens(std::string(kOps) + kAcme1);
  StartWithTokens({});
  EXPECT_TRUE(IsLetIn("acme-1"));
  WriteTokens(std::string(kOps) + kAcme2);
  EXPECT_FALSE(IsLetIn("acme-2"));
  ebbd_->Signal(SIGHUP);
  EXPECT_TRUE(Eventually([&] { return IsLetIn("acme-2"); }));
  EXPECT_FALSE(IsLetIn("acme-1"));
}

TEST_F(ReloadOfTokens, AnAdminIsToldWhichFilesWereTakenAlsoWithoutAConfiguration) {
  WriteTokens(kOps);
  StartWithTokens({});
  v1::ReloadConfigResponse response;
  ASSERT_TRUE(Ask(&response).ok());
  EXPECT_THAT(response.files(), IsEmpty());
  WriteTokens(std::string(kOps) + kAcme1);
  ASSERT_TRUE(Ask(&response).ok());
  EXPECT_THAT(response.files(), ElementsAre(tokens_));
  EXPECT_THAT(response.changes(), IsEmpty());
  EXPECT_TRUE(IsLetIn("acme-1"));
  ASSERT_TRUE(Ask(&response).ok());
  EXPECT_THAT(response.files(), IsEmpty());
}

TEST_F(ReloadOfTokens, ABadOneKeepsAGoodConfigurationFromBeingTaken) {
  Write(Sessions(1));
  WriteTokens(std::string(kOps) + kAcme1);
  StartWithTokens({"--config=" + path_});
  EXPECT_EQ(Metric("ebb_config_failing"), 0);
  Write(Sessions(2));
  WriteTokens(std::string(kOps) + "acme acme-2\n");
  v1::ReloadConfigResponse response;
  for (int time = 1; time <= 2; ++time) {
    const grpc::Status refused = Ask(&response);
    EXPECT_EQ(refused.error_code(), Code::INVALID_ARGUMENT);
    EXPECT_EQ(ReadDetails(refused).reason, "BAD_TOKEN_FILE");
    EXPECT_THAT(refused.error_message(), HasSubstr(tokens_ + ", line 2"));
    EXPECT_EQ(SessionsMax(), 1U);
    EXPECT_TRUE(IsLetIn("acme-1"));
    EXPECT_EQ(Metric("ebb_config_failing"), 1);
    EXPECT_EQ(Metric("ebb_config_reloads_total{result=\"failed\"}"), time);
  }
  WriteTokens(std::string(kOps) + kAcme2);
  ASSERT_TRUE(Ask(&response).ok());
  EXPECT_THAT(response.files(), ElementsAre(tokens_, path_));
  EXPECT_THAT(response.changes(), SizeIs(1));
  EXPECT_EQ(SessionsMax(), 2U);
  EXPECT_TRUE(IsLetIn("acme-2"));
  EXPECT_EQ(Metric("ebb_config_failing"), 0);
}

TEST_F(ReloadOfTokens, ABadConfigurationKeepsAGoodTokenFromBeingTaken) {
  Write(Sessions(1));
  WriteTokens(std::string(kOps) + kAcme1);
  StartWithTokens({"--config=" + path_});
  Write(Sessions(2) + "model: {name: story}");
  WriteTokens(std::string(kOps) + kAcme2);
  v1::ReloadConfigResponse response;
  EXPECT_EQ(ReadDetails(Ask(&response)).reason, "NEEDS_RESTART");
  EXPECT_FALSE(IsLetIn("acme-2"));
  EXPECT_EQ(SessionsMax(), 1U);
  EXPECT_EQ(Metric("ebb_config_failing"), 1);
  fs::remove(tokens_);
  Write(Sessions(2));
  EXPECT_EQ(ReadDetails(Ask(&response)).reason, "NO_TOKEN_FILE");
  EXPECT_EQ(SessionsMax(), 1U);
  WriteTokens(std::string(kOps) + kAcme2);
  ASSERT_TRUE(Ask(&response).ok());
  EXPECT_TRUE(IsLetIn("acme-2"));
  EXPECT_EQ(SessionsMax(), 2U);
  EXPECT_EQ(Metric("ebb_config_failing"), 0);
}

TEST_F(ReloadOfTokens, APipeInThePlaceOfAFileIsNotWaitedFor) {
  Write(Sessions(1));
  WriteTokens(std::string(kOps) + kAcme1);
  StartWithTokens({"--config=" + path_}, "100ms");
  ASSERT_EQ(mkfifo((tokens_ + ".new").c_str(), 0600), 0);
  fs::rename(tokens_ + ".new", tokens_);
  ExpectToGoOnWithoutTheFile("it is no regular file");
}

TEST_F(ReloadOfTokens, AFileThatDoesNotAnswerKeepsNobodyWaiting) {
  Write(Sessions(1));
  WriteTokens(std::string(kOps) + kAcme1);
  // A sanitizer that looks for leaks when a process ends stops all of its threads first, and would wait for one that
  // waits for the file.
  ASSERT_EQ(setenv("LSAN_OPTIONS", "detect_leaks=0", /*replace=*/1), 0);
  StartWithTokens({"--config=" + path_}, "100ms");
  unsetenv("LSAN_OPTIONS");
  const HungFile hung(tokens_);
  if (!hung.hangs()) GTEST_SKIP() << HungFile::kSkipped;
  ExpectToGoOnWithoutTheFile("nothing has come of it for 5s");
}

// Certificates, tokens and experiments, in a server that looks at none of them by itself.
TEST(ReloadOfCertificates, TakesAllFilesOrNone) {
  const Certificates made;
  made.Authority("ca");
  made.Authority("other-ca");
  made.Leaf("server", "ca", "localhost", "DNS:localhost");
  made.Write("tokens", kOps);
  made.Write("experiments", "{}");
  const TestServer server([&](ServerOptions& options) {
    options.http_listen = Address{.host = "127.0.0.1", .port = 0};
    options.auth = {.token = true, .token_file = made.Path("tokens"), .reload = absl::Hours(1)};
    options.tls = TlsOptions{.cert = made.Path("server.pem"), .key = made.Path("server.key"), .reload = absl::Hours(1)};
    options.experiments = ExperimentFileOptions{.path = made.Path("experiments"), .reload = absl::Hours(1)};
  });
  v1::ReloadConfigResponse response;
  // By a connection of its own, which trusts `ca` alone.
  const auto ask = [&](const std::string& ca, const std::string& token) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = made.Read(ca + ".pem");
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetSslTargetNameOverride("localhost");
    const auto channel = grpc::CreateCustomChannel(server.address(), grpc::SslCredentials(options), arguments);
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + token);
    response.Clear();
    return v1::AdminService::NewStub(channel)->ReloadConfig(&context, {}, &response);
  };
  ASSERT_TRUE(ask("ca", "ops-1").ok());
  EXPECT_THAT(response.files(), IsEmpty());

  const std::string key = made.Read("server.key");
  made.Write("server.key", made.Read("ca.key"));
  made.Write("tokens", std::string(kOps) + kAcme1);
  grpc::Status status = ask("ca", "ops-1");
  EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT);
  EXPECT_EQ(ReadDetails(status).reason, "BAD_TLS_FILE");
  EXPECT_EQ(ReadDetails(status).field, "tls.key");
  EXPECT_EQ(ReadDetails(ask("ca", "acme-1")).reason, "BAD_CREDENTIAL") << "the token was not taken";
  EXPECT_EQ(server.Metric("ebb_config_failing"), 1);

  made.Write("server.key", key);
  made.Write("experiments", "[]");
  EXPECT_EQ(ReadDetails(ask("ca", "ops-1")).reason, "BAD_EXPERIMENTS_FILE");
  EXPECT_EQ(ReadDetails(ask("ca", "acme-1")).reason, "BAD_CREDENTIAL");
  EXPECT_EQ(server.Metric("ebb_config_failing"), 1);

  made.Write("experiments", "{\"experiments\": []}");
  made.Leaf("server", "other-ca", "localhost", "DNS:localhost");
  ASSERT_TRUE(ask("ca", "ops-1").ok());
  EXPECT_THAT(response.files(), ElementsAre(made.Path("experiments"), made.Path("tokens"), made.Path("server.pem"),
                                            made.Path("server.key")));
  EXPECT_EQ(server.Metric("ebb_config_failing"), 0);
  EXPECT_TRUE(Eventually([&] { return ask("other-ca", "ops-1").ok(); }));  // gRPC looks once a second
  EXPECT_EQ(ReadDetails(ask("other-ca", "acme-1")).reason, "ADMIN_ONLY") << "the token was taken";
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
