#include "client/servers.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace ebb::client {
namespace {

constexpr absl::Duration kSignWithinMax = absl::Seconds(20);

int Milliseconds(absl::Duration time) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(time), 1, std::numeric_limits<int>::max()));
}

}  // namespace

Server::Server(std::shared_ptr<grpc::Channel> opened)
    : channel(std::move(opened)),
      stubs(v1::SessionService::NewStub(channel), v1::InferenceService::NewStub(channel),
            v1::EvictionService::NewStub(channel), v1::AdminService::NewStub(channel)) {}

Servers::Servers(std::shared_ptr<grpc::ChannelCredentials> credentials, absl::Duration keepalive)
    : credentials_(credentials == nullptr ? grpc::InsecureChannelCredentials() : std::move(credentials)) {
  arguments_.SetMaxReceiveMessageSize(std::numeric_limits<int>::max());
  arguments_.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(keepalive));
  arguments_.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(std::min(keepalive, kSignWithinMax)));
  arguments_.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // who reads sends nothing, and asks again all the same
}

Server& Servers::At(const std::string& address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Server>& server = servers_[address];
  if (server == nullptr) {
    server = std::make_unique<Server>(grpc::CreateCustomChannel(address, credentials_, arguments_));
  }
  return *server;
}

}  // namespace ebb::client
