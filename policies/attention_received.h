// What scorers share whose state is one float a slot, the attention that the slot received, and whose score is that
// float. They differ in Needs and in how Observe folds a step in.

#ifndef EBB_POLICIES_ATTENTION_RECEIVED_H_
#define EBB_POLICIES_ATTENTION_RECEIVED_H_

#include "policies/scorer.h"

namespace ebb {

class AttentionReceived : public Scorer {
 public:
  // keep[j] = state[j].
  void Score(const LaneView& lane, const ScorerState& state, std::span<float> keep) const final;

  // state[j] = keep[j].
  bool Seed(std::span<const float> keep, const MutableScorerState& state) const final;
};

}  // namespace ebb

#endif  // EBB_POLICIES_ATTENTION_RECEIVED_H_
