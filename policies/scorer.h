// What a policy asks of attention, and what it answers.
//
// A scorer ranks the tokens of one lane: it folds what attention saw into its state and writes one keep score per slot;
// larger means keep. It owns nothing. Its memory is floats that the lane keeps, some beside each slot and some for the
// lane, so forking, saving and replaying a session never need a scorer's help. Protection (sinks, recent), NaN and ties
// are select.h's job; the mean or another reduction over query heads is rank.h's.
//
// Thread safety: immutable after construction; one instance serves every lane of every session.

#ifndef EBB_POLICIES_SCORER_H_
#define EBB_POLICIES_SCORER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "policies/lane_view.h"

namespace ebb {

// What a scorer wants to be told. Nothing that is not named is computed.
struct Needs {
  // Of attention:
  bool column_sums = false;  // nearly free in decode; in prefill one more pass over the block's score tile
  bool last_row = false;     // O(n)
  int32_t window_rows = 0;   // the last w query rows of the step, each O(n); 0: none
  // Of the step and the cache:
  bool queries = false;  // the step's queries
  bool entered = false;  // Observe is called for the tokens that entered, even where nothing else is asked for
  bool memory = false;   // LaneView.memory in Observe and Score
  bool probes = false;   // LaneView.probed in Score, for the queries that AppendProbes names
  bool by_age = false;   // LaneView.by_age in Score

  int32_t state_floats = 0;  // floats kept per slot, zeroed when a token enters it

  bool attention() const { return column_sums || last_row || window_rows > 0; }
  bool observes() const { return attention() || queries || entered; }
};

// A model's lane, for scorers whose state has its shape.
struct LaneShape {
  int32_t query_heads = 1;  // that share a KV head
  int32_t head_dim = 0;
};

// What attention saw in one step of one lane, reduced over the lane's query heads by the mean, or of one query head
// where the policy keeps them apart (rank.h). n = slots of the lane. P is the softmax of a row. Entries of free slots
// are 0. What was not asked for in Needs is empty.
struct Observation {
  std::span<const float> column_sums = {};  // [n] sum over queries of P[query, slot]; live entries sum to `queries`
  std::span<const float> last_row = {};     // [n] P[last query, slot]; live entries sum to 1
  std::span<const float> window = {};  // [rows, n] P of the last rows = min(window_rows, queries) queries, oldest first
  int32_t queries = 0;                 // rows attended in this step, >= 1
  std::span<const int32_t> slots = {};  // [queries] where the step's tokens sit, in token order
  // The step's queries, unrotated: query head h of token t is [head_dim] at q + t * q_stride + h * head_dim.
  const float* q = nullptr;
  int64_t q_stride = 0;
};

// A scorer's memory of one lane.
struct ScorerState {
  std::span<const float> slot = {};  // [n * state_floats] slot-major
  std::span<const float> lane = {};  // [lane_floats]
};
struct MutableScorerState {
  std::span<float> slot = {};
  std::span<float> lane = {};
  operator ScorerState() const { return {.slot = slot, .lane = lane}; }
};

class Scorer {
 public:
  virtual ~Scorer() = default;

  // Constant over the life of the scorer.
  virtual Needs needs() const = 0;

  // Floats kept for each lane beside its slots, zero in a new session.
  virtual int64_t lane_floats(const LaneShape& /*shape*/) const { return 0; }

  // Folds one step into the state. Called once per step and lane, after attention and before any eviction of that
  // step, if needs().observes().
  virtual void Observe(const LaneView& /*lane*/, const Observation& /*seen*/,
                       const MutableScorerState& /*state*/) const {}

  // Writes keep scores [n]; what it writes for free slots is ignored. May be called at any time; the same arguments
  // give the same scores.
  virtual void Score(const LaneView& lane, const ScorerState& state, std::span<float> keep) const = 0;

  // Appends the queries whose attention to the lane it wants to know at Score, of one query head: the token of each,
  // ascending, and its unrotated query [head_dim]. They come from `state`, where Observe kept them.
  virtual void AppendProbes(const LaneView& /*lane*/, int32_t /*query_head*/, const ScorerState& /*state*/,
                            std::vector<int32_t>& /*tokens*/, std::vector<float>& /*queries*/) const {}

  // Fills the state of a lane whose past it did not observe, from its tokens, positions and memory, when a session's
  // policy is swapped. False where that cannot tell, and nothing was written.
  virtual bool Rebuild(const LaneView& lane, const MutableScorerState& state) const;

  // The same from another scorer's keep scores [n], where both are attention received (ScorerRow.non_negative).
  virtual bool Seed(std::span<const float> /*keep*/, const MutableScorerState& /*state*/) const { return false; }
};

}  // namespace ebb

#endif  // EBB_POLICIES_SCORER_H_
