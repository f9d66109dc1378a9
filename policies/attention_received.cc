#include "policies/attention_received.h"

#include <algorithm>

#include "policies/check.h"

namespace ebb {

void AttentionReceived::Score(const LaneView& /*lane*/, const ScorerState& state, std::span<float> keep) const {
  EBB_CHECK(keep.size() == state.slot.size());
  std::ranges::copy(state.slot, keep.begin());
}

bool AttentionReceived::Seed(std::span<const float> keep, const MutableScorerState& state) const {
  EBB_CHECK(keep.size() == state.slot.size());
  std::ranges::copy(keep, state.slot.begin());
  return true;
}

}  // namespace ebb
