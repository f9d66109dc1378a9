// A tenant's settings between the configuration, the API and the plain struct that both become.

#ifndef EBB_SERVER_CONVERT_TENANT_H_
#define EBB_SERVER_CONVERT_TENANT_H_

#include <string>

#include "absl/status/statusor.h"
#include "ebb/config/v1/config.pb.h"
#include "ebb/v1/tenant.pb.h"
#include "policies/spec.h"
#include "server/tenants.h"

namespace ebb {

// Every tenant that is configured, and what all others have. REQUIRES: LoadConfig made it, so that all is set and in
// range.
TenantTable TenantsFrom(const config::v1::Config& config);

// The id of `tenants/{id}`. INVALID_ARGUMENT INVALID_NAME, field tenant.name.
absl::StatusOr<std::string> TenantIdFrom(const std::string& name);

// `before` with what is set in `proto`, checked as the configuration is, and the policy for a model of these limits.
// INVALID_ARGUMENT with a field path that begins with `tenant`: BAD_VALUE, UNKNOWN_ENUM_VALUE, what ValidPolicyFrom
// refuses.
absl::StatusOr<TenantLimits> ChangedLimits(const v1::Tenant& proto, const TenantLimits& before,
                                           const SpecLimits& model);

// Every setting filled in; without `use`.
v1::Tenant TenantProto(const std::string& name, const TenantLimits& limits, bool configured);
v1::Tenant TenantProto(const TenantView& view, bool configured);

}  // namespace ebb

#endif  // EBB_SERVER_CONVERT_TENANT_H_
