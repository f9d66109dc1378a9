// The two gRPC servers of one port, looked at from where they are built.

#include "server/grpc_servers.h"

#include <grpc/grpc.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "ebb/v1/session.grpc.pb.h"

namespace ebb {
namespace {

// Notes the quota of buffers that a server is built with.
class QuotaNoted final : public grpc::ServerBuilderPlugin {
 public:
  explicit QuotaNoted(std::vector<void*>& noted) : noted_(noted) {}

  std::string name() override { return "quota_noted"; }
  void InitServer(grpc::ServerInitializer* /*server*/) override {}
  void Finish(grpc::ServerInitializer* /*server*/) override {}
  void ChangeArguments(const std::string& /*name*/, void* /*value*/) override {}
  void UpdateChannelArguments(grpc::ChannelArguments* arguments) override {
    const grpc_channel_args all = arguments->c_channel_args();
    for (size_t i = 0; i < all.num_args; ++i) {
      if (std::string(all.args[i].key) == GRPC_ARG_RESOURCE_QUOTA) noted_.push_back(all.args[i].value.pointer.p);
    }
  }

 private:
  std::vector<void*>& noted_;
};

class NotesQuota final : public grpc::ServerBuilderOption {
 public:
  explicit NotesQuota(std::vector<void*>& noted) : noted_(noted) {}

  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->push_back(std::make_unique<QuotaNoted>(noted_));
  }

 private:
  std::vector<void*>& noted_;
};

// In a drain both have connections: what these may hold in buffers is bounded together.
TEST(GrpcServers, ShareOneBoundOfBuffers) {
  v1::SessionService::CallbackService service;
  std::vector<void*> quotas;
  GrpcServers servers({}, grpc::InsecureServerCredentials(), [&](grpc::ServerBuilder& builder) {
    builder.RegisterService(&service);
    builder.SetOption(std::make_unique<NotesQuota>(quotas));
  });
  ASSERT_EQ(quotas.size(), 2U);
  EXPECT_NE(quotas[0], nullptr);
  EXPECT_EQ(quotas[0], quotas[1]);
  servers.Shutdown(absl::ZeroDuration());
}

}  // namespace
}  // namespace ebb
