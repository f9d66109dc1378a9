// What the numbers allow to be said: a decision for each arm against the control, and one for the experiment.
//
//   broken     the sample ratio is: nothing may be said
//   collecting too few units in an arm, or an interval that allows either
//   same       the whole interval is within the margin: no difference that matters
//   better     the whole interval is on the arm's side of 0 (and not within the margin)
//   worse      likewise on the control's
//
// The intervals hold at every look (sequential.h), so the first decision that is seen may be acted upon, and looking on
// is free.

#ifndef EBB_SERVER_EXPERIMENTS_DECISION_H_
#define EBB_SERVER_EXPERIMENTS_DECISION_H_

#include <cstddef>
#include <optional>
#include <span>

#include "server/experiments/sequential.h"

namespace ebb {

enum class Verdict { kBroken, kCollecting, kSame, kBetter, kWorse };

// Of one arm. `effect`: of the metric that decides, empty while there are too few units; `direction`: +1 where more is
// better, -1 where less is; `margin`: >= 0, the largest difference that does not matter, 0: every one does.
Verdict VerdictOn(const std::optional<Difference>& effect, int direction, double margin, bool broken);

struct Decision {
  Verdict verdict = Verdict::kCollecting;
  size_t arm = 0;  // of the experiment's arms, which kBetter and kWorse favour; kWorse: the control, 0
};

// Of the experiment: the best of the arms that are better; the control if all are worse, or no more than the same; the
// same if all are. `verdicts` and `effects` are of the arms beside the control, in order; at least one.
Decision DecisionOf(std::span<const Verdict> verdicts, std::span<const std::optional<Difference>> effects,
                    int direction);

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENTS_DECISION_H_
