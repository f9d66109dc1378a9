// The mass of a row and the token in which a share of it ends, against sums in more than float64 of the weights that
// the host's sampler draws by, and these against the exponential.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "engine/ops/gpu/draw_weight.h"
#include "policies/hash_random.h"
#include "tests/unit/engine/ops/gpu/each_target.h"

namespace ebb::gpu {
namespace {

constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();
constexpr float kUnbounded = std::numeric_limits<float>::infinity();
constexpr RowMass kLeftAlone = {.mass = -3, .margin = -4, .token = -5};

using Sum = long double;

// As GreedyArgs.
int32_t BestOf(const float* logits, int32_t vocab) {
  int32_t best = -1;
  for (int32_t i = 0; i < vocab; ++i) {
    if (!std::isnan(logits[i]) && (best < 0 || logits[i] > logits[best])) best = i;
  }
  return std::max(best, 0);
}

std::vector<RowMass> Launched(const std::vector<float>& logits, const std::vector<DrawNeeds>& needs) {
  const auto rows = static_cast<int32_t>(needs.size());
  const auto vocab = static_cast<int32_t>(logits.size()) / rows;
  std::vector<int32_t> best;
  for (int32_t row = 0; row < rows; ++row) best.push_back(BestOf(logits.data() + int64_t{row} * vocab, vocab));
  return OnEachTarget([&](const Table& table) {
    std::vector<RowMass> mass(static_cast<size_t>(rows) + 1, kLeftAlone);
    std::vector<double> parts(static_cast<size_t>(rows) * MassParts(vocab) + 1, -7);
    Mirror mirror(table);
    RowMass* const to = mirror.In(mass);
    double* const parts_there = mirror.In(parts);
    table.mass({.logits = mirror.In(logits),
                .best = mirror.In(best),
                .needs = mirror.In(needs),
                .vocab = vocab,
                .rows = rows,
                .parts = parts_there,
                .mass = to},
               mirror.stream());
    mirror.Out(to, mass);
    mirror.Out(parts_there, parts);
    EXPECT_EQ(mass.back().token, kLeftAlone.token) << "written past the end";
    EXPECT_EQ(parts.back(), -7) << "written past the end";
    mass.pop_back();
    return mass;
  });
}

std::vector<float> WeightsOf(const float* logits, int32_t vocab, float temperature) {
  const float best = logits[BestOf(logits, vocab)];
  std::vector<float> weights;
  for (int32_t i = 0; i < vocab; ++i) {
    const bool has_any = logits[i] > -kUnbounded;
    weights.push_back(has_any ? DrawWeight(logits[i], best, temperature) : 0.0F);
    if (!has_any || std::isinf(best)) continue;
    const double level = (double{logits[i]} - best) / temperature;
    if (level < -80) continue;
    // A distance is rounded twice, and e to it by a few parts in 2^24.
    EXPECT_NEAR(weights.back() / std::exp(level), 1, (-level * 2 + 4) * 0x1p-24) << logits[i] << " of " << best;
  }
  return weights;
}

void ExpectMass(const RowMass& mass, const DrawNeeds& needs, const float* logits, int32_t vocab) {
  const std::vector<float> weights = WeightsOf(logits, vocab, needs.temperature);
  Sum all = 0;
  for (const float weight : weights) all += weight;
  ASSERT_NEAR(mass.mass, static_cast<double>(all), 1e-13 * static_cast<double>(all));
  if (needs.share < 0 || all == 0) {
    EXPECT_EQ(mass.margin, 0);
    return;
  }
  // Every share of a mass ends in some token, but for what rounds at an edge.
  const Sum end = needs.share * all;
  if (mass.margin == 0) {
    EXPECT_LT(end, 1e-12L * all) << "no token, where there is one at every other place";
    return;
  }
  ASSERT_GE(mass.token, 0);
  ASSERT_LT(mass.token, vocab);
  Sum before = 0;
  for (int64_t i = 0; i < mass.token; ++i) before += weights[i];
  const Sum after = before + weights[mass.token];
  EXPECT_NEAR(mass.margin, static_cast<double>(std::min(end - before, after - end) / all), 1e-12);
}

void ExpectMasses(const std::vector<float>& logits, const std::vector<DrawNeeds>& needs) {
  const auto vocab = static_cast<int32_t>(logits.size() / needs.size());
  const std::vector<RowMass> masses = Launched(logits, needs);
  for (size_t row = 0; row < needs.size(); ++row) {
    SCOPED_TRACE(testing::Message() << "row " << row << " of " << needs.size() << ", vocabulary " << vocab
                                    << ", temperature " << needs[row].temperature << ", share " << needs[row].share);
    if (needs[row].temperature > 0) {
      ExpectMass(masses[row], needs[row], logits.data() + row * vocab, vocab);
    } else {
      EXPECT_EQ(masses[row].mass, kLeftAlone.mass) << "nobody asked";
    }
  }
}

std::vector<float> RowsOf(int64_t n, const std::function<float(int64_t)>& logit) {
  std::vector<float> logits;
  for (int64_t i = 0; i < n; ++i) logits.push_back(logit(i));
  return logits;
}

DrawNeeds RandomNeeds(HashRandom& random) {
  return {.temperature = random.Uniform(0, 4) == 0 ? 0.0F : 0.05F + 2 * random.UniformFloat(),
          .share = random.Uniform(0, 4) == 0 ? -1.0 : random.UniformFloat()};
}

TEST(GpuMass, IsTheSumOfTheWeightsAndAShareOfItEndsInItsToken) {
  HashRandom random(1);
  for (int i = 0; i < Cases(40); ++i) {
    const int32_t vocab = i % 4 == 0   ? random.Uniform(1, 40)
                          : i % 4 == 1 ? random.Uniform(41, kMassPart)
                          : i % 4 == 2 ? kMassPart + random.Uniform(-1, 1)
                                       : random.Uniform(kMassPart, 5 * kMassPart);
    const int32_t rows = random.Uniform(1, 4);
    std::vector<DrawNeeds> needs;
    for (int32_t row = 0; row < rows; ++row) needs.push_back(RandomNeeds(random));
    const float scale = i % 3 == 0 ? 1000 : i % 3 == 1 ? 20 : 0.5F;
    ExpectMasses(RowsOf(int64_t{rows} * vocab, [&](int64_t) { return scale * (random.UniformFloat() - 0.5F); }), needs);
  }
}

// Sixteen tokens are one thread's, which adds them up as the sampler does: weights that differed by a bit would show.
TEST(GpuMass, WeightsAreTheSamplersToTheBit) {
  HashRandom random(2);
  for (int i = 0; i < Cases(60); ++i) {
    const int32_t vocab = i < 30 ? 2 : random.Uniform(1, 16);
    const float scale = i % 2 == 0 ? 60 : 2;
    std::vector<float> logits;
    std::vector<DrawNeeds> needs;
    for (int32_t row = 0; row < 8; ++row) {
      needs.push_back({.temperature = 0.1F + random.UniformFloat()});
      for (int32_t token = 0; token < vocab; ++token) logits.push_back(scale * random.UniformFloat());
    }
    const std::vector<RowMass> masses = Launched(logits, needs);
    for (size_t row = 0; row < needs.size(); ++row) {
      double sum = 0;
      for (const float weight : WeightsOf(logits.data() + row * vocab, vocab, needs[row].temperature)) sum += weight;
      EXPECT_EQ(masses[row].mass, sum);
    }
  }
}

TEST(GpuMass, WhatIsNoNumberHasNoWeight) {
  HashRandom random(3);
  constexpr float kOdd[] = {kNoNumber, -kNoNumber, 0.0F, -0.0F, -kUnbounded, -3e38F, 1e-45F};
  for (int i = 0; i < Cases(24); ++i) {
    const int32_t vocab = random.Uniform(1, i % 2 == 0 ? 100 : 2 * kMassPart);
    const bool has_endless = i % 5 == 0;
    ExpectMasses(RowsOf(vocab,
                        [&](int64_t at) {
                          if (has_endless && at % 17 == 5) return kUnbounded;
                          return random.Uniform(0, 3) == 0 ? kOdd[random.Uniform(0, 6)] : 4 * random.UniformFloat();
                        }),
                 {{.temperature = 1, .share = random.UniformFloat()}});
  }
  for (const float all : {kNoNumber, -kUnbounded}) {
    const std::vector<RowMass> none =
        Launched(std::vector<float>(kMassPart + 3, all), {{.temperature = 1, .share = 0}});
    EXPECT_EQ(none[0].mass, 0);
    EXPECT_EQ(none[0].margin, 0);
  }
  for (const float all : {0.0F, -3e38F, 3e38F, kUnbounded}) {
    const std::vector<RowMass> even = Launched(std::vector<float>(kMassPart + 3, all),
                                               {{.temperature = 1, .share = (kMassPart + 0.75) / (kMassPart + 3)}});
    EXPECT_EQ(even[0].mass, kMassPart + 3);
    EXPECT_EQ(even[0].token, kMassPart);
    EXPECT_NEAR(even[0].margin, 0.25 / (kMassPart + 3), 1e-12);
  }
}

TEST(GpuMass, TemperaturesAtTheEndsOfTheirRange) {
  HashRandom random(4);
  const std::vector<float> logits = RowsOf(3 * 1000, [&](int64_t) { return 20 * random.UniformFloat(); });
  ExpectMasses(logits, {{.temperature = 1e-38F, .share = 0.5},
                        {.temperature = 1e-45F, .share = 0.5},
                        {.temperature = 100, .share = 0.5}});
}

TEST(GpuMass, OfTheLargestVocabulary) {
  HashRandom random(5);
  ExpectMasses(RowsOf(int64_t{1} << 18, [&](int64_t) { return 4 * random.UniformFloat(); }),
               {{.temperature = 1, .share = 0.7}});
}

}  // namespace
}  // namespace ebb::gpu
