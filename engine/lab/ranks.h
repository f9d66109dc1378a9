// How alike two rankings of the same things are.

#ifndef EBB_ENGINE_LAB_RANKS_H_
#define EBB_ENGINE_LAB_RANKS_H_

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "policies/check.h"

namespace ebb::lab {

// Indices by score, the smallest first; of equal scores the smaller index.
inline std::vector<size_t> Ranking(std::span<const double> scores) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return scores[i]; });
  return order;
}

// Ranks from 0; equal scores share the mean of theirs.
inline std::vector<double> MeanRanks(std::span<const double> scores) {
  const std::vector<size_t> order = Ranking(scores);
  std::vector<double> ranks(scores.size());
  for (size_t first = 0; first < order.size();) {
    size_t end = first + 1;
    while (end < order.size() && scores[order[end]] == scores[order[first]]) ++end;
    for (size_t i = first; i < end; ++i) ranks[order[i]] = static_cast<double>(first + end - 1) / 2;
    first = end;
  }
  return ranks;
}

// Spearman's rank correlation: Pearson's of the ranks. 0 where one side has no spread. REQUIRES: equal sizes.
inline double Spearman(std::span<const double> a, std::span<const double> b) {
  EBB_CHECK(a.size() == b.size());
  const std::vector<double> x = MeanRanks(a);
  const std::vector<double> y = MeanRanks(b);
  const double middle = (static_cast<double>(a.size()) - 1) / 2;
  double xy = 0;
  double xx = 0;
  double yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - middle) * (y[i] - middle);
    xx += (x[i] - middle) * (x[i] - middle);
    yy += (y[i] - middle) * (y[i] - middle);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

// Of the `count` best by `a`, the share that is also among the `count` best by `b`. 1 for none. REQUIRES: equal sizes,
// count <= size.
inline double SharedTop(std::span<const double> a, std::span<const double> b, size_t count) {
  EBB_CHECK(a.size() == b.size());
  EBB_CHECK(count <= a.size());
  if (count == 0) return 1;
  std::vector<size_t> x = Ranking(a);
  std::vector<size_t> y = Ranking(b);
  x.erase(x.begin(), x.end() - static_cast<std::ptrdiff_t>(count));
  y.erase(y.begin(), y.end() - static_cast<std::ptrdiff_t>(count));
  std::ranges::sort(x);
  std::ranges::sort(y);
  std::vector<size_t> both;
  std::ranges::set_intersection(x, y, std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(count);
}

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_RANKS_H_
