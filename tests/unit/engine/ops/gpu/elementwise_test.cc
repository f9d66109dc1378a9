// Norm, rounding, activation, embedding and the choice of the largest logit, against float64.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/model/quantization.h"
#include "policies/hash_random.h"
#include "tests/support/test_lane.h"
#include "tests/unit/engine/ops/gpu/each_target.h"
#include "tests/unit/engine/ops/gpu/test_matrix.h"

namespace ebb::gpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(GpuRmsNorm, EqualsFloat64AtEverySize) {
  for (const int32_t n : {32, 96, 256, 1000, 4096, 4100, 17000}) {  // kept in registers in part, too
    for (const int32_t add : {0, 1}) {
      constexpr int32_t kRows = 3;
      const std::vector<float> x = RandomFloats(1, n, int64_t{kRows} * n, 3);
      const std::vector<float> weight = RandomFloats(2, n, n);
      const std::vector<float> before = RandomFloats(3, n, int64_t{kRows} * n);
      const std::vector<float> y = OnEachTarget([&](const Table& table) {
        std::vector<float> out = before;
        Mirror mirror(table);
        float* const to = mirror.In(out);
        table.rms_norm(
            {.x = mirror.In(x), .weight = mirror.In(weight), .y = to, .n = n, .rows = kRows, .eps = 1e-5F, .add = add},
            mirror.stream());
        mirror.Out(to, out);
        return out;
      });
      for (int32_t row = 0; row < kRows; ++row) {
        double squares = 0;
        for (int32_t i = 0; i < n; ++i) squares += std::pow(x[row * n + i], 2.0);
        for (int32_t i = 0; i < n; ++i) {
          const double norm = x[row * n + i] / std::sqrt(squares / n + 1e-5F) * weight[i];
          const double was = add != 0 ? before[row * n + i] : 0;
          ASSERT_NEAR(y[row * n + i], was + norm, 1e-6 * (std::abs(norm) + std::abs(was))) << n;
        }
      }
    }
  }
}

// Rows that stand far from 0, where a mean that is off shows; and in place, as an embedding is normed.
TEST(GpuLayerNorm, EqualsFloat64AtEverySize) {
  for (const int32_t n : {32, 96, 256, 1000, 4096, 4100, 9000}) {  // kept in registers in part, too
    for (const bool in_place : {false, true}) {
      constexpr int32_t kRows = 3;
      std::vector<float> x = RandomFloats(1, n, int64_t{kRows} * n, 3);
      for (size_t i = 0; i < x.size(); ++i) x[i] += static_cast<float>(i / n) * 5;
      const std::vector<float> weight = RandomFloats(2, n, n);
      const std::vector<float> bias = RandomFloats(3, n, n);
      const std::vector<float> y = OnEachTarget([&](const Table& table) {
        std::vector<float> out = x;
        Mirror mirror(table);
        float* const to = mirror.In(out);
        table.layer_norm({.x = in_place ? to : mirror.In(x),
                          .weight = mirror.In(weight),
                          .bias = mirror.In(bias),
                          .y = to,
                          .n = n,
                          .rows = kRows,
                          .eps = 1e-5F},
                         mirror.stream());
        mirror.Out(to, out);
        return out;
      });
      for (int32_t row = 0; row < kRows; ++row) {
        const float* const own = x.data() + row * n;
        double mean = 0, squares = 0;
        for (int32_t i = 0; i < n; ++i) mean += own[i] / static_cast<double>(n);
        for (int32_t i = 0; i < n; ++i) squares += std::pow(own[i] - mean, 2.0);
        for (int32_t i = 0; i < n; ++i) {
          const double scaled = (own[i] - mean) / std::sqrt(squares / n + 1e-5F);
          // A number and the mean are known to 2^-24 of themselves, up to 13.
          ASSERT_NEAR(y[row * n + i], scaled * weight[i] + bias[i], 4e-6) << n;
        }
      }
    }
  }
}

