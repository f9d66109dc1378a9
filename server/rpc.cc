#include "server/rpc.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "policies/status.h"
#include "server/grpc_status.h"
#include "server/log.h"

namespace ebb {
namespace {

constexpr char kTraceKey[] = "traceparent";
constexpr std::string_view kSessions = "sessions/";

absl::StatusOr<std::string> TenantOfCaller(absl::StatusOr<Caller> caller) {
  if (!caller.ok()) return std::move(caller).status();
  return std::move(caller->tenant);
}

// Of the session that a refusal names: a call that is refused early has said nothing of it. Empty if there is none.
std::string HashOfSession(const Refusal& refusal) {
  const auto named = refusal.metadata.find("session");
  if (named == refusal.metadata.end() || !named->second.starts_with(kSessions)) return {};
  return HashForLog(std::string_view(named->second).substr(kSessions.size()));
}

// gRPC's deadline is a time of the machine's own clock; far-off ones mean that there is none.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context, absl::Time now) {
  const absl::Duration left = absl::FromChrono(context.deadline()) - absl::Now();
  return left > absl::Hours(24 * 365) ? absl::InfiniteFuture() : now + left;
}

}  // namespace

TenantLimits LimitsOf(const ServiceParts& parts, const std::string& tenant) {
  return LimitsOf(*parts.tenants->get(), tenant);
}

absl::Status CheckWaits(const grpc::CallbackServerContext& context) {
  if (!context.IsCancelled()) return absl::OkStatus();
  return Refuse(absl::StatusCode::kCancelled, "the caller cancelled, or its deadline passed, before it was done",
                {.reason = "CALL_CANCELLED"});
}

absl::Status CheckSize(const ServiceParts& parts, const google::protobuf::Message& request) {
  const auto bytes = static_cast<int64_t>(request.ByteSizeLong());
  if (bytes <= parts.request_bytes_max) return absl::OkStatus();
  return Refuse(
      absl::StatusCode::kResourceExhausted,
      absl::StrFormat("the request has %d bytes; server.message_size_max is %d", bytes, parts.request_bytes_max),
      {.reason = "REQUEST_TOO_LARGE"});
}

Rpc::Rpc(const ServiceParts& parts, std::string_view method, const grpc::CallbackServerContext& context)
    : parts_(parts),
      method_(method),
      tenant_(TenantOfCaller(parts.identity.Of(method, context))),
      trace_(ParseTraceparent(MetadataOf(context, kTraceKey))),
      received_(parts.clock.Now()),
      deadline_(DeadlineOf(context, received_)) {}

void Rpc::About(std::string_view session, std::string_view model) {
  if (!session.empty()) session_ = HashForLog(session);
  model_ = model;
}

void Rpc::Ran(const CallUsage& usage) {
  tokens_in_ += usage.prompt_tokens;
  tokens_out_ += usage.completion_tokens;
}

std::string Rpc::method_name() const { return std::string(method_.substr(method_.find('/') + 1)); }

absl::Status Rpc::SeekElsewhere(const absl::Status& status) const {
  if (parts_.takeover == nullptr || !absl::IsNotFound(status)) return status;
  const Refusal refusal = GetRefusal(status);
  if (refusal.reason != "UNKNOWN_SESSION") return status;
  return parts_.takeover->Seek({*tenant_, refusal.metadata.at("session").substr(kSessions.size())}, status);
}

grpc::Status Rpc::Finish(const absl::Status& found) {
  const absl::Status status = SeekElsewhere(found);
  const absl::Duration took = parts_.clock.Now() - received_;
  const std::string tenant = tenant_.ok() ? *tenant_ : "";
  parts_.metrics.CallEnded(parts_.metrics.method(method_), status, took, tenant);
  const std::string code = absl::StatusCodeToString(status.code());
  const Refusal refusal = GetRefusal(status);
  WriteLog(LevelOfCall(status), "rpc",
           {{"method", method_},
            {"tenant", tenant_.ok() ? tenant : TenantOf(refusal)},
            {"session", session_.empty() ? HashOfSession(refusal) : session_},
            {"model", model_},
            {"code", code},
            {"reason", refusal.reason},
            {"ms", took},
            {"tokens_in", tokens_in_},
            {"tokens_out", tokens_out_},
            {"trace_id", trace_.trace_id},
            {"span_id", trace_.span_id}},
           {});
  return ToGrpc(status, trace_.trace_id);
}

}  // namespace ebb
