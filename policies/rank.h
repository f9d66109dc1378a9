// From scorers' opinions to one keep score per slot: the reduction over query heads, the modifier, the scope.

#ifndef EBB_POLICIES_RANK_H_
#define EBB_POLICIES_RANK_H_

#include <cstdint>
#include <span>
#include <vector>

#include "policies/caote.h"
#include "policies/select.h"
#include "policies/spec.h"

namespace ebb {

// One state of the scorer and what it sees: a KV head's, or a query head's where the policy keeps heads apart, whose
// lane.query_heads is then 1.
struct Track {
  LaneView lane = {};
  ScorerState state = {};
};

// Working memory; keeps its capacity.
struct RankScratch {
  // Room for lanes of `slots` slots and values of `head_dim`, so that ranking them allocates nothing.
  void Reserve(int32_t slots, int32_t head_dim);

  std::vector<float> one = {};       // [n] of one track
  std::vector<float> lane = {};      // [n] of one KV head
  std::vector<int32_t> let_go = {};  // [n] tracks that would let the slot go
  std::vector<int32_t> victims = {};
  SelectScratch select = {};
  CaoteScratch caote = {};
  // Live slots, oldest first, for a scorer that asks.
  std::vector<int32_t> by_age = {};
  std::vector<int32_t> spare = {};
};

// Writes keep scores [n] for the lanes that share one slot map: `tracks` holds the states of one KV head after another,
// each KV head's query heads together. Within a KV head by policy.reduction; between KV heads, which Scope::kLayer
// makes decide together, by the mean, or with a modifier by the L2 norm, the error of all heads.
//
// Reduction::kUnion (SAGE) takes no account of KV heads: with k = floor((budget - sinks - recent) / tracks), the k best
// candidates of each track first, then the rest, each by the mean over the tracks.
//
// O(n) for each track. A score that is not a number stays so, and selection counts it.
void Rank(const ValidSpec& policy, std::span<const Track> tracks, RankScratch& scratch, std::span<float> keep);

}  // namespace ebb

#endif  // EBB_POLICIES_RANK_H_
