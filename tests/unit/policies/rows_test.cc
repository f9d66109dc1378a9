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

TEST_P(Rows, FormsAndProductsOfColumns) {
  const std::vector<float> drawn = Draw(int64_t{d_} * (d_ + 1) / 2), at = Draw(int64_t{d_} * kAbreast), one = Draw(d_);
  const std::vector<double> triangle(drawn.begin(), drawn.end()), u(at.begin(), at.end()), with(one.begin(), one.end());
  std::vector<double> forms(kAbreast), products(kAbreast);
  QuadraticForms(triangle, u, forms);
  ColumnProducts(with, u, products);
  for (int32_t i = 0; i < kAbreast; ++i) {
    double form = 0, form_size = 0, product = 0, product_size = 0;
    for (int32_t a = 0, at_row = 0; a < d_; at_row += d_ - a, ++a) {
      for (int32_t b = a; b < d_; ++b) {
        const double term = (a == b ? 1 : 2) * u[a * kAbreast + i] * triangle[at_row + b - a] * u[b * kAbreast + i];
        form += term;
        form_size += std::abs(term);
      }
      product += with[a] * u[a * kAbreast + i];
      product_size += std::abs(with[a] * u[a * kAbreast + i]);
    }
    EXPECT_NEAR(forms[i], form, 1e-13 * form_size);
    EXPECT_NEAR(products[i], product, 1e-13 * product_size);
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, Rows, testing::Values(1, 7, 16, 33, 64, 80, 128, 131));

}  // namespace
}  // namespace ebb
