// Norm, activation, embedding and the choice of the largest logit, against float64.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "policies/hash_random.h"
#include "tests/support/test_lane.h"
#include "tests/unit/engine/ops/gpu/each_target.h"
#include "tests/unit/engine/ops/gpu/test_matrix.h"

namespace ebb::gpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(GpuRmsNorm, EqualsFloat64AtEverySize) {
  for (const int32_t n : {32, 96, 256, 1000, 4096}) {
    constexpr int32_t kRows = 3;
    const std::vector<float> x = RandomFloats(1, n, int64_t{kRows} * n, 3);
    const std::vector<float> weight = RandomFloats(2, n, n);
    const std::vector<float> y = OnEachTarget([&](const Table& table) {
      std::vector<float> out(x.size());
      table.rms_norm({.x = x.data(), .weight = weight.data(), .y = out.data(), .n = n, .rows = kRows, .eps = 1e-5F},
                     nullptr);
      return out;
    });
    for (int32_t row = 0; row < kRows; ++row) {
      double squares = 0;
      for (int32_t i = 0; i < n; ++i) squares += std::pow(x[row * n + i], 2.0);
      for (int32_t i = 0; i < n; ++i) {
        const double expected = x[row * n + i] / std::sqrt(squares / n + 1e-5F) * weight[i];
        ASSERT_NEAR(y[row * n + i], expected, 1e-6 * std::abs(expected)) << n;
      }
    }
  }
}

TEST(GpuActivate, EqualsFloat64) {
  const int64_t n = 1000;
  const std::vector<float> gate = RandomFloats(3, 1, n, 20);
  const std::vector<float> up = RandomFloats(3, 2, n);
  for (const Curve curve : {Curve::kSilu, Curve::kGelu}) {
    const std::vector<float> y = OnEachTarget([&](const Table& table) {
      std::vector<float> out(n);
      table.activate({.curve = curve, .gate = gate.data(), .up = up.data(), .y = out.data(), .n = n}, nullptr);
      return out;
    });
    for (int64_t i = 0; i < n; ++i) {
      const double a = gate[i];
      const double t = curve == Curve::kSilu ? a : 2 * std::sqrt(2 / M_PI) * (a + 0.044715 * a * a * a);
      // Rounding t, as large as 600 with GELU, moves e^-t; where that matters a factor of a is tiny.
      ASSERT_NEAR(y[i], a / (1 + std::exp(-t)) * up[i], 1e-5 * std::abs(a) * std::abs(up[i]) + 1e-9) << a;
    }
  }
}

TEST(GpuEmbed, RowsOfEveryTypeAreExact) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBf16, DType::kQ8_0, DType::kQ4_0}) {
    const TestMatrix table_of(type, 7, 96, 4);
    const std::vector<int32_t> tokens = {6, 0, 3, 3};
    const std::vector<float> x = OnEachTarget([&](const Table& table) {
      std::vector<float> out(tokens.size() * 96);
      table.embed({.table = table_of.matrix(),
                   .tokens = tokens.data(),
                   .scale = 2,
                   .x = out.data(),
                   .rows = static_cast<int32_t>(tokens.size())},
                  nullptr);
      return out;
    });
    for (size_t t = 0; t < tokens.size(); ++t) {
      for (int64_t c = 0; c < 96; ++c) ASSERT_EQ(x[t * 96 + c], 2 * table_of.at(tokens[t], c));
    }
  }
}

int32_t Largest(const std::vector<float>& logits) {
  return OnEachTarget([&](const Table& table) {
    std::vector<int32_t> token(1);
    table.greedy(
        {.logits = logits.data(), .vocab = static_cast<int32_t>(logits.size()), .rows = 1, .token = token.data()},
        nullptr);
    return token;
  })[0];
}

TEST(GpuGreedy, TakesTheFirstOfTheLargestAndNoNan) {
  EXPECT_EQ(Largest({-1, 3, 2, 3}), 1);
  EXPECT_EQ(Largest({kNan, -5, kNan, -4}), 3);
  EXPECT_EQ(Largest({-0.0F, 0.0F}), 0);
  EXPECT_EQ(Largest({-kInfinity, kInfinity}), 1);
  EXPECT_EQ(Largest({kNan, kNan}), 0);
  std::vector<float> many = RandomFloats(5, 1, 3000);
  many[2711] = 7;
  many[2712] = 7;
  EXPECT_EQ(Largest(many), 2711);
}

}  // namespace
}  // namespace ebb::gpu
