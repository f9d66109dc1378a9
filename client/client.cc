#include "client/client.h"

#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/error.h"
#include "client/progress.h"
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

// The session that a request is about; empty: none, or one that it opens.
template <typename Request>
std::string SessionOf(const Request& request) {
  std::string name;
  if constexpr (requires { request.session(); }) {
    name = request.session();
  } else if constexpr (requires { std::string(request.name()); }) {
    name = request.name();
  }
  return name.starts_with("sessions/") ? name : std::string();
}

bool IsCancelledAfter(absl::Duration wait, const Cancellation* cancellation) {
  if (cancellation != nullptr) return cancellation->WaitFor(wait);
  std::this_thread::sleep_for(absl::ToChronoNanoseconds(wait));
  return false;
}

// Of a call that waited for its next try.
grpc::Status Cancelled(const grpc::Status& last) {
  return {grpc::StatusCode::CANCELLED, "cancelled before another try; the last ended with " + Describe(last)};
}

// Whether what has come of its stream tells what is missing.
template <typename Request>
bool IsResumable(const Request& request) {
  if (SessionOf(request).empty()) return false;
  if constexpr (requires { request.resume_from(); }) return !request.has_resume_from();
  if constexpr (requires { request.n(); }) return request.n() <= 1;
  return true;
}

template <typename Message>
absl::StatusOr<bool> TakeOf(Progress& progress, Message& message) {
  if constexpr (std::is_same_v<Message, v1::GenerateResponse>) {
    if (message.has_prefill()) return progress.Take(*message.mutable_prefill());
    return progress.Take(*message.mutable_decode());
  } else {
    return progress.Take(message);
  }
}

// Takes what Decode sends in the place of the call that was made.
template <typename Message>
std::function<bool(v1::DecodeResponse&)> Decoding(const std::function<bool(Message&)>& take) {
  if constexpr (std::is_same_v<Message, v1::DecodeResponse>) return take;
  if constexpr (std::is_same_v<Message, v1::GenerateResponse>) {
    return [&take](v1::DecodeResponse& message) {
      v1::GenerateResponse wrapped;
      *wrapped.mutable_decode() = std::move(message);
      return take(wrapped);
    };
  }
  return {};  // no prompt alone ends in an answer
}

// The request, tied to the session as it stands.
template <typename Request>
Request Tied(Request request, const NextStream& next) {
  request.set_expected_generation(next.expected_generation);
  if constexpr (requires { request.prompt(); }) {
    if (next.prompt_skip == 0) return request;
    auto* const ids = request.mutable_prompt()->mutable_tokens()->mutable_ids();
    ids->erase(ids->begin(), ids->begin() + static_cast<ptrdiff_t>(next.prompt_skip));
  }
  return request;
}

template <typename Request>
v1::DecodeRequest RestOf(const Request& request, const NextStream& next) {
  v1::DecodeRequest rest;
  rest.set_session(request.session());
  rest.set_resume_from(*next.resume_from);
  rest.set_expected_generation(next.expected_generation);
  if constexpr (requires { request.stopping(); }) {
    if (request.has_sampling()) *rest.mutable_sampling() = request.sampling();
    if (request.has_stopping()) *rest.mutable_stopping() = request.stopping();
    if (request.has_speculation()) *rest.mutable_speculation() = request.speculation();
  }
  return rest;
}

template <typename Message>
grpc::Status GiveLastBlock(const Progress& progress, const std::function<void(const Message&)>& on_message) {
  if constexpr (std::is_same_v<Message, v1::PrefillResponse>) on_message(*progress.last_block());
  return grpc::Status::OK;
}

grpc::Status NotResumable(const absl::Status& why, const grpc::Status& broken) {
  return {grpc::StatusCode::ABORTED,
          absl::StrFormat("%s (the stream broke with %s)", std::string(why.message()), Describe(broken))};
}

// Of a call that failed so: whether it changed nothing.
bool IsUndone(const grpc::Status& status) { return !ReadDetails(status).reason.empty() || !WasSent(status); }

