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

constexpr std::string_view kKept[] = {"short", "long"};  // in the order of KeptKeys
constexpr ParameterRow kKnormParameters[] = {
    Choice("keep", "which keys stay; the paper's are the short ones, on some models the long ones are worth more",
           kKept),
};

}  // namespace

std::unique_ptr<const Scorer> MakeKnorm(KeptKeys kept) { return std::make_unique<Knorm>(kept); }

constinit const ScorerRow kKnormRow = {
    .name = "knorm",
    .about =
        {.summary = "Keeps the tokens with the shortest keys, or the longest.",
         .when = "For the least work of all that go by content, once you have measured which keys your model wants: "
                 "on the built-in one `keep=long` is among the best policies there are, and `keep=short` among the "
                 "worst.",
         .equation =
             "keep[j] = -|k[j]|    keep = short: the paper's, which observed that short keys receive much attention\n"
             "keep[j] = +|k[j]|    keep = long: its reverse",
         .origin = "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression",
         .paper = "arXiv:2406.11430",
         .cost = "O(d) when a token enters, O(n) a decision. Attention reports nothing.",
         .turns = "A token's score is fixed by its key when it enters; no question changes it."},
    .sinks = [](int32_t /*budget*/) { return 4; },
    .recent = [](int32_t /*budget*/, int32_t /*sinks*/, int32_t /*query_heads*/) { return 10; },
    .parameters = kKnormParameters,
    .make =
        [](const ScorerParameters& p) { return MakeKnorm(p.at("keep") == 0 ? KeptKeys::kShort : KeptKeys::kLong); }};

}  // namespace ebb
