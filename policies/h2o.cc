#include "policies/h2o.h"

#include <algorithm>

#include "policies/check.h"

namespace ebb {
namespace {

class H2o final : public Scorer {
 public:
  Needs needs() const override { return {.column_sums = true, .state_floats = 1}; }

  void Observe(const Observation& seen, std::span<float> state) const override {
    EBB_CHECK(seen.column_sums.size() == state.size());
    for (size_t slot = 0; slot < state.size(); ++slot) state[slot] += seen.column_sums[slot];
  }

  void Score(const LaneView& /*lane*/, std::span<const float> state, std::span<float> keep) const override {
    EBB_CHECK(keep.size() == state.size());
    std::ranges::copy(state, keep.begin());
  }
};

}  // namespace

std::unique_ptr<const Scorer> MakeH2o() { return std::make_unique<H2o>(); }

}  // namespace ebb
