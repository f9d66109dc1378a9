#include "server/quota.h"

#include <map>

#include "absl/strings/str_format.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr bool IsInOrder() {
  for (size_t i = 0; i < kQuotas.size(); ++i) {
    if (static_cast<size_t>(kQuotas[i].quota) != i) return false;
  }
  return true;
}
static_assert(IsInOrder(), "RowOf looks rows up by their place");

}  // namespace

absl::Status OverQuota(Quota quota, const std::string& tenant, const QuotaUse& use) {
  const QuotaRow& row = RowOf(quota);
  const auto text = [](int64_t number) { return absl::StrFormat("%d", number); };
  const std::string key = absl::StrFormat("tenants.%s.%s", tenant, row.key);
  std::string message = absl::StrFormat("tenant %s has %d %s; %d more is over its %s, %d", tenant, use.used, row.counts,
                                        use.wanted, key, use.limit);
  if (use.retry) message += absl::StrFormat("; there is room in %s", absl::FormatDuration(*use.retry));
  const std::string subject = "tenants/" + tenant;
  const std::map<std::string, std::string> numbers = {
      {"quota", key}, {"used", text(use.used)}, {"wanted", text(use.wanted)}, {"limit", text(use.limit)}};
  switch (quota) {
    case Quota::kSessions:
      return Refuse(absl::StatusCode::kResourceExhausted, message,
                    {.reason = "TENANT_SESSIONS", .retry = use.retry, .quota = subject, .metadata = numbers});
    case Quota::kForks:
      return Refuse(absl::StatusCode::kResourceExhausted, message,
                    {.reason = "TENANT_FORKS", .retry = use.retry, .quota = subject, .metadata = numbers});
    case Quota::kCalls:
      return Refuse(absl::StatusCode::kResourceExhausted, message,
                    {.reason = "TENANT_CALLS", .retry = use.retry, .quota = subject, .metadata = numbers});
    case Quota::kCacheBytes:
      return Refuse(absl::StatusCode::kResourceExhausted, message,
                    {.reason = "TENANT_CACHE", .retry = use.retry, .quota = subject, .metadata = numbers});
    case Quota::kWatchers:
      return Refuse(absl::StatusCode::kResourceExhausted, message,
                    {.reason = "TENANT_WATCHERS", .retry = use.retry, .quota = subject, .metadata = numbers});
    case Quota::kTokens:
      return Refuse(absl::StatusCode::kResourceExhausted, message,
                    {.reason = "TENANT_TOKENS", .retry = use.retry, .quota = subject, .metadata = numbers});
    case Quota::kSnapshotBytes:
      return Refuse(absl::StatusCode::kResourceExhausted, message,
                    {.reason = "TENANT_SNAPSHOT_BYTES", .retry = use.retry, .quota = subject, .metadata = numbers});
  }
  return absl::OkStatus();  // there is no other
}

}  // namespace ebb
