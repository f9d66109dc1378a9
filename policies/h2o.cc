#include "policies/h2o.h"

#include "policies/attention_received.h"
#include "policies/check.h"

namespace ebb {
namespace {

class H2o final : public AttentionReceived {
 public:
  Needs needs() const override { return {.column_sums = true, .state_floats = 1}; }

  void Observe(const LaneView& /*lane*/, const Observation& seen, const MutableScorerState& state) const override {
    EBB_CHECK(seen.column_sums.size() == state.slot.size());
    for (size_t slot = 0; slot < state.slot.size(); ++slot) state.slot[slot] += seen.column_sums[slot];
  }
};

}  // namespace

std::unique_ptr<const Scorer> MakeH2o() { return std::make_unique<H2o>(); }

}  // namespace ebb
