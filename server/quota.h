// The quotas that a tenant may have: one table of what each counts, which key sets it, and what is said when it is used
// up. Where each is charged: server/tenants.h has what is in use; of snapshots it is what their store says and checks.

#ifndef EBB_SERVER_QUOTA_H_
#define EBB_SERVER_QUOTA_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ebb {

enum class Quota { kSessions, kForks, kCalls, kCacheBytes, kWatchers, kTokens, kSnapshotBytes };

struct QuotaRow {
  Quota quota = Quota::kSessions;
  std::string_view label = {};  // in metrics
  std::string_view key = {};    // of tenants.NAME
  std::string_view counts = {};
};

inline constexpr std::array kQuotas = {
    QuotaRow{Quota::kSessions, "sessions", "sessions_max", "open sessions"},
    QuotaRow{Quota::kForks, "forks", "forks_max", "open branches"},
    QuotaRow{Quota::kCalls, "calls", "calls_max", "calls that run or wait"},
    QuotaRow{Quota::kCacheBytes, "cache_bytes", "cache_max", "bytes of cache reserved"},
    QuotaRow{Quota::kWatchers, "watchers", "watchers_max", "WatchEvictions calls"},
    QuotaRow{Quota::kTokens, "tokens_per_minute", "tokens_per_minute", "tokens of this minute taken"},
    QuotaRow{Quota::kSnapshotBytes, "snapshot_bytes", "snapshot_size_max", "bytes of snapshots kept"},
};

constexpr const QuotaRow& RowOf(Quota quota) { return kQuotas[static_cast<size_t>(quota)]; }

// What a tenant has of a quota, and what it asks for beyond that.
struct QuotaUse {
  int64_t used = 0;
  int64_t wanted = 1;
  int64_t limit = 0;                         // 0: none
  std::optional<absl::Duration> retry = {};  // where waiting alone helps

  bool fits() const { return limit == 0 || used + wanted <= limit; }
};

// RESOURCE_EXHAUSTED with a reason for each quota, the tenant as quota's subject, and in the metadata `quota` (the
// key), `used`, `wanted` and `limit`.
absl::Status OverQuota(Quota quota, const std::string& tenant, const QuotaUse& use);

}  // namespace ebb

#endif  // EBB_SERVER_QUOTA_H_