// Refusals that say to go on, or to look again: a broken stream's call may not be over yet, and another caller may have
// come between a look at the session and the call that is tied to it.
bool MayPass(const std::string& reason, bool broken, bool tied_by_caller) {
  if (reason == "GENERATION_MISMATCH") return broken || !tied_by_caller;
  return reason == "SLOW_READER" || (reason == "SESSION_BUSY" && broken);
}

}  // namespace

void Cancellation::Cancel() {
  const std::lock_guard<std::mutex> lock(mutex_);
  cancelled_ = true;
  changed_.notify_all();
  if (context_ != nullptr) context_->TryCancel();
}

bool Cancellation::cancelled() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return cancelled_;
}

bool Cancellation::WaitFor(absl::Duration duration) const {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, absl::ToChronoNanoseconds(duration), [this] { return cancelled_; });
}

void Cancellation::Attach(grpc::ClientContext* context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  context_ = context;
  if (context_ != nullptr && cancelled_) context_->TryCancel();
}

Client::Client(const ClientOptions& options)
    : options_(options),
      servers_(options.credentials.channel, options.keepalive),
      homes_(options.address, options.follow) {}

bool Client::WaitUntilConnected(absl::Duration timeout) {
  return servers_.At(options_.address).channel->WaitForConnected(absl::ToChronoTime(absl::Now() + timeout));
}

void Client::Prepare(grpc::ClientContext& context, absl::Duration timeout) const {
  if (!options_.tenant.empty()) context.AddMetadata("x-ebb-tenant", options_.tenant);
  if (!options_.credentials.token.empty()) {
    context.AddMetadata("authorization", "Bearer " + options_.credentials.token);
  }
  if (timeout != absl::InfiniteDuration()) context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
}

Client::Tried Client::Heed(const std::string& session, const std::string& address, const grpc::Status& status) {
  if (status.ok() || !ReadDetails(status).reason.empty()) heard_ = true;
  if (!status.ok()) return {.status = status, .at_once = homes_.Heed(session, address, status)};
  homes_.Heard(address);
  return {};
}

std::optional<absl::Duration> Client::DelayAfter(Tries& tries, const RetryPolicy& policy,
                                                 const grpc::Status& status) const {
  return tries.Delay(policy, status, heard_, Tries::Clock::now());
}

bool Client::Wait(absl::Duration delay, const grpc::Status& status, Cancellation* cancellation) {
  thread_local std::minstd_rand random{std::random_device()()};
  if (IsAway(status)) delay = Spread(delay, std::uniform_real_distribution<double>()(random));
  return IsCancelledAfter(delay, cancellation);
}

template <typename Request, typename Response, typename Stub>
Client::Tried Client::TryUnary(UnaryMethod<Request, Response, Stub> method, const Request& request, Response* response,
                               Cancellation* cancellation) {
  const std::string session = SessionOf(request), address = homes_.Of(session);
  grpc::ClientContext context;
  Prepare(context, options_.unary_timeout);
  if (cancellation != nullptr) cancellation->Attach(&context);
  const grpc::Status status = (servers_.At(address).Get<Stub>().*method)(&context, request, response);
  if (cancellation != nullptr) cancellation->Attach(nullptr);
  const bool ended_here = cancellation != nullptr && cancellation->cancelled();
  return Heed(session, address, ended_here ? status : WhatCameOf(status));
}

template <typename Request, typename Message, typename Stub>
Client::Tried Client::TryStream(StreamMethod<Request, Message, Stub> method, const Request& request,
                                const std::function<bool(Message&)>& take, Cancellation* cancellation) {
  const std::string session = SessionOf(request), address = homes_.Of(session);
  grpc::ClientContext context;
  Prepare(context, options_.stream_timeout);
  if (cancellation != nullptr) cancellation->Attach(&context);
  const auto reader = (servers_.At(address).Get<Stub>().*method)(&context, request);
  Message message;
  bool goes_on = true;
  while (reader->Read(&message)) {
    heard_ = true;
    if (!goes_on) continue;  // what was on its way
    goes_on = take(message);
    if (!goes_on) context.TryCancel();
  }
  const grpc::Status status = reader->Finish();
  if (cancellation != nullptr) cancellation->Attach(nullptr);
  const bool ended_here = !goes_on || (cancellation != nullptr && cancellation->cancelled());
  return Heed(session, address, ended_here ? status : WhatCameOf(status));
}

