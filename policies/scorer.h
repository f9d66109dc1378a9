// What a policy asks of attention, and what it answers.
//
// A scorer ranks the tokens of one lane: it folds what attention saw into `state` and writes one keep score per slot;
// larger means keep. It owns nothing. Its memory is `state`, floats that the lane keeps beside its slots, so forking,
// saving and replaying a session never need a scorer's help. Protection (sinks, recent), NaN and ties are select.h's
// job.
//
// Thread safety: immutable after construction; one instance serves every lane of every session.

#ifndef EBB_POLICIES_SCORER_H_
#define EBB_POLICIES_SCORER_H_

#include <cstdint>
#include <span>

#include "policies/lane_view.h"

namespace ebb {

// What a scorer wants attention to report. Nothing that is not named is computed.
struct Needs {
  bool column_sums = false;  // nearly free in decode; in prefill one more pass over the block's score tile
  bool last_row = false;     // O(n)
  int32_t window_rows = 0;   // the last w query rows of the step, each O(n); 0: none
  int32_t state_floats = 0;  // floats kept per slot, zeroed when a token enters the slot

  bool any() const { return column_sums || last_row || window_rows > 0; }
};

// What attention saw in one step of one lane, reduced over the lane's query heads by the mean (POLICIES 1.6). n = slots
// of the lane. P is the softmax of a row. Entries of free slots are 0. A span that was not asked for in Needs is empty.
struct Observation {
  std::span<const float> column_sums = {};  // [n] sum over queries of P[query, slot]; live entries sum to `queries`
  std::span<const float> last_row = {};     // [n] P[last query, slot]; live entries sum to 1
  std::span<const float> window = {};  // [rows, n] P of the last rows = min(window_rows, queries) queries, oldest first
  int32_t queries = 0;                 // rows attended in this step, >= 1
};

class Scorer {
 public:
  virtual ~Scorer() = default;

  // Constant over the life of the scorer.
  virtual Needs needs() const = 0;

  // Folds one step into `state` [n * state_floats], slot-major. Called once per step and lane, after attention and
  // before any eviction of that step.
  virtual void Observe(const Observation& seen, std::span<float> state) const = 0;

  // Writes keep scores [n]; what it writes for free slots is ignored. May be called at any time; the same arguments
  // give the same scores.
  virtual void Score(const LaneView& lane, std::span<const float> state, std::span<float> keep) const = 0;
};

}  // namespace ebb

#endif  // EBB_POLICIES_SCORER_H_
