// A policy at work on the lanes of random attention that decide together: observe, and when the trigger is due score,
// reduce, select and evict. What the engine does for real, written to be read.

#ifndef EBB_TESTS_PROPERTY_POLICY_LANE_H_
#define EBB_TESTS_PROPERTY_POLICY_LANE_H_

#include <gmock/gmock.h>

#include <cstdint>
#include <string>
#include <vector>

#include "policies/rank.h"
#include "policies/registry.h"
#include "policies/select.h"
#include "policies/spec.h"
#include "policies/status.h"
#include "tests/support/random_attention.h"
#include "tests/support/random_calibration.h"
#include "tests/support/status_matchers.h"

namespace ebb {

// The choices of a policy that decide who leaves.
struct PolicyForm {
  const ScorerRow* row = nullptr;
  Reduction reduction = Reduction::kMean;
  Modifier modifier = Modifier::kNone;
  Scope scope = Scope::kKvHead;

  bool operator==(const PolicyForm&) const = default;
};

inline std::string NameOf(const PolicyForm& form) {
  constexpr const char* kReductions[] = {"", " by max", " by L2", " by union"};
  constexpr const char* kModifiers[] = {"", "caote ", "fast_caote "};
  return kModifiers[static_cast<int>(form.modifier)] + std::string(form.row->name) +
         kReductions[static_cast<int>(form.reduction)] + (form.scope == Scope::kLayer ? " per layer" : "");
}

// The form's policy, run at every step, with this trigger and the scorer's defaults for the rest; a budget without room
// for these is raised to the smallest that has it. `full` takes a budget alone.
inline PolicySpec SpecOf(const PolicyForm& form, const Trigger& trigger) {
  PolicySpec spec = {.scorer = std::string(form.row->name), .budget = trigger.budget};
  if (!form.row->evicts) return spec;
  spec.overflow = trigger.overflow;
  spec.slack = trigger.slack;
  spec.max_drop = trigger.max_drop;
  spec.schedule = Schedule::kEveryStep;
  spec.scope = form.scope;
  spec.reduction = form.reduction;
  spec.modifier = form.modifier;
  return spec;
}

// The spec with the smallest budget from its own on that has room; with the presets of its parameters where their
// choice rules its form out (calibrated without attention has nothing to reduce) or means nothing (a kernel that
// nothing is pooled with).
inline ValidSpec ResolveWithRoom(PolicySpec spec, int32_t query_heads = 1) {
  const SpecLimits limits = {.query_heads = query_heads, .calibration = &TestCalibration()};
  if (GetRefusal(Resolve(spec, limits).status()).reason == "MEANINGLESS_COMBINATION") spec.parameters.clear();
  while (!Resolve(spec, limits).ok() && *spec.budget < 1000) ++*spec.budget;
  return Resolve(spec, limits).value();
}

inline ValidSpec SpecFor(const ScorerRow& row, const Trigger& trigger) {
  return ResolveWithRoom(SpecOf({.row = &row, .reduction = row.reduction}, trigger));
}

// Every form that Resolve accepts, of every scorer.
inline std::vector<PolicyForm> AllForms() {
  std::vector<PolicyForm> forms;
  for (const ScorerRow& row : ScorerRegistry()) {
    for (const Scope scope : {Scope::kKvHead, Scope::kLayer}) {
      for (const Modifier modifier : {Modifier::kNone, Modifier::kCaote, Modifier::kFastCaote}) {
        for (const Reduction reduction : {Reduction::kMean, Reduction::kMax, Reduction::kL2, Reduction::kUnion}) {
          const PolicyForm form = {.row = &row, .reduction = reduction, .modifier = modifier, .scope = scope};
          PolicySpec spec = SpecOf(form, {.budget = 1000});
          if (!row.evicts && !(form == PolicyForm{.row = &row})) continue;  // SpecOf leaves the form out
          if (Resolve(spec, {.calibration = &TestCalibration()}).ok()) forms.push_back(form);
        }
      }
    }
  }
  return forms;
}

class PolicyLane {
 public:
  // options.query_heads are those of the spec, and options.kv_heads is 1 unless they decide together.
  PolicyLane(const ValidSpec& spec, const RandomAttentionOptions& options) : attention(options), spec_(spec) {
    EBB_CHECK(options.query_heads == spec.query_heads || !spec.heads_apart());
    EBB_CHECK(options.kv_heads == 1 || spec.scope == Scope::kLayer || spec.lockstep);
    const LaneShape shape = {.query_heads = QueryHeads(), .head_dim = RandomAttention::kHeadDim};
    for (int32_t kv = 0; kv < options.kv_heads; ++kv) {
      for (int32_t query = 0; query < options.query_heads; query += shape.query_heads) {
        states.push_back({.head = {.kv = kv, .query = query}});
        states.back().slot.resize(static_cast<size_t>(options.slots) * spec.scorer->needs().state_floats);
        states.back().lane.resize(static_cast<size_t>(spec.scorer->lane_floats(shape)));
      }
    }
  }

