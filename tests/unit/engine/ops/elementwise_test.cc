// RmsNorm and SwiGlu against float64, at every small length.

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_lane.h"
#include "tests/unit/engine/ops/each_isa.h"

namespace ebb {
namespace {

std::vector<float> Norm(Ops& ops, const std::vector<float>& x, const std::vector<float>& weight) {
  std::vector<float> y(x.size());
  ops.RmsNorm(x, weight, 1e-5F, y);
  return y;
}

TEST(RmsNorm, EqualsFloat64AtEveryLength) {
  for (int64_t dim = 1; dim <= 100; ++dim) {
    SCOPED_TRACE(dim);
    const std::vector<float> x = RandomFloats(1, 1, 3 * dim, 2);
    const std::vector<float> weight = RandomFloats(1, 2, dim);
    const std::vector<float> expected = Norm(*OpsFor("scalar"), x, weight);
    ForEachIsa([&](Ops& ops) {
      const std::vector<float> y = Norm(ops, x, weight);
      EXPECT_EQ(y, expected);
      for (int64_t row = 0; row < 3; ++row) {
        const float* from = x.data() + row * dim;
        double squares = 0;
        for (int64_t i = 0; i < dim; ++i) squares += static_cast<double>(from[i]) * static_cast<double>(from[i]);
        const double scale = 1 / std::sqrt(squares / static_cast<double>(dim) + 1e-5);
        for (int64_t i = 0; i < dim; ++i) {
          const double exact = from[i] * scale * weight[static_cast<size_t>(i)];
          ASSERT_NEAR(y[static_cast<size_t>(row * dim + i)], exact, 1e-6 * std::abs(exact));
        }
      }
    });
  }
}

TEST(RmsNorm, ARowsBitsDoNotDependOnTheOtherRowsOrThreads) {
  constexpr int64_t kDim = 2050;
  const std::vector<float> x = RandomFloats(2, 1, 200 * kDim);
  const std::vector<float> weight = RandomFloats(2, 2, kDim);
  const std::vector<float> all = Norm(*OpsFor("", 3), x, weight);
  const auto one = OpsFor("");
  for (int64_t row = 0; row < 200; row += 37) {
    const std::vector<float> alone(x.begin() + row * kDim, x.begin() + (row + 1) * kDim);
    const std::vector<float> expected(all.begin() + row * kDim, all.begin() + (row + 1) * kDim);
    EXPECT_EQ(Norm(*one, alone, weight), expected) << row;
  }
}

// `rows` rows of equal length.
std::vector<float> Gated(Ops& ops, const std::vector<float>& gate, const std::vector<float>& up, int64_t rows = 1) {
  const int64_t ffn = static_cast<int64_t>(gate.size()) / rows;
  std::vector<float> gate_up;
  for (int64_t row = 0; row < rows; ++row) {
    gate_up.insert(gate_up.end(), gate.begin() + row * ffn, gate.begin() + (row + 1) * ffn);
    gate_up.insert(gate_up.end(), up.begin() + row * ffn, up.begin() + (row + 1) * ffn);
  }
  std::vector<float> y(gate.size());
  ops.SwiGlu(gate_up, ffn, y);
  return y;
}

TEST(SwiGlu, EqualsFloat64AtEveryLength) {
  for (int64_t size = 1; size <= 70; ++size) {
    SCOPED_TRACE(size);
    const std::vector<float> gate = RandomFloats(3, 1, size, 20);
    const std::vector<float> up = RandomFloats(3, 2, size, 3);
    const std::vector<float> expected = Gated(*OpsFor("scalar"), gate, up);
    ForEachIsa([&](Ops& ops) {
      const std::vector<float> y = Gated(ops, gate, up);
      EXPECT_EQ(y, expected);
      for (size_t i = 0; i < y.size(); ++i) {
        const double g = gate[i];
        const double exact = g / (1 + std::exp(-g)) * up[i];
        ASSERT_NEAR(y[i], exact, 4e-7 * std::abs(exact)) << g;
      }
    });
  }
}

TEST(SwiGlu, TakesRowsOfAnyLengthOnAnyNumberOfThreads) {
  for (const int64_t ffn : {1, 33, 4096, 4097, 9000}) {
    const std::vector<float> gate = RandomFloats(4, 1, 5 * ffn);
    const std::vector<float> up = RandomFloats(4, 2, 5 * ffn);
    EXPECT_EQ(Gated(*OpsFor("", 3), gate, up, 5), Gated(*OpsFor(""), gate, up)) << ffn;
  }
}

TEST(SwiGlu, StaysFiniteAtTheEnds) {
  const std::vector<float> gate = {-1e30F, -200, -89, -88, -87.4F, -0.0F, 0, 87.4F, 88, 89, 200, 1e30F};
  const std::vector<float> up(gate.size(), 1);
  ForEachIsa([&](Ops& ops) {
    const std::vector<float> y = Gated(ops, gate, up);
    for (size_t i = 0; i < y.size(); ++i) {
      EXPECT_TRUE(std::isfinite(y[i])) << gate[i];
      if (gate[i] >= 87) {
        EXPECT_EQ(y[i], gate[i]);
      }
      if (gate[i] <= -87 && gate[i] > -1e3F) {
        EXPECT_NEAR(y[i], 0, 1e-30);
      }
    }
  });
}

TEST(SwiGlu, WorksAcrossThePiecesItIsCutInto) {
  const std::vector<float> gate = RandomFloats(4, 1, 4096 * 5 + 77, 5);
  const std::vector<float> up = RandomFloats(4, 2, 4096 * 5 + 77, 5);
  const std::vector<float> y = Gated(*OpsFor("", 3), gate, up);
  for (size_t i = 0; i < y.size(); ++i) {
    const double g = gate[i];
    const double exact = g / (1 + std::exp(-g)) * up[i];
    ASSERT_NEAR(y[i], exact, 4e-7 * std::abs(exact)) << i;
  }
}

}  // namespace
}  // namespace ebb
