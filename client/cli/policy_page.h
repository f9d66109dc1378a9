// What `ebb policy list` prints, from the server's own descriptions: a line for each part of a policy, and one's page.

#ifndef EBB_CLIENT_CLI_POLICY_PAGE_H_
#define EBB_CLIENT_CLI_POLICY_PAGE_H_

#include <cstddef>
#include <string>

#include "ebb/v1/admin.pb.h"

namespace ebb::cli {

// Lines of at most `columns` characters, at least 60, but for equations and what is one word.
std::string PolicyTable(const v1::ListPoliciesResponse& policies, size_t columns);
std::string PolicyPage(const v1::ScorerDescription& scorer, size_t columns);
std::string PolicyPage(const v1::ModifierDescription& modifier, size_t columns);
std::string PolicyPage(const v1::AllocationDescription& allocation, size_t columns);

}  // namespace ebb::cli

#endif  // EBB_CLIENT_CLI_POLICY_PAGE_H_
