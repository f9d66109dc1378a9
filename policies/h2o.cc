#include "policies/h2o.h"

#include <algorithm>

#include "policies/check.h"

namespace ebb {
namespace {

class H2o final : public Scorer {
 public:
  Needs needs() const override { return {.column_sums = true, .state_floats = 1}; }

  void Observe(const LaneView& /*lane*/, const Observation& seen, const MutableScorerState& state) const override {
    EBB_CHECK(seen.column_sums.size() == state.slot.size());
    for (size_t slot = 0; slot < state.slot.size(); ++slot) state.slot[slot] += seen.column_sums[slot];
  }

  void Score(const LaneView& /*lane*/, const ScorerState& state, std::span<float> keep) const override {
    EBB_CHECK(keep.size() == state.slot.size());
    std::ranges::copy(state.slot, keep.begin());
  }

  bool Seed(std::span<const float> keep, const MutableScorerState& state) const override {
    std::ranges::copy(keep, state.slot.begin());
    return true;
  }
};

}  // namespace

std::unique_ptr<const Scorer> MakeH2o() { return std::make_unique<H2o>(); }

}  // namespace ebb
