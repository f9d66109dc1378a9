// What repetitions say: the middle one, and between what half of them lie.

#ifndef EBB_BENCH_STATISTICS_H_
#define EBB_BENCH_STATISTICS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "policies/check.h"

namespace ebb::bench {

// The value below which `share` of them lie, 0..1, between two neighbours by proportion: 0.5 is the median.
// REQUIRES: at least one value, none NaN.
inline double Percentile(std::vector<double> values, double share) {
  EBB_CHECK(!values.empty());
  std::ranges::sort(values);
  const double at = std::clamp(share, 0.0, 1.0) * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - std::floor(at)) * (values[above] - values[below]);
}

inline double Median(const std::vector<double>& values) { return Percentile(values, 0.5); }

// A median with its quartiles.
struct Spread {
  double median = 0, low = 0, high = 0;

  bool operator==(const Spread&) const = default;
};

// REQUIRES: at least one value.
inline Spread SpreadOf(const std::vector<double>& values) {
  return {.median = Median(values), .low = Percentile(values, 0.25), .high = Percentile(values, 0.75)};
}

}  // namespace ebb::bench

#endif  // EBB_BENCH_STATISTICS_H_
