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

constexpr std::string_view kModes[] = {"reservoir", "fresh"};  // in the order of RandomMode
constexpr ParameterRow kRandomParameters[] = {
    {.name = "seed", .help = "of the draws", .max = 0x1p53, .whole = true},
    Choice("mode", "one draw per token, which keeps a uniform sample of all that came, or a fresh one per decision",
           kModes),
};

}  // namespace

std::unique_ptr<const Scorer> MakeRandom(uint64_t seed, RandomMode mode) {
  return std::make_unique<Random>(seed, mode);
}

constinit const ScorerRow kRandomRow = {
    .name = "random",
    .about = {.summary = "Keeps tokens by chance: the baseline to beat.",
              .when = "In a comparison: what does not beat chance on your task is not worth its cost.",
              .equation =
                  "keep[j] = hash(seed, layer, KV head, token j)             mode = reservoir\n"
                  "keep[j] = hash(seed, layer, KV head, token j, step)       mode = fresh; step = length of the log",
              .origin = "No paper: the baseline of every comparison.",
              .cost = "A hash for each live token, O(n) a decision. Attention reports nothing.",
              .turns = "Chance knows no question."},
    .sinks = [](int32_t /*budget*/) { return 4; },
    .recent = [](int32_t /*budget*/, int32_t /*sinks*/, int32_t /*query_heads*/) { return 32; },
    .parameters = kRandomParameters,
    .make =
        [](const ScorerParameters& p) {
          const auto mode = p.at("mode") == 0 ? RandomMode::kReservoir : RandomMode::kFresh;
          return MakeRandom(static_cast<uint64_t>(p.at("seed")), mode);
        }};

}  // namespace ebb
