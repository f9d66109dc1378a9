#include "server/experiments/sample_ratio.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "policies/check.h"

namespace ebb {
namespace {

constexpr double kPrior = 100;  // units that the prior is worth: it looks for shares that are off by some percent

}  // namespace

SampleRatio::SampleRatio(std::span<const double> weights)
    : shares_(weights.begin(), weights.end()), counts_(weights.size()) {
  EBB_CHECK(!weights.empty() && std::ranges::all_of(weights, [](double weight) { return weight > 0; }));
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& share : shares_) share /= sum;
}

SampleRatio::SampleRatio(std::span<const double> weights, std::span<const int64_t> counts,
                         std::optional<double> log_factor_max)
    : SampleRatio(weights) {
  EBB_CHECK(counts.size() == weights.size());
  counts_.assign(counts.begin(), counts.end());
  for (size_t arm = 0; arm < counts_.size(); ++arm) {
    EBB_CHECK(counts_[arm] >= 0);
    const double prior = kPrior * shares_[arm];
    const auto count = static_cast<double>(counts_[arm]);
    log_factor_ += std::lgamma(prior + count) - std::lgamma(prior) - count * std::log(shares_[arm]);
    total_ += counts_[arm];
  }
  log_factor_ -= std::lgamma(kPrior + static_cast<double>(total_)) - std::lgamma(kPrior);
  log_factor_max_ = log_factor_max.value_or(std::max(log_factor_, 0.0));
}

// B grows by what the prior and the units before expected of this arm, over what the shares do.
void SampleRatio::Add(size_t arm) {
  const double expected =
      (kPrior * shares_[arm] + static_cast<double>(counts_[arm])) / (kPrior + static_cast<double>(total_));
  log_factor_ += std::log(expected / shares_[arm]);
  log_factor_max_ = std::max(log_factor_max_, log_factor_);
  ++counts_[arm];
  ++total_;
}

double SampleRatio::p_value() const { return std::exp(-log_factor_max_); }

}  // namespace ebb
