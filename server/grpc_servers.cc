#include "server/grpc_servers.h"

#include <grpcpp/health_check_service_interface.h>

#include <chrono>
#include <utility>

#include "absl/time/clock.h"
#include "policies/check.h"
#include "server/files.h"
#include "server/low_priority.h"

namespace ebb {
namespace {

// Shorter than any time after which a caller tries again, and long enough for the call that opened the connection.
constexpr absl::Duration kLastAge = absl::Milliseconds(100);

}  // namespace

GrpcServers::GrpcServers(const TransportLimits& limits, const std::shared_ptr<grpc::ServerCredentials>& credentials,
                         const std::function<void(grpc::ServerBuilder&)>& add)
    : told_(grpc_completion_queue_create_for_next(nullptr)) {
  grpc::ResourceQuota buffers("ebb");  // one: in a drain both servers have connections
  SetBufferQuota(limits, buffers);
  TransportLimits last = limits;
  last.connection_age_max = kLastAge;
  for (Entered* const entered : {&first_, &last_}) {
    grpc::ServerBuilder builder;
    SetTransportLimits(entered == &first_ ? limits : last, buffers, builder);
    entered->door.Build(builder, credentials);
    add(builder);
    AtLowPriority(
        [&] { entered->server = builder.BuildAndStart(); });  // which begins the threads that callbacks run on
    EBB_CHECK(entered->server != nullptr);                    // whose port is an Acceptor's
  }
}

GrpcServers::~GrpcServers() {
  grpc_completion_queue_shutdown(told_);
  const gpr_timespec never = gpr_inf_future(GPR_CLOCK_MONOTONIC);
  while (grpc_completion_queue_next(told_, never, nullptr).type != GRPC_QUEUE_SHUTDOWN) continue;
  grpc_completion_queue_destroy(told_);
}

void GrpcServers::Open(Acceptor& acceptor, const RefusedConnections& refused) {
  acceptor.Start(
      [this](int listener, OpenFile connection) {
        const std::lock_guard lock(mutex_);  // gRPC's server may not get one after its shutdown has begun
        open_->door.Take(listener, std::move(connection));
      },
      refused);
}

void GrpcServers::SetServing(const std::string& service, bool serving) {
  for (const Entered* const entered : {&first_, &last_}) {
    entered->server->GetHealthCheckService()->SetServingStatus(service, serving);
  }
}

std::shared_ptr<grpc::Channel> GrpcServers::InProcessChannel(const grpc::ChannelArguments& arguments) {
  return last_.server->InProcessChannel(arguments);
}

void GrpcServers::SendAway() {
  {
    const std::lock_guard lock(mutex_);
    open_ = &last_;
  }
  BeginShutdown(*first_.server);
}

void GrpcServers::Shutdown(absl::Duration patience) {
  const std::chrono::system_clock::time_point until = absl::ToChronoTime(absl::Now() + patience);
  BeginShutdown(*last_.server);  // so that all are told before any is waited for
  for (const Entered* const entered : {&first_, &last_}) {
    entered->server->Shutdown(until);
    entered->server->Wait();
  }
}

void GrpcServers::BeginShutdown(grpc::Server& server) {
  grpc_server_shutdown_and_notify(server.c_server(), told_, nullptr);
}

}  // namespace ebb
