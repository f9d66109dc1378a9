// When a lane is pruned and to what length: Lazy Pruning, Slack and Max_Drop (POLICIES 7). Pure arithmetic.

#ifndef EBB_POLICIES_TRIGGER_H_
#define EBB_POLICIES_TRIGGER_H_

#include <cstdint>

namespace ebb {

// Lengths count tokens in one lane.
struct Trigger {
  int32_t budget = 0;    // C: what pruning may go down to; 0 while it waits for the first prompt (spec.h)
  int32_t overflow = 1;  // R >= 1: tokens above the budget that the lane gathers before it is pruned
  int32_t slack = 0;     // sigma >= 0: tokens above the budget that pruning may leave, if max_drop > 0
  int32_t max_drop = 0;  // delta >= 0: tokens dropped at one pruning, if slack allows; 0: no limit
};

// Tokens that leave a lane of `length`: 0 unless length - budget >= overflow; else length - target, where
// target = budget if max_drop is 0, else min(max(length - max_drop, budget), budget + slack).
// Worked example (budget 2048 = 4 + 2044, R 32, sigma 16, delta 32): 2090 -> 2058.
int32_t TokensToDrop(const Trigger& trigger, int32_t length);

// Slots a lane may ever need: budget + max(overflow - 1, max_drop > 0 ? slack : 0) + block, where block is the most
// tokens of one step. 64 bits, since the arguments are a caller's.
int64_t Capacity(const Trigger& trigger, int32_t block);

}  // namespace ebb

#endif  // EBB_POLICIES_TRIGGER_H_
