// Matchers for absl::Status and absl::StatusOr<T>; on a mismatch they print the status and what its refusal carries.
//
//   ASSERT_THAT(Resolve(spec, limits), IsOk());
//   EXPECT_THAT(Resolve(spec, limits), IsRefusal(absl::StatusCode::kInvalidArgument, "OVERFLOW_ZERO", "overflow"));

#ifndef EBB_TESTS_SUPPORT_STATUS_MATCHERS_H_
#define EBB_TESTS_SUPPORT_STATUS_MATCHERS_H_

#include <gmock/gmock.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "policies/status.h"

namespace ebb {

// What most refusals are.
inline constexpr absl::StatusCode kInvalidArgument = absl::StatusCode::kInvalidArgument;

inline absl::Status StatusOf(const absl::Status& status) { return status; }

template <typename T>
absl::Status StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

inline std::string DescribeStatus(const absl::Status& status) {
  const Refusal refusal = GetRefusal(status);
  return "status " + status.ToString(absl::StatusToStringMode::kWithNoExtraData) + ", reason '" + refusal.reason +
         "', field '" + refusal.field + "'";
}

MATCHER(IsOk, std::string(negation ? "isn't" : "is") + " OK") {
  *result_listener << DescribeStatus(StatusOf(arg));
  return StatusOf(arg).ok();
}

// A refusal (policies/status.h) of this code and reason whose field path contains `field`.
MATCHER_P3(IsRefusal, code, reason, field,
           std::string(negation ? "isn't" : "is") + " a refusal " + absl::StatusCodeToString(code) + ", reason '" +
               reason + "', field with '" + field + "'") {
  const absl::Status status = StatusOf(arg);
  const Refusal refusal = GetRefusal(status);
  *result_listener << DescribeStatus(status);
  return status.code() == code && refusal.reason == reason && refusal.field.find(field) != std::string::npos;
}

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_STATUS_MATCHERS_H_
