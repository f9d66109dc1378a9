#include "engine/lab/ridge.h"

#include <gmock/gmock.h>

#include <vector>

#include "policies/hash_random.h"

namespace ebb::lab {
namespace {

constexpr Feature kAll[] = {Feature::kKeyLength, Feature::kKeyLikeness, Feature::kValueLength, Feature::kAttention,
                            Feature::kAge};
constexpr Features kTrue = {0.5, -2, 0.25, 3, -0.125};

// Groups of random features; their targets follow kTrue, but that each group lies elsewhere by `offset`.
void AddGroups(Ridge& ridge, double offset) {
  HashRandom random(5);
  for (int32_t group = 0; group < 8; ++group) {
    std::vector<Features> features(static_cast<size_t>(random.Uniform(20, 60)));
    std::vector<double> targets;
    for (Features& x : features) {
      double y = 1 + offset * (group - 3.5);
      for (size_t i = 0; i < kFeatures; ++i) y += kTrue[i] * (x[i] = 4 * random.UniformFloat());
      targets.push_back(y);
    }
    ridge.AddGroup(features, targets);
  }
}

TEST(Ridge, FindsAnExactRelation) {
  Ridge ridge;
  AddGroups(ridge, 0);
  const FeatureWeights found = ridge.Solve(kAll, 1e-12);
  EXPECT_NEAR(found.bias, 1, 1e-9);
  for (size_t i = 0; i < kFeatures; ++i) EXPECT_NEAR(found.weight[i], kTrue[i], 1e-9);
  EXPECT_NEAR(ridge.Explained(found), 1, 1e-9);
}

TEST(Ridge, WhereAGroupLiesDoesNotCount) {
  Ridge ridge;
  AddGroups(ridge, 100);
  const FeatureWeights found = ridge.Solve(kAll, 1e-12);
  for (size_t i = 0; i < kFeatures; ++i) EXPECT_NEAR(found.weight[i], kTrue[i], 1e-8);
}

TEST(Ridge, AFeatureLeftOutWeighsNothing) {
  Ridge ridge;
  AddGroups(ridge, 0);
  const FeatureWeights whole = ridge.Solve(kAll, 1e-6);
  const FeatureWeights found = ridge.Solve(std::span(kAll).first(3), 1e-6);
  EXPECT_EQ(found.weight[3], 0);
  EXPECT_EQ(found.weight[4], 0);
  EXPECT_LT(ridge.Explained(found), 0.9 * ridge.Explained(whole));
}

TEST(Ridge, AFeatureThatNeverVariesWeighsNothing) {
  Ridge ridge;
  const std::vector<Features> features = {{1, 7, 0, 0, 0}, {2, 7, 0, 0, 0}, {4, 7, 0, 0, 0}};
  ridge.AddGroup(features, std::vector<double>{2, 4, 8});
  const FeatureWeights found = ridge.Solve(kAll, 1e-12);
  EXPECT_THAT(found.weight, testing::ElementsAre(testing::DoubleNear(2, 1e-9), 0, 0, 0, 0));
  EXPECT_NEAR(found.bias, 0, 1e-9);
}

TEST(Ridge, APenaltyShrinksTheWeights) {
  Ridge ridge;
  const std::vector<Features> features = {{-1, 0, 0, 0, 0}, {1, 0, 0, 0, 0}};
  ridge.AddGroup(features, std::vector<double>{-3, 3});
  EXPECT_NEAR(ridge.Solve(kAll, 0.5).weight[0], 2, 1e-12);
}

}  // namespace
}  // namespace ebb::lab
