// The only place where an absl::Status becomes a gRPC status.
//
// Every error carries google.rpc.ErrorInfo (reason, domain "ebb", metadata) and, where the refusal says so,
// BadRequest.FieldViolation, RetryInfo and QuotaFailure, packed as google.rpc.Status into the binary details
// (trailer grpc-status-details-bin). Texts are made valid UTF-8 and cut so that the trailers stay below the 8 KiB of
// metadata that gRPC peers accept, whatever a client put into its request.

#ifndef EBB_SERVER_GRPC_STATUS_H_
#define EBB_SERVER_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace ebb {

// Codes keep their number. A status without a refusal (policies/status.h) gets its code's name as reason: "INTERNAL".
// `trace_id`, unless empty, joins the metadata of an error's ErrorInfo.
grpc::Status ToGrpc(const absl::Status& status, const std::string& trace_id = {});

}  // namespace ebb

#endif  // EBB_SERVER_GRPC_STATUS_H_
