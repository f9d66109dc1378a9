#include "server/experiments/ratio.h"

#include <algorithm>

#include "policies/check.h"

namespace ebb {

void RatioMoments::Add(const RatioSums& unit) {
  if (unit.denominator == 0) return;
  ++units_;
  const double n = static_cast<double>(units_);
  const double dx = unit.numerator - mean_x_;
  const double dy = unit.denominator - mean_y_;
  mean_x_ += dx / n;
  mean_y_ += dy / n;
  xx_ += dx * (unit.numerator - mean_x_);
  xy_ += dx * (unit.denominator - mean_y_);
  yy_ += dy * (unit.denominator - mean_y_);
}

void RatioMoments::Remove(const RatioSums& unit) {
  if (unit.denominator == 0) return;
  EBB_CHECK(units_ > 0);
  if (units_ == 1) {
    *this = {};
    return;
  }
  --units_;
  const double n = static_cast<double>(units_);
  const double dx = unit.numerator - mean_x_;
  const double dy = unit.denominator - mean_y_;
  mean_x_ -= dx / n;
  mean_y_ -= dy / n;
  xx_ = std::max(xx_ - dx * (unit.numerator - mean_x_), 0.0);
  xy_ -= dx * (unit.denominator - mean_y_);
  yy_ = std::max(yy_ - dy * (unit.denominator - mean_y_), 0.0);
}

std::optional<RatioEstimate> RatioMoments::Estimate() const {
  if (units_ < 2) return std::nullopt;
  const double n = static_cast<double>(units_);
  const double ratio = mean_x_ / mean_y_;
  const double residual = std::max((xx_ - 2 * ratio * xy_ + ratio * ratio * yy_) / (n - 1), 0.0);
  return RatioEstimate{.value = ratio, .variance = residual / (n * mean_y_ * mean_y_), .units = units_};
}

}  // namespace ebb
