#include "engine/divergence.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace ebb {
namespace {

// ln sum exp(logits), from the largest, so that nothing overflows.
double LogSumExp(std::span<const float> logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

}  // namespace

double KlDivergence(std::span<const float> p, std::span<const float> q) {
  const double p_sum = LogSumExp(p);
  const double q_sum = LogSumExp(q);
  double divergence = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - p_sum;
    divergence += std::exp(log_p) * (log_p - (q[i] - q_sum));
  }
  return std::max(divergence, 0.0);  // rounding may leave it a hair below
}

}  // namespace ebb
