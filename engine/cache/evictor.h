// Trigger, scorer and selection put together for one lane.

#ifndef EBB_ENGINE_CACHE_EVICTOR_H_
#define EBB_ENGINE_CACHE_EVICTOR_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/slot_map.h"
#include "policies/scorer.h"
#include "policies/select.h"
#include "policies/spec.h"

namespace ebb {

// Working memory, one per thread; keeps its capacity.
struct EvictScratch {
  // Room for lanes of `slots` slots, so that choosing victims among them allocates nothing.
  void Reserve(int32_t slots);

  SelectScratch select = {};
  std::vector<float> keep = {};
  std::vector<int32_t> victims = {};
};

// Ranks the lane's tokens by `scorer` and its `state` and chooses `count` victims into scratch.victims, in ascending
// order; scratch.keep then holds the scores. INVALID_ARGUMENT NOT_ENOUGH_CANDIDATES when protection leaves too few.
absl::Status ChooseVictims(const Scorer& scorer, const LaneView& view, std::span<const float> state, int32_t count,
                           EvictScratch& scratch);

struct Evicted {
  int32_t tokens = 0;
  int64_t nan_scores = 0;  // live slots whose keep score was NaN
};

// Whether the policy's trigger is due for a lane of this length. Not while a budget_ratio waits for the first prompt's
// end.
bool IsDue(const ValidSpec& policy, const SlotMap& map);

// What the policy does to a lane after a step: nothing unless its trigger is due, else frees the victims. `full` never
// evicts. Cannot fail on a resolved policy: the trigger leaves at least sinks + recent tokens.
Evicted EvictAfterStep(const ValidSpec& policy, SlotMap& map, EvictScratch& scratch);

}  // namespace ebb

#endif  // EBB_ENGINE_CACHE_EVICTOR_H_
