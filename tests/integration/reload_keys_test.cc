// The keys that a running server takes out of its changed file, each by itself: all those and no others, and they count
// from then on. The addresses of its ports, which flags say here, are in LiveConfig.HoldsEachKey... alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "server/config.h"
#include "server/config_keys.h"
#include "tests/integration/reloading.h"
#include "tests/support/another_value.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using client::ReadDetails;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

class ReloadOfKeys : public Reload {};

// An answer whose reader takes a message when it is told to: soon the server holds back what comes next.
struct HeldStream {
  HeldStream(const EbbdProcess& ebbd, v1::DecodeRequest request) : client(ebbd.address(), "acme", SmallWindows()) {
    request.mutable_stopping()->set_logprobs(20);  // so that little fits on the way
    reader = client.inference().Decode(context.get(), request);
  }

  TestClient client;
  std::unique_ptr<grpc::ClientContext> context = client.Context();
  std::unique_ptr<grpc::ClientReader<v1::DecodeResponse>> reader;
};

// One that the server can use, in the place of what the key's neighbours have there.
std::string UsableValue(const ConfigKey& key, const std::string& model) {
  if (key.name == "policy") return R"({"h2o": {}})";
  return key.section == "models" && key.name == "path" ? model : AnotherValue(key);
}

TEST_F(ReloadOfKeys, EachKeyIsTakenOrRefusedByItsNameAsTheSchemaSays) {
  const TinyModelFile other({.seed = 2}), third({.seed = 3});
  config::v1::Config before = DefaultConfig();
  const auto set = [&](const std::string& path, const std::string& value, config::v1::Config& config) {
    const auto place = FindConfigPlace(SplitConfigPath(path));
    ASSERT_THAT(place, IsOk());
    ASSERT_THAT(SetConfigValue(*place, value, config), IsOk());
  };
  set("model.path", model_.path(), before);
  set("cache.arena", "32MiB", before);
  set("server.reload", "30m", before);
  set("models.other.path", other.path(), before);
  set("tenants.acme.weight", "1", before);
  const auto write = [&](const config::v1::Config& config) { Write(ExplainConfig({.config = config})); };
  write(before);
  ebbd_ = std::make_unique<EbbdProcess>(EBBD_BINARY, std::vector<std::string>{"--config=" + path_});
  ASSERT_FALSE(ebbd_->address().empty()) << ebbd_->log();
  acme_ = std::make_unique<TestClient>(ebbd_->address(), "acme");
  v1::ReloadConfigResponse response;
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string name = !key.is_named() ? "" : key.section == "tenants" ? "acme" : "other";
    const std::string path = key.Path(name);
    SCOPED_TRACE(path);
    if (path == "server.listen" || path == "server.http_listen") continue;  // EbbdProcess says them, and it stays so
    config::v1::Config after = before;
    const std::string value = UsableValue(key, third.path());
    set(path, value, after);
    if (key.key.reload()) {
      write(after);
      const grpc::Status taken = Ask(&response);
      ASSERT_TRUE(taken.ok()) << client::Describe(taken);
      ASSERT_THAT(response.changes(), SizeIs(1));
      EXPECT_EQ(response.changes(0).key(), path);
      EXPECT_EQ(response.changes(0).after(), value);
      write(before);
      ASSERT_TRUE(Ask(&response).ok());
      ASSERT_THAT(response.changes(), SizeIs(1)) << "and back";
      EXPECT_EQ(response.changes(0).before(), value);
    } else {
      set("tenants.acme.weight", "2", after);
      write(after);
      const grpc::Status refused = Ask(&response);
      EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
      EXPECT_EQ(ReadDetails(refused).reason, "NEEDS_RESTART");
      EXPECT_EQ(ReadDetails(refused).field, path);
      EXPECT_THAT(refused.error_message(), StartsWith(path + ": "));
      EXPECT_EQ(Metric("ebb_tenant_weight{tenant=\"acme\"}"), 1) << "nor was what stood beside it taken";
      write(before);
      ASSERT_TRUE(Ask(&response).ok());
      EXPECT_THAT(response.changes(), IsEmpty());
    }
  }
}

TEST_F(ReloadOfKeys, TheLogTellsWhatIsOfTheLevelThatTheFileSaysNow) {
  Write("log: {level: info}");
  Start(kNeverLooks);
  v1::ReloadConfigResponse response;
  for (const std::string level : {"error", "warn", "info"}) {
    Write("log: {level: " + level + "}");
    ASSERT_TRUE(Ask(&response).ok());
  }
  ebbd_->Signal(SIGTERM);
  EXPECT_EQ(ebbd_->Wait(), 0);
  EXPECT_THAT(ebbd_->log(), Not(HasSubstr("log.level: info -> error")));
  EXPECT_THAT(ebbd_->log(), Not(HasSubstr("log.level: error -> warn")));
  EXPECT_THAT(ebbd_->log(), HasSubstr("log.level: warn -> info"));
}

