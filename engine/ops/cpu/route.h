// Which experts a token goes to.

#ifndef EBB_ENGINE_OPS_CPU_ROUTE_H_
#define EBB_ENGINE_OPS_CPU_ROUTE_H_

#include <cstdint>
#include <span>

namespace ebb::cpu {

// Which of `scores` are the largest, largest first, of equal ones the first; and they themselves. What is not a number
// is larger than what is. REQUIRES: chosen.size() <= scores.size(), room for as many in `largest`.
void ChooseLargest(std::span<const float> scores, std::span<int32_t> chosen, float* largest);

}  // namespace ebb::cpu

#endif  // EBB_ENGINE_OPS_CPU_ROUTE_H_
