#include "policies/hash_random.h"

#include <gmock/gmock.h>

#include <array>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace ebb {
namespace {

constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
constexpr int32_t kMax = std::numeric_limits<int32_t>::max();

// Computed once with an independent script; sessions saved yesterday draw these bits.
TEST(HashRandom, BitsNeverChange) {
  struct Case {
    uint64_t seed, purpose, index, bits;
  };
  const std::vector<Case> cases = {
      {0, 0, 0, 0x238275BC38FCBE91},
      {1, 0, 0, 0xB18A02F46D8D86C3},
      {0, 1, 0, 0x2F101FE21496EA20},
      {0, 0, 1, 0xF89A2566B5822C54},
      {0xDEADBEEFCAFEF00D, 7, 1ULL << 40, 0xE7B0286D36E0A93E},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << "seed " << c.seed << ", purpose " << c.purpose << ", index " << c.index);
    EXPECT_EQ(HashBits(c.seed, c.purpose, c.index), c.bits);
  }
}

TEST(HashRandom, TheKthDrawIsIndexK) {
  HashRandom random(42, 3);
  for (uint64_t index = 0; index < 100; ++index) EXPECT_EQ(random.Next64(), HashBits(42, 3, index));
}

TEST(HashRandom, SeedPurposeAndIndexSeparateDraws) {
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (uint64_t purpose = 0; purpose < 10; ++purpose) {
      for (uint64_t index = 0; index < 100; ++index) seen.insert(HashBits(seed, purpose, index));
    }
  }
  EXPECT_EQ(seen.size(), 10000U);
}

TEST(HashRandom, UniformKeepsItsBounds) {
  struct Case {
    std::string name;
    int32_t lo, hi;
  };
  const std::vector<Case> cases = {
      {"one value", 5, 5},          {"around zero", -3, 3},          {"all of int32", kMin, kMax},
      {"lowest value", kMin, kMin}, {"highest two", kMax - 1, kMax}, {"below zero", -9, -8},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    HashRandom random(1);
    for (int draw = 0; draw < 1000; ++draw) {
      const int32_t value = random.Uniform(c.lo, c.hi);
      EXPECT_GE(value, c.lo);
      EXPECT_LE(value, c.hi);
    }
  }
}

// Pearson's statistic with 9 degrees of freedom exceeds 33.7 by chance once in 10,000 seeds.
TEST(HashRandom, UniformVisitsEveryValueAlike) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    std::array<int, 10> count = {};
    for (int draw = 0; draw < 10000; ++draw) ++count[random.Uniform(-5, 4) + 5];
    double statistic = 0;
    for (const int seen : count) statistic += (seen - 1000.0) * (seen - 1000.0) / 1000.0;
    EXPECT_LT(statistic, 33.7);
  }
}

TEST(HashRandom, FractionsLieInTheHalfOpenUnitInterval) {
  HashRandom random(9);
  double sum = 0;
  for (uint64_t index = 0; index < 10000; ++index) {
    const float fraction = random.UniformFloat();
    const double stateless = HashUniform(9, 1, index);
    EXPECT_TRUE(fraction >= 0 && fraction < 1) << fraction;
    EXPECT_TRUE(stateless >= 0 && stateless < 1) << stateless;
    sum += fraction + stateless;
  }
  EXPECT_NEAR(sum / 20000, 0.5, 0.01);  // five standard deviations of the mean
}

TEST(HashRandom, NeighbouringIndicesShareNoBits) {
  // Each bit of the difference of two neighbours is a fair coin: 4000 flips, six standard deviations.
  std::array<int, 64> flips = {};
  for (uint64_t index = 0; index < 4000; ++index) {
    const uint64_t difference = HashBits(0, 0, index) ^ HashBits(0, 0, index + 1);
    for (int bit = 0; bit < 64; ++bit) flips[bit] += static_cast<int>(difference >> bit & 1);
  }
  for (const int flipped : flips) EXPECT_NEAR(flipped, 2000, 190);
}

TEST(HashRandomDeathTest, AnEmptyRangeIsABrokenInvariant) {
  EXPECT_DEATH(HashRandom(0).Uniform(1, 0), "broken invariant: lo <= hi");
}

}  // namespace
}  // namespace ebb
