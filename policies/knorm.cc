#include "policies/knorm.h"

#include "policies/check.h"
#include "policies/geometry.h"

namespace ebb {
namespace {

class Knorm final : public Scorer {
 public:
  explicit Knorm(KeptKeys kept) : kept_(kept) {}

  Needs needs() const override { return {.entered = true, .memory = true, .state_floats = 1}; }

  void Observe(const LaneView& lane, const Observation& seen, const MutableScorerState& state) const override {
    for (const int32_t slot : seen.slots) ReadLength(lane, slot, state);
  }

  void Score(const LaneView& /*lane*/, const ScorerState& state, std::span<float> keep) const override {
    EBB_CHECK(keep.size() == state.slot.size());
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      keep[slot] = kept_ == KeptKeys::kLong ? state.slot[slot] : -state.slot[slot];
    }
  }

  bool Rebuild(const LaneView& lane, const MutableScorerState& state) const override {
    for (size_t slot = 0; slot < lane.token.size(); ++slot) {
      if (lane.token[slot] >= 0) ReadLength(lane, static_cast<int32_t>(slot), state);
    }
    return true;
  }

 private:
  static void ReadLength(const LaneView& lane, int32_t slot, const MutableScorerState& state) {
    EBB_CHECK(lane.memory != nullptr);
    EBB_CHECK(static_cast<size_t>(slot) < state.slot.size());
    state.slot[static_cast<size_t>(slot)] = static_cast<float>(Length(lane.memory->Keys(slot, 1)));
  }

  KeptKeys kept_;
};

}  // namespace

std::unique_ptr<const Scorer> MakeKnorm(KeptKeys kept) { return std::make_unique<Knorm>(kept); }

}  // namespace ebb
