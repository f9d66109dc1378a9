#include "policies/random.h"

#include "policies/check.h"
#include "policies/hash_random.h"

namespace ebb {
namespace {

constexpr uint64_t kLane = 0x72616E646F6D;  // "random": no other user of a seed has this purpose

class Random final : public Scorer {
 public:
  Random(uint64_t seed, RandomMode mode) : seed_(seed), mode_(mode) {}

  Needs needs() const override { return {}; }

  void Score(const LaneView& lane, const ScorerState& /*state*/, std::span<float> keep) const override {
    EBB_CHECK(keep.size() == lane.token.size());
    const uint64_t place = static_cast<uint64_t>(lane.layer) << 32 | static_cast<uint32_t>(lane.head);
    const uint64_t lane_seed = HashBits(seed_, kLane, place);
    const uint64_t draw = mode_ == RandomMode::kFresh ? 1 + static_cast<uint64_t>(lane.tokens) : 0;
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      if (lane.token[slot] < 0) continue;
      const uint64_t bits = HashBits(lane_seed, draw, static_cast<uint64_t>(lane.token[slot]));
      keep[slot] = static_cast<float>(bits >> 40) * 0x1p-24F;
    }
  }

 private:
  uint64_t seed_;
  RandomMode mode_;
};

}  // namespace

std::unique_ptr<const Scorer> MakeRandom(uint64_t seed, RandomMode mode) {
  return std::make_unique<Random>(seed, mode);
}

}  // namespace ebb
