// A policy as one word of a command line:
//
//   NAME[:KEY=VALUE]...[+MODIFIER][@ALLOCATION[:KEY=VALUE]...]
//   h2o   snapkv:pooling=avg:recent=32   knorm:keep=long   h2o+fast_caote   card/tova   snapkv@pyramid:beta=14
//
// NAME is a scorer or a preset; KEY one of the scorer's parameters, or sinks, recent, overflow, slack or max_drop, and
// after @ one of the allocation's parameters; VALUE a number or a choice's name.

#ifndef EBB_ENGINE_LAB_POLICY_TEXT_H_
#define EBB_ENGINE_LAB_POLICY_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "policies/spec.h"

namespace ebb::lab {

struct NamedPolicy {
  std::string name = {};  // as it was written
  PolicySpec spec = {};   // without a budget
};

// INVALID_ARGUMENT naming the word and the part that cannot be read; NOT_FOUND UNKNOWN_SCORER. Ranges and combinations
// are left to Resolve.
absl::StatusOr<NamedPolicy> ParsePolicy(std::string_view text);
absl::StatusOr<std::vector<NamedPolicy>> ParsePolicies(const std::vector<std::string>& texts);

// What the flag's help says of it.
std::string PolicyHelp();

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_POLICY_TEXT_H_
