#include "policies/h2o.h"

#include "policies/attention_received.h"
#include "policies/check.h"

namespace ebb {
namespace {

class H2o final : public AttentionReceived {
 public:
  Needs needs() const override { return {.column_sums = true, .state_floats = 1}; }

  void Observe(const LaneView& /*lane*/, const Observation& seen, const MutableScorerState& state) const override {
    EBB_CHECK(seen.column_sums.size() == state.slot.size());
    for (size_t slot = 0; slot < state.slot.size(); ++slot) state.slot[slot] += seen.column_sums[slot];
  }
};

}  // namespace

std::unique_ptr<const Scorer> MakeH2o() { return std::make_unique<H2o>(); }

constinit const ScorerRow kH2oRow = {
    .name = "h2o",
    .about = {.summary = "Keeps the tokens that gathered most attention so far, beside a recent window.",
              .when = "For a dialogue that returns to what it attended to before. Not where a fact goes by before "
                      "anybody asks for it: then it has gathered nothing.",
              .equation = "keep[j] = A[j] = sum over all steps and over the queries i of each step of P[i, j]",
              .origin = "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
              .paper = "arXiv:2306.14048",
              .cost =
                  "O(n) a step. Column sums are nearly free in decode; in prefill they take one more pass over each "
                  "block's score tile.",
              .turns = "Sums run over all queries so far, not over those of one question, and never decay."},
    .non_negative = true,
    .recent = [](int32_t budget, int32_t /*sinks*/, int32_t /*query_heads*/) { return budget / 2; },
    .make = [](const ScorerParameters&) { return MakeH2o(); }};

}  // namespace ebb
