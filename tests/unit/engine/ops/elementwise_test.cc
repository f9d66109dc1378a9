// The kernels of RMS norm and SwiGLU against float64, at every small length.

#include <cmath>
#include <limits>
#include <vector>

#include "engine/ops/cpu/dispatch.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_lane.h"

namespace ebb::cpu {
namespace {

constexpr float kEps = 1e-5F;

std::vector<float> Normed(const Kernels& kernels, const std::vector<float>& x, const std::vector<float>& weight) {
  std::vector<float> y(x.size());
  kernels.rms_norm(x.data(), weight.data(), kEps, static_cast<int64_t>(x.size()), y.data());
  return y;
}

std::vector<float> Gated(const Kernels& kernels, const std::vector<float>& gate, const std::vector<float>& up) {
  std::vector<float> y(gate.size());
  kernels.swiglu(gate.data(), up.data(), static_cast<int64_t>(gate.size()), y.data());
  return y;
}

TEST(RmsNorm, EqualsFloat64AtEveryLength) {
  for (int64_t dim = 1; dim <= 100; ++dim) {
    SCOPED_TRACE(dim);
    const std::vector<float> x = RandomFloats(1, 1, dim, 2);
    const std::vector<float> weight = RandomFloats(1, 2, dim);
    const std::vector<float> expected = Normed(**ChooseKernels("scalar"), x, weight);
    double squares = 0;
    for (const float a : x) squares += static_cast<double>(a) * static_cast<double>(a);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(dim) + static_cast<double>(kEps));
    for (const Kernels* kernels : AvailableKernels()) {
      const std::vector<float> y = Normed(*kernels, x, weight);
      EXPECT_EQ(y, expected) << kernels->name;
      for (size_t i = 0; i < y.size(); ++i) {
        const double exact = x[i] * scale * weight[i];
        ASSERT_NEAR(y[i], exact, 1e-6 * std::abs(exact));
      }
    }
  }
}

TEST(SwiGlu, EqualsFloat64AtEveryLength) {
  for (int64_t size = 1; size <= 70; ++size) {
    SCOPED_TRACE(size);
    const std::vector<float> gate = RandomFloats(3, 1, size, 20);
    const std::vector<float> up = RandomFloats(3, 2, size, 3);
    const std::vector<float> expected = Gated(**ChooseKernels("scalar"), gate, up);
    for (const Kernels* kernels : AvailableKernels()) {
      const std::vector<float> y = Gated(*kernels, gate, up);
      EXPECT_EQ(y, expected) << kernels->name;
      for (size_t i = 0; i < y.size(); ++i) {
        const double g = gate[i];
        const double exact = g / (1 + std::exp(-g)) * up[i];
        ASSERT_NEAR(y[i], exact, 4e-7 * std::abs(exact)) << g;
      }
    }
  }
}

TEST(SwiGlu, StaysFiniteAtTheEnds) {
  const std::vector<float> gate = {-1e30F, -200, -89, -88, -87.4F, -0.0F, 0, 87.4F, 88, 89, 200, 1e30F};
  const std::vector<float> up(gate.size(), 1);
  for (const Kernels* kernels : AvailableKernels()) {
    SCOPED_TRACE(kernels->name);
    const std::vector<float> y = Gated(*kernels, gate, up);
    for (size_t i = 0; i < y.size(); ++i) {
      EXPECT_TRUE(std::isfinite(y[i])) << gate[i];
      if (gate[i] >= 87) {
        EXPECT_EQ(y[i], gate[i]);
      }
      if (gate[i] <= -87 && gate[i] > -1e3F) {
        EXPECT_NEAR(y[i], 0, 1e-30);
      }
    }
  }
}

}  // namespace
}  // namespace ebb::cpu
