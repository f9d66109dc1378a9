// CAOTE, eviction by attention output error (arXiv:2504.14051), over any scorer whose scores are attention received.
//
//   a[j] = keep[j] / sum keep,  X = sum_j a[j] v[j]
//   c[j] = a[j] / (1 - a[j]) * |X - v[j]|
//
// c[j], equation 8, is the exact change of the output X when j leaves and the softmax is renormalised (theorem 3.2);
// what changes least leaves. All live tokens enter the sums, the protected ones too. FastCAOTE (equation 23) puts the
// plain mean of the values in the place of X inside the norm:
//
//   a[j] = keep[j] / sum keep,  M = mean over live tokens j of v[j]
//   c[j] = a[j] / (1 - a[j]) * |M - v[j]|
//
// Over a mean of query heads this is the error of the mean's own, synthetic output; the error of all query heads of a
// KV head together is sqrt(sum_h c[h, j]^2), which Reduction::kL2 takes (rank.h).

#ifndef EBB_POLICIES_CAOTE_H_
#define EBB_POLICIES_CAOTE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "policies/lane_view.h"
#include "policies/registry_row.h"

namespace ebb {

enum class CaoteForm { kExact, kFast };

// Working memory; keeps its capacity.
struct CaoteScratch {
  std::vector<float> origin = {};    // [head_dim]
  std::vector<float> output = {};    // [head_dim]
  std::vector<float> center = {};    // [head_dim] what values are compared with
  std::vector<float> share = {};     // [n]
  std::vector<float> distance = {};  // [n]

  // Room for a lane of `slots`, so that working on it allocates nothing.
  void Reserve(int32_t slots, int32_t head_dim);
};

// Turns `keep` [n], attention received and >= 0, into c [n], in place; entries of free slots are ignored and become 0.
// What is below 0 or NaN counts as 0, and where nothing is above 0 all count as equal. A token that holds all the
// attention has c = infinity. Never NaN for finite input. O(n * head_dim). REQUIRES: lane.memory.
void Caote(const LaneView& lane, CaoteForm form, CaoteScratch& scratch, std::span<float> keep);

// What leaves with a set of slots E, measured on attention weights `a` [n] that sum to 1 over the live slots:
// mass = sum_E a, and error = |sum_E a[j] (v[j] - X)| / (1 - sum_E a), the change of the output, exact for the set.
struct EvictionLoss {
  double mass = 0;    // 0 .. 1
  double error = 0;   // in units of the values; 0 where nothing would stay
  double output = 0;  // |X|, to compare `error` with
};

// REQUIRES: lane.memory, `victims` live. O(n * head_dim).
EvictionLoss MeasureEviction(const LaneView& lane, std::span<const float> attention, std::span<const int32_t> victims,
                             CaoteScratch& scratch);

extern const ModifierRow kCaoteRow;
extern const ModifierRow kFastCaoteRow;

}  // namespace ebb

#endif  // EBB_POLICIES_CAOTE_H_
