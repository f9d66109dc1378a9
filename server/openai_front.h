// The OpenAI port: /v1/chat/completions, /v1/completions and /v1/models over HTTP and server-sent events, for tools
// that speak that API.
//
// It is a client of this server's own gRPC services (openai_call.h) and decides nothing that they decide. Each request
// is a throw-away session, unless `ebb.session` names one that is kept (conversations.h). It speaks plain HTTP, or TLS
// with the gRPC port's certificate, and a connection is closed after its answer, so that idle clients hold no thread.
// Each request holds one from the end of its head on, in its tenant's share (front_places.h); there are some more to
// refuse.

#ifndef EBB_SERVER_OPENAI_FRONT_H_
#define EBB_SERVER_OPENAI_FRONT_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/address.h"
#include "server/refused_connections.h"
#include "server/tls.h"

namespace ebb {

struct OpenAiOptions {
  Address listen = {.host = "127.0.0.1", .port = 7702};  // port 0: any free one
  bool tls = false;                                      // REQUIRES: ServerOptions::tls
  int requests_max = 64;                                 // FrontPlaces
  absl::Duration session_ttl = absl::Hours(1);           // of a session that a request made
};

// A model as /v1/models lists it.
struct OpenAiModel {
  std::string name = {};
  int32_t context = 0;  // tokens that it was trained with
};

// What it has to know of the server.
struct OpenAiServed {
  std::function<std::vector<OpenAiModel>()> models = {};  // those served now, the main one first; any thread
  size_t body_bytes_max = 4 << 20;                        // of a request
  const ServerTls* tls = nullptr;                         // null: plain HTTP; outlives the front
  // Whose a request is by its headers `authorization` and `x-ebb-tenant`, empty where nobody is known by them; any
  // thread.
  std::function<std::string(const std::string& authorization, const std::string& tenant)> tenant = {};
  // Told of what the port itself refuses, and to whom, as far as that is known; any thread.
  std::function<void(const absl::Status&, const std::string& tenant)> refused = {};
};

class OpenAiFront {
 public:
  // Listens when it returns. `channel` leads to the services, within the process. UNAVAILABLE PORT_UNAVAILABLE.
  // `refused` counts connections for which the process had no file left.
  static absl::StatusOr<std::unique_ptr<OpenAiFront>> Start(const OpenAiOptions& options, const OpenAiServed& served,
                                                            std::shared_ptr<grpc::Channel> channel,
                                                            const RefusedConnections& refused);

  virtual ~OpenAiFront() = default;  // answers what has begun, then returns: the services have to end their calls

  virtual const Address& address() const = 0;  // with the port in use
};

}  // namespace ebb

#endif  // EBB_SERVER_OPENAI_FRONT_H_
