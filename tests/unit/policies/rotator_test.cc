#include "policies/rotator.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "policies/hash_random.h"

namespace ebb {
namespace {

// Of pairs that turn fast and slowly.
std::vector<double> Frequencies(size_t pairs) {
  std::vector<double> frequencies(pairs);
  for (size_t i = 0; i < pairs; ++i) {
    frequencies[i] = std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(pairs));
  }
  return frequencies;
}

// An angle of float64 errs by some 1e-16 of itself, and so does what both make of it; the rest is one rounding to
// float.
TEST(Rotator, TurnsAsOneByOne) {
  HashRandom random(3);
  Rotator rotator;
  for (int i = 0; i < 200; ++i) {
    const std::vector<double> frequencies = Frequencies(static_cast<size_t>(random.Uniform(0, 20)));
    const RopeView rope = {.halves = random.Uniform(0, 1) == 0, .frequencies = frequencies};
    rotator.Point(rope);
    for (int j = 0; j < 5; ++j) {
      const int64_t position = random.Uniform(0, random.Uniform(0, 1) == 0 ? 600 : 1 << 20);
      std::vector<float> one(2 * frequencies.size() + 3);
      for (float& x : one) x = 2 * random.UniformFloat() - 1;
      std::vector<float> ours = one;
      Rotate(rope, position, one);
      rotator.Turn(position, ours);
      for (size_t c = 0; c < one.size(); ++c) EXPECT_NEAR(ours[c], one[c], 2e-7) << "at " << position;
    }
  }
}

TEST(Rotator, FollowsFromThePositionAlone) {
  const std::vector<double> frequencies = Frequencies(8);
  const RopeView rope = {.frequencies = frequencies};
  const std::vector<float> row = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  Rotator once, often;
  once.Point(rope);
  often.Point(rope);
  for (const int64_t position : {0, 255, 256, 5000, 257, 70000}) {
    std::vector<float> before = row;
    often.Turn(position, before);
  }
  std::vector<float> a = row, b = row;
  once.Turn(300, a);
  often.Turn(300, b);
  EXPECT_EQ(a, b);
}

}  // namespace
}  // namespace ebb
