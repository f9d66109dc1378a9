// SnapKV (Li et al. 2024, arXiv:2404.14469).
//
//   a[j]    = sum over the last w queries i of P[i, j], as each was observed
//   keep[j] = pool(a)[j] over the k tokens around j by age
//
// Pooling lends a hit's worth to its neighbours, so that what is kept can be read. It walks the live tokens by age,
// never by slot. kAverage divides by the whole kernel, so the edges are lowered, as in the reference (zero padding).
//
// The window's own columns (the newest w live tokens) saw fewer rows than the others. Dropped, as in the paper, they
// neither lend to the pooling nor borrow from it, and keep their own sum; the paper protects them, as `recent` does
// here.
//
// Differs: the reference runs once, after the prompt, and decode evicts nobody; here the window also slides over decode
// steps, so the policy can run at every step, and rows count as they were seen, before later tokens left. One choice
// per KV head: mean over its query heads, then pooling (the reference keeps each query head's own cache).
//
// Invariant: a is the sum of the last min(w, rows seen) rows, rounded afresh and never by subtraction, so a >= 0.
// State: 4 (w + 1) bytes a slot; a quarter of the KV bytes at w = 32, head size 128 in BF16.

#ifndef EBB_POLICIES_SNAPKV_H_
#define EBB_POLICIES_SNAPKV_H_

#include <cstdint>
#include <memory>

#include "policies/registry_row.h"

namespace ebb {

enum class Pooling { kNone, kAverage, kMax };

struct SnapkvOptions {
  int32_t window = 32;  // w >= 1
  int32_t kernel = 7;   // k, odd, 1 .. 63
  Pooling pooling = Pooling::kMax;
  bool own_columns = false;  // whether the window's own columns enter the pooling
};

std::unique_ptr<const Scorer> MakeSnapkv(const SnapkvOptions& options);

extern const ScorerRow kSnapkvRow;

}  // namespace ebb

#endif  // EBB_POLICIES_SNAPKV_H_
