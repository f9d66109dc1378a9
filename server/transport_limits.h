// What one connection may do to the server. gRPC's own defaults trust the peer; docs/explanation/security.md has the
// table for operators.

#ifndef EBB_SERVER_TRANSPORT_LIMITS_H_
#define EBB_SERVER_TRANSPORT_LIMITS_H_

#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>

#include <cstdint>

#include "absl/time/time.h"

namespace ebb {

struct TransportLimits {
  int64_t request_bytes_max = 4 << 20;                    // of any method
  int64_t answer_bytes_max = 4 << 20;                     // likewise
  absl::Duration connection_age_max = absl::Minutes(30);  // then its client is asked for another; zero: never
  absl::Duration keepalive = absl::Seconds(60);  // a client with calls that is silent for so long is asked for a sign
};

// gRPC's reflection puts itself into every server of a process that is linked to it; not into this one.
void LeaveOutReflection(grpc::ServerBuilder& builder);

// Makes `buffers` what all connections of the servers that share it may hold in buffers together.
void SetBufferQuota(const TransportLimits& limits, grpc::ResourceQuota& buffers);

void SetTransportLimits(const TransportLimits& limits, const grpc::ResourceQuota& buffers,
                        grpc::ServerBuilder& builder);

}  // namespace ebb

#endif  // EBB_SERVER_TRANSPORT_LIMITS_H_
