// Laws of expected attention, and its plain form in float64.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "policies/expected_attention.h"
#include "tests/property/given_lane.h"

namespace ebb {
namespace {

using Covariance = ExpectedAttentionOptions::Covariance;
using Values = ExpectedAttentionOptions::Values;
using Matrix = std::vector<std::vector<double>>;

struct Rotation {
  bool halves = false;
  std::vector<double> frequencies = {};
};

// Tokens 0 .. n - 1 with all that they bring, and one options' choice.
struct World {
  explicit World(uint64_t seed) : random(seed) {
    given.head_dim = random.Uniform(2, 12);
    given.query_heads = 1 << random.Uniform(0, 3);
    tokens = random.Uniform(1, 40);
    given.keys = UniformFloats(random, int64_t{tokens} * given.head_dim);
    given.values = UniformFloats(random, int64_t{tokens} * given.head_dim);
    given.queries = UniformFloats(random, int64_t{tokens} * given.query_heads * given.head_dim);
    for (float& x : given.keys) x *= 3;
    for (float& x : given.queries) x = 2 * x + 0.5F;
    rotation.halves = random.Uniform(0, 1) == 1;
    for (int32_t i = 0, pairs = random.Uniform(0, given.head_dim / 2); i < pairs; ++i) {
      rotation.frequencies.push_back(std::pow(1000.0, -2.0 * i / given.head_dim));
    }
    options.future = random.Uniform(0, 3) == 0 ? 1 : random.Uniform(1, 600);
    options.epsilon = random.Uniform(0, 1) * 0.02;
    options.covariance = static_cast<Covariance>(random.Uniform(0, 2));
    options.values = static_cast<Values>(random.Uniform(0, 1));
  }

  // Fed in blocks of at most `block`.
  GivenLane Lane(int32_t block, uint64_t scatter = 0) const {
    GivenLane lane(MakeExpectedAttention(options), given, scatter == 0 ? tokens : 2 * tokens, scatter);
    lane.memory.halves = rotation.halves;
    lane.memory.frequencies = rotation.frequencies;
    while (lane.tokens < tokens) lane.Step(std::min(block, tokens - lane.tokens));
    return lane;
  }

