#include "engine/lab/ridge.h"

#include <cmath>
#include <utility>

#include "policies/check.h"

namespace ebb::lab {

void Ridge::AddGroup(std::span<const Features> features, std::span<const double> targets) {
  EBB_CHECK(features.size() == targets.size());
  EBB_CHECK(!targets.empty());
  const double share = 1 / static_cast<double>(targets.size());
  Features mean = {};
  double target_mean = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    for (size_t a = 0; a < kFeatures; ++a) mean[a] += share * features[i][a];
    target_mean += share * targets[i];
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    const double y = targets[i] - target_mean;
    yy_ += share * y * y;
    for (size_t a = 0; a < kFeatures; ++a) {
      const double x = features[i][a] - mean[a];
      xy_[a] += share * x * y;
      for (size_t b = 0; b < kFeatures; ++b) xx_[a][b] += share * x * (features[i][b] - mean[b]);
    }
  }
  for (size_t a = 0; a < kFeatures; ++a) x_[a] += mean[a];
  y_ += target_mean;
  ++groups_;
}

FeatureWeights Ridge::Solve(std::span<const Feature> chosen, double lambda) const {
  EBB_CHECK(lambda > 0);
  FeatureWeights weights;
  if (groups_ == 0) return weights;
  std::array<Features, kFeatures> a = {};
  Features b = {};
  for (size_t i = 0; i < kFeatures; ++i) a[i][i] = 1;  // of who is not asked: a weight of 0
  for (const Feature row : chosen) {
    const auto i = static_cast<size_t>(row);
    if (!Varies(i)) continue;
    b[i] = xy_[i];
    for (const Feature column : chosen) {
      const auto j = static_cast<size_t>(column);
      if (!Varies(j)) continue;
      a[i][j] = xx_[i][j] * (i == j ? 1 + lambda : 1);
    }
  }
  // Gauss without pivots: the matrix is symmetric and, for its ridge, positive definite.
  for (size_t i = 0; i < kFeatures; ++i) {
    for (size_t row = i + 1; row < kFeatures; ++row) {
      const double factor = a[row][i] / a[i][i];
      for (size_t j = i; j < kFeatures; ++j) a[row][j] -= factor * a[i][j];
      b[row] -= factor * b[i];
    }
  }
  const auto groups = static_cast<double>(groups_);
  weights.bias = y_ / groups;
  for (size_t i = kFeatures; i-- > 0;) {
    double rest = b[i];
    for (size_t j = i + 1; j < kFeatures; ++j) rest -= a[i][j] * weights.weight[j];
    weights.weight[i] = rest / a[i][i];
    weights.bias -= weights.weight[i] * x_[i] / groups;
  }
  return weights;
}

// By more than rounding lets a constant seem to.
bool Ridge::Varies(size_t feature) const {
  const double mean = x_[feature] / static_cast<double>(groups_);
  return xx_[feature][feature] / static_cast<double>(groups_) > 1e-24 * mean * mean;
}

double Ridge::Explained(const FeatureWeights& weights) const {
  if (!(yy_ > 0)) return 0;
  double told = 0;
  for (size_t a = 0; a < kFeatures; ++a) {
    told += 2 * weights.weight[a] * xy_[a];
    for (size_t b = 0; b < kFeatures; ++b) told -= weights.weight[a] * weights.weight[b] * xx_[a][b];
  }
  return told / yy_;
}

}  // namespace ebb::lab
