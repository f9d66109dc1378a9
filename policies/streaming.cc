#include "policies/streaming.h"

#include "policies/check.h"

namespace ebb {
namespace {

class Streaming final : public Scorer {
 public:
  Needs needs() const override { return {}; }

  // Past 2^24 neighbours round to the same float, never to the wrong order; selection breaks such ties by age, exactly.
  void Score(const LaneView& lane, const ScorerState& /*state*/, std::span<float> keep) const override {
    EBB_CHECK(keep.size() == lane.token.size());
    for (size_t slot = 0; slot < keep.size(); ++slot) keep[slot] = static_cast<float>(lane.token[slot]);
  }
};

}  // namespace

std::unique_ptr<const Scorer> MakeStreaming() { return std::make_unique<Streaming>(); }

}  // namespace ebb