  HashRandom random;
  GivenTokens given;
  int32_t tokens = 0;
  Rotation rotation;
  ExpectedAttentionOptions options;
};

// The rotation for a position as a matrix.
Matrix RotationMatrix(const Rotation& rotation, size_t d, double position) {
  Matrix r(d, std::vector<double>(d, 0.0));
  for (size_t c = 0; c < d; ++c) r[c][c] = 1;
  const size_t pairs = rotation.frequencies.size();
  for (size_t i = 0; i < pairs; ++i) {
    const size_t x = rotation.halves ? i : 2 * i;
    const size_t y = rotation.halves ? i + pairs : 2 * i + 1;
    r[x][x] = r[y][y] = std::cos(position * rotation.frequencies[i]);
    r[y][x] = std::sin(position * rotation.frequencies[i]);
    r[x][y] = -r[y][x];
  }
  return r;
}

// Mean of the rotations for the positions to come, one matrix after another.
Matrix MeanRotation(const World& world, size_t d) {
  Matrix mean(d, std::vector<double>(d, 0.0));
  for (int32_t f = 0; f < world.options.future; ++f) {
    const Matrix r = RotationMatrix(world.rotation, d, world.tokens + f);
    for (size_t a = 0; a < d; ++a) {
      for (size_t b = 0; b < d; ++b) mean[a][b] += r[a][b] / world.options.future;
    }
  }
  return mean;
}

std::vector<double> Times(const Matrix& m, const std::vector<double>& x) {
  std::vector<double> y(m.size(), 0.0);
  for (size_t a = 0; a < m.size(); ++a) {
    for (size_t b = 0; b < x.size(); ++b) y[a] += m[a][b] * x[b];
  }
  return y;
}

double Product(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

// R S R', two products of matrices.
Matrix Conjugate(const Matrix& r, const Matrix& s) {
  const size_t d = r.size();
  Matrix rs(d, std::vector<double>(d, 0.0));
  Matrix out = rs;
  for (size_t a = 0; a < d; ++a) {
    for (size_t b = 0; b < d; ++b) {
      for (size_t c = 0; c < d; ++c) rs[a][b] += r[a][c] * s[c][b];
    }
  }
  for (size_t a = 0; a < d; ++a) {
    for (size_t b = 0; b < d; ++b) {
      for (size_t c = 0; c < d; ++c) out[a][b] += rs[a][c] * r[b][c];
    }
  }
  return out;
}

struct Moments {
  std::vector<double> mean;
  Matrix covariance;
};

// Of the queries after the first four of one head, in two passes.
Moments OracleMoments(const World& world, int32_t head) {
  const auto d = static_cast<size_t>(world.given.head_dim);
  Moments m = {.mean = std::vector<double>(d, 0.0), .covariance = Matrix(d, std::vector<double>(d, 0.0))};
  const int32_t count = world.tokens - 4;
  const auto query = [&](int32_t token, size_t c) -> double {
    return world.given.queries[static_cast<size_t>(token * world.given.query_heads + head) * d + c];
  };
  for (int32_t t = 4; t < world.tokens; ++t) {
    for (size_t c = 0; c < d; ++c) m.mean[c] += query(t, c) / count;
  }
  for (int32_t t = 4; t < world.tokens; ++t) {
    for (size_t a = 0; a < d; ++a) {
      for (size_t b = 0; b < d; ++b) {
        const bool is_kept = world.options.covariance == Covariance::kFull ||
                             (world.options.covariance == Covariance::kDiagonal && a == b);
        if (is_kept) m.covariance[a][b] += (query(t, a) - m.mean[a]) * (query(t, b) - m.mean[b]) / count;
      }
    }
  }
  return m;
}

std::vector<double> OracleScores(const World& world) {
  const auto d = static_cast<size_t>(world.given.head_dim);
  const auto n = static_cast<size_t>(world.tokens);
  const Matrix r = MeanRotation(world, d);
  std::vector<double> keep(n, 0.0);
  for (int32_t head = 0; head < world.given.query_heads; ++head) {
    const Moments moments = OracleMoments(world, head);
    const std::vector<double> mean = Times(r, moments.mean);
    const Matrix covariance = Conjugate(r, moments.covariance);
    std::vector<double> weight(n);
    double sum = 0;
    for (size_t j = 0; j < n; ++j) {
      const auto* row = world.given.keys.data() + j * d;
      const std::vector<double> key = Times(RotationMatrix(world.rotation, d, static_cast<double>(j)), {row, row + d});
      const double x = Product(mean, key) / std::sqrt(static_cast<double>(d)) +
                       Product(key, Times(covariance, key)) / (2 * static_cast<double>(d));
      weight[j] = std::exp(x);
      sum += weight[j];
    }
    for (size_t j = 0; j < n; ++j) keep[j] += weight[j] / sum / world.given.query_heads;
  }
  for (size_t j = 0; j < n; ++j) {
    const auto* row = world.given.values.data() + j * d;
    const std::vector<double> value(row, row + d);
    keep[j] += world.options.epsilon;
    if (world.options.values == Values::kWeigh) keep[j] *= std::sqrt(Product(value, value));
  }
  return keep;
}

TEST(ExpectedAttentionLaw, AgreesWithThePlainForm) {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    World world(seed);
    const GivenLane lane = world.Lane(world.random.Uniform(1, 20));
    const std::vector<float> scores = lane.Scores();
    const std::vector<double> oracle = OracleScores(world);
    // An exponent is off by what float32 rounds of the statistics, some 1e-7 of their size, and a score by that share.
    for (size_t j = 0; j < scores.size(); ++j) ASSERT_NEAR(scores[j], oracle[j], 1e-5 * (1 + oracle[j]));
  }
}

// EA-1: where all queries are the same, S = 0, and R is one rotation: the attention of that query, |v| apart.
TEST(ExpectedAttentionLaw, WithoutCovarianceItIsTheAttentionOfOneQuery) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    World world(seed);
    world.options = {.future = 1, .covariance = Covariance::kFull, .values = Values::kIgnore};
    world.given.query_heads = 1;
    world.given.queries.resize(static_cast<size_t>(world.tokens) * static_cast<size_t>(world.given.head_dim));
    const auto d = static_cast<size_t>(world.given.head_dim);
    for (size_t i = 0; i < world.given.queries.size(); ++i) world.given.queries[i] = world.given.queries[i % d];
    if (world.tokens <= 4) continue;  // no query was counted
    const std::vector<float> scores = world.Lane(7).Scores();

