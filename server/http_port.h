// The HTTP port: /metrics for Prometheus, /healthz and /readyz for whatever supervises the process.
//
// It has threads of its own, so it answers while the worker computes. It speaks plain HTTP and knows no tenant: listen
// on loopback, or where only the cluster can reach it. Each connection is closed after its answer, so that idle clients
// hold no thread. What else is served here (console.h) brings the threads that its answers may hold.

#ifndef EBB_SERVER_HTTP_PORT_H_
#define EBB_SERVER_HTTP_PORT_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/address.h"
#include "server/health_checks.h"
#include "server/refused_connections.h"

namespace ebb {

class HttpServer;

struct HttpPages {
  std::function<std::string()> metrics = {};  // body of /metrics
  HealthChecks health = {};                   // of /healthz and /readyz: 200 where OK; else 503 with the message
  // The console's routes; empty: there is no console.
  struct Console {
    std::function<void(HttpServer&)> add_to = {};
    int threads = 0;            // that its answers may hold at once
    size_t body_bytes_max = 0;  // of a request
    std::string posts = {};     // what the paths begin with that may be posted to
  };
  Console console = {};
};

class HttpPort {
 public:
  // Listens when it returns. Port 0 takes a free one, see address(). Pages are called by several threads at once, until
  // the port is destroyed. UNAVAILABLE with reason PORT_UNAVAILABLE when the address cannot be had: a port is never
  // shared with another process. `refused` counts connections for which the process had no file left.
  static absl::StatusOr<std::unique_ptr<HttpPort>> Start(const Address& listen, const HttpPages& pages,
                                                         const RefusedConnections& refused);

  ~HttpPort();  // what has begun is answered within a second, or cut off
  HttpPort(const HttpPort&) = delete;
  HttpPort& operator=(const HttpPort&) = delete;

  const Address& address() const;  // with the port in use

 private:
  class Server;
  explicit HttpPort(std::unique_ptr<Server> server);

  std::unique_ptr<Server> server_;
};

}  // namespace ebb

#endif  // EBB_SERVER_HTTP_PORT_H_
