#include "policies/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace ebb {
namespace {

constexpr int32_t kRows = 37;

// Matrices of every width up to past a few vectors, against sums in double.
class Rows : public testing::TestWithParam<int32_t> {
 protected:
  std::vector<float> Draw(int64_t count) {
    std::vector<float> drawn(static_cast<size_t>(count));
    for (float& x : drawn) x = std::normal_distribution<float>()(random_);
    return drawn;
  }

  std::mt19937 random_{7};
  const int32_t d_ = GetParam();
  const std::vector<float> at_ = Draw(int64_t{kRows} * d_);
  const RowsView rows_ = {.at = at_, .d = d_};
};

TEST_P(Rows, DistancesAreThoseOfDoubles) {
  const std::vector<float> center = Draw(d_);
  std::vector<float> distances(kRows);
  Distances(rows_, center, distances);
  for (int64_t row = 0; row < kRows; ++row) {
    double sum = 0;
    for (int32_t c = 0; c < d_; ++c) sum += std::pow(double{rows_[row][c]} - center[c], 2);
    EXPECT_NEAR(distances[row], std::sqrt(sum), 1e-5 * std::sqrt(sum));
  }
}

TEST_P(Rows, DifferencesAddUpAndRowsOfWeightZeroAreNotRead) {
  std::vector<float> weights = Draw(kRows);
  const std::vector<float> origin = Draw(d_);
  std::vector<float> at = at_;
  weights[3] = 0;
  for (int32_t c = 0; c < d_; ++c) at[3 * d_ + c] = NAN;
  std::vector<float> sum(d_, 1.0F);
  AddDifferences({.at = at, .d = d_}, weights, origin, sum);
  for (int32_t c = 0; c < d_; ++c) {
    double expected = 1;
    for (int64_t row = 0; row < kRows; ++row) {
      if (row != 3) expected += weights[row] * (double{rows_[row][c]} - origin[c]);
    }
    EXPECT_NEAR(sum[c], expected, 1e-4) << c;
  }
}

TEST_P(Rows, LengthsAndProductsAreThoseOfDoubles) {
  const std::vector<float> drawn = Draw(d_);
  const std::vector<double> with(drawn.begin(), drawn.end());
  std::vector<double> lengths(kRows), products(kRows);
  Lengths(rows_, lengths);
  Products(rows_, with, products);
  for (int64_t row = 0; row < kRows; ++row) {
    double square = 0, product = 0;
    for (int32_t c = 0; c < d_; ++c) {
      square += std::pow(double{rows_[row][c]}, 2);
      product += rows_[row][c] * with[c];
    }
    EXPECT_NEAR(lengths[row], std::sqrt(square), 1e-12 * std::sqrt(square));
    EXPECT_NEAR(products[row], product, 1e-12 * square);
  }
}

TEST_P(Rows, FormsOfASymmetricMatrix) {
  std::vector<double> s(static_cast<size_t>(d_) * d_);
  const std::vector<float> drawn = Draw(int64_t{d_} * d_), at = Draw(d_);
  const std::vector<double> u(at.begin(), at.end());
  double expected = 0, size = 0;
  for (int32_t a = 0; a < d_; ++a) {
    for (int32_t b = 0; b < d_; ++b) {
      s[a * d_ + b] = drawn[a * d_ + b] + drawn[b * d_ + a];
      expected += u[a] * s[a * d_ + b] * u[b];
      size += std::abs(u[a] * s[a * d_ + b] * u[b]);
    }
  }
  EXPECT_NEAR(QuadraticForm(s, u), expected, 1e-13 * size);
}

INSTANTIATE_TEST_SUITE_P(Widths, Rows, testing::Values(1, 7, 16, 33, 64, 80, 128, 131));

}  // namespace
}  // namespace ebb