template <typename Request, typename Response, typename Stub>
grpc::Status Client::Unary(UnaryMethod<Request, Response, Stub> method, const Request& request, Response* response,
                           Repeat repeat) {
  for (Tries tries;;) {
    const Tried tried = TryUnary(method, request, response, nullptr);
    if (tried.status.ok()) return tried.status;
    if (repeat == Repeat::kAfterRefusal && !IsUndone(tried.status)) return tried.status;
    const auto delay = DelayAfter(tries, options_.retry, tried.status);
    if (!delay) return tried.status;
    if (tried.at_once) continue;
    if (options_.on_wait) options_.on_wait(tried.status, *delay);
    Wait(*delay, tried.status, nullptr);
  }
}

template <typename Request, typename Message, typename Stub>
grpc::Status Client::Stream(StreamMethod<Request, Message, Stub> method, const Request& request,
                            const OnMessage<Message>& on_message, Cancellation* cancellation) {
  for (Tries tries;;) {
    bool came = false;
    const auto take = [&](Message& message) {
      came = true;
      on_message(message);
      return true;
    };
    const Tried tried = TryStream<Request, Message, Stub>(method, request, take, cancellation);
    const bool moved = !options_.follow.nobody() && ReadDetails(tried.status).reason == "SESSION_MOVED";
    const bool away = IsAway(tried.status) && IsUndone(tried.status);
    const auto delay = !came && (moved || away) ? DelayAfter(tries, options_.retry, tried.status) : std::nullopt;
    if (!delay) return tried.status;
    if (away && options_.on_wait) options_.on_wait(tried.status, *delay);
    if (Wait(tried.at_once ? absl::ZeroDuration() : *delay, tried.status, cancellation)) return Cancelled(tried.status);
  }
}

template <typename Request, typename Message>
grpc::Status Client::Resuming(StreamMethod<Request, Message, v1::InferenceService::Stub> method, const Request& request,
                              const OnMessage<Message>& on_message, Cancellation* cancellation) {
  if (!options_.resume || !IsResumable(request)) return Stream(method, request, on_message, cancellation);
  v1::GetSessionRequest look;
  look.set_name(request.session());
  Progress progress(Asked::For(request));
  std::optional<grpc::Status> broken;  // how the last stream ended that may have changed the session
  absl::Status wrong;                  // why the answer cannot go on
  bool begun = false;                  // a message has come
  Tries tries;
  const std::function<bool(Message&)> take = [&](Message& message) {
    begun = true;
    const auto is_new = TakeOf(progress, message);
    if (!is_new.ok()) wrong = is_new.status();
    if (!is_new.ok() || !*is_new) return is_new.ok();
    tries = Tries();
    on_message(message);
    return true;
  };
  while (true) {
    v1::Session now;
    Tried tried = TryUnary(&v1::SessionService::Stub::GetSession, look, &now, cancellation);
    const bool looked = tried.status.ok();
    const bool busy = looked && broken && now.state() == v1::SESSION_STATE_BUSY;
    if (busy) tried = {.status = {grpc::StatusCode::ABORTED, now.name() + " is written to by another call"}};
    if (looked && !busy) {
      const absl::StatusOr<std::optional<NextStream>> next = broken ? progress.AfterBreak(now) : progress.Begin(now);
      if (!next.ok()) return NotResumable(next.status(), *broken);
      if (!*next) return GiveLastBlock(progress, on_message);
      tried = (*next)->resume_from ? TryStream(&v1::InferenceService::Stub::Decode, RestOf(request, **next),
                                               Decoding(take), cancellation)
                                   : TryStream(method, Tied(request, **next), take, cancellation);
      if (!wrong.ok()) return NotResumable(wrong, *broken);
      if (tried.status.ok()) return tried.status;
    }
    const std::string reason = ReadDetails(tried.status).reason;
    const RetryPolicy& policy = begun ? *options_.resume : options_.retry;
    auto delay = DelayAfter(tries, policy, tried.status);
    if (!delay && (busy || MayPass(reason, broken.has_value(), request.has_expected_generation()))) {
      delay = Backoff(policy, tries.attempt());
    }
    // These two only answer a call that has done nothing.
    if (looked && !busy && reason != "GENERATION_MISMATCH" && reason != "SESSION_BUSY") broken = tried.status;
    if (!delay) return tried.status;
    if (progress.is_whole()) return grpc::Status::OK;
    if (Wait(tried.at_once ? absl::ZeroDuration() : *delay, tried.status, cancellation)) return Cancelled(tried.status);
  }
}

