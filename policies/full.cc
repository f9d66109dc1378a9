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

constinit const ScorerRow kFullRow = {
    .name = "full",
    .about = {.summary = "Keeps every token; the budget is a length limit.",
              .when = "Where the whole conversation fits: nothing is lost. While nothing is evicted every other policy "
                      "computes what this one does.",
              .equation = "keep[j] = 0",
              .origin = "No paper: a cache without eviction.",
              .cost = "Nothing is decided. Attention reads every token of the session, and memory for the whole budget "
                      "is reserved.",
              .turns = "Nobody leaves."},
    .evicts = false,
    .lockstep = true,
    .scored = false,
    .make = [](const ScorerParameters&) { return MakeFull(); }};

}  // namespace ebb
