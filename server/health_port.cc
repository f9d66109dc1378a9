#include "server/health_port.h"

#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/acceptor.h"
#include "server/grpc_door.h"
#include "server/transport_limits.h"

namespace ebb {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr int64_t kQuestionBytesMax = 1024;

}  // namespace

class HealthPort::Server final : public grpc::health::v1::Health::CallbackService {
 public:
  explicit Server(const HealthChecks& checks) : checks_(checks) {}
  ~Server() override {
    if (acceptor_ != nullptr) acceptor_->Stop();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }

  absl::Status Listen(const Address& listen, const RefusedConnections& refused) {
    // Not gRPC's listener: it would never listen again after the process once had no file left.
    EBB_ASSIGN(acceptor_, Acceptor::Listen(listen, "server.health_listen", {.files_left = 48}));
    grpc::ServerBuilder builder;
    LeaveOutReflection(builder);
    const TransportLimits limits = {.request_bytes_max = kQuestionBytesMax, .answer_bytes_max = kQuestionBytesMax};
    grpc::ResourceQuota buffers("ebb-health");
    SetBufferQuota(limits, buffers);
    SetTransportLimits(limits, buffers, builder);
    door_.Build(builder, grpc::InsecureServerCredentials());
    // In the place of gRPC's own, which says what it was last told instead of asking.
    builder.SetOption(std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(nullptr));
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    EBB_CHECK(server_ != nullptr);  // the port is ours already
    door_.Open(*acceptor_, refused);
    return absl::OkStatus();
  }

  const Address& address() const { return acceptor_->address(); }

 private:
  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context, const HealthCheckRequest* request,
                                  HealthCheckResponse* response) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    const std::string& service = request->service();
    const bool is_liveness = service == "liveness";
    if (!is_liveness && service != "readiness" && !service.empty()) {
      reactor->Finish(
          {grpc::StatusCode::NOT_FOUND, absl::StrFormat("no service '%s' here: liveness and readiness are", service)});
      return reactor;
    }
    const absl::Status healthy = is_liveness ? checks_.alive() : checks_.ready();
    response->set_status(healthy.ok() ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING);
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  const HealthChecks checks_;
  std::unique_ptr<Acceptor> acceptor_;
  GrpcDoor door_;
  std::unique_ptr<grpc::Server> server_;
};

absl::StatusOr<std::unique_ptr<HealthPort>> HealthPort::Start(const Address& listen, const HealthChecks& checks,
                                                              const RefusedConnections& refused) {
  auto server = std::make_unique<Server>(checks);
  EBB_TRY(server->Listen(listen, refused));
  return std::unique_ptr<HealthPort>(new HealthPort(std::move(server)));
}

HealthPort::HealthPort(std::unique_ptr<Server> server) : server_(std::move(server)) {}
HealthPort::~HealthPort() = default;

const Address& HealthPort::address() const { return server_->address(); }

}  // namespace ebb
