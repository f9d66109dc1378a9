// Whom the client tells that it waits.

#include "client/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/error.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace ebb::client {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

grpc::Status Unavailable(const std::string& reason, const std::string& endpoint, int retry_ms) {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  if (!endpoint.empty()) (*info.mutable_metadata())["endpoint"] = endpoint;
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_nanos(retry_ms * 1'000'000);
  google::rpc::Status rich;
  rich.add_details()->PackFrom(info);
  rich.add_details()->PackFrom(retry);
  return {grpc::StatusCode::UNAVAILABLE, "not now", rich.SerializeAsString()};
}

// Refuses GetSession with each of `refusals`, then answers.
class Refusing final : public v1::SessionService::Service {
 public:
  Refusing() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address = "127.0.0.1:" + std::to_string(port);
  }
  ~Refusing() override { server_->Shutdown(); }

  grpc::Status GetSession(grpc::ServerContext*, const v1::GetSessionRequest* request, v1::Session* session) override {
    if (!refusals.empty()) {
      const grpc::Status next = refusals.front();
      refusals.erase(refusals.begin());
      return next;
    }
    session->set_name(request->name());
    return grpc::Status::OK;
  }

  std::vector<grpc::Status> refusals = {};  // set while nobody calls
  std::string address = {};

 private:
  std::unique_ptr<grpc::Server> server_;
};

class OnWaitTest : public testing::Test {
 protected:
  // Of one call about a session: OK, with what on_wait was told of.
  std::vector<std::pair<std::string, absl::Duration>> WaitsOf(const Follow& follow) const {
    std::vector<std::pair<std::string, absl::Duration>> waits;
    ClientOptions options = {.address = first_.address};
    options.follow = follow;
    options.on_wait = [&](const grpc::Status& refused, absl::Duration wait) {
      waits.emplace_back(ReadDetails(refused).reason, wait);
    };
    v1::Session session;
    const grpc::Status status = Client(options).GetSession("sessions/s", &session);
    EXPECT_TRUE(status.ok()) << Describe(status);
    return waits;
  }

  Refusing first_, second_;
};

TEST_F(OnWaitTest, IsToldHowACallWasRefusedAndForHowLongItWaits) {
  first_.refusals = {Unavailable("STORE_FULL", "", 20), Unavailable("NO_PAGES", "", 30)};
  EXPECT_THAT(WaitsOf({}), ElementsAre(Pair("STORE_FULL", absl::Milliseconds(20)),  //
                                       Pair("NO_PAGES", absl::Milliseconds(30))));
}

// More often than there are attempts.
TEST_F(OnWaitTest, IsToldOfEachWaitForAServerThatDrains) {
  for (int i = 0; i < 6; ++i) first_.refusals.push_back(Unavailable("DRAINING", "", 1));
  EXPECT_THAT(WaitsOf({}), AllOf(SizeIs(6), Each(Pair("DRAINING", absl::Milliseconds(1)))));
}

TEST_F(OnWaitTest, IsToldNothingWhereNobodyWaits) {
  EXPECT_THAT(WaitsOf({}), IsEmpty());
  first_.refusals = {Unavailable("SESSION_MOVED", second_.address, 20)};
  EXPECT_THAT(WaitsOf(*Follow::Of({second_.address})), IsEmpty());
}

}  // namespace
}  // namespace ebb::client
