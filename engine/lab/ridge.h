// Ridge regression of a few features, group by group, in closed form:
//
//   w = (X'X + lambda diag(X'X))^-1 X'y,  bias = mean y - w . mean x
//
// X and y are centred within each group, so that only what sets its members apart counts, and every group weighs alike
// however many it has. float64; the same groups in the same order give the same bits.

#ifndef EBB_ENGINE_LAB_RIDGE_H_
#define EBB_ENGINE_LAB_RIDGE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "policies/calibration.h"

namespace ebb::lab {

class Ridge {
 public:
  // REQUIRES: as many features as targets, at least one.
  void AddGroup(std::span<const Features> features, std::span<const double> targets);

  // A feature that never varied, or is not among `chosen`, weighs 0. REQUIRES: lambda > 0.
  FeatureWeights Solve(std::span<const Feature> chosen, double lambda) const;

  // Of the targets' variance within the groups, what the weights tell; 0 where there is none.
  double Explained(const FeatureWeights& weights) const;

 private:
  bool Varies(size_t feature) const;

  int64_t groups_ = 0;
  // Sums over the groups of the means, and of the mean products of what is centred.
  Features x_ = {};
  double y_ = 0;
  std::array<Features, kFeatures> xx_ = {};
  Features xy_ = {};
  double yy_ = 0;
};

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_RIDGE_H_
