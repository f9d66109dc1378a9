#include "policies/tova.h"

#include <algorithm>

#include "policies/attention_received.h"
#include "policies/check.h"

namespace ebb {
namespace {

class Tova final : public AttentionReceived {
 public:
  Needs needs() const override { return {.last_row = true, .state_floats = 1}; }

  void Observe(const LaneView& /*lane*/, const Observation& seen, const MutableScorerState& state) const override {
    EBB_CHECK(seen.last_row.size() == state.slot.size());
    std::ranges::copy(seen.last_row, state.slot.begin());
  }
};

}  // namespace

std::unique_ptr<const Scorer> MakeTova() { return std::make_unique<Tova>(); }

}  // namespace ebb
