// Refusals: an absl::Status that says what was wrong, where, and what would have been right.
//
// A refusal carries, beside code and sentence, the parts that a client's program acts upon: a stable reason
// (UPPER_SNAKE, one row each in docs/reference/errors.md), the path of the offending field, the time after which to
// retry, and free metadata. They travel as payloads of the status; server/grpc_status.cc alone turns them into
// google.rpc details.

#ifndef EBB_POLICIES_STATUS_H_
#define EBB_POLICIES_STATUS_H_

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ebb {

struct Refusal {
  std::string reason = {};                   // ErrorInfo.reason, for example BUDGET_TOO_SMALL
  std::string field = {};                    // path in the request, for example policy.trigger.budget; may be empty
  std::optional<absl::Duration> retry = {};  // RetryInfo; only where trying again can succeed
  std::string quota = {};                    // QuotaFailure.subject: whose limit it was; may be empty
  std::map<std::string, std::string> metadata = {};  // ErrorInfo.metadata
};

// A status with `code` and `message` that carries `refusal`. REQUIRES: code is not OK and reason is not empty.
absl::Status Refuse(absl::StatusCode code, const std::string& message, const Refusal& refusal);

// INVALID_ARGUMENT; the commonest refusal. The message begins with the field: "policy.trigger.budget: 3 is below ...".
absl::Status RefuseField(const std::string& reason, const std::string& field, const std::string& what);

// What Refuse attached; reason is empty for a status that came from elsewhere.
Refusal GetRefusal(const absl::Status& status);

// The same refusal with `prefix` put before its field path ("policy" + "trigger.budget"), for nested validation.
absl::Status AtField(const std::string& prefix, const absl::Status& status);

}  // namespace ebb

// Returns from the enclosing function when the status expression is not OK.
#define EBB_TRY(expression)                                   \
  do {                                                        \
    if (absl::Status ebb_try = (expression); !ebb_try.ok()) { \
      return ebb_try;                                         \
    }                                                         \
  } while (false)

// EBB_ASSIGN(auto x, StatusOrExpression): declares or assigns x, or returns the error.
#define EBB_ASSIGN(target, expression) EBB_ASSIGN_LINE(target, expression, __LINE__)
#define EBB_ASSIGN_LINE(target, expression, line) EBB_ASSIGN_NAMED(target, expression, line)
#define EBB_ASSIGN_NAMED(target, expression, line) \
  auto ebb_value_##line = (expression);            \
  if (!ebb_value_##line.ok()) {                    \
    return std::move(ebb_value_##line).status();   \
  }                                                \
  target = *std::move(ebb_value_##line)

#endif  // EBB_POLICIES_STATUS_H_
