#include "server/health_port.h"

#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "policies/status.h"
#include "server/transport_limits.h"

namespace ebb {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr int kQuestionBytesMax = 1024;
constexpr int kStreamsMax = 16;  // of a connection

}  // namespace

class HealthPort::Server final : public grpc::health::v1::Health::CallbackService {
 public:
  explicit Server(const HealthChecks& checks) : checks_(checks) {}
  ~Server() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }

  absl::Status Listen(const Address& listen) {
    address_ = listen;
    grpc::ServerBuilder builder;
    LeaveOutReflection(builder);
    builder.SetMaxReceiveMessageSize(kQuestionBytesMax);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsMax);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort(FormatAddress(listen), grpc::InsecureServerCredentials(), &address_.port);
    // In the place of gRPC's own, which says what it was last told instead of asking.
    builder.SetOption(std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(nullptr));
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || address_.port == 0) {
      return Refuse(absl::StatusCode::kUnavailable, absl::StrFormat("cannot listen on %s", FormatAddress(listen)),
                    {.reason = "PORT_UNAVAILABLE"});
    }
    return absl::OkStatus();
  }

  const Address& address() const { return address_; }

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
  Address address_ = {};
  std::unique_ptr<grpc::Server> server_;
};

absl::StatusOr<std::unique_ptr<HealthPort>> HealthPort::Start(const Address& listen, const HealthChecks& checks) {
  auto server = std::make_unique<Server>(checks);
  EBB_TRY(server->Listen(listen));
  return std::unique_ptr<HealthPort>(new HealthPort(std::move(server)));
}

HealthPort::HealthPort(std::unique_ptr<Server> server) : server_(std::move(server)) {}
HealthPort::~HealthPort() = default;

const Address& HealthPort::address() const { return server_->address(); }

}  // namespace ebb
