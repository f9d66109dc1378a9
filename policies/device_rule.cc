#include "policies/device_rule.h"

#include <array>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "policies/status.h"

namespace ebb {
namespace {

struct Row {
  std::string_view scorer;
  DeviceRule rule;
};
constexpr std::array kRules = {Row{"streaming", DeviceRule::kAge},   Row{"h2o", DeviceRule::kSum},
                               Row{"tova", DeviceRule::kLast},       Row{"sage", DeviceRule::kLast},
                               Row{"knorm", DeviceRule::kKeyLength}, Row{"keydiff", DeviceRule::kKeyLikeness},
                               Row{"random", DeviceRule::kChance}};

absl::Status NotOnADevice(const std::string& field, const std::string& what) {
  return RefuseField("GPU_POLICY_UNSUPPORTED", field, what + ", which a GPU does not do by itself yet");
}

}  // namespace

absl::StatusOr<DeviceRule> DeviceRuleOf(const ValidSpec& policy) {
  if (policy.rope_cache != RopeCache::kFused) return NotOnADevice("policy.rope_cache", "a rotate-half copy of keys");
  if (!policy.evicts && policy.bounded) return DeviceRule::kAge;
  if (!policy.windows.empty() && policy.schedule == Schedule::kOncePrompt) {
    return NotOnADevice("policy.schedule", "eviction at the prompt's end beside sliding windows");
  }
  if (policy.trigger.budget == 0) return NotOnADevice("policy.trigger.budget_ratio", "a budget by the prompt's length");
  if (policy.scope != Scope::kKvHead) return NotOnADevice("policy.scope", "one choice for all heads of a layer");
  if (policy.allocation != Allocation::kUniform) return NotOnADevice("policy.allocation", "lanes of unequal budgets");
  std::string known;
  for (const Row& row : kRules) {
    if (row.scorer == policy.scorer_name) return row.rule;
    known += (known.empty() ? "" : ", ") + std::string(row.scorer);
  }
  return NotOnADevice("policy.scorer", absl::StrFormat("'%s' (it knows full, %s)", policy.scorer_name, known));
}

}  // namespace ebb
