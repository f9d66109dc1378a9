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

constexpr char kRefusedConnection[] =
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: "
    "Connection refused";

grpc::Status Draining() {
  google::rpc::ErrorInfo info;
  info.set_reason("DRAINING");
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(1);
  google::rpc::Status rich;
  rich.add_details()->PackFrom(info);
  rich.add_details()->PackFrom(retry);
  return {grpc::StatusCode::UNAVAILABLE, "", rich.SerializeAsString()};
}

TEST(IsAway, IsSaidOfServersThatAreNotThereOrGo) {
  EXPECT_TRUE(IsAway({grpc::StatusCode::UNAVAILABLE, "Socket closed"}));
  EXPECT_TRUE(IsAway(Draining()));
  EXPECT_FALSE(IsAway({grpc::StatusCode::DEADLINE_EXCEEDED, ""}));
  EXPECT_TRUE(WasSent({grpc::StatusCode::UNAVAILABLE, "Socket closed"}));
  EXPECT_FALSE(WasSent({grpc::StatusCode::UNAVAILABLE, kRefusedConnection}));
  EXPECT_TRUE(WasSent({grpc::StatusCode::INTERNAL, kRefusedConnection}));
}

TEST(Tries, OfAServerThatIsAwayEndWithPatienceAndNotWithAttempts) {
  const RetryPolicy policy = {.attempts = 2, .patience = absl::Seconds(60)};
  const grpc::Status gone(grpc::StatusCode::UNAVAILABLE, kRefusedConnection);
  const auto at = [](int seconds) { return Tries::Clock::time_point(std::chrono::seconds(1000 + seconds)); };
  Tries tries;
  EXPECT_EQ(tries.Delay(policy, Draining(), true, at(0)), absl::Seconds(1)) << "as it says";
  EXPECT_EQ(tries.Delay(policy, gone, true, at(1)), absl::Milliseconds(200)) << "doubling since";
  for (int second = 2; second < 55; ++second) EXPECT_TRUE(tries.Delay(policy, gone, true, at(second)));
  EXPECT_EQ(tries.Delay(policy, gone, true, at(55)), absl::Seconds(5));
  EXPECT_EQ(tries.Delay(policy, gone, true, at(56)), std::nullopt);
  EXPECT_EQ(tries.attempt(), 1);
  // A server that answers begins a new time, and the answer is an attempt.
  EXPECT_TRUE(tries.Delay(policy, WithRetry(grpc::StatusCode::ABORTED, 1), true, at(57)));
  EXPECT_EQ(tries.Delay(policy, gone, true, at(116)), absl::Milliseconds(100));
  EXPECT_FALSE(tries.Delay(policy, WithRetry(grpc::StatusCode::ABORTED, 1), true, at(117)));
}

TEST(Tries, AreCountedWithoutPatience) {
  const grpc::Status gone(grpc::StatusCode::UNAVAILABLE, kRefusedConnection);
  Tries tries;
  EXPECT_TRUE(tries.Delay({.attempts = 3}, gone, false, {}));
  EXPECT_TRUE(tries.Delay({.attempts = 3}, gone, false, {}));
  EXPECT_FALSE(tries.Delay({.attempts = 3}, gone, false, {}));
  EXPECT_FALSE(Tries().Delay({.attempts = 1}, gone, true, {})) << "whoever wants no second try has none";
}

TEST(Spread, IsNeverEarlierThanWasSaid) {
  EXPECT_EQ(Spread(absl::Seconds(4), 0), absl::Seconds(4));
  EXPECT_EQ(Spread(absl::Seconds(4), 1), absl::Seconds(5));
}

}  // namespace
}  // namespace ebb::client
