// The port that an Acceptor listens at, as gRPC's server sees it: connections are given to it one by one.

#ifndef EBB_SERVER_GRPC_DOOR_H_
#define EBB_SERVER_GRPC_DOOR_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/acceptor.h"
#include "server/files.h"
#include "server/metric_family.h"

namespace ebb {

class GrpcDoor {
 public:
  // Connections speak by `credentials`. REQUIRES: `builder` has not built its server yet.
  void Build(grpc::ServerBuilder& builder, const std::shared_ptr<grpc::ServerCredentials>& credentials);

  // From now on that server gets what comes to `acceptor`, until it stops, which is before this ends. REQUIRES: the
  // server was built.
  void Open(Acceptor& acceptor, const RefusedConnections& refused);
  // It gets this connection, of an Acceptor. REQUIRES: the server was built, and nobody has begun to shut it down.
  void Take(int listener, OpenFile connection);

 private:
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> door_;
};

}  // namespace ebb

#endif  // EBB_SERVER_GRPC_DOOR_H_
