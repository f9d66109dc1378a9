// Laws of the calibrated scorer.

#include <gmock/gmock.h>

#include <cmath>
#include <utility>
#include <vector>

#include "policies/calibrated.h"
#include "tests/property/given_lane.h"
#include "tests/support/random_calibration.h"

namespace ebb {
namespace {

// Without attention, which the given lane has none of.
std::vector<float> ScoresOf(const GivenTokens& given, Calibration calibration, uint64_t scatter = 0) {
  const auto tokens = static_cast<int32_t>(given.keys.size()) / given.head_dim;
  GivenLane lane(MakeCalibrated(std::make_shared<const Calibration>(std::move(calibration)), {.attention = false}),
                 given, scatter == 0 ? tokens : 2 * tokens, scatter);
  lane.Step(tokens);
  std::vector<float> scores;
  for (const auto& [token, score] : lane.ScoresByToken()) scores.push_back(score);
  return scores;
}

GivenTokens RandomTokens(HashRandom& random, int32_t tokens) {
  const int32_t d = random.Uniform(2, 40);
  GivenTokens given = {.head_dim = d, .keys = UniformFloats(random, int64_t{tokens} * d)};
  given.values = UniformFloats(random, int64_t{tokens} * d);
  const std::vector<float> lean = UniformFloats(random, d);  // so that the mean key is no accident of rounding
  for (size_t i = 0; i < given.keys.size(); ++i) given.keys[i] += lean[i % static_cast<size_t>(d)];
  return given;
}

// The same bits, free slots among them or not.
TEST(CalibratedLaw, ScoresDoNotDependOnTheLayoutOfSlots) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const GivenTokens given = RandomTokens(random, random.Uniform(2, 200));
    const Calibration calibration = RandomCalibration(seed, 1, 1);
    ASSERT_EQ(ScoresOf(given, calibration), ScoresOf(given, calibration, seed));
  }
}

// Lengths and angles are all that counts of keys and values.
TEST(CalibratedLaw, KeysAndValuesMayBeRotated) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    GivenTokens given = RandomTokens(random, 50);
    const Calibration calibration = RandomCalibration(seed, 1, 1);
    const std::vector<float> scores = ScoresOf(given, calibration);
    Reflect(UniformFloats(random, given.head_dim), given.keys);
    Reflect(UniformFloats(random, given.head_dim), given.values);
    const std::vector<float> turned = ScoresOf(given, calibration);
    for (size_t j = 0; j < scores.size(); ++j) ASSERT_NEAR(scores[j], turned[j], 1e-5);
  }
}

// Keys twice as long, or values, under half the weight of their length score alike, to the bit.
TEST(CalibratedLaw, LengthsScaleWithTheirWeights) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    GivenTokens given = RandomTokens(random, 50);
    Calibration calibration = RandomCalibration(seed, 1, 1);
    const std::vector<float> scores = ScoresOf(given, calibration);
    for (float& x : given.keys) x *= 2;
    for (float& x : given.values) x *= 4;
    Features& weight = calibration.lanes[0].unseen.weight;
    weight[static_cast<size_t>(Feature::kKeyLength)] /= 2;
    weight[static_cast<size_t>(Feature::kValueLength)] /= 4;
    ASSERT_EQ(scores, ScoresOf(given, calibration));
  }
}

}  // namespace
}  // namespace ebb