  // Adds `queries` tokens and prunes if due. Returns the tokens that left, in slot order.
  std::vector<int32_t> Step(int32_t queries) {
    Observe(queries);
    return Prune(spec_.evicts ? TokensToDrop(spec_.trigger, attention.live()) : 0);
  }

  void Observe(int32_t queries) {
    attention.Step(queries);
    const Needs needs = spec_.scorer->needs();
    for (State& state : states) {
      for (const int32_t slot : attention.placed()) {
        std::fill_n(state.slot.begin() + int64_t{slot} * needs.state_floats, needs.state_floats, 0.0F);
      }
      if (!needs.observes()) continue;
      const Observation seen =
          spec_.heads_apart() ? attention.Seen(state.head, needs) : attention.Seen(state.head.kv, needs);
      spec_.scorer->Observe(View(state.head.kv), seen, {.slot = state.slot, .lane = state.lane});
    }
  }

  // Keep scores [slots] of the lanes as they stand.
  const std::vector<float>& Score() {
    std::vector<Track> tracks;
    for (State& state : states) {
      tracks.push_back({.lane = View(state.head.kv), .state = {.slot = state.slot, .lane = state.lane}});
      if (spec_.scorer->needs().probes) tracks.back().lane.probed = Probe(tracks.back(), state);
    }
    keep_.assign(static_cast<size_t>(attention.options().slots), 0.0F);
    Rank(spec_, tracks, rank_, keep_);
    return keep_;
  }

  std::vector<int32_t> Prune(int32_t count) {
    victims.clear();
    if (count == 0) return {};
    Score();
    const LaneView lane = View();
    EXPECT_THAT(SelectVictims(lane, keep_, count, select_, victims), IsOk());
    std::vector<int32_t> tokens;
    for (const int32_t slot : victims) tokens.push_back(lane.token[slot]);
    attention.Evict(victims);
    return tokens;
  }

  LaneView View(int32_t kv = 0) const {
    LaneView lane = attention.View(kv, spec_.sinks, spec_.recent);
    lane.budget = spec_.trigger.budget;
    lane.query_heads = QueryHeads();
    if (spec_.needs().memory) lane.memory = &attention.memory(kv);
    return lane;
  }

  const ValidSpec& spec() const { return spec_; }

  RandomAttention attention;
  // A scorer's memory of a KV head, or where the policy keeps query heads apart of one of them.
  struct State {
    HeadIndex head = {};
    std::vector<float> slot = {};  // [slots * state_floats]
    std::vector<float> lane = {};  // [lane_floats]
    std::vector<float> probed = {};
  };
  std::vector<State> states;
  std::vector<int32_t> victims;  // slots that left last

 private:
  // That one state speaks for.
  int32_t QueryHeads() const { return spec_.heads_apart() ? 1 : attention.options().query_heads; }

  std::span<const float> Probe(const Track& track, State& state) const {
    std::vector<double> sums(static_cast<size_t>(attention.options().slots), 0.0);
    for (int32_t head = 0; head < QueryHeads(); ++head) {
      std::vector<int32_t> tokens;
      std::vector<float> queries;
      spec_.scorer->AppendProbes(track.lane, head, track.state, tokens, queries);
      attention.AddProbes(state.head.kv, tokens, queries, 1.0 / QueryHeads(), sums);
    }
    state.probed.assign(sums.begin(), sums.end());
    return state.probed;
  }

  ValidSpec spec_;
  std::vector<float> keep_;
  RankScratch rank_;
  SelectScratch select_;
};

}  // namespace ebb

#endif  // EBB_TESTS_PROPERTY_POLICY_LANE_H_
