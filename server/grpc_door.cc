#include "server/grpc_door.h"

#include <utility>

#include "server/files.h"

namespace ebb {

void GrpcDoor::Build(grpc::ServerBuilder& builder, const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  door_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
}

void GrpcDoor::Open(Acceptor& acceptor, Counter& refused) const {
  acceptor.Start(
      [door = door_.get()](int listener, OpenFile connection) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters taken;
        taken.listener_fd = listener;
        taken.fd = connection.Release();
        door->HandleNewConnection(&taken);
      },
      refused);
}

}  // namespace ebb
