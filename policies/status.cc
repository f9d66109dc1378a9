#include "policies/status.h"

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "policies/check.h"

namespace ebb {
namespace {

constexpr char kPrefix[] = "ebb/";
constexpr char kMetadata[] = "ebb/metadata/";

void Attach(absl::Status& status, const std::string& key, const std::string& value) {
  status.SetPayload(key, absl::Cord(value));
}

std::string Read(const absl::Status& status, const std::string& key) {
  const auto payload = status.GetPayload(key);
  return payload ? std::string(*payload) : std::string();
}

}  // namespace

absl::Status Refuse(absl::StatusCode code, const std::string& message, const Refusal& refusal) {
  EBB_CHECK(code != absl::StatusCode::kOk);
  EBB_CHECK(!refusal.reason.empty());
  absl::Status status(code, message);
  const std::string prefix = kPrefix;
  Attach(status, prefix + "reason", refusal.reason);
  if (!refusal.field.empty()) Attach(status, prefix + "field", refusal.field);
  if (refusal.retry) Attach(status, prefix + "retry", absl::FormatDuration(*refusal.retry));
  if (!refusal.quota.empty()) Attach(status, prefix + "quota", refusal.quota);
  for (const auto& [key, value] : refusal.metadata) Attach(status, kMetadata + key, value);
  return status;
}

absl::Status RefuseField(const std::string& reason, const std::string& field, const std::string& what) {
  return Refuse(absl::StatusCode::kInvalidArgument, absl::StrFormat("%s: %s", field, what),
                {.reason = reason, .field = field});
}

Refusal GetRefusal(const absl::Status& status) {
  const std::string prefix = kPrefix;
  Refusal refusal = {.reason = Read(status, prefix + "reason"),
                     .field = Read(status, prefix + "field"),
                     .quota = Read(status, prefix + "quota")};
  absl::Duration retry;
  if (const std::string text = Read(status, prefix + "retry"); !text.empty() && absl::ParseDuration(text, &retry)) {
    refusal.retry = retry;
  }
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& value) {
    if (absl::ConsumePrefix(&url, kMetadata)) refusal.metadata[std::string(url)] = std::string(value);
  });
  return refusal;
}

absl::Status AtField(const std::string& prefix, const absl::Status& status) {
  if (status.ok()) return status;
  Refusal refusal = GetRefusal(status);
  if (refusal.field.empty()) return status;
  const std::string message(absl::StripPrefix(status.message(), refusal.field));
  refusal.field = prefix + "." + refusal.field;
  return Refuse(status.code(), refusal.field + message, refusal);
}

}  // namespace ebb