// Heads of every size, some of which leave threads of a team without a vector; values and what lies behind a row stay.
TEST(GpuNormHeads, EqualsFloat64InPlace) {
  for (const int32_t d : {16, 48, 128, 144, 256}) {
    for (const int32_t queries : {1, 6}) {
      constexpr int32_t kRows = 3, kKvHeads = 2;
      const int32_t stride = (queries + 2 * kKvHeads) * d + 4;
      const std::vector<float> x = RandomFloats(4, d, int64_t{kRows} * stride, 3);
      const std::vector<float> query_weight = RandomFloats(5, d, d);
      const std::vector<float> kv_weight = RandomFloats(6, d, d);
      const std::vector<float> y = OnEachTarget([&](const Table& table) {
        std::vector<float> out = x;
        Mirror mirror(table);
        float* const rows = mirror.In(out);
        table.norm_heads({.x = rows,
                          .stride = stride,
                          .query_weight = mirror.In(query_weight),
                          .kv_weight = mirror.In(kv_weight),
                          .head_dim = d,
                          .query_heads = queries,
                          .kv_heads = kKvHeads,
                          .rows = kRows,
                          .eps = 1e-5F},
                         mirror.stream());
        mirror.Out(rows, out);
        return out;
      });
      for (int32_t i = 0; i < kRows * stride; ++i) {
        const int32_t head = i % stride / d, first = i - i % stride % d;
        if (head >= queries + kKvHeads) {
          ASSERT_EQ(y[i], x[i]) << d;
          continue;
        }
        double squares = 0;
        for (int32_t c = 0; c < d; ++c) squares += std::pow(x[first + c], 2.0);
        const std::vector<float>& weight = head < queries ? query_weight : kv_weight;
        const double expected = x[i] / std::sqrt(squares / d + 1e-5F) * weight[i - first];
        ASSERT_NEAR(y[i], expected, 1e-6 * std::abs(expected)) << d << ", head " << head;
      }
    }
  }
}

TEST(GpuRound, NumbersAreTheNearestOfBf16) {
  std::vector<float> x = RandomFloats(2, 7, 4096, 1e3F);
  const std::vector<float> special = {0, -0.0F, 1, kInfinity, -kInfinity, kNan, 1e-40F, 3.4e38F};
  x.insert(x.end(), special.begin(), special.end());
  for (uint32_t tie = 0; tie < 16; ++tie) x.push_back(std::bit_cast<float>(0x3F800000U + tie * 0x8000U));
  const std::vector<uint16_t> y = OnEachTarget([&](const Table& table) {
    std::vector<uint16_t> out(x.size() + 8, 7);
    Mirror mirror(table);
    uint16_t* const to = mirror.In(out);
    table.round({.x = mirror.In(x), .y = to, .n = static_cast<int64_t>(x.size())}, mirror.stream());
    mirror.Out(to, out);
    return out;
  });
  for (size_t i = 0; i < x.size(); ++i) {
    const float got = FloatFromBf16(y[i]);
    if (std::isnan(x[i])) {
      EXPECT_TRUE(std::isnan(got));
      continue;
    }
    if (std::isinf(got)) {  // itself, or past the largest by half of the last step
      EXPECT_GT(std::abs(x[i]), 3.39e38F) << x[i];
      EXPECT_EQ(std::signbit(got), std::signbit(x[i])) << x[i];
      continue;
    }
    // Its neighbours are no nearer, and of two that are as near the even one is it.
    for (const int step : {-1, 1}) {
      const float other = FloatFromBf16(static_cast<uint16_t>(y[i] + step));
      if (y[i] % 0x8000U == 0 && step < 0) continue;  // below 0 is the other sign
      const double distance = std::abs(double{got} - x[i]);
      const double others = std::abs(double{other} - x[i]);
      EXPECT_TRUE(distance < others || (distance == others && y[i] % 2 == 0)) << x[i];
    }
  }
  EXPECT_EQ(y[x.size()], 7);
}

