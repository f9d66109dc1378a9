// SemanticKV: the queries of largest norm speak for all.
//
//   O       = the ceil(lambda T) queries of largest |q|, and the ceil(rho T) newest, of the T tokens so far
//   keep[j] = sum over i in O of P[i, j]
//
// for each query head of its own O, then the mean over the heads that share the KV head. P is taken when the scores are
// asked for, over the tokens that live then (LaneView.probed). RoPE turns a query and leaves its norm. A query older
// than j does not see it and adds nothing, but counts; of equal norms the newer query speaks.
//
// Differs: the sum in the place of the mean over O, which ranks alike. O is taken from all queries so far and not from
// the prompt's alone, and each of its halves is cut to rows_max queries. "20 % kept" is the budget as a whole, sinks
// and recent tokens with it; the paper's recent 1 % of the prompt is then a twentieth of the budget.
//
// State, per query head: 2 rows_max queries, so 4 rows_max (2 head_dim + 3) bytes; nothing a slot. 65 KiB a query head
// at the default and head size 128.

#ifndef EBB_POLICIES_SEMANTIC_H_
#define EBB_POLICIES_SEMANTIC_H_

#include <cstdint>
#include <memory>

#include "policies/registry_row.h"

namespace ebb {

struct SemanticOptions {
  double semantic_ratio = 0.01;  // lambda, 0 .. 1
  double recent_ratio = 0.01;    // rho, 0 .. 1
  int32_t rows_max = 64;         // >= 1
};

std::unique_ptr<const Scorer> MakeSemantic(const SemanticOptions& options);

extern const ScorerRow kSemanticRow;

}  // namespace ebb

#endif  // EBB_POLICIES_SEMANTIC_H_
