// Key norm, also called L2 norm (Devoto et al. 2024, arXiv:2406.11430).
//
//   keep[j] = -|k[j]|    keep = short: the paper's, which observed that short keys receive much attention
//   keep[j] = +|k[j]|    keep = long: its reverse
//
// Which of the two holds is a property of the weights: on the built-in model `long` is among the best policies there
// are, and `short` among the worst. Measure before you choose.
//
// A static priority: a token's score never changes, so with nothing protected the tokens kept are the best of all that
// came, whatever the blocks. The key is read once, when its token enters; RoPE does not change its length, so positions
// do not matter. No queries and no attention: safe over several turns. Costs O(d) a token, 4 bytes a slot.
//
// Differs: the reference leaves layers 0 and 1 unevicted. Which layer gets how much is the business of allocation, not
// of a scorer; under the uniform one all layers evict alike.

#ifndef EBB_POLICIES_KNORM_H_
#define EBB_POLICIES_KNORM_H_

#include <memory>

#include "policies/registry_row.h"

namespace ebb {

enum class KeptKeys { kShort, kLong };

std::unique_ptr<const Scorer> MakeKnorm(KeptKeys kept);

extern const ScorerRow kKnormRow;

}  // namespace ebb

#endif  // EBB_POLICIES_KNORM_H_
