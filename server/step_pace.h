// How many tokens a step may have so that it takes no longer than is wished for, learnt from the steps before.
//
// A step's time is taken for a line over its tokens, a + b * tokens: least squares in which each new step counts a
// sixteenth, so that it follows what contexts, neighbours and the machine do to a and b. It is believed up to twice as
// many tokens as steps had of late: a step of few tokens, which waits for the weights, tells little of one of many. A
// prompt's tokens and an answer's count alike; where drafts or shadows ride along, b holds what they cost.

#ifndef EBB_SERVER_STEP_PACE_H_
#define EBB_SERVER_STEP_PACE_H_

#include <cstdint>
#include <limits>

#include "absl/time/time.h"

namespace ebb {

class StepPace {
 public:
  static constexpr int32_t kFree = std::numeric_limits<int32_t>::max();

  // `target`: > 0, infinite for no pace at all.
  explicit StepPace(absl::Duration target) { SetTarget(target); }
  void SetTarget(absl::Duration target) { target_ = absl::ToDoubleSeconds(target); }

  // A step of so many tokens, >= 1, is over.
  void Took(int32_t tokens, absl::Duration took);

  // 0 where even a step of one token is expected to take longer; kFree until a step was seen. Steps that all had as
  // many tokens tell nothing of b: then it is the largest it can be, a = 0.
  int32_t tokens() const;

 private:
  double target_ = 0;  // seconds, as all that follows
  double mean_tokens_ = 0;
  double mean_ = 0;
  double spread_ = 0;   // variance of the tokens
  double shared_ = 0;   // covariance of tokens and time
  double longest_ = 0;  // tokens of the longest step, a sixteenth less with each since; 0: none was seen
};

}  // namespace ebb

#endif  // EBB_SERVER_STEP_PACE_H_
