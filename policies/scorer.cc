#include "policies/scorer.h"

namespace ebb {

// Who keeps nothing has nothing to fill.
bool Scorer::Rebuild(const LaneView& /*lane*/, const MutableScorerState& state) const {
  return state.slot.empty() && state.lane.empty();
}

}  // namespace ebb
