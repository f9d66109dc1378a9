#include "client/retry.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "client/error.h"

namespace ebb::client {
namespace {

constexpr char kNotConnected[] = "failed to connect to all addresses";  // gRPC's own words

absl::Duration Doubling(const RetryPolicy& policy, int32_t next) {
  absl::Duration delay = policy.first;
  for (int32_t attempt = 2; attempt < next && delay < policy.max; ++attempt) delay *= 2;
  return std::min(delay, policy.max);
}

}  // namespace

bool IsAway(const grpc::Status& status) {
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return false;
  const std::string reason = ReadDetails(status).reason;
  return reason.empty() || reason == "DRAINING";
}

bool WasSent(const grpc::Status& status) {
  return !IsAway(status) || !absl::StartsWith(status.error_message(), kNotConnected);
}

std::optional<absl::Duration> RetryDelay(const RetryPolicy& policy, int32_t next, const grpc::Status& status) {
  if (next > policy.attempts) return std::nullopt;
  const std::optional<absl::Duration> told = ReadDetails(status).retry;
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      break;
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      if (!told) return std::nullopt;
      break;
    default:
      return std::nullopt;
  }
  return told ? told : Backoff(policy, next);
}

std::optional<absl::Duration> Backoff(const RetryPolicy& policy, int32_t next) {
  if (next > policy.attempts) return std::nullopt;
  return Doubling(policy, next);
}

std::optional<absl::Duration> Tries::Delay(const RetryPolicy& policy, const grpc::Status& status, bool patient,
                                           Clock::time_point now) {
  if (!patient || !IsAway(status)) {
    away_ = 1;
    return RetryDelay(policy, ++attempt_, status);
  }
  if (away_ == 1) since_ = now;
  ++away_;
  const absl::Duration delay = ReadDetails(status).retry.value_or(Doubling(policy, away_));
  if (policy.attempts <= 1 || absl::FromChrono(now - since_) + delay > policy.patience) return std::nullopt;
  return delay;
}

absl::Duration Spread(absl::Duration delay, double chance) { return delay * (1 + chance / 4); }

}  // namespace ebb::client
