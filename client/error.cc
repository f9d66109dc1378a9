#include "client/error.h"

#include <array>
#include <cstddef>

#include "absl/strings/str_format.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace ebb::client {
namespace {

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

}  // namespace

ErrorDetails ReadDetails(const grpc::Status& status) {
  ErrorDetails details;
  google::rpc::Status rich;
  if (!rich.ParseFromString(status.error_details())) return details;
  for (const google::protobuf::Any& any : rich.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::RetryInfo retry;
    google::rpc::BadRequest request;
    if (any.UnpackTo(&info)) {
      details.reason = info.reason();
      details.metadata.insert(info.metadata().begin(), info.metadata().end());
    } else if (any.UnpackTo(&retry)) {
      details.retry = FromProto(retry.retry_delay());
    } else if (any.UnpackTo(&request) && request.field_violations_size() > 0) {
      details.field = request.field_violations(0).field();
    }
  }
  return details;
}

grpc::Status WhatCameOf(const grpc::Status& call) {
  const bool cancelled = call.error_code() == grpc::StatusCode::CANCELLED && call.error_details().empty();
  // The second where the server had not read its request.
  const bool sent_away = cancelled && (call.error_message() == "CANCELLED" || call.error_message() == "CANCEL");
  return sent_away ? grpc::Status(grpc::StatusCode::UNAVAILABLE, call.error_message()) : call;
}

std::string Describe(const grpc::Status& status) {
  const ErrorDetails details = ReadDetails(status);
  std::string text = CodeName(status.error_code());
  if (!details.reason.empty()) text += " " + details.reason;
  text += ": " + status.error_message();
  if (details.retry) text += absl::StrFormat(" (retry in %s)", absl::FormatDuration(*details.retry));
  return text;
}

std::string CodeName(grpc::StatusCode code) {
  static constexpr std::array<const char*, 17> kNames = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < kNames.size() ? kNames[index] : absl::StrFormat("CODE_%d", static_cast<int>(code));
}

}  // namespace ebb::client
