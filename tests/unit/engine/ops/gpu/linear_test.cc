// Both linear kernels against float64, over every type of weight, and the laws of a row's bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "engine/model/quantization.h"
#include "policies/hash_random.h"
#include "tests/support/test_lane.h"
#include "tests/unit/engine/ops/gpu/each_target.h"
#include "tests/unit/engine/ops/gpu/test_matrix.h"

namespace ebb::gpu {
namespace {

constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBf16, DType::kQ8_0,
                            DType::kQ4_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

using Linear = void (*Table::*)(const LinearArgs&, Stream);

struct Case {
  DType type = DType::kF32;
  int64_t outputs = 10, inputs = 64;
  int32_t rows = 1;
  bool bias = false;
  bool add = false;
  uint64_t seed = 0;
};

constexpr float kBefore = 0.25F;

std::vector<float> Multiply(Linear linear, const Case& c, const TestMatrix& w, const std::vector<float>& x,
                            const std::vector<float>& bias, const Table& table) {
  const int64_t stride = c.outputs + 3;  // outputs of other matrices lie beside these
  std::vector<float> y(c.rows * stride, kBefore);
  const auto outputs = static_cast<int32_t>(c.outputs);
  std::vector<int32_t> arrived(LinearMeetings(outputs, c.rows), 0);
  Mirror mirror(table);
  float* const out = mirror.In(y);
  int32_t* const meetings = mirror.In(arrived);
  (table.*linear)({.w = w.On(mirror),
                   .bias = c.bias ? mirror.In(bias) : nullptr,
                   .x = mirror.In(x),
                   .y = out,
                   .y_stride = stride,
                   .rows = c.rows,
                   .add = c.add ? 1 : 0,
                   .partial = mirror.In(std::vector<float>(
                       LinearPartials(outputs, static_cast<int32_t>(c.inputs), c.rows), std::nanf(""))),
                   .arrived = meetings},
                  mirror.stream());
  mirror.Out(out, y);
  mirror.Out(meetings, arrived);
  EXPECT_EQ(std::ranges::count(arrived, 0), std::ssize(arrived));
  return y;
}

// What linear_tiles computes with where weights are BF16 or quantised.
bool IsExactInBf16(const Case& c) { return c.type != DType::kF32 && c.type != DType::kF16; }
float RoundedX(Linear linear, const Case& c, float x) {
  return linear == &Table::linear_tiles && IsExactInBf16(c) ? FloatFromBf16(Bf16FromFloat(x)) : x;
}
bool SplitsX(Linear linear, const Case& c) { return linear == &Table::linear_rows && IsExactInBf16(c); }

void ExpectEqualsFloat64(Linear linear, const Case& c) {
  SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(c.type) << ", " << c.outputs << " x " << c.inputs
                                  << ", " << c.rows << " rows, seed " << c.seed);
  const TestMatrix w(c.type, c.outputs, c.inputs, c.seed);
  const std::vector<float> x = RandomFloats(c.seed, 1, c.rows * c.inputs);
  const std::vector<float> bias = RandomFloats(c.seed, 2, c.outputs);
  const std::vector<float> y = OnEachTarget([&](const Table& table) { return Multiply(linear, c, w, x, bias, table); });
  for (int32_t t = 0; t < c.rows; ++t) {
    for (int64_t o = 0; o < c.outputs; ++o) {
      double expected = (c.add ? kBefore : 0) + (c.bias ? bias[o] : 0);
      double size = std::abs(expected);
      for (int64_t i = 0; i < c.inputs; ++i) {
        const double term = static_cast<double>(w.at(o, i)) * RoundedX(linear, c, x[t * c.inputs + i]);
        expected += term;
        size += std::abs(term);
      }
      // Roundings of a sum in float32, at most one a term; and x to the sum of two BF16.
      const double error = 1e-6 + (SplitsX(linear, c) ? std::ldexp(1.0, -17) : 0);
      ASSERT_NEAR(y[t * (c.outputs + 3) + o], expected, error * size) << t << ", " << o;
    }
    for (int64_t o = c.outputs; o < c.outputs + 3; ++o) ASSERT_EQ(y[t * (c.outputs + 3) + o], kBefore);
  }
}

TEST(GpuLinear, EqualsFloat64AtRandomShapes) {
  HashRandom random(1);
  for (const DType type : kTypes) {
    for (int i = 0; i < Cases(4); ++i) {
      const Case c = {.type = type,
                      .outputs = random.Uniform(1, 90),
                      .inputs = std::max<int64_t>(32, BlockValues(type)) * random.Uniform(1, IsKType(type) ? 2
                                                                                             : i == 0      ? 40
                                                                                                           : 8),
                      .rows = random.Uniform(1, 20),
                      .bias = random.Uniform(0, 1) == 0,
                      .add = random.Uniform(0, 1) == 0,
                      .seed = random.Next64() >> 40};
      ExpectEqualsFloat64(&Table::linear_rows, c);
      ExpectEqualsFloat64(&Table::linear_tiles, {.type = c.type,
                                                 .outputs = c.outputs,
                                                 .inputs = c.inputs,
                                                 .rows = random.Uniform(1, 100),
                                                 .bias = c.bias,
                                                 .add = c.add,
                                                 .seed = c.seed});
    }
  }
}

// Several blocks of outputs and of rows, and columns in splits of which the last is shorter.
TEST(GpuLinear, EqualsFloat64WhereColumnsAreSplit) {
  for (const DType type : kTypes) {
    ExpectEqualsFloat64(&Table::linear_rows,
                        {.type = type, .outputs = 259, .inputs = 768, .rows = 2, .bias = true, .add = true, .seed = 3});
  }
  ExpectEqualsFloat64(&Table::linear_rows, {.type = DType::kQ8_0, .outputs = 33, .inputs = 672, .rows = 35, .seed = 4});
  ExpectEqualsFloat64(&Table::linear_rows, {.type = DType::kBf16, .outputs = 65, .inputs = 544, .rows = 17, .seed = 5});
  ExpectEqualsFloat64(
      &Table::linear_rows,
      {.type = DType::kBf16, .outputs = 128, .inputs = 992, .rows = 35, .bias = true, .add = true, .seed = 6});
}

// So many outputs that columns are in few splits, each of more stages than a block has room for at once, and the last
// of half a stage less.
TEST(GpuLinear, EqualsFloat64WhereSplitsAreLong) {
  ExpectEqualsFloat64(&Table::linear_rows,
                      {.type = DType::kBf16, .outputs = 44 * 128 + 5, .inputs = 1888, .rows = 2, .seed = 8});
}

// Three products in one launch, and where their types differ, in three.
TEST(GpuLinear, ProductsWithOneXAreMadeTogether) {
  constexpr int32_t kInputs = 512;
  constexpr int32_t kRows = 11;
  constexpr int32_t kOutputs[] = {300, 40, 17};
  for (const auto& types :
       {std::array{DType::kQ4_K, DType::kQ4_K, DType::kQ4_K}, std::array{DType::kQ5_K, DType::kQ5_K, DType::kQ5_K},
        std::array{DType::kBf16, DType::kBf16, DType::kBf16}, std::array{DType::kBf16, DType::kQ6_K, DType::kF32}}) {
    std::vector<TestMatrix> w;
    for (int i = 0; i < 3; ++i) w.emplace_back(types[i], kOutputs[i], kInputs, 10 + i);
    const std::vector<float> x = RandomFloats(1, 1, kRows * kInputs);
    int32_t filled = 0;
    for (const int32_t outputs : kOutputs) filled += LinearTiles(outputs) * kLinearOutputs;
    const std::vector<float> all = OnEachTarget([&](const Table& table) {
      Mirror mirror(table);
      float* const in = mirror.In(x);
      float* const partial = mirror.In(std::vector<float>(
          LinearPartials(filled, kInputs, kRows) + LinearPartials(kOutputs[0], kInputs, kRows), std::nanf("")));
      int32_t* const arrived = mirror.In(std::vector<int32_t>(LinearMeetings(filled, kRows), 0));
      LinearsArgs args = {.count = 3};
      for (int i = 0; i < 3; ++i) {
        args.of[i] = {.w = w[i].On(mirror),
                      .x = in,
                      .y = mirror.In(std::vector<float>(kRows * kOutputs[i])),
                      .y_stride = kOutputs[i],
                      .rows = kRows,
                      .partial = partial,
                      .arrived = arrived};
      }
      table.linear_rows_together(args, mirror.stream());
      std::vector<float> y;
      for (int i = 0; i < 3; ++i) {
        std::vector<float> one(kRows * kOutputs[i]);
        mirror.Out(args.of[i].y, one);
        y.insert(y.end(), one.begin(), one.end());
      }
      return y;
    });
    auto y = all.begin();
    for (int i = 0; i < 3; ++i) {
      for (int32_t at = 0; at < kRows * kOutputs[i]; ++at, ++y) {
        double expected = 0, size = 0;
        for (int32_t j = 0; j < kInputs; ++j) {
          const double term = static_cast<double>(w[i].at(at % kOutputs[i], j)) * x[at / kOutputs[i] * kInputs + j];
          expected += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(*y, expected, 1e-5 * size) << i << ", " << at;
      }
    }
  }
}

// What overflowed is seen as that: the CPU's BF16 and exact products say so, too
// (Linear.AnInfiniteNumberMakesBf16ProductsInfinite). Q4_K and Q5_K have minima, whose sums of x are infinite as their
// codes' are.
TEST(GpuLinear, AnInfiniteNumberIsInfiniteInItsProducts) {
  // Whole tiles and parts of them, columns that are split and not, one row and more than a tile has.
  const Case shapes[] = {{.outputs = 40, .inputs = 512, .rows = 9},
                         {.outputs = 259, .inputs = 256, .rows = 1, .bias = true},
                         {.outputs = 130, .inputs = 768, .rows = 67, .bias = true, .add = true}};
  for (const DType type : kTypes) {
    for (Case c : std::span(shapes).first(type == DType::kQ4_K || type == DType::kQ5_K ? 3 : 1)) {
      for (const auto linear : {&Table::linear_rows, &Table::linear_tiles}) {
        c.type = type, c.seed = 11;
        SCOPED_TRACE(testing::Message() << static_cast<int>(type) << ", " << c.outputs << " x " << c.inputs << ", "
                                        << c.rows << (linear == &Table::linear_rows ? " rows" : " rows in tiles"));
        const TestMatrix w(c.type, c.outputs, c.inputs, c.seed);
        const std::vector<float> bias = RandomFloats(c.seed, 2, c.outputs);
        std::vector<float> x = RandomFloats(c.seed, 1, c.rows * c.inputs);
        const int32_t up = c.rows / 3, down = c.rows - 1;  // rows, of one the same
        x[up * c.inputs + 130] = HUGE_VALF;
        x[down * c.inputs + c.inputs - 1] = -HUGE_VALF;
        const std::vector<float> y =
            OnEachTarget([&](const Table& table) { return Multiply(linear, c, w, x, bias, table); });
        for (int64_t t = 0; t < c.rows; ++t) {
          for (int64_t o = 0; o < c.outputs; ++o) {
            const float made = y[t * (c.outputs + 3) + o];
            if (t != up && t != down) {
              ASSERT_TRUE(std::isfinite(made)) << t << ", " << o;
              continue;
            }
            float product = 0;  // NaN of a weight that is 0, and where both meet with other signs
            if (t == up) product += w.at(o, 130) * HUGE_VALF;
            if (t == down) product += w.at(o, c.inputs - 1) * -HUGE_VALF;
            ASSERT_TRUE(std::isnan(product) ? std::isnan(made) : made == product) << t << ", " << o << ": " << made;
          }
        }
      }
    }
  }
}

// Alone or in company: a row's bits are its own.
TEST(GpuLinear, ARowsBitsDoNotDependOnTheOtherRows) {
  for (const auto& [linear, type] :
       {std::pair{&Table::linear_rows, DType::kQ8_0}, std::pair{&Table::linear_rows, DType::kBf16},
        std::pair{&Table::linear_rows, DType::kF16}, std::pair{&Table::linear_tiles, DType::kQ8_0},
        std::pair{&Table::linear_tiles, DType::kBf16}, std::pair{&Table::linear_tiles, DType::kQ4_K},
        std::pair{&Table::linear_tiles, DType::kQ6_K}, std::pair{&Table::linear_tiles, DType::kF32},
        std::pair{&Table::linear_rows, DType::kQ4_K}, std::pair{&Table::linear_rows, DType::kQ6_K},
        std::pair{&Table::linear_rows, DType::kQ5_K}, std::pair{&Table::linear_tiles, DType::kQ5_K}}) {
    Case c = {.type = type, .outputs = 40, .inputs = IsKType(type) ? 512 : 416, .rows = 70, .seed = 7};
    const TestMatrix w(c.type, c.outputs, c.inputs, c.seed);
    const std::vector<float> x = RandomFloats(c.seed, 1, c.rows * c.inputs);
    const std::vector<float> all = Multiply(linear, c, w, x, {}, TableUnderTest(32));
    c.rows = 1;
    for (const int64_t t : {0, 7, 8, 31, 32, 64, 69}) {
      const std::vector<float> row(x.begin() + t * c.inputs, x.begin() + (t + 1) * c.inputs);
      const std::vector<float> alone = Multiply(linear, c, w, row, {}, TableUnderTest(32));
      const auto first = all.begin() + t * (c.outputs + 3);
      EXPECT_EQ(alone, std::vector<float>(first, first + c.outputs + 3)) << t;
    }
    c.rows = 12;  // few have kernels of their own, as one has
    const std::vector<float> few(x.begin(), x.begin() + c.rows * c.inputs);
    const std::vector<float> in_few = Multiply(linear, c, w, few, {}, TableUnderTest(32));
    EXPECT_TRUE(std::ranges::equal(in_few, std::span(all).first(in_few.size())));
  }
}

}  // namespace
}  // namespace ebb::gpu
