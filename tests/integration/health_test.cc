// What whoever supervises the process is told, over HTTP and gRPC's health protocol alike.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ::testing::HasSubstr;

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

  HealthCheckResponse::ServingStatus Ask(const std::string& service) {
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    const grpc::Status status =
        grpc::health::v1::Health::NewStub(health_->channel())->Check(health_->Context().get(), request, &response);
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
  });
  EXPECT_TRUE(Eventually([&] { return http_->Get("/healthz")->status == 200 && Ask("liveness") == kServing; }));
}

TEST_F(HealthTest, WhereJournalsCannotBeWrittenNoRequestIsToBeSent) {
  const TemporaryFolder folder;
  const std::string store = folder.path() + "/store";
  Start([&](ServerOptions& options) {
    options.store_dir = store;
    options.durability = Durability::kStep;
  });
  EXPECT_EQ(http_->Get("/readyz")->status, 200);
  std::filesystem::rename(store, store + ".away");
  const auto answer = http_->Get("/readyz");
  EXPECT_EQ(answer->status, 503);
  EXPECT_THAT(answer->body, HasSubstr("journals cannot be written: " + store + ": No such file or directory"));
  EXPECT_TRUE(Eventually([&] { return Ask("readiness") == kNotServing; }));
  EXPECT_EQ(Ask("liveness"), kServing);
  std::filesystem::rename(store + ".away", store);
  EXPECT_EQ(http_->Get("/readyz")->status, 200);
  EXPECT_TRUE(Eventually([&] { return Ask("readiness") == kServing; }));
}

}  // namespace
}  // namespace ebb
