#include "policies/key_likeness.h"

#include <cmath>
#include <vector>

#include "policies/check.h"
#include "policies/geometry.h"
#include "policies/rows.h"
#include "policies/wide.h"

namespace ebb {
namespace {

// Adding and subtracting it rounds a term of the mean, in [-1, 1], to a multiple of 2^-28: up to 2^24 of them add up
// within float64's 53 bits.
constexpr double kRounding = 0x1.8p24;

// sum [d] += the entries of every row whose scale [n] is not 0, each times that and rounded: exact, so in any order.
EBB_WIDE void AddRounded(const float* rows, const double* scale, int64_t n, int64_t d, double* sum) {
  constexpr int64_t kTogether = 32;  // that stay in registers while the rows go by
  for (int64_t c = 0; c < d; c += kTogether) {
    const int64_t width = d - c < kTogether ? d - c : kTogether;
    double part[kTogether] = {};
    for (int64_t row = 0; row < n; ++row) {
      if (scale[row] == 0) continue;
      const float* const from = rows + row * d + c;
      if (width == kTogether) {
        for (int64_t i = 0; i < kTogether; ++i) part[i] += (from[i] * scale[row] + kRounding) - kRounding;
      } else {
        for (int64_t i = 0; i < width; ++i) part[i] += (from[i] * scale[row] + kRounding) - kRounding;
      }
    }
    for (int64_t i = 0; i < width; ++i) sum[c + i] += part[i];
  }
}

}  // namespace

void KeyLikeness(const LaneView& lane, std::span<float> cosine) {
  EBB_CHECK(lane.memory != nullptr);
  EBB_CHECK(cosine.size() == lane.token.size());
  const int32_t d = lane.memory->head_dim();
  const RowsView keys = {.at = lane.memory->Keys(0, static_cast<int32_t>(cosine.size())), .d = d};
  // They keep their capacity, so that a steady step allocates nothing.
  thread_local std::vector<double> sum;      // [d] of the unit keys; its direction is the mean's
  thread_local std::vector<double> inverse;  // [n] 1 / |k|, 0 where that is no number
  thread_local std::vector<double> product;  // [n] with the sum
  sum.assign(d, 0.0);
  inverse.resize(cosine.size());
  product.resize(cosine.size());
  Lengths(keys, inverse);
  for (size_t slot = 0; slot < cosine.size(); ++slot) {
    const double length = inverse[slot];
    inverse[slot] = lane.token[slot] >= 0 && length > 0 && !std::isinf(length) ? 1 / length : 0;
  }
  AddRounded(keys.at.data(), inverse.data(), keys.rows(), d, sum.data());
  const double length = Length(std::span<const double>(sum));
  const double scale = length > 0 ? 1 / length : 0;
  Products(keys, sum, product);
  for (size_t slot = 0; slot < cosine.size(); ++slot) {
    cosine[slot] = static_cast<float>(product[slot] * inverse[slot] * scale);
  }
}

}  // namespace ebb
