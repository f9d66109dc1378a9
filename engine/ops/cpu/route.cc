#include "engine/ops/cpu/route.h"

#include <algorithm>
#include <cmath>

namespace ebb::cpu {

void ChooseLargest(std::span<const float> scores, std::span<int32_t> chosen, float* largest) {
  const auto before = [](float a, float b) { return a > b || (std::isnan(a) && !std::isnan(b)); };
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto taken = chosen.first(i);
    int32_t best = -1;
    for (int32_t e = 0; e < static_cast<int32_t>(scores.size()); ++e) {
      if (std::ranges::find(taken, e) != taken.end()) continue;
      if (best < 0 || before(scores[e], scores[best])) best = e;
    }
    chosen[i] = best;
    largest[i] = scores[best];
  }
}

}  // namespace ebb::cpu
