// What whoever supervises the process is told, over HTTP and gRPC's health protocol alike.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "client/error.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/folder_health.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kServing = HealthCheckResponse::SERVING;
constexpr auto kNotServing = HealthCheckResponse::NOT_SERVING;
constexpr auto kUnknown = HealthCheckResponse::SERVICE_UNKNOWN;

class HealthTest : public testing::Test {
 protected:
  void Start(const std::function<void(ServerOptions&)>& change = {}) {
    server_ = std::make_unique<TestServer>([&](ServerOptions& options) {
      options.http_listen = {.host = "127.0.0.1", .port = 0};
      options.health_listen = options.http_listen;
      if (change) change(options);
    });
    client_ = std::make_unique<TestClient>(server_->address());
    health_ = std::make_unique<TestClient>(FormatAddress(*server_->server().health_address()));
    http_ = std::make_unique<httplib::Client>("127.0.0.1", server_->server().http_address()->port);
  }

  // Of its own port, and of the one that clients use.
  HealthCheckResponse::ServingStatus Ask(const std::string& service) { return Ask(*health_, service); }
  HealthCheckResponse::ServingStatus AskClients(const std::string& service) { return Ask(*client_, service); }

  static HealthCheckResponse::ServingStatus Ask(TestClient& client, const std::string& service) {
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    const grpc::Status status =
        grpc::health::v1::Health::NewStub(client.channel())->Check(client.Context().get(), request, &response);
    return status.ok() ? response.status() : kUnknown;
  }

  // `while_it_runs` is called while a session decodes.
  void Decode(const std::function<void()>& while_it_runs) {
    const std::string name = client_->Create(SessionWith(StreamingPolicy(24))).name();
    const auto context = client_->Context();
    const auto stream = client_->inference().Generate(context.get(), GenerateText(name, "Once", kEndless));
    v1::GenerateResponse message;
    ASSERT_TRUE(stream->Read(&message));
    std::thread reader([&] {
      while (stream->Read(&message)) continue;
      stream->Finish().ok();
    });
    while_it_runs();
    context->TryCancel();
    reader.join();
  }

  std::unique_ptr<TestServer> server_;
  std::unique_ptr<TestClient> client_, health_;
  std::unique_ptr<httplib::Client> http_;
};

