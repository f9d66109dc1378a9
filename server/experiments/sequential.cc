#include "server/experiments/sequential.h"

#include <cmath>

#include "policies/check.h"

namespace ebb {

double SequentialHalfWidth(double variance, int64_t t, double alpha, int64_t tightest_at) {
  EBB_CHECK(variance >= 0 && t >= 1 && alpha > 0 && alpha < 1 && tightest_at >= 1);
  const double surprise = -2 * std::log(alpha);
  const double rho2 = (surprise + std::log(surprise + 1)) / static_cast<double>(tightest_at);
  const double tr = static_cast<double>(t) * rho2;
  return std::sqrt(variance * (tr + 1) / tr * (std::log(tr + 1) + surprise));
}

Difference SequentialDifference(const RatioEstimate& arm, const RatioEstimate& control, double alpha,
                                int64_t tightest_at) {
  const double value = arm.value - control.value;
  const double half =
      SequentialHalfWidth(arm.variance + control.variance, arm.units + control.units, alpha, tightest_at);
  return {.value = value, .interval = {.low = value - half, .high = value + half}};
}

}  // namespace ebb
