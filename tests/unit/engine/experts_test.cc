#include "engine/experts.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "tests/support/test_lane.h"
#include "tests/support/test_ops.h"

namespace ebb {
namespace {

constexpr int32_t kDim = 40;
constexpr int32_t kFfn = 24;
constexpr int32_t kExperts = 5;
constexpr int32_t kUsed = 2;
constexpr int32_t kRows = 17;

// One layer of random weights, on ops of their own.
class ExpertsTest : public testing::Test {
 protected:
  static TensorView View(const std::vector<float>& values, int64_t rows) {
    return {.type = DType::kF32,
            .rows = rows,
            .cols = static_cast<int64_t>(values.size()) / rows,
            .data = std::as_bytes(std::span(values))};
  }

  std::vector<float> Added(std::vector<float> x) {
    const ModelConfig config = {.dim = kDim, .ffn_dim = kFfn, .experts = kExperts, .experts_used = kUsed};
    Experts experts(config,
                    {.router = View(router_, kExperts),
                     .gate = View(gate_, kExperts * kFfn),
                     .up = View(up_, kExperts * kFfn),
                     .down = View(down_, kExperts * kDim)},
                    *ops_);
    experts.Add({.weight = norm_, .eps = 1e-5F}, static_cast<int32_t>(x.size()) / kDim, x);
    return x;
  }

  // The same of one row, in float64.
  std::vector<double> Reference(std::span<const float> x) const {
    double squares = 0;
    for (const float a : x) squares += double{a} * a;
    std::vector<double> h;
    for (int32_t c = 0; c < kDim; ++c) h.push_back(x[c] / std::sqrt(squares / kDim + 1e-5) * norm_[c]);
    const auto times = [](const std::vector<float>& w, int32_t row, const std::vector<double>& v) {
      return std::inner_product(v.begin(), v.end(), w.begin() + row * std::ssize(v), 0.0);
    };
    std::vector<double> score;
    std::vector<int32_t> order(kExperts);
    std::iota(order.begin(), order.end(), 0);
    for (const int32_t e : order) score.push_back(times(router_, e, h));
    std::ranges::stable_sort(order, std::greater(), [&](int32_t e) { return score[e]; });
    double total = 0;
    for (int32_t i = 0; i < kUsed; ++i) total += std::exp(score[order[i]]);
    std::vector<double> y(x.begin(), x.end());
    for (int32_t i = 0; i < kUsed; ++i) {
      const int32_t e = order[i];
      std::vector<double> hidden;
      for (int32_t f = 0; f < kFfn; ++f) {
        const double gate = times(gate_, e * kFfn + f, h);
        hidden.push_back(gate / (1 + std::exp(-gate)) * times(up_, e * kFfn + f, h));
      }
      for (int32_t c = 0; c < kDim; ++c) y[c] += std::exp(score[e]) / total * times(down_, e * kDim + c, hidden);
    }
    return y;
  }

  std::unique_ptr<Ops> ops_ = MakeTestOps({.accuracy = Accuracy::kExact, .threads = 2});
  std::vector<float> norm_ = RandomFloats(1, 1, kDim, 2);
  std::vector<float> router_ = RandomFloats(1, 2, kExperts* kDim, 0.5F);
  std::vector<float> gate_ = RandomFloats(1, 3, kExperts* kFfn* kDim, 0.3F);
  std::vector<float> up_ = RandomFloats(1, 4, kExperts* kFfn* kDim, 0.3F);
  std::vector<float> down_ = RandomFloats(1, 5, kExperts* kDim* kFfn, 0.3F);
  std::vector<float> x_ = RandomFloats(1, 6, kRows* kDim, 3);
};

TEST_F(ExpertsTest, AddWhatTheChosenMakeOfAToken) {
  const std::vector<float> y = Added(x_);
  for (int32_t row = 0; row < kRows; ++row) {
    const std::vector<double> expected = Reference(std::span(x_).subspan(row * kDim, kDim));
    for (int32_t c = 0; c < kDim; ++c) {
      ASSERT_NEAR(y[row * kDim + c], expected[c], 1e-5 * (1 + std::abs(expected[c]))) << row;
    }
  }
}

TEST_F(ExpertsTest, GiveATokenTheSameBitsAloneAndBesideOthers) {
  const std::vector<float> together = Added(x_);
  for (int32_t row = 0; row < kRows; ++row) {
    const auto first = x_.begin() + row * kDim;
    const std::vector<float> alone = Added({first, first + kDim});
    EXPECT_TRUE(std::ranges::equal(alone, std::span(together).subspan(row * kDim, kDim))) << row;
  }
}

// A token whose scores are not numbers becomes none, and leaves the others alone.
TEST_F(ExpertsTest, RouteNothingAway) {
  const std::vector<float> sound = Added(x_);
  x_[3 * kDim + 7] = std::nanf("");
  const std::vector<float> y = Added(x_);
  for (int32_t i = 0; i < kRows * kDim; ++i) {
    if (i / kDim == 3) {
      EXPECT_TRUE(std::isnan(y[i])) << i;
    } else {
      EXPECT_EQ(y[i], sound[i]) << i;
    }
  }
  router_[2 * kDim] = std::nanf("");  // one expert's scores
  for (const float value : Added(x_)) EXPECT_TRUE(std::isnan(value));
}

TEST_F(ExpertsTest, PreferTheFirstOfEqualScores) {
  const std::vector<float> scores = {1, 3, 3, 0, 3};
  std::vector<int32_t> chosen(2);
  std::vector<float> weights(2);
  ops_->Route(scores, kExperts, kUsed, chosen, weights);
  EXPECT_THAT(chosen, testing::ElementsAre(1, 2));
  EXPECT_THAT(weights, testing::ElementsAre(0.5F, 0.5F));
}

}  // namespace
}  // namespace ebb