TEST_F(HealthTest, ItsPortKnowsReadinessAndLivenessAndNothingElse) {
  Start();
  EXPECT_EQ(Ask(""), kServing);
  EXPECT_EQ(Ask("readiness"), kServing);
  EXPECT_EQ(Ask("liveness"), kServing);
  EXPECT_EQ(Ask("ebb.v1.SessionService"), kUnknown);
  v1::Session session;
  EXPECT_EQ(health_->Create(SessionWith(StreamingPolicy(24)), &session).error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(HealthTest, AServerThatDrainsIsAliveAndNotReady) {
  Start();
  Decode([&] {
    std::thread drain([&] { server_->server().Drain(absl::Milliseconds(1500)); });
    EXPECT_TRUE(Eventually([&] { return Ask("readiness") == kNotServing; }));
    EXPECT_EQ(Ask(""), kNotServing);
    EXPECT_EQ(Ask("liveness"), kServing);
    EXPECT_EQ(http_->Get("/readyz")->body, "draining\n");
    EXPECT_EQ(http_->Get("/healthz")->status, 200);
    drain.join();
  });
}

TEST_F(HealthTest, AWorkerThatIsTooLongAtOneStepIsToBeRestarted) {
  Start([](ServerOptions& options) { options.stall_timeout = absl::Nanoseconds(1); });
  EXPECT_TRUE(Eventually([&] { return http_->Get("/healthz")->status == 200; }));
  Decode([&] {
    std::string body;
    EXPECT_TRUE(Eventually([&] {
      const auto answer = http_->Get("/healthz");
      body = answer->body;
      return answer->status == 503;
    }));
    EXPECT_THAT(body, HasSubstr("longer than server.stall_timeout, 1ns"));
    EXPECT_TRUE(Eventually([&] { return Ask("liveness") == kNotServing; }));
    EXPECT_EQ(Ask("readiness"), kServing);
    EXPECT_TRUE(Eventually([&] { return AskClients("") == kNotServing; }));
  });
  EXPECT_TRUE(Eventually([&] { return http_->Get("/healthz")->status == 200 && Ask("liveness") == kServing; }));
}

class JournalHealthTest : public HealthTest {
 protected:
  void SetUp() override {
    Start([&](ServerOptions& options) {
      options.store_dir = folder_.path();
      options.durability = Durability::kStep;
    });
  }

  grpc::Status Create(const std::string& id) {
    v1::CreateSessionRequest request = SessionWith(StreamingPolicy(24));
    request.set_session_id(id);
    v1::Session session;
    return client_->Create(request, &session);
  }

  std::string model() { return client_->Status().model().name(); }

  // Both ports, and the words of one.
  bool SaysReady() { return http_->Get("/readyz")->status == 200 && Ask("readiness") == kServing; }
  std::string Unready() {
    std::string body;
    EXPECT_TRUE(Eventually([&] {
      const auto answer = http_->Get("/readyz");
      body = answer->body;
      return answer->status == 503;
    }));
    EXPECT_EQ(Ask("readiness"), kNotServing);
    EXPECT_EQ(Ask("liveness"), kServing);
    return body;
  }

  void TakeFolderAway() { std::filesystem::rename(journals_, journals_ + ".away"); }
  void BringFolderBack() { std::filesystem::rename(journals_ + ".away", journals_); }

  const TemporaryFolder folder_;
  const std::string journals_ = folder_.path() + "/journals";
};

TEST_F(JournalHealthTest, WhereTheirFolderIsAwayNoRequestIsToBeSent) {
  EXPECT_TRUE(SaysReady());
  TakeFolderAway();
  EXPECT_EQ(Unready(), "journals cannot be written: " + journals_ + ": No such file or directory\n");
  EXPECT_TRUE(Eventually([&] { return AskClients("") == kNotServing; }));
  EXPECT_EQ(AskClients("readiness"), kNotServing);
  EXPECT_EQ(AskClients("ebb.v1.InferenceService"), kNotServing);
  EXPECT_EQ(AskClients("liveness"), kServing);
  BringFolderBack();
  EXPECT_TRUE(Eventually([&] { return SaysReady(); }));
  EXPECT_TRUE(Eventually([&] { return AskClients("") == kServing; }));
}

TEST_F(JournalHealthTest, AModelIsWhatItIsWhateverBecomesOfReadiness) {
  const std::string main = "models/" + model(), late = "models/late";
  const ModelTable models = {{"late", ModelSpec{.path = folder_.path() + "/no.gguf"}}};
  ASSERT_TRUE(server_->server().SetModels(models, absl::ZeroDuration()).ok());
  EXPECT_TRUE(Eventually([&] { return AskClients(late) == kNotServing; }));
  TakeFolderAway();
  EXPECT_TRUE(Eventually([&] { return AskClients("") == kNotServing; }));
  EXPECT_EQ(AskClients(main), kServing);
  BringFolderBack();
  EXPECT_TRUE(Eventually([&] { return AskClients("") == kServing; }));
  EXPECT_EQ(AskClients(main), kServing);
  EXPECT_EQ(AskClients(late), kNotServing);
}

TEST_F(JournalHealthTest, AServerThatWasNotReadyBeforeItDrainsStillSaysThatItsModelGoes) {
  const std::string main = "models/" + model();
  Decode([&] {
    TakeFolderAway();
    EXPECT_TRUE(Eventually([&] { return AskClients("") == kNotServing; }));
    EXPECT_EQ(AskClients(main), kServing);
    std::thread drain([&] { server_->server().Drain(absl::Seconds(5)); });
    EXPECT_TRUE(Eventually([&] { return AskClients(main) == kNotServing; }));
    drain.join();
  });
  BringFolderBack();
}

TEST_F(JournalHealthTest, WhatIsAboutOneNameMakesNobodyElseWait) {
  ASSERT_TRUE(Create("a").ok());
  std::ofstream(journals_ + "/default/b.1.journal") << "somebody else's";
  const grpc::Status refused = Create("b");
  EXPECT_TRUE(SaysReady());
  EXPECT_EQ(client::ReadDetails(refused).reason, "JOURNAL_FAILED") << client::Describe(refused);
  EXPECT_THAT(refused.error_message(), HasSubstr("opening b.1.journal: File exists"));
}

// With a limit on files, which acts as a full disk does but for what the volume says of itself.
TEST_F(JournalHealthTest, AWriteThatFailsHoldsUntilOneSucceedsThoughNobodyWritesAnyMore) {
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {.rlim_cur = 30, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const grpc::Status refused = Create("a-secret-name");
  const std::string body = Unready();
  absl::SleepFor(2 * FolderHealth::kLookEvery);  // what it tries meanwhile fails, too
  const std::string later = Unready();
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(client::ReadDetails(refused).reason, "JOURNAL_FAILED") << client::Describe(refused);
  // Nothing of the volume, which has room.
  EXPECT_EQ(refused.error_message(),
            "the journal of sessions/a-secret-name cannot be begun: the store has no room: writing "
            "a-secret-name.1.snapshot: File too large");
  EXPECT_THAT(body, HasSubstr("journals cannot be written: " + journals_ + ": "));
  EXPECT_THAT(body, Not(HasSubstr("a-secret-name")));
  EXPECT_THAT(later, HasSubstr("File too large"));
  EXPECT_TRUE(Eventually([&] { return SaysReady(); }));
  EXPECT_TRUE(std::filesystem::is_empty(journals_ + "/default"));
  EXPECT_TRUE(Create("a").ok());
}

// A pipe that nobody reads holds its writer, as a volume does that has gone away.
TEST_F(JournalHealthTest, AFolderThatDoesNotAnswerKeepsNobodyWaitingWhoAsks) {
  ASSERT_TRUE(Create("a").ok());
  const std::string pipe = journals_ + "/default/.b.1.snapshot.new";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread waits([&] { EXPECT_TRUE(Create("b").ok()); });
  absl::Duration longest;
  std::string body;
  EXPECT_TRUE(Eventually([&] {
    const absl::Time asked = absl::Now();
    const auto answer = http_->Get("/readyz");
    longest = std::max(longest, absl::Now() - asked);
    body = answer->body;
    return answer->status == 503;
  }));
  EXPECT_THAT(body, HasSubstr(journals_ + ": the disk has not answered for 10s"));
  EXPECT_LT(longest, absl::Seconds(5));
  EXPECT_EQ(http_->Get("/metrics")->status, 200);
  std::ifstream reader(pipe, std::ios::binary);
  std::string(std::istreambuf_iterator<char>(reader), {});
  waits.join();
  EXPECT_TRUE(Eventually([&] { return SaysReady(); }));
}

TEST(CheckRoomTest, NamesWhatAVolumeHasAndWhatIsNeeded) {
  struct statvfs volume = {};
  volume.f_frsize = 4096;
  volume.f_bavail = 256;
  volume.f_files = 1000;
  volume.f_favail = 3;
  EXPECT_TRUE(CheckRoom(volume).ok());
  volume.f_favail = 2;
  EXPECT_EQ(CheckRoom(volume).message(), "the volume has room for 2 files, of 3 that are needed");
  volume.f_files = 0;  // it does not count them
  EXPECT_TRUE(CheckRoom(volume).ok());
  volume.f_bavail = 255;
  EXPECT_EQ(CheckRoom(volume).message(), "the volume has 1044480 bytes free, of 1048576 that are needed");
}

}  // namespace
}  // namespace ebb
