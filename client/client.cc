#include "client/client.h"

#include <chrono>
#include <limits>
#include <random>
#include <thread>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace ebb::client {
namespace {

// With a request_id, so that a retry after a lost answer cannot open a second session.
template <typename Request>
Request Idempotent(Request request) {
  if (!request.request_id().empty()) return request;
  std::random_device random;
  request.set_request_id(absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random()));
  return request;
}

}  // namespace

void Cancellation::Cancel() {
  const std::lock_guard<std::mutex> lock(mutex_);
  cancelled_ = true;
  if (context_ != nullptr) context_->TryCancel();
}

bool Cancellation::cancelled() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return cancelled_;
}

void Cancellation::Attach(grpc::ClientContext* context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  context_ = context;
  if (context_ != nullptr && cancelled_) context_->TryCancel();
}

Client::Client(const ClientOptions& options) : options_(options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(std::numeric_limits<int>::max());
  channel_ = grpc::CreateCustomChannel(
      options.address,
      options.credentials.channel == nullptr ? grpc::InsecureChannelCredentials() : options.credentials.channel,
      arguments);
  sessions_ = v1::SessionService::NewStub(channel_);
  inference_ = v1::InferenceService::NewStub(channel_);
  eviction_ = v1::EvictionService::NewStub(channel_);
  admin_ = v1::AdminService::NewStub(channel_);
}

bool Client::WaitUntilConnected(absl::Duration timeout) {
  return channel_->WaitForConnected(absl::ToChronoTime(absl::Now() + timeout));
}

void Client::Prepare(grpc::ClientContext& context, absl::Duration timeout) const {
  if (!options_.tenant.empty()) context.AddMetadata("x-ebb-tenant", options_.tenant);
  if (!options_.credentials.token.empty()) {
    context.AddMetadata("authorization", "Bearer " + options_.credentials.token);
  }
  if (timeout != absl::InfiniteDuration()) context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
}

template <typename Request, typename Response, typename Stub>
grpc::Status Client::Unary(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                           const Request& request, Response* response) {
  for (int32_t next = 2;; ++next) {
    grpc::ClientContext context;
    Prepare(context, options_.unary_timeout);
    const grpc::Status status = (stub.*method)(&context, request, response);
    if (status.ok()) return status;
    const auto delay = RetryDelay(options_.retry, next, status);
    if (!delay) return status;
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(*delay));
  }
}

template <typename Message, typename Open>
grpc::Status Client::Stream(const Open& open, const OnMessage<Message>& on_message, Cancellation* cancellation) {
  grpc::ClientContext context;
  Prepare(context, options_.stream_timeout);
  if (cancellation != nullptr) cancellation->Attach(&context);
  auto reader = open(&context);
  Message message;
  while (reader->Read(&message)) on_message(message);
  const grpc::Status status = reader->Finish();
  if (cancellation != nullptr) cancellation->Attach(nullptr);
  return status;
}

grpc::Status Client::CreateSession(const v1::CreateSessionRequest& request, v1::Session* session) {
  return Unary(*sessions_, &v1::SessionService::Stub::CreateSession, Idempotent(request), session);
}

grpc::Status Client::ForkSession(const v1::ForkSessionRequest& request, v1::Session* branch) {
  return Unary(*sessions_, &v1::SessionService::Stub::ForkSession, Idempotent(request), branch);
}

grpc::Status Client::GetSession(const std::string& name, v1::Session* session) {
  v1::GetSessionRequest request;
  request.set_name(name);
  return Unary(*sessions_, &v1::SessionService::Stub::GetSession, request, session);
}

grpc::Status Client::ListSessions(const v1::ListSessionsRequest& request, v1::ListSessionsResponse* response) {
  return Unary(*sessions_, &v1::SessionService::Stub::ListSessions, request, response);
}

grpc::Status Client::DeleteSession(const std::string& name, v1::DeleteSessionResponse* response) {
  v1::DeleteSessionRequest request;
  request.set_name(name);
  return Unary(*sessions_, &v1::SessionService::Stub::DeleteSession, request, response);
}

grpc::Status Client::Edit(const v1::EditRequest& request, v1::EditResponse* response) {
  return Unary(*inference_, &v1::InferenceService::Stub::Edit, request, response);
}

grpc::Status Client::SaveSession(const v1::SaveSessionRequest& request, v1::SaveSessionResponse* response) {
  return Unary(*sessions_, &v1::SessionService::Stub::SaveSession, request, response);
}

grpc::Status Client::RestoreSession(const v1::RestoreSessionRequest& request, v1::Session* session) {
  return Unary(*sessions_, &v1::SessionService::Stub::RestoreSession, Idempotent(request), session);
}

grpc::Status Client::ListSnapshots(const v1::ListSnapshotsRequest& request, v1::ListSnapshotsResponse* response) {
  return Unary(*sessions_, &v1::SessionService::Stub::ListSnapshots, request, response);
}

grpc::Status Client::DeleteSnapshot(const std::string& name, v1::DeleteSnapshotResponse* response) {
  v1::DeleteSnapshotRequest request;
  request.set_name(name);
  return Unary(*sessions_, &v1::SessionService::Stub::DeleteSnapshot, request, response);
}

grpc::Status Client::Score(const v1::ScoreRequest& request, v1::ScoreResponse* response) {
  return Unary(*inference_, &v1::InferenceService::Stub::Score, request, response);
}

grpc::Status Client::Tokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse* response) {
  return Unary(*inference_, &v1::InferenceService::Stub::Tokenize, request, response);
}

