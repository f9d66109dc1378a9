// What a share of so many cases says about the share of all.

#ifndef EBB_ENGINE_LAB_STATISTICS_H_
#define EBB_ENGINE_LAB_STATISTICS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace ebb::lab {

struct Interval {
  double low = 0;
  double high = 1;

  bool Overlaps(const Interval& other) const { return low <= other.high && other.low <= high; }
};

// Wilson's 95 % interval of a share, `right` of `cases`:
// (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n), z = 1.96. [0, 1] for no cases.
inline Interval Wilson(int64_t right, int64_t cases) {
  if (cases < 1) return {};
  constexpr double kZ = 1.959963984540054;
  const auto n = static_cast<double>(cases);
  const double p = static_cast<double>(right) / n;
  const double scale = 1 + kZ * kZ / n;
  const double middle = (p + kZ * kZ / (2 * n)) / scale;
  const double half = kZ * std::sqrt(p * (1 - p) / n + kZ * kZ / (4 * n * n)) / scale;
  return {.low = std::max(0.0, middle - half), .high = std::min(1.0, middle + half)};
}

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_STATISTICS_H_
