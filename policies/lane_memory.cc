#include "policies/lane_memory.h"

#include <cmath>

namespace ebb {

void Rotate(const RopeView& rope, int64_t position, std::span<float> row) {
  const size_t pairs = rope.frequencies.size();
  for (size_t i = 0; i < pairs; ++i) {
    const double angle = static_cast<double>(position) * rope.frequencies[i];
    const double cos = std::cos(angle);
    const double sin = std::sin(angle);
    float& x = row[rope.halves ? i : 2 * i];
    float& y = row[rope.halves ? i + pairs : 2 * i + 1];
    const double a = x;
    const double b = y;
    x = static_cast<float>(a * cos - b * sin);
    y = static_cast<float>(a * sin + b * cos);
  }
}

}  // namespace ebb
