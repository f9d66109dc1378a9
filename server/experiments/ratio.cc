#include "server/experiments/ratio.h"

#include <algorithm>
#include <cmath>

#include "policies/check.h"

namespace ebb {

void RatioMoments::Add(const RatioSums& unit) {
  if (unit.denominator == 0) return;
  ++sums_.units;
  const double n = static_cast<double>(sums_.units);
  const double dx = unit.numerator - sums_.mean_x;
  const double dy = unit.denominator - sums_.mean_y;
  sums_.mean_x += dx / n;
  sums_.mean_y += dy / n;
  sums_.xx += dx * (unit.numerator - sums_.mean_x);
  sums_.xy += dx * (unit.denominator - sums_.mean_y);
  sums_.yy += dy * (unit.denominator - sums_.mean_y);
}

void RatioMoments::Remove(const RatioSums& unit) {
  if (unit.denominator == 0) return;
  EBB_CHECK(sums_.units > 0);
  if (sums_.units == 1) {
    *this = {};
    return;
  }
  --sums_.units;
  const double n = static_cast<double>(sums_.units);
  const double dx = unit.numerator - sums_.mean_x;
  const double dy = unit.denominator - sums_.mean_y;
  sums_.mean_x -= dx / n;
  sums_.mean_y -= dy / n;
  sums_.xx = std::max(sums_.xx - dx * (unit.numerator - sums_.mean_x), 0.0);
  sums_.xy -= dx * (unit.denominator - sums_.mean_y);
  sums_.yy = std::max(sums_.yy - dy * (unit.denominator - sums_.mean_y), 0.0);
}

std::optional<RatioEstimate> RatioMoments::Estimate() const {
  if (sums_.units < 2) return std::nullopt;
  const double n = static_cast<double>(sums_.units);
  const double ratio = sums_.mean_x / sums_.mean_y;
  const double residual = std::max((sums_.xx - 2 * ratio * sums_.xy + ratio * ratio * sums_.yy) / (n - 1), 0.0);
  const double variance = residual / (n * sums_.mean_y * sums_.mean_y);
  if (!std::isfinite(ratio) || !std::isfinite(variance)) return std::nullopt;
  return RatioEstimate{.value = ratio, .variance = variance, .units = sums_.units};
}

}  // namespace ebb
