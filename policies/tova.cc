#include "policies/tova.h"

#include <algorithm>

#include "policies/attention_received.h"
#include "policies/check.h"

namespace ebb {
namespace {

class Tova final : public AttentionReceived {
 public:
  Needs needs() const override { return {.last_row = true, .state_floats = 1}; }

  void Observe(const LaneView& /*lane*/, const Observation& seen, const MutableScorerState& state) const override {
    EBB_CHECK(seen.last_row.size() == state.slot.size());
    std::ranges::copy(seen.last_row, state.slot.begin());
  }
};

}  // namespace

std::unique_ptr<const Scorer> MakeTova() { return std::make_unique<Tova>(); }

constinit const ScorerRow kTovaRow = {
    .name = "tova",
    .about = {.summary = "Keeps what the newest query attends to.",
              .when = "For a prompt that ends with its question, where the newest tokens know what is wanted. Not for "
                      "what nobody has asked about yet.",
              .equation = "keep[j] = P[last, j], what the newest query of the last step paid to slot j",
              .origin = "Transformers are Multi-State RNNs",
              .paper = "arXiv:2401.06104",
              .cost = "O(n) a step: one row of attention, which decode has at hand and prefill works out once a block.",
              .turns =
                  "What the newest query ignores leaves for good, however much an earlier turn needed it or a later "
                  "one will."},
    .safe_across_turns = false,
    .non_negative = true,
    .make = [](const ScorerParameters&) { return MakeTova(); }};

}  // namespace ebb
