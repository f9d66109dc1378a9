// The gRPC port, as two servers of the same services: connections come to one of them, and once it has sent its own
// away to the other.
//
// gRPC 1.51 sends GOAWAY when a server is shut down, and not otherwise. Calls that run then go on, but every call that
// begins fails without our having seen it, on a new connection or an old one, and channels within the process are cut
// at once. So the server that clients are connected to is shut down when a drain begins, and the other one says all
// that there is to say until it ends, and has the channels within the process.
//
// Callers that turn to it came back to a server that drains, most likely because a balancer in front has not noticed.
// So it asks each connection, soon after it came, to be replaced: whoever tries again does so on a new one, which may
// lead elsewhere.
//
// A call that is on its way while its connection's GOAWAY is on the way to it ends CANCELLED, without our details and
// with "CANCELLED" as its message. Nothing was done for it.

#ifndef EBB_SERVER_GRPC_SERVERS_H_
#define EBB_SERVER_GRPC_SERVERS_H_

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "server/acceptor.h"
#include "server/grpc_door.h"
#include "server/metric_family.h"
#include "server/transport_limits.h"

namespace ebb {

class GrpcServers {
 public:
  // `add` says what a server serves, and is called for each. It is all of methods with callbacks.
  GrpcServers(const TransportLimits& limits, const std::shared_ptr<grpc::ServerCredentials>& credentials,
              const std::function<void(grpc::ServerBuilder&)>& add);
  // REQUIRES: Shutdown.
  ~GrpcServers();

  // From now on what comes to `acceptor` is served, until it stops, which is before Shutdown.
  void Open(Acceptor& acceptor, const RefusedConnections& refused);

  // Any thread. What gRPC's own health service says of this one.
  void SetServing(const std::string& service, bool serving);

  // Within the process; until Shutdown.
  std::shared_ptr<grpc::Channel> InProcessChannel(const grpc::ChannelArguments& arguments);

  // All connections get a GOAWAY: what runs on them goes on, and new calls need another connection. Once.
  void SendAway();

  // Calls may go on for `patience`, then they are cut; returns when none is left.
  void Shutdown(absl::Duration patience);

 private:
  struct Entered {
    GrpcDoor door;
    std::unique_ptr<grpc::Server> server;
  };

  // As grpc::Server::Shutdown begins, which would then wait for the calls that run.
  void BeginShutdown(grpc::Server& server);

  Entered first_, last_;
  std::mutex mutex_;
  Entered* open_ ABSL_GUARDED_BY(mutex_) = &first_;  // takes connections
  grpc_completion_queue* const told_;                // gRPC says there that a server is down; nobody needs to know
};

}  // namespace ebb

#endif  // EBB_SERVER_GRPC_SERVERS_H_
