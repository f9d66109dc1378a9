// TOVA, token omission via attention (Oren et al. 2024, arXiv:2401.06104).
//
//   keep[j] = P[last, j], what the newest query of the last step paid to slot j
//
// No memory beyond that row: what the newest query ignores leaves, however much it once mattered. The paper protects
// nobody, not even the newest token, which has already been attended when it leaves.
//
// Differs: by default one choice per KV head, over the mean of its query heads; the reference makes one per layer, over
// all of them (Scope::kLayer).
//
// Invariant: after a step the scores of the live slots sum to 1. State: 4 bytes a slot.

#ifndef EBB_POLICIES_TOVA_H_
#define EBB_POLICIES_TOVA_H_

#include <memory>

#include "policies/registry_row.h"

namespace ebb {

std::unique_ptr<const Scorer> MakeTova();

extern const ScorerRow kTovaRow;

}  // namespace ebb

#endif  // EBB_POLICIES_TOVA_H_
