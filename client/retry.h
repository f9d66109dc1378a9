// When to try a refused call again: what the server says first, a doubling delay where it says nothing. Pure.

#ifndef EBB_CLIENT_RETRY_H_
#define EBB_CLIENT_RETRY_H_

#include <grpcpp/support/status.h>

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace ebb::client {

struct RetryPolicy {
  int32_t attempts = 4;  // calls in all, >= 1
  absl::Duration first = absl::Milliseconds(100);
  absl::Duration max = absl::Seconds(5);
};

// How long to wait before attempt number `next` (2, 3, ...), or nothing when the call should not be repeated: only
// UNAVAILABLE, and ABORTED or RESOURCE_EXHAUSTED that carry a RetryInfo, are worth another try. The server's RetryInfo
// is honoured as it is.
std::optional<absl::Duration> RetryDelay(const RetryPolicy& policy, int32_t next, const grpc::Status& status);

// The doubling delay before attempt number `next`, whatever was said; nothing after the last.
std::optional<absl::Duration> Backoff(const RetryPolicy& policy, int32_t next);

}  // namespace ebb::client

#endif  // EBB_CLIENT_RETRY_H_
