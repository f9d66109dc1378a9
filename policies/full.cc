#include "policies/full.h"

#include <algorithm>

namespace ebb {
namespace {

class Full final : public Scorer {
 public:
  Needs needs() const override { return {}; }

  void Score(const LaneView& /*lane*/, const ScorerState& /*state*/, std::span<float> keep) const override {
    std::ranges::fill(keep, 0.0F);
  }
};

}  // namespace

std::unique_ptr<const Scorer> MakeFull() { return std::make_unique<Full>(); }

}  // namespace ebb
