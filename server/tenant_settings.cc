#include "server/tenant_settings.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "policies/status.h"

namespace ebb {

TenantSettings::TenantSettings(TenantTable configured, Apply apply)
    : apply_(std::move(apply)), configured_(std::move(configured)) {}

void TenantSettings::Configure(TenantTable configured) {
  const std::lock_guard lock(mutex_);
  for (auto& [_, limits] : given_) limits.Follow(configured_.unlisted, configured.unlisted);
  configured_ = std::move(configured);
  std::erase_if(given_, [this](const auto& entry) {
    return configured_.listed.contains(entry.first) || SameLimits(entry.second, configured_.unlisted);
  });
  Put();
}

void TenantSettings::Renew() {
  const std::lock_guard lock(mutex_);
  Put();
}

absl::StatusOr<TenantLimits> TenantSettings::Give(
    const std::string& tenant, const std::function<absl::StatusOr<TenantLimits>(const TenantLimits&)>& change) {
  const std::lock_guard lock(mutex_);
  if (configured_.listed.contains(tenant)) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("tenants.%s stands in the server's configuration; change it there", tenant),
                  {.reason = "TENANT_CONFIGURED", .field = "tenant.name"});
  }
  if (given_.size() >= kGivenMax && !given_.contains(tenant)) {
    return Refuse(absl::StatusCode::kResourceExhausted,
                  absl::StrFormat("%d tenants have settings that admins gave them; put some into the configuration",
                                  given_.size()),
                  {.reason = "TENANTS_FULL", .quota = "tenants"});
  }
  const auto given = given_.find(tenant);
  EBB_ASSIGN(const TenantLimits limits, change(given == given_.end() ? configured_.unlisted : given->second));
  if (SameLimits(limits, configured_.unlisted)) {
    given_.erase(tenant);
  } else {
    given_[tenant] = limits;
  }
  Put();
  return limits;
}

bool TenantSettings::IsConfigured(const std::string& tenant) const {
  const std::lock_guard lock(mutex_);
  return configured_.listed.contains(tenant);
}

void TenantSettings::Put() {
  TenantTable table = configured_;
  table.listed.insert(given_.begin(), given_.end());
  apply_(std::make_shared<const TenantTable>(std::move(table)));
}

}  // namespace ebb
