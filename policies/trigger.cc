#include "policies/trigger.h"

#include <algorithm>

namespace ebb {

int32_t TokensToDrop(const Trigger& trigger, int32_t length) {
  const int64_t budget = trigger.budget;
  if (length - budget < trigger.overflow) return 0;
  const int64_t target = trigger.max_drop == 0
                             ? budget
                             : std::min(std::max(int64_t{length} - trigger.max_drop, budget), budget + trigger.slack);
  return static_cast<int32_t>(length - target);
}

int64_t Capacity(const Trigger& trigger, int32_t block) {
  const int64_t left = trigger.max_drop > 0 ? trigger.slack : 0;
  return int64_t{trigger.budget} + std::max(int64_t{trigger.overflow} - 1, left) + block;
}

}  // namespace ebb
