// When to try a refused call again: what the server says first, a doubling delay where it says nothing. Pure.

#ifndef EBB_CLIENT_RETRY_H_
#define EBB_CLIENT_RETRY_H_

#include <grpcpp/support/status.h>

#include <chrono>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace ebb::client {

struct RetryPolicy {
  int32_t attempts = 4;  // calls in all, >= 1; 1: none is repeated
  absl::Duration first = absl::Milliseconds(100);
  absl::Duration max = absl::Seconds(5);
  // During which a server that has answered the client before and is away, as while it is restarted, is tried again,
  // however often: none of the attempts.
  absl::Duration patience = absl::Seconds(60);
};

// Whether there is no server, as far as can be told, or one that goes: another may come in its place. UNAVAILABLE
// without a reason, or with DRAINING.
bool IsAway(const grpc::Status& status);
// False where no server can have got the call.
bool WasSent(const grpc::Status& status);

// How long to wait before attempt number `next` (2, 3, ...), or nothing when the call should not be repeated: only
// UNAVAILABLE, and ABORTED or RESOURCE_EXHAUSTED that carry a RetryInfo, are worth another try. The server's RetryInfo
// is honoured as it is.
std::optional<absl::Duration> RetryDelay(const RetryPolicy& policy, int32_t next, const grpc::Status& status);

// The doubling delay before attempt number `next`, whatever was said; nothing after the last.
std::optional<absl::Duration> Backoff(const RetryPolicy& policy, int32_t next);

// The tries of one call, so far.
class Tries {
 public:
  using Clock = std::chrono::steady_clock;

  // How long to wait after one that ended so; nothing: it was the last. `patient`: RetryPolicy::patience holds, else a
  // server that is away counts as any other failure.
  std::optional<absl::Duration> Delay(const RetryPolicy& policy, const grpc::Status& status, bool patient,
                                      Clock::time_point now);
  int32_t attempt() const { return attempt_; }  // of those that a server answered, if patient

 private:
  int32_t attempt_ = 1;
  int32_t away_ = 1;  // likewise, since the server has been away
  Clock::time_point since_ = {};
};

// Somewhat more, by chance: those who wait for one server do not come back at once. `chance` is 0 .. 1.
absl::Duration Spread(absl::Duration delay, double chance);

}  // namespace ebb::client

#endif  // EBB_CLIENT_RETRY_H_
