#include "server/transport_limits.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

namespace ebb {
namespace {

constexpr int kKiB = 1 << 10;
constexpr int kSecond = 1000;  // gRPC counts in milliseconds
constexpr int kMinute = 60 * kSecond;

struct Row {
  const char* setting;
  int value;
};

// Those that nobody needs to change.
constexpr Row kFixed[] = {
    // One connection does not take all the work: floods of streams wait at the client.
    {GRPC_ARG_MAX_CONCURRENT_STREAMS, 100},
    // Metadata is a credential, a tenant and a trace id; gRPC's default, spelled out.
    {GRPC_ARG_MAX_METADATA_SIZE, 8 * kKiB},
    // Connections that nobody uses give their descriptor back.
    {GRPC_ARG_MAX_CONNECTION_IDLE_MS, 15 * kMinute},
    // A connection that is too old ends when its last call does, however long that takes: token streams are not cut.
    {GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, std::numeric_limits<int>::max()},
    // Clients without calls are left in peace; the limit of idle connections looks after them.
    {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0},
    // Clients may ask for a sign themselves, every 30 s; after the second that comes too early the connection ends.
    {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 30 * kSecond},
    {GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2},
    // Who connects and says nothing is cut off; gRPC would wait for two minutes.
    {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10 * kSecond},
    // Nobody looks into the server's connections from outside.
    {GRPC_ARG_ENABLE_CHANNELZ, 0},
    // gRPC 1.51 expands a compressed request whole before it looks at its size: 1 MiB becomes 1 GiB. So none is taken.
    {GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0},
};

constexpr int kKeepaliveTimeoutMax = 20 * kSecond;
// Of what connections hold in buffers, all together; beyond it gRPC reads more slowly, then cuts off who holds most.
constexpr size_t kBufferBytes = size_t{256} << 20;
constexpr size_t kBufferedRequests = 8;  // where requests may be large

int Milliseconds(absl::Duration time) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(time), 1, std::numeric_limits<int>::max()));
}

class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins, [](const auto& plugin) {
      return dynamic_cast<grpc::reflection::ProtoServerReflectionPlugin*>(plugin.get()) != nullptr;
    });
  }
};

}  // namespace

void LeaveOutReflection(grpc::ServerBuilder& builder) { builder.SetOption(std::make_unique<WithoutReflection>()); }

void SetBufferQuota(const TransportLimits& limits, grpc::ResourceQuota& buffers) {
  buffers.Resize(std::max(kBufferBytes, kBufferedRequests * static_cast<size_t>(limits.request_bytes_max)));
}

void SetTransportLimits(const TransportLimits& limits, const grpc::ResourceQuota& buffers,
                        grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(limits.request_bytes_max));
  builder.SetMaxSendMessageSize(static_cast<int>(limits.answer_bytes_max));
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  for (const Row& row : kFixed) builder.AddChannelArgument(row.setting, row.value);
  const int keepalive = Milliseconds(limits.keepalive);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, std::min(keepalive, kKeepaliveTimeoutMax));
  if (limits.connection_age_max > absl::ZeroDuration()) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, Milliseconds(limits.connection_age_max));
  }
  builder.SetResourceQuota(buffers);
}

}  // namespace ebb
