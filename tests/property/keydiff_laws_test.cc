// Laws of KeyDiff, and its plain form in float64.

#include <gmock/gmock.h>

#include <cmath>
#include <vector>

#include "policies/keydiff.h"
#include "tests/property/given_lane.h"

namespace ebb {
namespace {

// -cos(k, mean of unit keys), as written.
std::vector<double> OracleScores(const GivenTokens& given) {
  const auto d = static_cast<size_t>(given.head_dim);
  const size_t n = given.keys.size() / d;
  std::vector<double> length(n, 0.0);
  std::vector<double> mean(d, 0.0);
  for (size_t j = 0; j < n; ++j) {
    for (size_t c = 0; c < d; ++c) length[j] += std::pow(given.keys[j * d + c], 2.0);
    length[j] = std::sqrt(length[j]);
    for (size_t c = 0; c < d; ++c) mean[c] += given.keys[j * d + c] / length[j] / static_cast<double>(n);
  }
  double mean_length = 0;
  for (const double x : mean) mean_length += x * x;
  mean_length = std::sqrt(mean_length);
  std::vector<double> keep(n, 0.0);
  for (size_t j = 0; j < n; ++j) {
    for (size_t c = 0; c < d; ++c) keep[j] -= given.keys[j * d + c] * mean[c] / length[j] / mean_length;
  }
  return keep;
}

// Keys that lean one way, so that their mean is no accident of rounding.
GivenTokens LeaningKeys(HashRandom& random, int32_t tokens, int32_t d) {
  GivenTokens given = {.head_dim = d, .keys = UniformFloats(random, int64_t{tokens} * d)};
  const std::vector<float> lean = UniformFloats(random, d);
  for (size_t i = 0; i < given.keys.size(); ++i) given.keys[i] += lean[i % static_cast<size_t>(d)];
  return given;
}

std::vector<float> ScoresOf(const GivenTokens& given, uint64_t scatter = 0) {
  const auto tokens = static_cast<int32_t>(given.keys.size()) / given.head_dim;
  GivenLane lane(MakeKeydiff(), given, scatter == 0 ? tokens : 2 * tokens, scatter);
  lane.Step(tokens);
  std::vector<float> scores;
  for (const auto& [token, score] : lane.ScoresByToken()) scores.push_back(score);
  return scores;
}

TEST(KeydiffLaw, AgreesWithThePlainForm) {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const GivenTokens given = LeaningKeys(random, random.Uniform(1, 60), random.Uniform(1, 40));
    const std::vector<float> scores = ScoresOf(given);
    const std::vector<double> oracle = OracleScores(given);
    for (size_t j = 0; j < scores.size(); ++j) ASSERT_NEAR(scores[j], oracle[j], 1e-6) << "token " << j;
  }
}

// KEYDIFF-1, the first half.
TEST(KeydiffLaw, KeysMayBeScaledOneByOne) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    GivenTokens given = LeaningKeys(random, 50, random.Uniform(1, 40));
    const std::vector<float> scores = ScoresOf(given);
    for (size_t j = 0; j < 50; ++j) {
      const float scale = std::exp(12 * random.UniformFloat() - 6);
      for (int32_t c = 0; c < given.head_dim; ++c) given.keys[j * given.head_dim + c] *= scale;
    }
    const std::vector<float> scaled = ScoresOf(given);
    for (size_t j = 0; j < scores.size(); ++j) ASSERT_NEAR(scores[j], scaled[j], 1e-5);
  }
}

// KEYDIFF-1, the second half.
TEST(KeydiffLaw, AllKeysMayBeRotatedTogether) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    GivenTokens given = LeaningKeys(random, 50, random.Uniform(2, 40));
    const std::vector<float> scores = ScoresOf(given);
    Reflect(UniformFloats(random, given.head_dim), given.keys);
    Reflect(UniformFloats(random, given.head_dim), given.keys);
    const std::vector<float> turned = ScoresOf(given);
    for (size_t j = 0; j < scores.size(); ++j) ASSERT_NEAR(scores[j], turned[j], 1e-5);
  }
}

// The same bits, free slots among them or not.
TEST(KeydiffLaw, ScoresDoNotDependOnTheLayoutOfSlots) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const GivenTokens given = LeaningKeys(random, random.Uniform(2, 200), random.Uniform(1, 40));
    ASSERT_EQ(ScoresOf(given), ScoresOf(given, seed));
  }
}

// A mean of zero is zero, and not what rounding leaves of it, which would have a direction.
TEST(KeydiffLaw, KeysThatCancelTieInAnyOrder) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t d = random.Uniform(1, 40);
    GivenTokens given = {.head_dim = d, .keys = UniformFloats(random, 20 * d)};
    for (size_t i = 0, half = given.keys.size(); i < half; ++i) given.keys.push_back(-given.keys[i]);
    ASSERT_THAT(ScoresOf(given, seed), testing::Each(0.0F));
  }
}

// A cluster of one direction leaves before the key that is unlike it; of equal keys the oldest leaves first.
TEST(KeydiffLaw, TheClusterLeavesBeforeTheOutlier) {
  GivenTokens given = {.head_dim = 3};
  for (int32_t j = 0; j < 20; ++j) {
    const std::vector<float> key = j == 7 ? std::vector<float>{0, 2, 0} : std::vector<float>{1, 0, 0};
    given.keys.insert(given.keys.end(), key.begin(), key.end());
  }
  GivenLane lane(MakeKeydiff(), given, 40, 3);
  lane.Step(20);
  lane.Prune(3);
  EXPECT_THAT(lane.LiveTokens(), testing::ElementsAre(7, 18, 19));
}

}  // namespace
}  // namespace ebb