grpc::Status Client::CreateSession(const v1::CreateSessionRequest& request, v1::Session* session) {
  return Unary(&v1::SessionService::Stub::CreateSession, Idempotent(request), session);
}

grpc::Status Client::ForkSession(const v1::ForkSessionRequest& request, v1::Session* branch) {
  return Unary(&v1::SessionService::Stub::ForkSession, Idempotent(request), branch);
}

grpc::Status Client::GetSession(const std::string& name, v1::Session* session) {
  v1::GetSessionRequest request;
  request.set_name(name);
  return Unary(&v1::SessionService::Stub::GetSession, request, session);
}

grpc::Status Client::ListSessions(const v1::ListSessionsRequest& request, v1::ListSessionsResponse* response) {
  return Unary(&v1::SessionService::Stub::ListSessions, request, response);
}

grpc::Status Client::DeleteSession(const std::string& name, v1::DeleteSessionResponse* response) {
  v1::DeleteSessionRequest request;
  request.set_name(name);
  return Unary(&v1::SessionService::Stub::DeleteSession, request, response);
}

grpc::Status Client::Edit(const v1::EditRequest& request, v1::EditResponse* response) {
  return Unary(&v1::InferenceService::Stub::Edit, request, response, Repeat::kAfterRefusal);
}

grpc::Status Client::SaveSession(const v1::SaveSessionRequest& request, v1::SaveSessionResponse* response) {
  return Unary(&v1::SessionService::Stub::SaveSession, request, response);
}

grpc::Status Client::RestoreSession(const v1::RestoreSessionRequest& request, v1::Session* session) {
  return Unary(&v1::SessionService::Stub::RestoreSession, Idempotent(request), session);
}

grpc::Status Client::ListSnapshots(const v1::ListSnapshotsRequest& request, v1::ListSnapshotsResponse* response) {
  return Unary(&v1::SessionService::Stub::ListSnapshots, request, response);
}

grpc::Status Client::DeleteSnapshot(const std::string& name, v1::DeleteSnapshotResponse* response) {
  v1::DeleteSnapshotRequest request;
  request.set_name(name);
  return Unary(&v1::SessionService::Stub::DeleteSnapshot, request, response);
}

grpc::Status Client::Score(const v1::ScoreRequest& request, v1::ScoreResponse* response) {
  return Unary(&v1::InferenceService::Stub::Score, request, response);
}

grpc::Status Client::Tokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse* response) {
  return Unary(&v1::InferenceService::Stub::Tokenize, request, response);
}

grpc::Status Client::ReportOutcome(const v1::ReportOutcomeRequest& request, v1::ReportOutcomeResponse* response) {
  return Unary(&v1::InferenceService::Stub::ReportOutcome, Idempotent(request), response);
}

grpc::Status Client::ListTenants(const v1::ListTenantsRequest& request, v1::ListTenantsResponse* response) {
  return Unary(&v1::AdminService::Stub::ListTenants, request, response);
}

grpc::Status Client::SetTenant(const v1::SetTenantRequest& request, v1::Tenant* tenant) {
  return Unary(&v1::AdminService::Stub::SetTenant, request, tenant);
}

grpc::Status Client::StartExperiment(const v1::StartExperimentRequest& request, v1::Experiment* experiment) {
  return Unary(&v1::AdminService::Stub::StartExperiment, request, experiment);
}

