#include "client/retry.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace ebb::client {
namespace {

grpc::Status WithRetry(grpc::StatusCode code, int seconds) {
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_seconds(seconds);
  google::rpc::Status rich;
  rich.add_details()->PackFrom(info);
  return {code, "no", rich.SerializeAsString()};
}

TEST(RetryDelay, RepeatsOnlyWhatMaySucceed) {
  struct Case {
    std::string name;
    grpc::Status status;
    bool again;
  };
  const std::vector<Case> cases = {
      {"unavailable is worth another try", {grpc::StatusCode::UNAVAILABLE, "x"}, true},
      {"a quota without a time is not", {grpc::StatusCode::RESOURCE_EXHAUSTED, "x"}, false},
      {"a quota with a time is", WithRetry(grpc::StatusCode::RESOURCE_EXHAUSTED, 1), true},
      {"a busy session with a time is", WithRetry(grpc::StatusCode::ABORTED, 1), true},
      {"a generation mismatch is not", {grpc::StatusCode::ABORTED, "x"}, false},
      {"a malformed request never is", WithRetry(grpc::StatusCode::INVALID_ARGUMENT, 1), false},
      {"a passed deadline is the caller's wish", {grpc::StatusCode::DEADLINE_EXCEEDED, "x"}, false},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(RetryDelay({}, 2, c.status).has_value(), c.again);
  }
}

TEST(RetryDelay, HonoursTheServersTimeBeforeItsOwn) {
  EXPECT_EQ(RetryDelay({}, 2, WithRetry(grpc::StatusCode::UNAVAILABLE, 7)), absl::Seconds(7));
}

TEST(RetryDelay, DoublesUpToItsMaximumAndEndsWithTheAttempts) {
  const RetryPolicy policy = {.attempts = 5, .first = absl::Seconds(1), .max = absl::Seconds(3)};
  const grpc::Status status(grpc::StatusCode::UNAVAILABLE, "x");
  EXPECT_EQ(RetryDelay(policy, 2, status), absl::Seconds(1));
  EXPECT_EQ(RetryDelay(policy, 3, status), absl::Seconds(2));
  EXPECT_EQ(RetryDelay(policy, 4, status), absl::Seconds(3));
  EXPECT_EQ(RetryDelay(policy, 5, status), absl::Seconds(3));
  EXPECT_EQ(RetryDelay(policy, 6, status), std::nullopt);
}

}  // namespace
}  // namespace ebb::client
