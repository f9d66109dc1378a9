// What single queries attend to, outside of a step: the newest token's, for the cost of an eviction and for scorers
// that begin in the middle of a session; and the probes of scorers that choose their own.

#ifndef EBB_ENGINE_LANE_ATTENTION_H_
#define EBB_ENGINE_LANE_ATTENTION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/evictor.h"
#include "engine/ops.h"
#include "engine/session_on_engine.h"

namespace ebb {

// Attention of the newest token over every lane, each query head's own.
class LastAttention {
 public:
  // REQUIRES: the session has tokens.
  LastAttention(const SessionOnEngine& session, const Rope& rope, Ops& ops);

  // [n] P[newest, slot] of one query head of a lane; sums to 1 over the live slots.
  std::span<const float> row(int32_t lane, int32_t query_head) const {
    return {rows_.data() + (int64_t{lane} * heads_ + query_head) * stride_, static_cast<size_t>(slots_[lane])};
  }
  // [n] their mean over the query heads.
  std::span<const float> mean(int32_t lane) const {
    return {means_.data() + lane * stride_, static_cast<size_t>(slots_[lane])};
  }

 private:
  int32_t heads_ = 1;
  int64_t stride_ = 0;
  std::vector<int32_t> slots_ = {};  // [lanes]
  std::vector<float> rows_ = {};     // [lanes, heads, stride]
  std::vector<float> means_ = {};    // [lanes, stride]
};

// LaneView.probed of one slot map, [lanes of the map, slots]: the sums over the probes that the policy's scorer names,
// mean over the query heads. Empty where it has none.
std::vector<float> Probe(const Candidates& from, const Rope& rope, Ops& ops);

}  // namespace ebb

#endif  // EBB_ENGINE_LANE_ATTENTION_H_
