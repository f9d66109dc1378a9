// Confidence intervals that hold at every look: however often somebody looks, and whenever they stop, the truth is in
// all of them at once with probability 1 - alpha.
//
// The asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas ("Time-uniform central limit
// theory and asymptotic confidence sequences", Annals of Statistics 52, 2024; arXiv:2103.06476, theorem 2.2), Robbins'
// normal mixture with an estimated variance. After t units, of an estimate with variance V:
//
//   half width = sqrt( V (t rho^2 + 1) / (t rho^2) * 2 log( sqrt(t rho^2 + 1) / alpha ) )
//
// In the paper's terms V = sigma^2 / t. For a difference of two arms V is the sum of theirs and t the units of both: a
// unit that is randomly assigned is one step of the martingale. rho says where the interval is tightest:
//
//   rho^2 = (-2 log alpha + log(-2 log alpha + 1)) / t0    tightest, nearly, after t0 units
//
// The price of looking: where a fixed-horizon interval of 95 % is 1.96 standard errors, this one is about 3.0 at t0.
// Asymptotic means that it holds once the central limit theorem does: not for the first few units, and later for rare
// or heavy-tailed outcomes. Experiments draw none below a number of units for each arm.

#ifndef EBB_SERVER_EXPERIMENTS_SEQUENTIAL_H_
#define EBB_SERVER_EXPERIMENTS_SEQUENTIAL_H_

#include <cstdint>
#include <optional>

#include "server/experiments/ratio.h"

namespace ebb {

struct Interval {
  double low = 0;
  double high = 0;

  bool Contains(double value) const { return low <= value && value <= high; }
};

// REQUIRES: variance >= 0, t >= 1, alpha in (0, 1), tightest_at >= 1.
double SequentialHalfWidth(double variance, int64_t t, double alpha, int64_t tightest_at);

struct Difference {
  double value = 0;  // arm - control
  Interval interval = {};
};

// Of an arm against the control.
Difference SequentialDifference(const RatioEstimate& arm, const RatioEstimate& control, double alpha,
                                int64_t tightest_at);

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENTS_SEQUENTIAL_H_
