#include "tests/support/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ebb {

void RotateReference(const ReferenceRope& rope, int64_t position, std::span<double> x) {
  const size_t pairs = rope.frequencies.size();
  for (size_t i = 0; i < pairs; ++i) {
    const size_t a = rope.pairs == RopePairs::kHalves ? i : 2 * i;
    const size_t b = rope.pairs == RopePairs::kHalves ? i + pairs : 2 * i + 1;
    const double angle = static_cast<double>(position) * rope.frequencies[i];
    const double first = x[a] * std::cos(angle) - x[b] * std::sin(angle);
    const double second = x[a] * std::sin(angle) + x[b] * std::cos(angle);
    x[a] = first;
    x[b] = second;
  }
}

ReferenceAttention AttendReference(const ReferenceRope& rope, const ReferenceLane& lane, std::span<const double> q,
                                   std::span<const int32_t> q_position, int32_t group) {
  const auto d = static_cast<size_t>(lane.head_dim);
  const size_t n = lane.position.size();
  const size_t rows = q_position.size() * static_cast<size_t>(group);
  ReferenceAttention result = {.out = std::vector<double>(rows * d), .probability = std::vector<double>(rows * n)};

  std::vector<double> keys = lane.k;
  for (size_t s = 0; s < n; ++s) {
    if (lane.position[s] >= 0) RotateReference(rope, lane.position[s], std::span(keys).subspan(s * d, d));
  }
  for (size_t r = 0; r < rows; ++r) {
    const int32_t at = q_position[r / static_cast<size_t>(group)];
    std::vector<double> query(q.begin() + static_cast<int64_t>(r * d), q.begin() + static_cast<int64_t>((r + 1) * d));
    RotateReference(rope, at, query);

    const std::span<double> p = std::span(result.probability).subspan(r * n, n);
    const int32_t before = rope.window > 0 ? std::max(-1, at - rope.window) : -1;
    const auto visible = [&](size_t s) { return lane.position[s] > before && lane.position[s] <= at; };
    double peak = -std::numeric_limits<double>::infinity();
    for (size_t s = 0; s < n; ++s) {
      if (!visible(s)) continue;
      for (size_t c = 0; c < d; ++c) p[s] += query[c] * keys[s * d + c];
      p[s] /= std::sqrt(static_cast<double>(d));
      if (rope.cap > 0) p[s] = rope.cap * std::tanh(p[s] / rope.cap);
      if (!rope.slopes.empty()) p[s] -= rope.slopes[r % static_cast<size_t>(group)] * (at - lane.position[s]);
      peak = std::max(peak, p[s]);
    }
    double total = 0;
    for (size_t s = 0; s < n; ++s) {
      if (visible(s)) total += p[s] = std::exp(p[s] - peak);
    }
    for (size_t s = 0; s < n; ++s) {
      if (!visible(s)) continue;
      p[s] /= total;
      for (size_t c = 0; c < d; ++c) result.out[r * d + c] += p[s] * lane.v[s * d + c];
    }
  }
  return result;
}

std::vector<double> SumReference(const ReferenceAttention& seen, int32_t group, int32_t slots, int32_t first,
                                 int32_t last) {
  std::vector<double> sums(static_cast<size_t>(slots));
  for (int32_t r = first * group; r < last * group; ++r) {
    for (int32_t s = 0; s < slots; ++s) {
      sums[static_cast<size_t>(s)] +=
          seen.probability[static_cast<size_t>(r) * sums.size() + static_cast<size_t>(s)] / group;
    }
  }
  return sums;
}

}  // namespace ebb
