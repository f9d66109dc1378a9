#include "engine/cache/evictor.h"

#include <cmath>

#include "policies/check.h"
#include "policies/trigger.h"

namespace ebb {

void EvictScratch::Reserve(int32_t slots) {
  const auto size = static_cast<size_t>(slots);
  select.ages.reserve(size);
  select.turns.reserve(size);
  keep.reserve(size);
  victims.reserve(size);
}

absl::Status ChooseVictims(const Scorer& scorer, const LaneView& view, std::span<const float> state, int32_t count,
                           EvictScratch& scratch) {
  scratch.keep.resize(view.token.size());
  scorer.Score(view, state, scratch.keep);
  return SelectVictims(view, scratch.keep, count, scratch.select, scratch.victims);
}

bool IsDue(const ValidSpec& policy, const SlotMap& map) {
  return policy.evicts && policy.trigger.budget > 0 && TokensToDrop(policy.trigger, map.live()) > 0;
}

Evicted EvictAfterStep(const ValidSpec& policy, SlotMap& map, EvictScratch& scratch) {
  Evicted evicted;
  if (!IsDue(policy, map)) return evicted;
  evicted.tokens = TokensToDrop(policy.trigger, map.live());
  const absl::Status chosen =
      ChooseVictims(*policy.scorer, map.view(policy.sinks, policy.recent), map.state(), evicted.tokens, scratch);
  EBB_CHECK(chosen.ok());
  for (int32_t slot = 0; slot < map.end(); ++slot) {
    if (map.token()[slot] >= 0 && std::isnan(scratch.keep[slot])) ++evicted.nan_scores;
  }
  map.Free(scratch.victims);
  return evicted;
}

}  // namespace ebb
