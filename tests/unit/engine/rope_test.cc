// MakeRope: frequencies in radians become fractions of a turn in units of 2^-64.

#include <cmath>

#include "engine/ops.h"
#include "gtest/gtest.h"

namespace ebb {
namespace {

ModelConfig WithFrequencies(std::vector<double> frequencies) {
  ModelConfig config;
  config.rope_pairs = RopePairs::kHalves;
  config.rotary_dims = static_cast<int32_t>(2 * frequencies.size());
  config.rope_frequencies = std::move(frequencies);
  return config;
}

TEST(MakeRope, CopiesShapeAndScalesFrequencies) {
  const double turn = 2 * std::acos(-1.0);
  const Rope rope = MakeRope(WithFrequencies({turn / 4, turn / 1024, 0}));
  EXPECT_EQ(rope.pairs, RopePairs::kHalves);
  EXPECT_EQ(rope.rotary_dims, 6);
  ASSERT_EQ(rope.turns.size(), 3U);
  EXPECT_NEAR(static_cast<double>(rope.turns[0]), 0x1p62, 0x1p62 * 1e-15);
  EXPECT_NEAR(static_cast<double>(rope.turns[1]), 0x1p54, 0x1p54 * 1e-15);
  EXPECT_EQ(rope.turns[2], 0U);
}

TEST(MakeRope, WholeTurnsCountForNothing) {
  const double turn = 2 * std::acos(-1.0);
  const Rope rope = MakeRope(WithFrequencies({turn * 3.25}));
  EXPECT_NEAR(static_cast<double>(rope.turns[0]), 0x1p62, 0x1p62 * 1e-14);
}

// At the largest position the phase of a typical frequency is still right to 1e-6 of a radian.
TEST(MakeRope, DoesNotDriftAtLongRange) {
  for (const double frequency : {1.0, 0.1, 7.4989421e-05, 1e-6}) {
    const Rope rope = MakeRope(WithFrequencies({frequency}));
    const uint64_t phase = rope.turns[0] * uint64_t{INT32_MAX};
    const long double exact = static_cast<long double>(frequency) * INT32_MAX;
    const long double ours = static_cast<long double>(phase) * 2 * std::acos(-1.0L) * 0x1p-64L;
    EXPECT_NEAR(static_cast<double>(std::cos(ours)), static_cast<double>(std::cos(exact)), 1e-6) << frequency;
    EXPECT_NEAR(static_cast<double>(std::sin(ours)), static_cast<double>(std::sin(exact)), 1e-6) << frequency;
  }
}

}  // namespace
}  // namespace ebb
