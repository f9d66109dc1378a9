// NACL (Chen et al. 2024, arXiv:2408.03675): what proxies of the task attend to, and a draw from the rest.
//
//   s[j] = sum over the ceil(rho T) newest queries i of P[i, j], of T tokens so far
//
// Of the room that protection leaves in the budget, the share `proxy_share` goes to the largest s, and what is left is
// drawn without replacement from the others with the probabilities softmax(s): who has the smallest E[j] exp(-s[j]),
// where E[j] is exponential (the Gumbel trick on another scale). So
//
//   keep[j] = s[j], for those chosen by s;   -E[j] exp(-s[j]), for the others
//
// E is a hash of (seed, layer, KV head, token): the draw depends neither on slots nor on threads, and a token that is
// asked about again draws the same. Since s is at most the number of proxies and mostly far less, the draw is close to
// uniform, as in the reference.
//
// Differs: sinks and recent tokens are counted apart (the reference's recent share is what 1 % of the prompt has left
// after 256 sinks, negative below 25,600 tokens); the mean over the KV head's query heads (the reference indexes query
// heads by KV head); causal. 12 % by proxies and 7 % drawn are 12 and 7 of 19 parts. Decode adds tokens and evicts
// nobody, since the paper evicts in the encoding phase alone.
//
// State, per query head: 4 rows_max (head_dim + 1) bytes, 32 KiB at the default and head size 128; nothing a slot.

#ifndef EBB_POLICIES_NACL_H_
#define EBB_POLICIES_NACL_H_

#include <cstdint>
#include <memory>

#include "policies/registry_row.h"

namespace ebb {

struct NaclOptions {
  double proxy_ratio = 0.01;       // rho, 0 .. 1; cut to rows_max queries, and at least one
  double proxy_share = 12.0 / 19;  // 0 .. 1
  uint64_t seed = 0;
  int32_t rows_max = 64;  // >= 1
};

std::unique_ptr<const Scorer> MakeNacl(const NaclOptions& options);

extern const ScorerRow kNaclRow;

}  // namespace ebb

#endif  // EBB_POLICIES_NACL_H_
