// The policies that tenants' sessions have when they name none.

#ifndef EBB_SERVER_TENANT_POLICIES_H_
#define EBB_SERVER_TENANT_POLICIES_H_

#include <string>

#include "absl/status/statusor.h"
#include "ebb/v1/policy.pb.h"
#include "policies/spec.h"
#include "server/rpc.h"
#include "server/tenants.h"

namespace ebb {

// The table with each `policy` read into `default_policy`, for a model of these limits. INVALID_ARGUMENT, the field
// beginning with tenants.NAME.policy or tenant_defaults.policy: BAD_VALUE for what is no PolicySpec, and what
// ValidPolicyFrom refuses.
absl::StatusOr<TenantTable> WithPolicies(TenantTable tenants, const SpecLimits& limits);

// What a new session of the model and the tenant gets. `asked`: whether the request names one. Where the tenant's own
// policy is none for this model, as WithPolicies, with the tenant's name also where it is that of all unlisted ones.
absl::StatusOr<ValidSpec> PolicyFor(const ServiceParts& parts, const ServedModel& model, const std::string& tenant,
                                    bool asked, const v1::PolicySpec& policy);

}  // namespace ebb

#endif  // EBB_SERVER_TENANT_POLICIES_H_
