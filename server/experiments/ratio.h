// A ratio of sums over units, and how sure it is: the delta method.
//
// With a unit's sums (x_i, y_i), i = 1..n, and means X, Y:
//
//   R = sum x_i / sum y_i = X / Y
//   var(R) = s2 / (n Y^2)                                 of R as an estimate
//   s2 = (Sxx - 2 R Sxy + R^2 Syy) / (n - 1)              of the residuals x_i - R y_i
//
// Sxx, Sxy, Syy are sums of products of deviations from the means. The unit is who was assigned, so that a session's
// tokens, which are alike, count as one observation and not as many (Deng, Knoblich, Lu 2018, KDD, "Applying the delta
// method in metric analytics"). Constant memory: the moments are kept, by Welford's updates, which go both ways.

#ifndef EBB_SERVER_EXPERIMENTS_RATIO_H_
#define EBB_SERVER_EXPERIMENTS_RATIO_H_

#include <cmath>
#include <cstdint>
#include <optional>

#include "server/experiments/metric.h"

namespace ebb {

struct RatioEstimate {
  double value = 0;
  double variance = 0;  // of the value; its standard error squared
  int64_t units = 0;
};

class RatioMoments {
 public:
  // A unit, with its sums so far. One with nothing observed (denominator 0) does not count.
  void Add(const RatioSums& unit);
  // Takes back a unit that was added with these very sums.
  void Remove(const RatioSums& unit);

  int64_t units() const { return sums_.units; }
  // Empty for fewer than two units, and where no double holds it.
  std::optional<RatioEstimate> Estimate() const;

  // All that it holds, as it is kept where no units are.
  struct Sums {
    int64_t units = 0;
    double mean_x = 0, mean_y = 0;
    double xx = 0, xy = 0, yy = 0;  // of products of deviations; xx and yy >= 0

    // There are units, and what is said of them can be of sums that are something.
    bool AreSomething() const {
      return units > 0 && RatioSums{mean_x, mean_y}.IsSomething() && std::isfinite(xx) && std::isfinite(xy) &&
             std::isfinite(yy) && xx >= 0 && yy >= 0;
    }
  };
  const Sums& sums() const { return sums_; }
  static RatioMoments Of(const Sums& sums) {
    RatioMoments moments;
    moments.sums_ = sums;
    return moments;
  }

 private:
  Sums sums_ = {};
};

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENTS_RATIO_H_
