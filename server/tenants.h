// What each tenant may have, and what it has in use.
//
// TenantTable is the configuration of one moment, for any thread; CurrentTenants hands out the one in force. TenantBook
// keeps the use: the worker's thread alone. A quota binds what is new: one that is made smaller takes nothing away from
// who has more, and lets nothing in until it fits.

#ifndef EBB_SERVER_TENANTS_H_
#define EBB_SERVER_TENANTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "policies/spec.h"
#include "server/metrics.h"
#include "server/quota.h"
#include "server/tiered_queue.h"
#include "server/token_bucket.h"

namespace ebb {

// What a tenant may have; configuration. Of the quotas, 0 is no limit of its own.
struct TenantLimits {
  int32_t weight = 1;
  Tier tier = Tier::kNormal;
  int64_t sessions_max = 0;
  int64_t watchers_max = 16;
  int64_t forks_max = 0;
  int64_t calls_max = 0;
  int64_t cache_bytes_max = 0;  // what its sessions reserve; what branches share counts for each
  int64_t tokens_per_minute = 0;
  int64_t snapshot_bytes_max = 0;
  std::string policy = {};                       // a PolicySpec as JSON; empty: none
  std::optional<ValidSpec> default_policy = {};  // that, for the model that is served

  int64_t limit(Quota quota) const;
  void set_limit(Quota quota, int64_t limit);
  // What is as `before` has it becomes as `after` has it.
  void Follow(const TenantLimits& before, const TenantLimits& after);
};

// Whether they let a tenant have the same. Of the policies, the text counts.
bool SameLimits(const TenantLimits& a, const TenantLimits& b);

// high, normal or low, as `tenants.NAME.priority` has them. REQUIRES: one of these.
Tier TierOf(std::string_view word);

// A tenant as it stands: what it may have, and what it has, by Quota.
struct TenantView {
  std::string name = {};
  TenantLimits limits = {};
  std::array<int64_t, kQuotas.size()> used = {};
};

using ListedTenants = std::map<std::string, TenantLimits, std::less<>>;

struct TenantTable {
  ListedTenants listed = {};
  TenantLimits unlisted = {};  // each tenant that is not listed
};

// Valid as long as the table is.
const TenantLimits& LimitsOf(const TenantTable& table, std::string_view tenant);

// The table in force. Any thread.
class CurrentTenants {
 public:
  explicit CurrentTenants(TenantTable table) : table_(std::make_shared<const TenantTable>(std::move(table))) {}

  std::shared_ptr<const TenantTable> get() const {
    const std::lock_guard lock(mutex_);
    return table_;
  }
  void set(std::shared_ptr<const TenantTable> table) {
    const std::lock_guard lock(mutex_);
    table_ = std::move(table);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const TenantTable> table_ ABSL_GUARDED_BY(mutex_);
};

// What tenants have in use, of all models that a server has. Any thread.
class TenantUses {
 public:
  struct Use {
    mutable std::mutex mutex = {};
    std::array<int64_t, kQuotas.size()> used ABSL_GUARDED_BY(mutex) = {};
    TokenBucket tokens ABSL_GUARDED_BY(mutex) = {};
  };

  // Forgotten when nobody has it any more.
  std::shared_ptr<Use> Of(const std::string& tenant);

  // What the tenant's snapshots have together, as the store that keeps them says; `metrics`, its own, show it.
  void SetSnapshots(const std::string& tenant, int64_t bytes, const TenantMetrics& metrics);

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<Use>> uses_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Use>> with_snapshots_ ABSL_GUARDED_BY(mutex_);  // who has any
  size_t forget_at_ ABSL_GUARDED_BY(mutex_) = 64;
};

// One tenant's use of its quotas at one model. What is checked is its use of all of them together. Two models whose
// workers let something in at the same instant may both find room for it.
class TenantAccount {
 public:
  TenantAccount(std::string name, TenantId id, const TenantMetrics& metrics, std::shared_ptr<TenantUses::Use> use)
      : name_(std::move(name)), id_(id), metrics_(metrics), use_(std::move(use)) {}
  ~TenantAccount();  // gives back what it counted
  TenantAccount(const TenantAccount&) = delete;
  TenantAccount& operator=(const TenantAccount&) = delete;

  const std::string& name() const { return name_; }
  TenantId id() const { return id_; }  // the scheduler's number for it
  const TenantLimits& limits() const { return limits_; }
  const TenantMetrics& metrics() const { return metrics_; }

  // OK, or RESOURCE_EXHAUSTED where `more` of it do not fit. REQUIRES: one that is counted, which tokens and snapshots
  // are not.
  absl::Status Check(Quota quota, int64_t more) const;
  // What has come, or gone (negative).
  void Count(Quota quota, int64_t more);
  int64_t used(Quota quota) const;  // of all models

  // OK as long as one token is left of the minute; else RESOURCE_EXHAUSTED TENANT_TOKENS with RetryInfo.
  absl::Status CheckTokens(absl::Time now) const;
  void TakeTokens(int64_t tokens, absl::Time now);

  int64_t tokens_taken(absl::Time now) const;  // of this minute's

  void SetLimits(const TenantLimits& limits, absl::Time now);
  // Nothing of this model is in use, and nothing is owed.
  bool idle(absl::Time now) const;

 private:
  const std::string name_;
  const TenantId id_;
  const TenantMetrics& metrics_;
  const std::shared_ptr<TenantUses::Use> use_;
  TenantLimits limits_ = {};
  std::array<int64_t, kQuotas.size()> own_ = {};  // part of use_->used
};

class TenantBook {
 public:
  // `metrics` outlives this. `uses`: of all models; null: there are no others.
  TenantBook(const std::shared_ptr<const TenantTable>& table, absl::Time now, Metrics& metrics,
             std::shared_ptr<TenantUses> uses = nullptr);

  // The tenant's account. Valid as long as something counts in it, else until the next that is asked for: those of
  // tenants that are not configured and have nothing are forgotten when there are many.
  TenantAccount& Of(const std::string& tenant, absl::Time now);

  size_t size() const { return accounts_.size(); }

  // By name, at most `count` behind `after`: those of the table, and those that have something.
  std::vector<TenantView> List(std::string_view after, size_t count, absl::Time now) const;

  // From now on. Calls `changed` for each tenant that there is.
  void SetTable(std::shared_ptr<const TenantTable> table, absl::Time now,
                const std::function<void(const TenantAccount&)>& changed);

 private:
  void ForgetIdle(absl::Time now);

  std::shared_ptr<const TenantTable> table_;
  Metrics& metrics_;
  const std::shared_ptr<TenantUses> uses_;
  std::map<std::string, TenantAccount, std::less<>> accounts_;
  size_t forget_at_ = 64;  // accounts
  TenantId made_ = 0;
};

}  // namespace ebb

#endif  // EBB_SERVER_TENANTS_H_