// The stream waits for its reader as the server ends, and says the rest of it afterwards.
TEST_F(ReloadOfKeys, AServerThatEndsWaitsForStreamsAsLongAsTheFileSaysNow) {
  Write("server: {stream_buffer: 2, drain_timeout: 0s}");
  Start(kNeverLooks);
  Write("server: {stream_buffer: 2, drain_timeout: 24h}");
  v1::ReloadConfigResponse response;
  ASSERT_TRUE(Ask(&response).ok());
  const std::string name = acme_->Create(SessionWith(StreamingPolicy(24))).name();
  ASSERT_TRUE(acme_->Prefill(PrefillText(name, kStormyNight)).ok());
  const HeldStream stream(*ebbd_, DecodeTokens(name, 3000));
  v1::DecodeResponse message;
  ASSERT_TRUE(stream.reader->Read(&message));
  int tokens = message.tokens_size();
  ebbd_->Signal(SIGTERM);
  while (acme_->Status().state() != v1::SERVER_STATE_DRAINING) continue;
  while (stream.reader->Read(&message)) tokens += message.tokens_size();
  const grpc::Status status = stream.reader->Finish();
  EXPECT_TRUE(status.ok()) << client::Describe(status);
  EXPECT_EQ(tokens, 3000);
  EXPECT_EQ(ebbd_->Wait(), 0);
}

TEST_F(ReloadOfKeys, AReaderIsWaitedForAsLongAsTheFileSaysNow) {
  Write("server: {stream_buffer: 2, reader_patience: 24h}");
  Start(kNeverLooks);
  const std::string name = acme_->Create(SessionWith(StreamingPolicy(24))).name();
  ASSERT_TRUE(acme_->Prefill(PrefillText(name, kStormyNight)).ok());
  const HeldStream stream(*ebbd_, DecodeTokens(name, kEndless));
  v1::DecodeResponse message;
  ASSERT_TRUE(stream.reader->Read(&message));
  Write("server: {stream_buffer: 2, reader_patience: 100ms}");
  v1::ReloadConfigResponse response;
  ASSERT_TRUE(Ask(&response).ok());
  ASSERT_TRUE(Eventually([&] { return acme_->Status().work().requests_running() == 0; }));
  while (stream.reader->Read(&message)) continue;
  EXPECT_EQ(ReadDetails(stream.reader->Finish()).reason, "SLOW_READER");
}

TEST_F(ReloadOfKeys, AsManyCallsAreLetInAsTheFileSaysNow) {
  Write("scheduling: {queue_max: 1}");
  Start(kNeverLooks);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  // Begins an answer that goes on; what it was refused for, else empty.
  const auto answer = [&] {
    contexts.push_back(acme_->Context());
    v1::GenerateRequest request = GenerateText("", kStormyNight, kEndless);
    *request.mutable_policy() = StreamingPolicy(16);
    const auto reader = acme_->inference().Generate(contexts.back().get(), request);
    v1::GenerateResponse first;
    return reader->Read(&first) ? "" : ReadDetails(reader->Finish()).reason;
  };
  EXPECT_EQ(answer(), "");
  EXPECT_EQ(answer(), "QUEUE_FULL");
  Write("scheduling: {queue_max: 64}");
  v1::ReloadConfigResponse response;
  ASSERT_TRUE(Ask(&response).ok());
  EXPECT_TRUE(Eventually([&] { return Metric("ebb_requests_limit") == 64; }));
  EXPECT_EQ(answer(), "");
}

TEST_F(ReloadOfKeys, SnapshotsTakeTheJournalsPlacesAsOftenAsTheFileSaysNow) {
  const std::string store = "store: {dir: " + folder_.path() + "/store, durability: step, snapshot_every: ";
  Write(store + "16777216}");
  Start(kNeverLooks);
  const std::string name = acme_->Create(SessionWith(StreamingPolicy(24))).name();
  ASSERT_TRUE(acme_->Prefill(PrefillText(name, kStormyNight)).ok());
  const auto written = [&] { return Metric("ebb_journal_bytes_total{kind=\"snapshots\"}"); };
  const double at_first = written();  // the session as it began
  ASSERT_THAT(acme_->Decode(DecodeTokens(name, 40)).tokens, SizeIs(40));
  EXPECT_EQ(written(), at_first);
  Write(store + "5}");
  v1::ReloadConfigResponse response;
  ASSERT_TRUE(Ask(&response).ok());
  ASSERT_THAT(acme_->Decode(DecodeTokens(name, 40)).tokens, SizeIs(40));
  EXPECT_TRUE(Eventually([&] { return written() > at_first; }));
}

}  // namespace
}  // namespace ebb