grpc::Status Client::StopExperiment(const std::string& name, v1::Experiment* experiment) {
  v1::StopExperimentRequest request;
  request.set_name(name);
  return Unary(&v1::AdminService::Stub::StopExperiment, request, experiment);
}

grpc::Status Client::RampExperiment(const std::string& name, double ramp, v1::Experiment* experiment) {
  v1::RampExperimentRequest request;
  request.set_name(name);
  request.set_ramp(ramp);
  return Unary(&v1::AdminService::Stub::RampExperiment, request, experiment);
}

grpc::Status Client::GetExperiment(const std::string& name, v1::Experiment* experiment) {
  v1::GetExperimentRequest request;
  request.set_name(name);
  return Unary(&v1::AdminService::Stub::GetExperiment, request, experiment);
}

grpc::Status Client::ListExperiments(v1::ListExperimentsResponse* response) {
  return Unary(&v1::AdminService::Stub::ListExperiments, v1::ListExperimentsRequest(), response);
}

grpc::Status Client::Detokenize(const v1::DetokenizeRequest& request, v1::DetokenizeResponse* response) {
  return Unary(&v1::InferenceService::Stub::Detokenize, request, response);
}

grpc::Status Client::SetPolicy(const v1::SetPolicyRequest& request, v1::SetPolicyResponse* response) {
  return Unary(&v1::EvictionService::Stub::SetPolicy, request, response);
}

grpc::Status Client::Evict(const v1::EvictRequest& request, v1::EvictResponse* response) {
  return Unary(&v1::EvictionService::Stub::Evict, request, response, Repeat::kAfterRefusal);
}

grpc::Status Client::DescribeCache(const v1::DescribeCacheRequest& request, v1::DescribeCacheResponse* response) {
  return Unary(&v1::EvictionService::Stub::DescribeCache, request, response);
}

grpc::Status Client::GetStatus(v1::GetStatusResponse* response) {
  return Unary(&v1::AdminService::Stub::GetStatus, v1::GetStatusRequest(), response);
}

grpc::Status Client::ReloadConfig(v1::ReloadConfigResponse* response) {
  return Unary(&v1::AdminService::Stub::ReloadConfig, v1::ReloadConfigRequest(), response);
}

grpc::Status Client::ListModels(v1::ListModelsResponse* response) {
  return Unary(&v1::AdminService::Stub::ListModels, v1::ListModelsRequest(), response);
}

grpc::Status Client::ListPolicies(const v1::ListPoliciesRequest& request, v1::ListPoliciesResponse* response) {
  return Unary(&v1::AdminService::Stub::ListPolicies, request, response);
}

grpc::Status Client::CheckHealth(const std::string& service, std::string* serving_status) {
  const auto stub = grpc::health::v1::Health::NewStub(servers_.At(options_.address).channel);
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
  return Resuming(&v1::InferenceService::Stub::Prefill, request, on_message, cancellation);
}

grpc::Status Client::Decode(const v1::DecodeRequest& request, const OnMessage<v1::DecodeResponse>& on_message,
                            Cancellation* cancellation) {
  return Resuming(&v1::InferenceService::Stub::Decode, request, on_message, cancellation);
}

grpc::Status Client::Generate(const v1::GenerateRequest& request, const OnMessage<v1::GenerateResponse>& on_message,
                              Cancellation* cancellation) {
  return Resuming(&v1::InferenceService::Stub::Generate, request, on_message, cancellation);
}

grpc::Status Client::WatchEvictions(const v1::WatchEvictionsRequest& request,
                                    const OnMessage<v1::WatchEvictionsResponse>& on_message,
                                    Cancellation* cancellation) {
  return Stream(&v1::EvictionService::Stub::WatchEvictions, request, on_message, cancellation);
}

grpc::Status Client::ExportExperiment(const std::string& name, const OnMessage<v1::ExperimentPart>& on_message,
                                      Cancellation* cancellation) {
  v1::ExportExperimentRequest request;
  request.set_name(name);
  return Stream(&v1::AdminService::Stub::ExportExperiment, request, on_message, cancellation);
}

}  // namespace ebb::client
