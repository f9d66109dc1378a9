#include "client/retry.h"

#include <algorithm>

#include "client/error.h"

namespace ebb::client {

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
  absl::Duration delay = policy.first;
  for (int32_t attempt = 2; attempt < next && delay < policy.max; ++attempt) delay *= 2;
  return std::min(delay, policy.max);
}

}  // namespace ebb::client
