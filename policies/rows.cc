#include "policies/rows.h"

#include <cmath>
#include <cstddef>
#include <cstring>

#include "policies/check.h"
#include "policies/wide.h"

namespace ebb {
namespace {

// Channels that are worked on together: fixed, so that sums do not depend on the machine, and enough that additions do
// not wait for each other. The compiler makes of a Floats as many registers as it takes.
constexpr int32_t kTogether = 16;
using Floats = float __attribute__((vector_size(4 * kTogether)));

inline __attribute__((always_inline)) void Load(const float* from, Floats& to) { std::memcpy(&to, from, sizeof to); }

template <typename T>
T AddUp(T (&parts)[kTogether]) {
  for (int half = kTogether / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) parts[i] += parts[i + half];
  }
  return parts[0];
}

// The same sum, in the same order.
inline __attribute__((always_inline)) float AddUp(const Floats& parts) {
  using Eight = float __attribute__((vector_size(32)));
  using Four = float __attribute__((vector_size(16)));
  const Eight eight = __builtin_shufflevector(parts, parts, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(parts, parts, 8, 9, 10, 11, 12, 13, 14, 15);
  const Four four =
      __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  const Four two = four + __builtin_shufflevector(four, four, 2, 3, 2, 3);
  return two[0] + two[1];
}

EBB_WIDE void SquaredDistances(const float* rows, int64_t n, int32_t d, const float* center, float* out) {
  for (int64_t row = 0; row < n; ++row, rows += d) {
    Floats sums = {}, x, y;
    int32_t c = 0;
    for (; c + kTogether <= d; c += kTogether) {
      Load(rows + c, x);
      Load(center + c, y);
      sums += (x - y) * (x - y);
    }
    for (; c < d; ++c) sums[0] += (rows[c] - center[c]) * (rows[c] - center[c]);
    out[row] = AddUp(sums);
  }
}

EBB_WIDE void AddWeighted(const float* rows, int64_t n, int32_t d, const float* weights, const float* origin,
                          float* out) {
  constexpr int kColumns = 4;  // of Floats, which stay in registers while the rows go by
  int32_t c = 0;
  for (; c + kColumns * kTogether <= d; c += kColumns * kTogether) {
    Floats from[kColumns], sum[kColumns], x;
    for (int i = 0; i < kColumns; ++i) Load(origin + c + i * kTogether, from[i]);
    for (int i = 0; i < kColumns; ++i) Load(out + c + i * kTogether, sum[i]);
    for (int64_t row = 0; row < n; ++row) {
      const float weight = weights[row];
      if (weight == 0) continue;
      for (int i = 0; i < kColumns; ++i) {
        Load(rows + row * d + c + i * kTogether, x);
        sum[i] += weight * (x - from[i]);
      }
    }
    std::memcpy(out + c, sum, sizeof sum);
  }
  for (int64_t row = 0; row < n && c < d; ++row) {
    if (weights[row] == 0) continue;
    for (int32_t i = c; i < d; ++i) out[i] += weights[row] * (rows[row * d + i] - origin[i]);
  }
}

EBB_WIDE void SquaredLengths(const float* rows, int64_t n, int32_t d, double* out) {
  for (int64_t row = 0; row < n; ++row, rows += d) {
    double sum[kTogether] = {};
    int32_t c = 0;
    for (; c + kTogether <= d; c += kTogether) {
      for (int i = 0; i < kTogether; ++i) sum[i] += static_cast<double>(rows[c + i]) * rows[c + i];
    }
    for (; c < d; ++c) sum[0] += static_cast<double>(rows[c]) * rows[c];
    out[row] = AddUp(sum);
  }
}

EBB_WIDE void ProductsOf(const float* rows, int64_t n, int32_t d, const double* with, double* out) {
  for (int64_t row = 0; row < n; ++row, rows += d) {
    double sum[kTogether] = {};
    int32_t c = 0;
    for (; c + kTogether <= d; c += kTogether) {
      for (int i = 0; i < kTogether; ++i) sum[i] += rows[c + i] * with[c + i];
    }
    for (; c < d; ++c) sum[0] += rows[c] * with[c];
    out[row] = AddUp(sum);
  }
}

// Half of it first: each pair of channels once.
EBB_WIDE void Forms(const double* s, const double* columns, int64_t d, double* out) {
  double total[kAbreast] = {};
  for (int64_t a = 0; a < d; ++a) {
    const double* const own = columns + a * kAbreast;
    double with[kAbreast];  // S u of this channel, but for the channels before it, and half of its own
    for (int i = 0; i < kAbreast; ++i) with[i] = s[0] / 2 * own[i];
    for (int64_t b = 1; a + b < d; ++b) {
      for (int i = 0; i < kAbreast; ++i) with[i] += s[b] * own[b * kAbreast + i];
    }
    for (int i = 0; i < kAbreast; ++i) total[i] += with[i] * own[i];
    s += d - a;
  }
  for (int i = 0; i < kAbreast; ++i) out[i] = 2 * total[i];
}

EBB_WIDE void ProductsAcross(const double* with, const double* columns, int64_t d, double* out) {
  double sum[kAbreast] = {};
  for (int64_t c = 0; c < d; ++c) {
    for (int i = 0; i < kAbreast; ++i) sum[i] += with[c] * columns[c * kAbreast + i];
  }
  std::copy(sum, sum + kAbreast, out);
}

}  // namespace

void Distances(const RowsView& rows, std::span<const float> center, std::span<float> out) {
  EBB_CHECK(static_cast<int64_t>(out.size()) == rows.rows());
  SquaredDistances(rows.at.data(), rows.rows(), rows.d, center.data(), out.data());
  for (float& squared : out) squared = std::sqrt(squared);
}

void AddDifferences(const RowsView& rows, std::span<const float> weights, std::span<const float> origin,
                    std::span<float> out) {
  EBB_CHECK(static_cast<int64_t>(weights.size()) == rows.rows());
  AddWeighted(rows.at.data(), rows.rows(), rows.d, weights.data(), origin.data(), out.data());
}

void Lengths(const RowsView& rows, std::span<double> out) {
  EBB_CHECK(static_cast<int64_t>(out.size()) == rows.rows());
  SquaredLengths(rows.at.data(), rows.rows(), rows.d, out.data());
  for (double& squared : out) squared = std::sqrt(squared);
}

void Products(const RowsView& rows, std::span<const double> with, std::span<double> out) {
  EBB_CHECK(static_cast<int64_t>(out.size()) == rows.rows());
  ProductsOf(rows.at.data(), rows.rows(), rows.d, with.data(), out.data());
}

void QuadraticForms(std::span<const double> triangle, std::span<const double> columns, std::span<double> out) {
  const size_t d = columns.size() / kAbreast;
  EBB_CHECK(triangle.size() == d * (d + 1) / 2 && out.size() == kAbreast);
  Forms(triangle.data(), columns.data(), static_cast<int64_t>(d), out.data());
}

void ColumnProducts(std::span<const double> with, std::span<const double> columns, std::span<double> out) {
  EBB_CHECK(columns.size() == with.size() * kAbreast && out.size() == kAbreast);
  ProductsAcross(with.data(), columns.data(), static_cast<int64_t>(with.size()), out.data());
}

}  // namespace ebb
