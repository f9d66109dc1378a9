#include "server/convert_tenant.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/config_keys.h"
#include "server/convert.h"
#include "server/reply.h"
#include "server/resource_name.h"

namespace ebb {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr std::string_view kTenants = "tenants/";

const FieldDescriptor& FieldOf(const Message& message, std::string_view key) {
  const FieldDescriptor* const field = message.GetDescriptor()->FindFieldByName(std::string(key));
  EBB_CHECK(field != nullptr);
  return *field;
}

// Of a quota: a number of 32 or 64 bits, under its key's name in both schemas.
int64_t NumberOf(const Message& message, std::string_view key) {
  const FieldDescriptor& field = FieldOf(message, key);
  const auto& reflection = *message.GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32) return reflection.GetUInt32(message, &field);
  return static_cast<int64_t>(reflection.GetUInt64(message, &field));
}

void SetNumber(Message& message, std::string_view key, int64_t number) {
  const FieldDescriptor& field = FieldOf(message, key);
  const auto& reflection = *message.GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
    reflection.SetUInt32(&message, &field, static_cast<uint32_t>(number));
  } else {
    reflection.SetUInt64(&message, &field, static_cast<uint64_t>(number));
  }
}

const ConfigKey& KeyOf(std::string_view name) {
  const auto keys = ConfigKeys();
  const auto key = std::find_if(keys.begin(), keys.end(),
                                [&](const ConfigKey& k) { return k.section == "tenants" && k.name == name; });
  EBB_CHECK(key != keys.end());
  return *key;
}

// The number that is set under `key`, in the range of the configuration's key; none where it is absent.
absl::StatusOr<std::optional<int64_t>> Changed(const v1::Tenant& proto, std::string_view key) {
  const FieldDescriptor& field = FieldOf(proto, key);
  if (!proto.GetReflection()->HasField(proto, &field)) return std::nullopt;
  const bool is_short = field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32;
  const std::string text = is_short ? absl::StrCat(proto.GetReflection()->GetUInt32(proto, &field))
                                    : absl::StrCat(proto.GetReflection()->GetUInt64(proto, &field));
  config::v1::Tenant checked;
  EBB_TRY(SetConfigField(KeyOf(key), absl::StrCat("tenant.", std::string(key)), text, checked));
  return NumberOf(proto, key);
}

Tier TierFrom(v1::TenantPriority priority) { return static_cast<Tier>(priority - 1); }  // after UNSPECIFIED
v1::TenantPriority PriorityProto(Tier tier) { return static_cast<v1::TenantPriority>(static_cast<int>(tier) + 1); }
static_assert(v1::TENANT_PRIORITY_HIGH == static_cast<int>(Tier::kHigh) + 1);
static_assert(v1::TENANT_PRIORITY_NORMAL == static_cast<int>(Tier::kNormal) + 1);
static_assert(v1::TENANT_PRIORITY_LOW == static_cast<int>(Tier::kLow) + 1);

TenantLimits LimitsFrom(const config::v1::Tenant& tenant) {
  TenantLimits limits;
  limits.weight = static_cast<int32_t>(tenant.weight());
  limits.tier = TierOf(tenant.priority());
  limits.policy = tenant.policy();
  for (const QuotaRow& row : kQuotas) limits.set_limit(row.quota, NumberOf(tenant, row.key));
  return limits;
}

}  // namespace

TenantTable TenantsFrom(const config::v1::Config& config) {
  TenantTable tenants = {.unlisted = LimitsFrom(config.tenant_defaults())};
  for (const auto& [name, tenant] : config.tenants()) tenants.listed[name] = LimitsFrom(tenant);
  return tenants;
}

absl::StatusOr<std::string> TenantIdFrom(const std::string& name) {
  const std::string_view id = name.starts_with(kTenants) ? std::string_view(name).substr(kTenants.size()) : "";
  if (IsResourceName(id)) return std::string(id);
  return RefuseField("INVALID_NAME", "tenant.name",
                     absl::StrFormat("a tenant's name is tenants/%s", kResourceNamePattern));
}

absl::StatusOr<TenantLimits> ChangedLimits(const v1::Tenant& proto, const TenantLimits& before,
                                           const SpecLimits& model) {
  TenantLimits limits = before;
  EBB_ASSIGN(const std::optional<int64_t> weight, Changed(proto, "weight"));
  if (weight) limits.weight = static_cast<int32_t>(*weight);
  if (!v1::TenantPriority_IsValid(proto.priority())) {
    return RefuseField("UNKNOWN_ENUM_VALUE", "tenant.priority",
                       absl::StrFormat("%d is no priority; HIGH is 1, NORMAL 2, LOW 3", proto.priority()));
  }
  if (proto.priority() != v1::TENANT_PRIORITY_UNSPECIFIED) limits.tier = TierFrom(proto.priority());
  for (const QuotaRow& row : kQuotas) {
    EBB_ASSIGN(const std::optional<int64_t> limit, Changed(proto, row.key));
    if (limit) limits.set_limit(row.quota, *limit);
  }
  if (!proto.has_policy()) return limits;
  limits.default_policy.reset();
  limits.policy.clear();
  if (proto.policy().ByteSizeLong() == 0) return limits;
  absl::StatusOr<ValidSpec> policy = ValidPolicyFrom(proto.policy(), model);
  if (!policy.ok()) return AtField("tenant", policy.status());
  limits.default_policy = *std::move(policy);
  // As the configuration has it: other models read it anew.
  EBB_CHECK(google::protobuf::util::MessageToJsonString(proto.policy(), &limits.policy).ok());
  return limits;
}

v1::Tenant TenantProto(const std::string& name, const TenantLimits& limits, bool configured) {
  v1::Tenant proto;
  proto.set_name(absl::StrCat("tenants/", name));
  proto.set_weight(static_cast<uint32_t>(limits.weight));
  proto.set_priority(PriorityProto(limits.tier));
  for (const QuotaRow& row : kQuotas) SetNumber(proto, row.key, limits.limit(row.quota));
  if (limits.default_policy) *proto.mutable_policy() = PolicyProto(*limits.default_policy);
  proto.set_configured(configured);
  return proto;
}

v1::Tenant TenantProto(const TenantView& view, bool configured) {
  v1::Tenant proto = TenantProto(view.name, view.limits, configured);
  for (const QuotaRow& row : kQuotas) {
    v1::TenantUse& use = *proto.add_use();
    use.set_quota(std::string(row.key));
    use.set_used(static_cast<uint64_t>(view.used[static_cast<size_t>(row.quota)]));
  }
  return proto;
}

}  // namespace ebb