TEST(GpuActivate, EqualsFloat64) {
  const int64_t n = 1000;
  const std::vector<float> gate = RandomFloats(3, 1, n, 20);
  const std::vector<float> up = RandomFloats(3, 2, n);
  for (const Curve curve : {Curve::kSilu, Curve::kGelu, Curve::kRelu}) {
    for (const bool has_up : {true, false}) {
      const std::vector<float> y = OnEachTarget([&](const Table& table) {
        std::vector<float> out(n);
        Mirror mirror(table);
        float* const to = mirror.In(out);
        table.activate(
            {.curve = curve, .gate = mirror.In(gate), .up = has_up ? mirror.In(up) : nullptr, .y = to, .n = n},
            mirror.stream());
        mirror.Out(to, out);
        return out;
      });
      for (int64_t i = 0; i < n; ++i) {
        const double a = gate[i];
        const double by = has_up ? up[i] : 1;
        const double t = curve == Curve::kSilu ? a : 2 * std::sqrt(2 / M_PI) * (a + 0.044715 * a * a * a);
        const double bent = curve == Curve::kRelu ? std::max(a, 0.0) : a / (1 + std::exp(-t));
        // Rounding t, as large as 600 with GELU, moves e^-t; where that matters a factor of a is tiny.
        ASSERT_NEAR(y[i], bent * by, 1e-5 * std::abs(a) * std::abs(by) + 1e-9) << a;
      }
    }
  }
}

TEST(GpuEmbed, RowsOfEveryTypeAreExact) {
  for (const DType type :
       {DType::kF32, DType::kF16, DType::kBf16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    const int64_t cols = IsKType(type) ? 512 : 96;
    const TestMatrix table_of(type, 7, cols, 4);
    const std::vector<int32_t> tokens = {6, 0, 3, 3};
    const std::vector<float> x = OnEachTarget([&](const Table& table) {
      std::vector<float> out(tokens.size() * cols);
      Mirror mirror(table);
      float* const to = mirror.In(out);
      table.embed({.table = table_of.On(mirror),
                   .tokens = mirror.In(tokens),
                   .scale = 2,
                   .x = to,
                   .rows = static_cast<int32_t>(tokens.size())},
                  mirror.stream());
      mirror.Out(to, out);
      return out;
    });
    for (size_t t = 0; t < tokens.size(); ++t) {
      for (int64_t c = 0; c < cols; ++c) ASSERT_EQ(x[t * cols + c], 2 * table_of.at(tokens[t], c));
    }
  }
}

// Two sessions whose tokens sit anywhere in the first lane, which alone is asked.
TEST(GpuEmbed, PositionsAreAddedByThePlaceOfEachToken) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBf16, DType::kQ8_0, DType::kQ4_0}) {
    constexpr int32_t kCols = 96, kBlockMax = 3, kRows = 5;
    const TestMatrix table_of(type, 9, kCols, 5);
    const std::vector<float> before = RandomFloats(4, 1, int64_t{kRows} * kCols);
    const std::vector<int32_t> position[] = {{7, 5, 4, 1, 2, 3}, {-1, 0, 8, 3, 2, 1}};  // two lanes
    const std::vector<int32_t> placed[] = {{2, 0, 1, 0, 0, 0}, {1, 2, -1, 0, 0, 0}};
    const int32_t expected[] = {4, 7, 5, 0, 8};
    const std::vector<float> x = OnEachTarget([&](const Table& table) {
      std::vector<float> out = before;
      Mirror mirror(table);
      std::vector<SessionView> sessions;
      for (const int32_t session : {0, 1}) {
        sessions.push_back({.position = mirror.In(position[session]),
                            .placed = mirror.In(placed[session]),
                            .capacity = 3,
                            .block_max = kBlockMax,
                            .first_row = 3 * session,
                            .tokens = 3 - session});
      }
      float* const to = mirror.In(out);
      table.embed_positions({.table = table_of.On(mirror),
                             .cache = {.sessions = mirror.In(sessions),
                                       .session_count = 2,
                                       .row_session = mirror.In(std::vector<int32_t>{0, 0, 0, 1, 1}),
                                       .rows = kRows},
                             .x = to},
                            mirror.stream());
      mirror.Out(to, out);
      return out;
    });
    for (int32_t t = 0; t < kRows; ++t) {
      for (int64_t c = 0; c < kCols; ++c) {
        ASSERT_EQ(x[t * kCols + c], before[t * kCols + c] + table_of.at(expected[t], c)) << t;
      }
    }
  }
}

