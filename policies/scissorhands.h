// Scissorhands (Liu et al. 2023, arXiv:2305.17118): what mattered keeps mattering.
//
//   c[j]    = of the last w queries i that saw slot j, those with P[i, j] < 1 / t[i], t[i] = tokens that i saw
//   keep[j] = -c[j]
//
// Each query finds a token unimportant or not; who was found unimportant most often leaves. Counts tie all the time:
// then goes who has the lower P[last, j], then the older. A new token has a short history, so it is favoured.
//
// The tie is in the score's fraction, sqrt(sqrt(P)) * 31/32, which keeps small probabilities apart: at counts of 256
// and more, floats tell them apart to 3e-5 of that root.
//
// Differs: by default one token leaves at a time; the paper drops half the budget at once, which is
// trigger.overflow = budget / 2. Probabilities are the mean over the KV head's query heads.
//
// Invariant: 0 <= c <= w; 0 in a slot that a token just entered. State: a bit per row, 24 to a float, with c and
// P[last], so 4 (ceil(w / 24) + 2) bytes a slot: 76 at w = 400.

#ifndef EBB_POLICIES_SCISSORHANDS_H_
#define EBB_POLICIES_SCISSORHANDS_H_

#include <cstdint>
#include <memory>

#include "policies/registry_row.h"

namespace ebb {

// REQUIRES: window >= 1, w above.
std::unique_ptr<const Scorer> MakeScissorhands(int32_t window);

extern const ScorerRow kScissorhandsRow;

}  // namespace ebb

#endif  // EBB_POLICIES_SCISSORHANDS_H_
