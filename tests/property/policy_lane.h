// A policy at work on one lane of random attention: observe, and when the trigger is due score, select and evict. What
// the engine does for real, written to be read.

#ifndef EBB_TESTS_PROPERTY_POLICY_LANE_H_
#define EBB_TESTS_PROPERTY_POLICY_LANE_H_

#include <gmock/gmock.h>

#include <cstdint>
#include <string>
#include <vector>

#include "policies/registry.h"
#include "policies/select.h"
#include "policies/spec.h"
#include "tests/support/random_attention.h"
#include "tests/support/status_matchers.h"

namespace ebb {

// The row's policy with this trigger and its own defaults for the rest; a budget without room for these is raised to
// the smallest that has it. `full` takes a budget alone.
inline ValidSpec SpecFor(const ScorerRow& row, const Trigger& trigger) {
  PolicySpec spec = {.scorer = std::string(row.name), .budget = trigger.budget};
  if (row.evicts) {
    spec.overflow = trigger.overflow;
    spec.slack = trigger.slack;
    spec.max_drop = trigger.max_drop;
  }
  while (!Resolve(spec, {}).ok() && *spec.budget < 1000) ++*spec.budget;
  return Resolve(spec, {}).value();
}

class PolicyLane {
 public:
  PolicyLane(const ValidSpec& spec, const RandomAttentionOptions& options)
      : attention(options),
        state(static_cast<size_t>(options.slots) * spec.scorer->needs().state_floats, 0.0F),
        lane_state(static_cast<size_t>(spec.scorer->lane_floats(attention.shape())), 0.0F),
        spec_(spec),
        keep_(static_cast<size_t>(options.slots)) {}

  // Adds `queries` tokens and prunes if due. Returns the tokens that left, in slot order.
  std::vector<int32_t> Step(int32_t queries) {
    const Needs needs = spec_.scorer->needs();
    const Observation seen = attention.Step(queries, needs);
    for (const int32_t slot : attention.placed()) {
      std::fill_n(state.begin() + int64_t{slot} * needs.state_floats, needs.state_floats, 0.0F);
    }
    if (needs.observes()) spec_.scorer->Observe(View(), seen, {.slot = state, .lane = lane_state});
    return Prune(spec_.evicts ? TokensToDrop(spec_.trigger, attention.live()) : 0);
  }

  std::vector<int32_t> Prune(int32_t count) {
    const LaneView lane = View();
    if (count > 0) spec_.scorer->Score(lane, {.slot = state, .lane = lane_state}, keep_);
    EXPECT_THAT(SelectVictims(lane, keep_, count, scratch_, victims), IsOk());
    std::vector<int32_t> tokens;
    for (const int32_t slot : victims) tokens.push_back(lane.token[slot]);
    attention.Evict(victims);
    return tokens;
  }

  LaneView View() const {
    LaneView lane = attention.View(spec_.sinks, spec_.recent);
    lane.budget = spec_.trigger.budget;
    return lane;
  }

  RandomAttention attention;
  std::vector<float> state;       // [slots * state_floats]
  std::vector<float> lane_state;  // [lane_floats]
  std::vector<int32_t> victims;   // slots that left last

 private:
  ValidSpec spec_;
  std::vector<float> keep_;
  SelectScratch scratch_;
};

}  // namespace ebb

#endif  // EBB_TESTS_PROPERTY_POLICY_LANE_H_
