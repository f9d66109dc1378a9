#include "policies/keydiff.h"

#include "policies/key_likeness.h"

namespace ebb {
namespace {

class Keydiff final : public Scorer {
 public:
  Needs needs() const override { return {.memory = true}; }

  void Score(const LaneView& lane, const ScorerState& /*state*/, std::span<float> keep) const override {
    KeyLikeness(lane, keep);
    for (float& k : keep) k = -k;
  }
};

}  // namespace

std::unique_ptr<const Scorer> MakeKeydiff() { return std::make_unique<Keydiff>(); }

constinit const ScorerRow kKeydiffRow = {
    .name = "keydiff",
    .about = {.summary = "Keeps the tokens whose keys are least like the mean key.",
              .when =
                  "Where tokens must leave before the question is known: what stands out by its key stays, asked for "
                  "or not. How well that recalls is a property of the model, so measure it.",
              .equation = "m = mean over live tokens j of k[j] / |k[j]|,  keep[j] = -cos(k[j], m)",
              .origin = "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in "
                        "Resource-Constrained Environments",
              .paper = "arXiv:2504.15364",
              .cost = "O(n d) a decision, since it reads every live key. Attention reports nothing.",
              .turns = "It looks at keys and at no query, so no question biases it."},
    .recent = [](int32_t /*budget*/, int32_t /*sinks*/, int32_t /*query_heads*/) { return 32; },
    .make = [](const ScorerParameters&) { return MakeKeydiff(); }};

}  // namespace ebb
