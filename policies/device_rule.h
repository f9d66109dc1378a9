// Which policies a device can follow by itself, without asking the host who leaves.

#ifndef EBB_POLICIES_DEVICE_RULE_H_
#define EBB_POLICIES_DEVICE_RULE_H_

#include "absl/status/statusor.h"
#include "policies/spec.h"

namespace ebb {

// What a lane's scores are made of.
enum class DeviceRule {
  kAge,          // the oldest leaves; also where nobody does
  kSum,          // attention received so far
  kLast,         // attention paid by the newest query
  kKeyLength,    // the key's length; the policy's parameter `keep` says whether long ones stay
  kKeyLikeness,  // how unlike the others the key is
  kChance,       // a hash
};

// INVALID_ARGUMENT GPU_POLICY_UNSUPPORTED names the part of the policy that needs the host, and what would not.
absl::StatusOr<DeviceRule> DeviceRuleOf(const ValidSpec& policy);

}  // namespace ebb

#endif  // EBB_POLICIES_DEVICE_RULE_H_
