// Who should leave a cache that is not ours: ebb.v1 PlanEviction from request to answer.
//
// Between the two are SelectVictims, Caote and MeasureEviction as they serve our own sessions; what is here checks,
// turns bytes into arrays, and takes protected slots out of the selection. Pure; any thread may call.

#ifndef EBB_SERVER_PLAN_EVICTION_H_
#define EBB_SERVER_PLAN_EVICTION_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "ebb/v1/eviction.pb.h"

namespace ebb {

inline constexpr int kPlanRowsMax = 1 << 16;
inline constexpr size_t kPlanSlotsMax = 1 << 20;  // of a row; an index is then at most three bytes of the answer

// Fills `response`, row by row; asks `cancelled` before each and ends with CANCELLED when it says so.
//
// INVALID_ARGUMENT with a field path such as `rows[3].scores`, and what `response` holds means nothing then:
//   MISSING                 no row; neither scores nor attention; no count; a modifier without values
//   TOO_MANY, TOO_LONG      rows, slots of a row
//   WRONG_LENGTH            bytes that are no whole elements, or as many as the row's other arrays ask for
//   OUT_OF_RANGE            attention, or scores under a modifier, not finite or below 0; values not finite; a token
//                           below -1; a protected range that is empty or beyond the row
//   TOKEN_REPEATED          two live slots with one token
//   UNKNOWN_ENUM_VALUE      modifier
//   NOT_ENOUGH_CANDIDATES   more are to leave than are not protected
absl::Status PlanEviction(const v1::PlanEvictionRequest& request, absl::FunctionRef<bool()> cancelled,
                          v1::PlanEvictionResponse& response);

}  // namespace ebb

#endif  // EBB_SERVER_PLAN_EVICTION_H_
