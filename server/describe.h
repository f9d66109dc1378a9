// What there is to say of policies, as ebb.v1: the rows of the registry, and what follows from them on a model. What
// ListPolicies answers; `ebb policy list` and the reference pages are made of the same.

#ifndef EBB_SERVER_DESCRIBE_H_
#define EBB_SERVER_DESCRIBE_H_

#include "absl/status/statusor.h"
#include "ebb/v1/admin.pb.h"
#include "policies/scorer.h"
#include "policies/spec.h"

namespace ebb {

// In the order of the registry. Errors: those of Resolve, where the trained context leaves a scorer's defaults no room.
absl::StatusOr<v1::ListPoliciesResponse> DescribePolicies(const SpecLimits& limits, const LaneShape& lane);

}  // namespace ebb

#endif  // EBB_SERVER_DESCRIBE_H_
