#include "policies/tova.h"

#include <algorithm>

#include "policies/check.h"

namespace ebb {
namespace {

class Tova final : public Scorer {
 public:
  Needs needs() const override { return {.last_row = true, .state_floats = 1}; }

  void Observe(const LaneView& /*lane*/, const Observation& seen, const MutableScorerState& state) const override {
    EBB_CHECK(seen.last_row.size() == state.slot.size());
    std::ranges::copy(seen.last_row, state.slot.begin());
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

std::unique_ptr<const Scorer> MakeTova() { return std::make_unique<Tova>(); }

}  // namespace ebb
