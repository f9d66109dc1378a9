#include "client/servers.h"

#include <limits>
#include <utility>

namespace ebb::client {

Server::Server(std::shared_ptr<grpc::Channel> opened)
    : channel(std::move(opened)),
      stubs(v1::SessionService::NewStub(channel), v1::InferenceService::NewStub(channel),
            v1::EvictionService::NewStub(channel), v1::AdminService::NewStub(channel)) {}

Servers::Servers(std::shared_ptr<grpc::ChannelCredentials> credentials)
    : credentials_(credentials == nullptr ? grpc::InsecureChannelCredentials() : std::move(credentials)) {}

Server& Servers::At(const std::string& address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Server>& server = servers_[address];
  if (server == nullptr) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(std::numeric_limits<int>::max());
    server = std::make_unique<Server>(grpc::CreateCustomChannel(address, credentials_, arguments));
  }
  return *server;
}

}  // namespace ebb::client
