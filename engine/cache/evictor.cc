#include "engine/cache/evictor.h"

#include <algorithm>

#include "policies/check.h"

namespace ebb {

void EvictScratch::Reserve(const Candidates& from) {
  const int32_t slots = from.slots().capacity();
  const auto size = static_cast<size_t>(slots);
  select.ages.reserve(size);
  select.turns.reserve(size);
  keep.reserve(size);
  victims.reserve(size);
  rank.Reserve(slots, from.cache->shape().format.head_dim);
  tracks.reserve(from.slots().state_shape().tracks);
  const auto lanes = static_cast<size_t>(from.cache->lanes_of_map());
  if (readers.size() < lanes) readers.resize(lanes);
  if (!from.policy->needs().memory) return;
  for (size_t i = 0; i < lanes; ++i) readers[i].Reserve(slots, from.cache->shape().format.head_dim);
}

void RankSlots(const Candidates& from, EvictScratch& scratch) {
  const SlotMap& slots = from.slots();
  const CacheShape& shape = from.cache->shape();
  scratch.keep.resize(slots.token().size());
  scratch.tracks.clear();
  // Where a rule looks at positions alone, one lane speaks for all.
  const int32_t lanes = from.policy->lockstep ? 1 : from.cache->lanes_of_map();
  if (scratch.readers.size() < static_cast<size_t>(lanes)) scratch.readers.resize(lanes);
  const int32_t tracks_per_lane = slots.state_shape().tracks / (from.policy->lockstep ? 1 : lanes);
  const bool memory = from.policy->needs().memory;
  for (int32_t i = 0; i < lanes; ++i) {
    const int32_t lane = from.cache->first_lane(from.map) + i;
    const int32_t layer = lane / shape.kv_heads;
    const int32_t head = lane % shape.kv_heads;
    LaneView view = from.cache->view(layer, head, *from.policy, from.tokens);
    if (memory) {
      scratch.readers[i].Point(*from.ops, from.cache->storage(layer, head), from.rope);
      view.memory = &scratch.readers[i];
    }
    for (int32_t t = 0; t < tracks_per_lane; ++t) {
      const int32_t track = i * tracks_per_lane + t;
      if (!from.probed.empty()) view.probed = from.probed.subspan(track * slots.token().size(), slots.token().size());
      scratch.tracks.push_back({.lane = view, .state = slots.state(track)});
    }
  }
  Rank(*from.policy, scratch.tracks, scratch.rank, scratch.keep);
}

absl::Status ChooseVictims(const Candidates& from, int32_t count, EvictScratch& scratch) {
  const LaneRule rule = from.policy->rule(from.cache->first_lane(from.map));  // one for all lanes of a map
  const LaneView view = from.slots().view(rule.sinks, rule.recent);
  scratch.keep.assign(view.token.size(), 0.0F);
  // Where protection leaves no choice there is nothing to rank.
  if (count > 0 && count < view.live - view.sinks - view.recent) RankSlots(from, scratch);
  return SelectVictims(view, scratch.keep, count, scratch.select, scratch.victims);
}

Evicted ChooseDue(const Candidates& from, int32_t count, EvictScratch& scratch) {
  Evicted evicted = {.tokens = count};
  const absl::Status chosen = ChooseVictims(from, count, scratch);
  EBB_CHECK(chosen.ok());
  evicted.nan_scores = CountNan(from.slots().token(), scratch.keep);
  return evicted;
}

}  // namespace ebb
