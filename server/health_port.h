// gRPC's health protocol (grpc.health.v1) on a port of its own, without TLS: a kubelet's probe of kind `grpc` brings no
// certificate and trusts none, so it cannot ask the port that clients use. Nothing else is served here.
//
// Check knows the services `liveness` and `readiness`; `` is readiness, too. Each question is asked anew, so there is
// no Watch: its clients are told UNIMPLEMENTED, as the protocol allows.

#ifndef EBB_SERVER_HEALTH_PORT_H_
#define EBB_SERVER_HEALTH_PORT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/address.h"
#include "server/health_checks.h"
#include "server/refused_connections.h"

namespace ebb {

class HealthPort {
 public:
  // Answers when it returns. Port 0 takes a free one, see address(). `checks` are asked until the port is destroyed.
  // UNAVAILABLE PORT_UNAVAILABLE: a port is never shared with another process.
  // `refused` counts connections for which the process had no file left.
  static absl::StatusOr<std::unique_ptr<HealthPort>> Start(const Address& listen, const HealthChecks& checks,
                                                           const RefusedConnections& refused);

  ~HealthPort();
  HealthPort(const HealthPort&) = delete;
  HealthPort& operator=(const HealthPort&) = delete;

  const Address& address() const;  // with the port in use

 private:
  class Server;
  explicit HealthPort(std::unique_ptr<Server> server);

  std::unique_ptr<Server> server_;
};

}  // namespace ebb

#endif  // EBB_SERVER_HEALTH_PORT_H_
