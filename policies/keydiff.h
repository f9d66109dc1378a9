// KeyDiff (Park et al. 2025, arXiv:2504.15364).
//
//   m = mean over live tokens j of k[j] / |k[j]|,  keep[j] = -cos(k[j], m)
//
// Keys that point where most keys point leave first; what is unlike the rest stays. No queries and no attention: safe
// over several turns. A key of length 0 counts as 0 in the mean, and its cosine is 0; so are all where the mean is 0.
//
// Reads every live key at each decision, O(n * head_dim), and keeps no state: a running sum would have to hear of each
// token that leaves, and 4 bytes a slot would save the smaller half of the work.
//
// Differs: keys as they rest in the cache, unrotated; the reference takes them rotated for their positions. So scores
// depend neither on the positions of tokens nor on how they are counted.
//
// Invariant: the mean is the same bits for any order of slots, since its terms are rounded to where their sum is exact.

#ifndef EBB_POLICIES_KEYDIFF_H_
#define EBB_POLICIES_KEYDIFF_H_

#include <memory>

#include "policies/registry_row.h"

namespace ebb {

std::unique_ptr<const Scorer> MakeKeydiff();

extern const ScorerRow kKeydiffRow;

}  // namespace ebb

#endif  // EBB_POLICIES_KEYDIFF_H_