grpc::Status Client::ReportOutcome(const v1::ReportOutcomeRequest& request, v1::ReportOutcomeResponse* response) {
  return Unary(*inference_, &v1::InferenceService::Stub::ReportOutcome, Idempotent(request), response);
}

grpc::Status Client::ListTenants(const v1::ListTenantsRequest& request, v1::ListTenantsResponse* response) {
  return Unary(*admin_, &v1::AdminService::Stub::ListTenants, request, response);
}

grpc::Status Client::SetTenant(const v1::SetTenantRequest& request, v1::Tenant* tenant) {
  return Unary(*admin_, &v1::AdminService::Stub::SetTenant, request, tenant);
}

grpc::Status Client::StartExperiment(const v1::StartExperimentRequest& request, v1::Experiment* experiment) {
  return Unary(*admin_, &v1::AdminService::Stub::StartExperiment, request, experiment);
}

grpc::Status Client::StopExperiment(const std::string& name, v1::Experiment* experiment) {
  v1::StopExperimentRequest request;
  request.set_name(name);
  return Unary(*admin_, &v1::AdminService::Stub::StopExperiment, request, experiment);
}

grpc::Status Client::RampExperiment(const std::string& name, double ramp, v1::Experiment* experiment) {
  v1::RampExperimentRequest request;
  request.set_name(name);
  request.set_ramp(ramp);
  return Unary(*admin_, &v1::AdminService::Stub::RampExperiment, request, experiment);
}

grpc::Status Client::GetExperiment(const std::string& name, v1::Experiment* experiment) {
  v1::GetExperimentRequest request;
  request.set_name(name);
  return Unary(*admin_, &v1::AdminService::Stub::GetExperiment, request, experiment);
}

grpc::Status Client::ListExperiments(v1::ListExperimentsResponse* response) {
  return Unary(*admin_, &v1::AdminService::Stub::ListExperiments, v1::ListExperimentsRequest(), response);
}

grpc::Status Client::Detokenize(const v1::DetokenizeRequest& request, v1::DetokenizeResponse* response) {
  return Unary(*inference_, &v1::InferenceService::Stub::Detokenize, request, response);
}

grpc::Status Client::SetPolicy(const v1::SetPolicyRequest& request, v1::SetPolicyResponse* response) {
  return Unary(*eviction_, &v1::EvictionService::Stub::SetPolicy, request, response);
}

grpc::Status Client::Evict(const v1::EvictRequest& request, v1::EvictResponse* response) {
  return Unary(*eviction_, &v1::EvictionService::Stub::Evict, request, response);
}

grpc::Status Client::DescribeCache(const v1::DescribeCacheRequest& request, v1::DescribeCacheResponse* response) {
  return Unary(*eviction_, &v1::EvictionService::Stub::DescribeCache, request, response);
}

grpc::Status Client::GetStatus(v1::GetStatusResponse* response) {
  return Unary(*admin_, &v1::AdminService::Stub::GetStatus, v1::GetStatusRequest(), response);
}

grpc::Status Client::ReloadConfig(v1::ReloadConfigResponse* response) {
  return Unary(*admin_, &v1::AdminService::Stub::ReloadConfig, v1::ReloadConfigRequest(), response);
}

grpc::Status Client::ListModels(v1::ListModelsResponse* response) {
  return Unary(*admin_, &v1::AdminService::Stub::ListModels, v1::ListModelsRequest(), response);
}

grpc::Status Client::ListPolicies(v1::ListPoliciesResponse* response) {
  return Unary(*admin_, &v1::AdminService::Stub::ListPolicies, v1::ListPoliciesRequest(), response);
}

grpc::Status Client::CheckHealth(const std::string& service, std::string* serving_status) {
  const auto stub = grpc::health::v1::Health::NewStub(channel_);
  grpc::health::v1::HealthCheckRequest request;
  grpc::health::v1::HealthCheckResponse response;
  request.set_service(service);
  grpc::ClientContext context;
  Prepare(context, options_.unary_timeout);
  const grpc::Status status = stub->Check(&context, request, &response);
  *serving_status = grpc::health::v1::HealthCheckResponse_ServingStatus_Name(response.status());
  return status;
}

grpc::Status Client::Prefill(const v1::PrefillRequest& request, const OnMessage<v1::PrefillResponse>& on_message,
                             Cancellation* cancellation) {
  return Stream([&](grpc::ClientContext* context) { return inference_->Prefill(context, request); }, on_message,
                cancellation);
}

grpc::Status Client::Decode(const v1::DecodeRequest& request, const OnMessage<v1::DecodeResponse>& on_message,
                            Cancellation* cancellation) {
  return Stream([&](grpc::ClientContext* context) { return inference_->Decode(context, request); }, on_message,
                cancellation);
}

grpc::Status Client::Generate(const v1::GenerateRequest& request, const OnMessage<v1::GenerateResponse>& on_message,
                              Cancellation* cancellation) {
  return Stream([&](grpc::ClientContext* context) { return inference_->Generate(context, request); }, on_message,
                cancellation);
}

grpc::Status Client::WatchEvictions(const v1::WatchEvictionsRequest& request,
                                    const OnMessage<v1::WatchEvictionsResponse>& on_message,
                                    Cancellation* cancellation) {
  return Stream([&](grpc::ClientContext* context) { return eviction_->WatchEvictions(context, request); }, on_message,
                cancellation);
}

}  // namespace ebb::client
