// What a refusal of the server says beyond its sentence: the google.rpc details that travel with a gRPC status.

#ifndef EBB_CLIENT_ERROR_H_
#define EBB_CLIENT_ERROR_H_

#include <grpcpp/support/status.h>

#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace ebb::client {

struct ErrorDetails {
  std::string reason = {};                           // ErrorInfo.reason, for example NO_PAGES; empty: none was sent
  std::string field = {};                            // path of the offending field; may be empty
  std::optional<absl::Duration> retry = {};          // RetryInfo
  std::map<std::string, std::string> metadata = {};  // ErrorInfo.metadata
};

// Empty details for an OK status or one without (readable) details.
ErrorDetails ReadDetails(const grpc::Status& status);

// UNAVAILABLE in the place of the CANCELLED that gRPC makes of a call which a server got after it had asked for another
// connection, as one that drains does. Every other status as it is. REQUIRES: its caller did not cancel the call.
grpc::Status WhatCameOf(const grpc::Status& call);

// For people: "UNAVAILABLE NO_PAGES: the session needs ... (retry in 2s)".
std::string Describe(const grpc::Status& status);

// "UNAVAILABLE"; "CODE_17" for a number gRPC does not define.
std::string CodeName(grpc::StatusCode code);

}  // namespace ebb::client

#endif  // EBB_CLIENT_ERROR_H_
