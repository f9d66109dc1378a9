// Those that a client calls: each has a channel of its own, from its first call on.

#ifndef EBB_CLIENT_SERVERS_H_
#define EBB_CLIENT_SERVERS_H_

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "absl/time/time.h"
#include "ebb/v1/admin.grpc.pb.h"
#include "ebb/v1/eviction.grpc.pb.h"
#include "ebb/v1/inference.grpc.pb.h"
#include "ebb/v1/session.grpc.pb.h"

namespace ebb::client {

struct Server {
  explicit Server(std::shared_ptr<grpc::Channel> opened);

  template <typename Stub>
  Stub& Get() {
    return *std::get<std::unique_ptr<Stub>>(stubs);
  }

  std::shared_ptr<grpc::Channel> channel;
  std::tuple<std::unique_ptr<v1::SessionService::Stub>, std::unique_ptr<v1::InferenceService::Stub>,
             std::unique_ptr<v1::EvictionService::Stub>, std::unique_ptr<v1::AdminService::Stub>>
      stubs;
};

// Any thread.
class Servers {
 public:
  // Null: plain HTTP/2. `keepalive` as in ClientOptions.
  Servers(std::shared_ptr<grpc::ChannelCredentials> credentials, absl::Duration keepalive);

  // Valid as long as this.
  Server& At(const std::string& address);

 private:
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  grpc::ChannelArguments arguments_ = {};
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Server>> servers_ = {};  // by address
};

}  // namespace ebb::client

#endif  // EBB_CLIENT_SERVERS_H_
