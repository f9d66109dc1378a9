// What a few cases say about all: the interval of a share, and of a mean.

#ifndef EBB_ENGINE_LAB_STATISTICS_H_
#define EBB_ENGINE_LAB_STATISTICS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>

namespace ebb::lab {

struct Interval {
  double low = 0;
  double high = 1;

  bool operator==(const Interval&) const = default;
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

// Student's t of a two-sided 95 % interval. REQUIRES: freedom >= 1.
inline double Student95(int64_t freedom) {
  constexpr double kT[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262};
  if (freedom <= static_cast<int64_t>(std::size(kT))) return kT[freedom - 1];
  // Cornish and Fisher's expansion in 1 / freedom, within 0.001 from here on.
  constexpr double kZ = 1.959963984540054;
  const double third = std::pow(kZ, 3);
  const double fifth = std::pow(kZ, 5);
  const double seventh = std::pow(kZ, 7);
  const auto v = static_cast<double>(freedom);
  return kZ + (third + kZ) / (4 * v) + (5 * fifth + 16 * third + 3 * kZ) / (96 * v * v) +
         (3 * seventh + 19 * fifth + 17 * third - 15 * kZ) / (384 * v * v * v);
}

struct Mean {
  double value = 0;
  double half_width = 0;  // of the 95 % interval; infinite for one sample, which tells of no spread
};

// The mean of independent samples, and Student's interval from their spread. Zero for no samples.
inline Mean MeanOf(std::span<const double> samples) {
  const auto n = static_cast<double>(samples.size());
  Mean mean;
  if (samples.empty()) return mean;
  for (const double sample : samples) mean.value += sample / n;
  mean.half_width = std::numeric_limits<double>::infinity();
  if (samples.size() < 2) return mean;
  double squares = 0;
  for (const double sample : samples) squares += (sample - mean.value) * (sample - mean.value);
  const auto freedom = static_cast<int64_t>(samples.size()) - 1;
  mean.half_width = Student95(freedom) * std::sqrt(squares / static_cast<double>(freedom) / n);
  return mean;
}

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_STATISTICS_H_