std::vector<int32_t> LargestOf(const std::vector<float>& logits, int32_t rows) {
  return OnEachTarget([&](const Table& table) {
    const auto vocab = static_cast<int32_t>(logits.size()) / rows;
    std::vector<int32_t> token(rows);
    Mirror mirror(table);
    int32_t* const to = mirror.In(token);
    int32_t* const arrived = mirror.In(std::vector<int32_t>(rows));
    const GreedyArgs args = {.logits = mirror.In(logits),
                             .vocab = vocab,
                             .rows = rows,
                             .token = to,
                             .parts = mirror.In(std::vector<uint64_t>(rows * GreedyParts(vocab), ~uint64_t{0})),
                             .arrived = arrived};
    table.greedy(args, mirror.stream());
    table.greedy(args, mirror.stream());  // counters are as they were
    mirror.Out(to, token);
    return token;
  });
}
int32_t Largest(const std::vector<float>& logits) { return LargestOf(logits, 1)[0]; }

TEST(GpuGreedy, TakesTheFirstOfTheLargestAndNoNan) {
  EXPECT_EQ(Largest({-1, 3, 2, 3}), 1);
  EXPECT_EQ(Largest({kNan, -5, kNan, -4}), 3);
  EXPECT_EQ(Largest({-0.0F, 0.0F}), 0);
  EXPECT_EQ(Largest({-kInfinity, kInfinity}), 1);
  EXPECT_EQ(Largest({kNan, kNan}), 0);
  std::vector<float> many = RandomFloats(5, 1, 3000);
  many[2711] = 7;
  many[2712] = 7;
  EXPECT_EQ(Largest(many), 2711);
}

TEST(GpuGreedy, PartsOfARowAreOneRow) {
  constexpr int32_t kRows = 3;
  for (const int32_t vocab : {8192, 8193, 20001, 20004}) {
    std::vector<float> logits = RandomFloats(5, 2, int64_t{kRows} * vocab);
    std::vector<int32_t> expected;
    for (int32_t row = 0; row < kRows; ++row) {
      const int32_t last = vocab - 1 - row * vocab / 3;
      logits[row * vocab + last] = 7;
      expected.push_back(last);
      if (row != 1) continue;
      logits[row * vocab + last / 2] = 7;
      expected.back() = last / 2;
    }
    EXPECT_EQ(LargestOf(logits, kRows), expected) << vocab;
    EXPECT_EQ(Largest(std::vector<float>(vocab, kNan)), 0) << vocab;
  }
}

// As random.cc says it, in the words of the host.
TEST(GpuRandom, NumbersAreTheirHashesAndNoOthers) {
  constexpr int64_t kCount = 1000;
  constexpr float kScale = 0.5F;
  const std::vector<float> values = OnEachTarget([&](const Table& table) {
    std::vector<float> out(kCount + 1, 7);
    Mirror mirror(table);
    float* const to = mirror.In(out);
    table.random({.type = Element::kF32, .values = to, .n = kCount, .scale = kScale, .seed = 42}, mirror.stream());
    mirror.Out(to, out);
    return out;
  });
  for (int64_t i = 0; i < kCount; ++i) {
    uint64_t hash = 42 + (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15U;
    hash = (hash ^ hash >> 30) * 0xBF58476D1CE4E5B9U;
    hash = (hash ^ hash >> 27) * 0x94D049BB133111EBU;
    const int64_t upper = static_cast<int32_t>(static_cast<uint32_t>(hash >> 32)) >> 8;
    ASSERT_EQ(values[i], static_cast<float>(std::ldexp(static_cast<double>(upper), -23)) * kScale) << i;
  }
  EXPECT_EQ(values[kCount], 7);
}

}  // namespace
}  // namespace ebb::gpu
