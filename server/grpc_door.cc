#include "server/grpc_door.h"

#include <utility>

namespace ebb {

void GrpcDoor::Build(grpc::ServerBuilder& builder, const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  door_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
}

void GrpcDoor::Open(Acceptor& acceptor, const RefusedConnections& refused) {
  acceptor.Start([this](int listener, OpenFile connection) { Take(listener, std::move(connection)); }, refused);
}

void GrpcDoor::Take(int listener, OpenFile connection) {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters taken;
  taken.listener_fd = listener;
  taken.fd = connection.Release();
  door_->HandleNewConnection(&taken);
}

}  // namespace ebb
