#include "server/tenants.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "policies/check.h"

namespace ebb {

namespace {

// By Quota.
constexpr std::array<int64_t TenantLimits::*, kQuotas.size()> kLimits = {
    &TenantLimits::sessions_max,       &TenantLimits::forks_max,    &TenantLimits::calls_max,
    &TenantLimits::cache_bytes_max,    &TenantLimits::watchers_max, &TenantLimits::tokens_per_minute,
    &TenantLimits::snapshot_bytes_max,
};

}  // namespace

int64_t TenantLimits::limit(Quota quota) const { return this->*kLimits[static_cast<size_t>(quota)]; }

void TenantLimits::set_limit(Quota quota, int64_t limit) { this->*kLimits[static_cast<size_t>(quota)] = limit; }

void TenantLimits::Follow(const TenantLimits& before, const TenantLimits& after) {
  if (weight == before.weight) weight = after.weight;
  if (tier == before.tier) tier = after.tier;
  for (const auto limit : kLimits) {
    if (this->*limit == before.*limit) this->*limit = after.*limit;
  }
  if (policy != before.policy) return;
  policy = after.policy;
  default_policy = after.default_policy;
}

bool SameLimits(const TenantLimits& a, const TenantLimits& b) {
  return a.weight == b.weight && a.tier == b.tier && a.policy == b.policy &&
         std::ranges::all_of(kLimits, [&](auto limit) { return a.*limit == b.*limit; });
}

Tier TierOf(std::string_view word) {
  if (word == "high") return Tier::kHigh;
  if (word == "low") return Tier::kLow;
  EBB_CHECK(word == "normal");
  return Tier::kNormal;
}

const TenantLimits& LimitsOf(const TenantTable& table, std::string_view tenant) {
  const auto found = table.listed.find(tenant);
  return found == table.listed.end() ? table.unlisted : found->second;
}

std::shared_ptr<TenantUses::Use> TenantUses::Of(const std::string& tenant) {
  const std::lock_guard lock(mutex_);
  if (uses_.size() >= forget_at_) {
    std::erase_if(uses_, [](const auto& entry) { return entry.second.expired(); });
    forget_at_ = std::max<size_t>(64, 2 * uses_.size());
  }
  std::weak_ptr<Use>& known = uses_[tenant];
  std::shared_ptr<Use> use = known.lock();
  if (use == nullptr) known = use = std::make_shared<Use>();
  return use;
}

void TenantUses::SetSnapshots(const std::string& tenant, int64_t bytes, const TenantMetrics& metrics) {
  constexpr auto kAt = static_cast<size_t>(Quota::kSnapshotBytes);
  const std::shared_ptr<Use> use = Of(tenant);
  {
    const std::lock_guard lock(use->mutex);
    const int64_t before = std::exchange(use->used[kAt], bytes);
    metrics.quota_used[kAt]->Add(static_cast<double>(bytes - before));  // `other` is of several
  }
  const std::lock_guard lock(mutex_);
  if (bytes > 0) {
    with_snapshots_[tenant] = use;
  } else {
    with_snapshots_.erase(tenant);
  }
}

TenantAccount::~TenantAccount() {
  const std::lock_guard lock(use_->mutex);
  for (size_t i = 0; i < own_.size(); ++i) use_->used[i] -= own_[i];
}

int64_t TenantAccount::used(Quota quota) const {
  const std::lock_guard lock(use_->mutex);
  return use_->used[static_cast<size_t>(quota)];
}

absl::Status TenantAccount::Check(Quota quota, int64_t more) const {
  const QuotaUse use = {.used = used(quota), .wanted = more, .limit = limits_.limit(quota)};
  return use.fits() ? absl::OkStatus() : OverQuota(quota, name_, use);
}

void TenantAccount::Count(Quota quota, int64_t more) {
  const auto at = static_cast<size_t>(quota);
  own_[at] += more;
  EBB_CHECK(own_[at] >= 0);
  metrics_.quota_used[at]->Add(static_cast<double>(more));
  const std::lock_guard lock(use_->mutex);
  use_->used[at] += more;
}

void TenantAccount::TakeTokens(int64_t tokens, absl::Time now) {
  const std::lock_guard lock(use_->mutex);
  use_->tokens.Take(tokens, now);
}

int64_t TenantAccount::tokens_taken(absl::Time now) const {
  const std::lock_guard lock(use_->mutex);
  return use_->tokens.Taken(now);
}

absl::Status TenantAccount::CheckTokens(absl::Time now) const {
  const std::lock_guard lock(use_->mutex);
  const absl::Duration wait = use_->tokens.Wait(now);
  if (wait == absl::ZeroDuration()) return absl::OkStatus();
  return OverQuota(Quota::kTokens, name_,
                   {.used = use_->tokens.Taken(now),
                    .limit = use_->tokens.per_minute(),
                    .retry = absl::Ceil(wait, absl::Milliseconds(1))});
}

void TenantAccount::SetLimits(const TenantLimits& limits, absl::Time now) {
  limits_ = limits;
  {
    const std::lock_guard lock(use_->mutex);
    if (use_->tokens.per_minute() != limits.tokens_per_minute) use_->tokens.SetRate(limits.tokens_per_minute, now);
  }
  if (metrics_.is_shared) return;
  metrics_.weight.Set(limits.weight);
  for (const QuotaRow& row : kQuotas) {
    Gauge* const limit = metrics_.quota_limit[static_cast<size_t>(row.quota)];
    if (limit != nullptr) limit->Set(static_cast<double>(limits.limit(row.quota)));
  }
}

bool TenantAccount::idle(absl::Time now) const {
  return std::ranges::all_of(own_, [](int64_t used) { return used == 0; }) && tokens_taken(now) == 0;
}

TenantBook::TenantBook(const std::shared_ptr<const TenantTable>& table, absl::Time now, Metrics& metrics,
                       std::shared_ptr<TenantUses> uses)
    : table_(table), metrics_(metrics), uses_(uses == nullptr ? std::make_shared<TenantUses>() : std::move(uses)) {
  SetTable(table, now, [](const TenantAccount&) {});
}

TenantAccount& TenantBook::Of(const std::string& tenant, absl::Time now) {
  if (const auto found = accounts_.find(tenant); found != accounts_.end()) return found->second;
  if (accounts_.size() >= forget_at_) ForgetIdle(now);
  TenantAccount& account =
      accounts_
          .emplace(std::piecewise_construct, std::forward_as_tuple(tenant),
                   std::forward_as_tuple(tenant, made_++, metrics_.tenant(tenant), uses_->Of(tenant)))
          .first->second;
  account.SetLimits(LimitsOf(*table_, tenant), now);
  return account;
}

std::vector<TenantView> TenantBook::List(std::string_view after, size_t count, absl::Time now) const {
  std::vector<TenantView> list;
  for (auto at = accounts_.upper_bound(after); at != accounts_.end() && list.size() < count; ++at) {
    const TenantAccount& account = at->second;
    if (!table_->listed.contains(at->first) && account.idle(now)) continue;
    TenantView view = {.name = account.name(), .limits = account.limits()};
    for (const QuotaRow& row : kQuotas) view.used[static_cast<size_t>(row.quota)] = account.used(row.quota);
    view.used[static_cast<size_t>(Quota::kTokens)] = account.tokens_taken(now);
    list.push_back(std::move(view));
  }
  return list;
}

void TenantBook::ForgetIdle(absl::Time now) {
  std::erase_if(accounts_,
                [&](const auto& entry) { return !table_->listed.contains(entry.first) && entry.second.idle(now); });
  forget_at_ = std::max<size_t>(64, 2 * accounts_.size());
}

void TenantBook::SetTable(std::shared_ptr<const TenantTable> table, absl::Time now,
                          const std::function<void(const TenantAccount&)>& changed) {
  table_ = std::move(table);
  for (const auto& [tenant, _] : table_->listed) Of(tenant, now);
  for (auto& [tenant, account] : accounts_) {
    account.SetLimits(LimitsOf(*table_, tenant), now);
    changed(account);
  }
  ForgetIdle(now);
}

}  // namespace ebb
