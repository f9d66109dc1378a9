// H2O, heavy hitters (Zhang et al. 2023, arXiv:2306.14048); POLICIES 3.3, semantics (b).
//
//   keep[j] = A[j] = sum over all steps and over the queries i of each step of P[i, j]
//
// Sums never decay, so old tokens have an edge: pair this scorer with a recent window. Evicting a slot forgets its sum;
// the others are not renormalised.
//
// Differs: one choice per KV head, over probabilities averaged within its group of query heads (the reference has no
// grouped heads); sums are fp32 whatever the model's type.
//
// Invariant, per step: sum A grows by the number of queries and falls by exactly the A of the evicted.

#ifndef EBB_POLICIES_H2O_H_
#define EBB_POLICIES_H2O_H_

#include <memory>

#include "policies/registry_row.h"

namespace ebb {

std::unique_ptr<const Scorer> MakeH2o();

extern const ScorerRow kH2oRow;

}  // namespace ebb

#endif  // EBB_POLICIES_H2O_H_
