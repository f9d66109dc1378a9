// What tenants may have, from both who say so: the configuration, and admins (AdminService.SetTenant).
//
// A tenant is the configuration's or an admin's, never both: one that the configuration names is changed there, and one
// that it begins to name is its own from then on. What admins give lasts until the server ends; what is as
// unlisted tenants have it follows those.

#ifndef EBB_SERVER_TENANT_SETTINGS_H_
#define EBB_SERVER_TENANT_SETTINGS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/tenants.h"

namespace ebb {

// Any thread.
class TenantSettings {
 public:
  static constexpr size_t kGivenMax = 1000;
  // Called with each table that is to be in force, in their order.
  using Apply = std::function<void(std::shared_ptr<const TenantTable>)>;

  TenantSettings(TenantTable configured, Apply apply);

  void Configure(TenantTable configured);
  // Says once more what is in force, to whoever was not there yet.
  void Renew();
  // `change` makes of the tenant's limits what they are to be, or refuses. FAILED_PRECONDITION TENANT_CONFIGURED,
  // RESOURCE_EXHAUSTED TENANTS_FULL, and what `change` says. Returns what is in force.
  absl::StatusOr<TenantLimits> Give(const std::string& tenant,
                                    const std::function<absl::StatusOr<TenantLimits>(const TenantLimits&)>& change);
  bool IsConfigured(const std::string& tenant) const;

 private:
  void Put() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Apply apply_;
  mutable std::mutex mutex_;
  TenantTable configured_ ABSL_GUARDED_BY(mutex_);
  ListedTenants given_ ABSL_GUARDED_BY(mutex_);  // none that is configured
};

}  // namespace ebb

#endif  // EBB_SERVER_TENANT_SETTINGS_H_