    std::vector<float> query(world.given.queries.begin(), world.given.queries.begin() + static_cast<int64_t>(d));
    const RopeView rope = {.halves = world.rotation.halves, .frequencies = world.rotation.frequencies};
    Rotate(rope, world.tokens, query);
    std::vector<double> weight(scores.size());
    double sum = 0;
    for (size_t j = 0; j < scores.size(); ++j) {
      std::vector<float> key(world.given.keys.begin() + static_cast<int64_t>(j * d),
                             world.given.keys.begin() + static_cast<int64_t>((j + 1) * d));
      Rotate(rope, static_cast<int64_t>(j), key);
      double logit = 0;
      for (size_t c = 0; c < d; ++c) logit += static_cast<double>(query[c]) * key[c];
      weight[j] = std::exp(logit / std::sqrt(static_cast<double>(d)));
      sum += weight[j];
    }
    for (size_t j = 0; j < scores.size(); ++j) ASSERT_NEAR(scores[j], weight[j] / sum, 1e-5);
  }
}

TEST(ExpectedAttentionLaw, TheFirstFourQueriesDoNotCount) {
  World world(7);
  ASSERT_GT(world.tokens, 5);
  const std::vector<float> scores = world.Lane(3).Scores();
  const auto row = static_cast<size_t>(world.given.query_heads) * static_cast<size_t>(world.given.head_dim);
  for (size_t i = 0; i < 4 * row; ++i) world.given.queries[i] = 1e6F;
  EXPECT_EQ(world.Lane(3).Scores(), scores);
  world.given.queries[4 * row] += 1;
  EXPECT_NE(world.Lane(3).Scores(), scores);
}

TEST(ExpectedAttentionLaw, SlotsDoNotMatter) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const World world(seed);
    const auto ordered = world.Lane(5).ScoresByToken();
    const auto scattered = world.Lane(5, seed).ScoresByToken();
    ASSERT_EQ(ordered.size(), scattered.size());
    for (size_t j = 0; j < ordered.size(); ++j) {
      ASSERT_EQ(ordered[j].first, scattered[j].first);
      ASSERT_FLOAT_EQ(ordered[j].second, scattered[j].second);
    }
  }
}

// The statistics of a long session are what they are of a short one that repeats it less often.
TEST(ExpectedAttentionLaw, StatisticsStayExactOverLongSessions) {
  const auto scorer = MakeExpectedAttention({});
  const LaneMemoryOf memory(2, {0, 0});
  std::vector<float> state(6, 0.0F);
  const std::vector<float> q = {1, 1000, 3, 1002};  // means 2 and 1001, all covariances 1
  for (int32_t t = 4; t < 100004; ++t) {
    const std::vector<int32_t> token = {t};
    const std::vector<int32_t> slots = {0};
    scorer->Observe({.token = token, .live = 1, .position = token, .memory = &memory},
                    {.queries = 1, .slots = slots, .q = q.data() + 2 * (t % 2), .q_stride = 2}, {.lane = state});
  }
  EXPECT_EQ(state[0], 100000);
  EXPECT_NEAR(state[1], 2, 1e-3);
  EXPECT_NEAR(state[2], 1001, 1e-2);
  for (size_t i = 3; i < 6; ++i) EXPECT_NEAR(state[i], 1, 1e-2);
}

}  // namespace
}  // namespace ebb
