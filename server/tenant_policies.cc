#include "server/tenant_policies.h"

#include <google/protobuf/util/json_util.h>

#include <utility>

#include "policies/status.h"
#include "server/convert.h"

namespace ebb {

namespace {

// Reads `policy` of what stands at `field` into its `default_policy`.
absl::Status ReadPolicy(const std::string& field, const SpecLimits& model, TenantLimits& tenant) {
  if (tenant.policy.empty()) return absl::OkStatus();
  v1::PolicySpec spec;
  const auto read = google::protobuf::util::JsonStringToMessage(tenant.policy, &spec);
  if (!read.ok()) {
    return RefuseField("BAD_VALUE", field + ".policy", "it is no PolicySpec in JSON: " + std::string(read.message()));
  }
  absl::StatusOr<ValidSpec> policy = ValidPolicyFrom(spec, model);
  if (!policy.ok()) return AtField(field, policy.status());
  tenant.default_policy = *std::move(policy);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TenantTable> WithPolicies(TenantTable tenants, const SpecLimits& limits) {
  EBB_TRY(ReadPolicy("tenant_defaults", limits, tenants.unlisted));
  for (auto& [name, tenant] : tenants.listed) EBB_TRY(ReadPolicy("tenants." + name, limits, tenant));
  return tenants;
}

absl::StatusOr<ValidSpec> PolicyFor(const ServiceParts& parts, const ServedModel& model, const std::string& tenant,
                                    bool asked, const v1::PolicySpec& policy) {
  const SpecLimits of_model = LimitsOf(model.worker().model());
  if (!asked) {
    TenantLimits limits = LimitsOf(parts, tenant);
    if (limits.default_policy && &model != &parts.models.main()) {
      EBB_TRY(ReadPolicy("tenants." + tenant, of_model, limits));
    }
    if (limits.default_policy) return *std::move(limits.default_policy);
  }
  return ValidPolicyFrom(policy, of_model);
}

}  // namespace ebb
