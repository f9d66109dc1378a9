// Lengths and products of rows, for scorers that go by the shape of keys and values.

#ifndef EBB_POLICIES_GEOMETRY_H_
#define EBB_POLICIES_GEOMETRY_H_

#include <cmath>
#include <cstddef>
#include <span>

#include "policies/check.h"

namespace ebb {

// sum a[c] * b[c] in float64. Four sums, so that the loop is not one chain of additions.
template <typename A, typename B>
double Dot(std::span<const A> a, std::span<const B> b) {
  EBB_CHECK(a.size() == b.size());
  double sum[4] = {};
  size_t c = 0;
  for (; c + 4 <= a.size(); c += 4) {
    for (size_t i = 0; i < 4; ++i) sum[i] += static_cast<double>(a[c + i]) * b[c + i];
  }
  for (; c < a.size(); ++c) sum[0] += static_cast<double>(a[c]) * b[c];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// |a|, the Euclidean length.
template <typename A>
double Length(std::span<const A> a) {
  return std::sqrt(Dot(a, a));
}

}  // namespace ebb

#endif  // EBB_POLICIES_GEOMETRY_H_
