// SAGE-KV, self-attention guided eviction (Wang et al. 2025, arXiv:2503.08879).
//
//   keep[h, j] = P[h, last, j], what query head h of the prompt's last token paid to slot j
//
// Once, when the prompt ends: of the tokens between the sinks and the recent window each query head names its k best,
// and their union stays, beside S sinks and R recent tokens; then decode slides the recent window over the selected,
// which stay for ever. With a budget B and G query heads on a KV head
//
//   S = B / 4,   k = B / 2G rounded down to a power of two,   R = B - S - G k
//
// so S + G k + R = B. The union is Reduction::kUnion (rank.h), which fills the room of what several heads named with
// the next best by the mean.
//
// Differs: the paper keeps a cache for each query head, and the last token beside the B; here the heads share their KV
// head's cache, and the last token is one of the recent.
//
// The scorer is TOVA's, for each query head: what makes it SAGE is its row of the registry. State: 4 bytes a slot and
// query head.

#ifndef EBB_POLICIES_SAGE_H_
#define EBB_POLICIES_SAGE_H_

#include <cstdint>
#include <memory>

#include "policies/registry_row.h"

namespace ebb {

std::unique_ptr<const Scorer> MakeSage();

// k above; 0 where budget < 2 query_heads.
int32_t SageSelectedPerHead(int32_t budget, int32_t query_heads);

// R above, or with more sinks what these leave, at least 1.
int32_t SageRecent(int32_t budget, int32_t sinks, int32_t query_heads);

extern const ScorerRow kSageRow;

}  // namespace ebb

#endif  // EBB_POLICIES_SAGE_H_
