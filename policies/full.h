// Full: nobody leaves. The policy of a session that wants every token, and the oracle of every other one
// (POLICIES 3.1): while nothing is evicted all policies compute the same.
//
//   keep[j] = 0
//
// The budget of `full` is a length limit, and the door refuses what does not fit. Where a caller evicts by hand,
// selection breaks the tie of all scores by age: the oldest unprotected tokens leave.

#ifndef EBB_POLICIES_FULL_H_
#define EBB_POLICIES_FULL_H_

#include <memory>

#include "policies/registry_row.h"

namespace ebb {

std::unique_ptr<const Scorer> MakeFull();

extern const ScorerRow kFullRow;

}  // namespace ebb

#endif  // EBB_POLICIES_FULL_H_
