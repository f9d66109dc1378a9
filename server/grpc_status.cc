#include "server/grpc_status.h"

#include <string>
#include <string_view>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "policies/status.h"
#include "server/bounded_text.h"

namespace ebb {
namespace {

constexpr char kDomain[] = "ebb";
// Together at most 8 KiB in the trailers, the message percent-encoded (x3), the details in base64 (x4/3).
constexpr size_t kStatusBytesMax = 800;
constexpr size_t kTextBytesMax = 200;
constexpr size_t kDetailKeyBytesMax = 64;
constexpr int kMetadataMax = 8;

std::string Short(std::string_view text) { return BoundedText(text, kTextBytesMax); }

void PackInfo(const Refusal& refusal, absl::StatusCode code, const std::string& trace_id, google::rpc::Status& packed) {
  google::rpc::ErrorInfo info;
  info.set_domain(kDomain);
  info.set_reason(refusal.reason.empty() ? absl::StatusCodeToString(code) : Short(refusal.reason));
  if (!trace_id.empty()) (*info.mutable_metadata())["trace_id"] = Short(trace_id);
  for (const auto& [key, value] : refusal.metadata) {
    if (info.metadata_size() == kMetadataMax) break;
    (*info.mutable_metadata())[BoundedText(key, kDetailKeyBytesMax)] = Short(value);
  }
  packed.add_details()->PackFrom(info);
}

void PackField(const std::string& field, const std::string& message, google::rpc::Status& packed) {
  google::rpc::BadRequest request;
  auto* violation = request.add_field_violations();
  violation->set_field(Short(field));
  violation->set_description(Short(message));
  packed.add_details()->PackFrom(request);
}

void PackRetry(absl::Duration retry, google::rpc::Status& packed) {
  google::rpc::RetryInfo info;
  absl::Duration rest;
  info.mutable_retry_delay()->set_seconds(absl::IDivDuration(retry, absl::Seconds(1), &rest));
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  packed.add_details()->PackFrom(info);
}

void PackQuota(const std::string& subject, const std::string& message, google::rpc::Status& packed) {
  google::rpc::QuotaFailure failure;
  auto* violation = failure.add_violations();
  violation->set_subject(Short(subject));
  violation->set_description(Short(message));
  packed.add_details()->PackFrom(failure);
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status, const std::string& trace_id) {
  if (status.ok()) return grpc::Status::OK;
  const Refusal refusal = GetRefusal(status);
  const absl::string_view text = status.message();
  const std::string message = BoundedText({text.data(), text.size()}, kStatusBytesMax);
  google::rpc::Status packed;
  packed.set_code(static_cast<int>(status.code()));
  packed.set_message(message);
  PackInfo(refusal, status.code(), trace_id, packed);
  if (!refusal.field.empty()) PackField(refusal.field, message, packed);
  if (refusal.retry) PackRetry(*refusal.retry, packed);
  if (!refusal.quota.empty()) PackQuota(refusal.quota, message, packed);
  return {static_cast<grpc::StatusCode>(status.code()), message, packed.SerializeAsString()};
}

}  // namespace ebb
