// The kernels of norms, activations, caps and softmax against float64, at every small length.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
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
  kernels.activate(Curve::kSilu, gate.data(), up.data(), static_cast<int64_t>(gate.size()), y.data());
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

TEST(LayerNorm, EqualsFloat64AtEveryLength) {
  for (int64_t dim = 2; dim <= 100; ++dim) {
    SCOPED_TRACE(dim);
    const std::vector<float> x = RandomFloats(2, 1, dim, 2), weight = RandomFloats(2, 2, dim);
    const std::vector<float> bias = RandomFloats(2, 3, dim);
    const auto normed = [&](const Kernels& kernels) {
      std::vector<float> y = x;  // in place
      kernels.layer_norm(y.data(), weight.data(), bias.data(), kEps, dim, y.data());
      return y;
    };
    const std::vector<float> expected = normed(**ChooseKernels("scalar"));
    const double mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(dim);
    double squares = 0;
    for (const float a : x) squares += (a - mean) * (a - mean);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(dim) + static_cast<double>(kEps));
    for (const Kernels* kernels : AvailableKernels()) {
      const std::vector<float> y = normed(*kernels);
      EXPECT_EQ(y, expected) << kernels->name;
      for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], (x[i] - mean) * scale * weight[i] + bias[i], 4e-6);
    }
  }
}

double Exact(Curve curve, double a) {
  switch (curve) {
    case Curve::kSilu:
      return a / (1 + std::exp(-a));
    case Curve::kGelu:
      return a / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (a + 0.044715 * a * a * a)));
    case Curve::kRelu:
      return std::max(a, 0.0);
  }
  return 0;
}

TEST(Activate, EqualsFloat64AtEveryLengthWithAGateAndWithout) {
  for (const Curve curve : {Curve::kSilu, Curve::kGelu, Curve::kRelu}) {
    for (int64_t size = 1; size <= 70; ++size) {
      const std::vector<float> x = RandomFloats(5, 1, size, 9), up = RandomFloats(5, 2, size, 3);
      for (const bool gated : {false, true}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(curve) << " of " << size << (gated ? ", gated" : ""));
        const auto curved = [&](const Kernels& kernels) {
          std::vector<float> y(x.size());
          kernels.activate(curve, x.data(), gated ? up.data() : nullptr, size, y.data());
          return y;
        };
        const std::vector<float> expected = curved(**ChooseKernels("scalar"));
        for (const Kernels* kernels : AvailableKernels()) {
          const std::vector<float> y = curved(*kernels);
          EXPECT_EQ(y, expected) << kernels->name;
          for (size_t i = 0; i < y.size(); ++i) {
            ASSERT_NEAR(y[i], Exact(curve, x[i]) * (gated ? up[i] : 1), 4e-6) << x[i];
          }
        }
      }
    }
  }
}

TEST(SoftCap, EqualsFloat64NearZeroAndFarAway) {
  std::vector<float> x = RandomFloats(6, 1, 300, 30);
  for (const float near : RandomFloats(6, 2, 300, 1.5F)) x.push_back(near);
  for (const float end : {0.0F, -0.0F, 1e-30F, 1e30F, -1e30F, HUGE_VALF, -HUGE_VALF}) x.push_back(end);
  for (const Kernels* kernels : AvailableKernels()) {
    SCOPED_TRACE(kernels->name);
    std::vector<float> y = x;
    kernels->soft_cap(5, static_cast<int64_t>(y.size()), y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = 5 * std::tanh(static_cast<double>(x[i]) / 5);
      ASSERT_NEAR(y[i], exact, 1e-6 * std::abs(exact) + 1e-37) << x[i];
    }
  }
}

// What went wrong must be seen, not capped, clipped or routed away.
TEST(NotANumber, StaysSo) {
  for (const Kernels* kernels : AvailableKernels()) {
    SCOPED_TRACE(kernels->name);
    for (size_t at = 0; at < 20; ++at) {
      std::vector<float> x(20, 1), y(20), ones(20, 1);
      x[at] = std::nanf("");
      for (const Curve curve : {Curve::kSilu, Curve::kGelu, Curve::kRelu}) {
        for (const float* const up : {static_cast<const float*>(nullptr), static_cast<const float*>(ones.data())}) {
          kernels->activate(curve, x.data(), up, 20, y.data());
          for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i == at) << static_cast<int>(curve);
        }
      }
      y = x;
      kernels->soft_cap(30, 20, y.data());
      for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i == at);
      kernels->layer_norm(x.data(), ones.data(), ones.data(), kEps, 20, y.data());
      for (const float value : y) EXPECT_TRUE(std::isnan(value));
      kernels->softmax(1, 20, x.data());
      for (const float value : x) EXPECT_TRUE(std::isnan(value));
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
