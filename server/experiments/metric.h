// What an experiment measures of its units, each a ratio of sums over what a unit did: loss per measured eviction,
// bytes per second of a session's life, score per report. A mean over a unit's own ratios would count a session of one
// token as much as one of a thousand.

#ifndef EBB_SERVER_EXPERIMENTS_METRIC_H_
#define EBB_SERVER_EXPERIMENTS_METRIC_H_

#include <array>
#include <cmath>
#include <cstddef>

namespace ebb {

enum class TrialMetric {
  kAttentionMassLost,
  kOutputError,
  kShadowKl,
  kShadowAgreement,
  kReservedBytes,
  kTimeToFirstToken,
  kInterToken,
  kScore,
  kThumbs,
};
inline constexpr size_t kTrialMetrics = 9;

// The direction in which a metric is better: +1 or -1.
constexpr int BetterDirection(TrialMetric metric) {
  return metric == TrialMetric::kShadowAgreement || metric == TrialMetric::kScore || metric == TrialMetric::kThumbs
             ? 1
             : -1;
}

// Arms that share a machine share its time, so that what one takes the other waits for: a difference in latency between
// them says less than a difference between two servers would.
constexpr bool IsConfounded(TrialMetric metric) {
  return metric == TrialMetric::kTimeToFirstToken || metric == TrialMetric::kInterToken;
}

// Two sums over what a unit did.
struct RatioSums {
  double numerator = 0;
  double denominator = 0;  // >= 0; 0: nothing was observed

  // Something was, and both are numbers yet.
  bool IsSomething() const { return std::isfinite(numerator) && std::isfinite(denominator) && denominator > 0; }
  RatioSums& operator+=(const RatioSums& more) {
    numerator += more.numerator;
    denominator += more.denominator;
    return *this;
  }
};

struct Observations {
  std::array<RatioSums, kTrialMetrics> sums = {};

  RatioSums& operator[](TrialMetric metric) { return sums[static_cast<size_t>(metric)]; }
  const RatioSums& operator[](TrialMetric metric) const { return sums[static_cast<size_t>(metric)]; }
  // What is no number counts for nothing.
  void Add(TrialMetric metric, double numerator, double denominator = 1) {
    if (std::isfinite(numerator) && std::isfinite(denominator)) (*this)[metric] += {numerator, denominator};
  }
  Observations& operator+=(const Observations& more) {
    for (size_t i = 0; i < kTrialMetrics; ++i) sums[i] += more.sums[i];
    return *this;
  }
};

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENTS_METRIC_H_
