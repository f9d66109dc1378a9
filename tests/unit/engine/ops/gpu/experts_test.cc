// The kernels of a mixture of experts: who goes to whom, against the CPU; products, bit for bit those of linear_tiles
// with one expert's weights, and against float64; and what experts made of a row, added to it.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <vector>

#include "engine/model/quantization.h"
#include "engine/ops.h"
#include "tests/support/test_lane.h"
#include "tests/support/test_ops.h"
#include "tests/unit/engine/ops/gpu/each_target.h"
#include "tests/unit/engine/ops/gpu/test_matrix.h"

namespace ebb::gpu {
namespace {

constexpr float kNanScore = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfiniteScore = std::numeric_limits<float>::infinity();

struct Routed {
  std::vector<int32_t> expert = {}, place = {}, row_of = {};
  std::vector<float> weight = {};
  std::vector<ExpertTile> tiles = {};
};

constexpr ExpertTile kUnsetTile = {.expert = -7, .first = -7, .rows = -7};

// Of each target the same, and nothing past any end.
Routed Route(const std::vector<float>& scores, int32_t experts, int32_t used) {
  const auto rows = static_cast<int32_t>(scores.size()) / experts;
  const int32_t choices = rows * used;
  const int32_t tiles = ExpertTiles(choices, experts);
  Routed routed;
  OnEachTarget([&](const Table& table) {
    const auto count = static_cast<size_t>(choices) + 1;
    routed = {.expert = std::vector<int32_t>(count, -7),
              .place = std::vector<int32_t>(count, -7),
              .row_of = std::vector<int32_t>(count, -7),
              .weight = std::vector<float>(count, -7),
              .tiles = std::vector<ExpertTile>(static_cast<size_t>(tiles) + 1, kUnsetTile)};
    Mirror mirror(table);
    const RouteArgs args = {.scores = mirror.In(scores),
                            .rows = rows,
                            .experts = experts,
                            .used = used,
                            .expert = mirror.In(routed.expert),
                            .weight = mirror.In(routed.weight),
                            .place = mirror.In(routed.place),
                            .row_of = mirror.In(routed.row_of),
                            .tiles = mirror.In(routed.tiles)};
    table.route(args, mirror.stream());
    mirror.Out(args.expert, routed.expert);
    mirror.Out(args.weight, routed.weight);
    mirror.Out(args.place, routed.place);
    mirror.Out(args.row_of, routed.row_of);
    mirror.Out(args.tiles, routed.tiles);
    EXPECT_EQ(routed.expert.back(), -7);
    EXPECT_EQ(routed.weight.back(), -7);
    EXPECT_EQ(routed.place.back(), -7);
    EXPECT_EQ(routed.row_of.back(), -7);
    EXPECT_EQ(routed.tiles.back().rows, -7);
    for (auto* const numbers : {&routed.expert, &routed.place, &routed.row_of}) numbers->pop_back();
    routed.weight.pop_back();
    routed.tiles.pop_back();
    std::vector<int32_t> all = routed.expert;
    all.insert(all.end(), routed.place.begin(), routed.place.end());
    all.insert(all.end(), routed.row_of.begin(), routed.row_of.end());
    for (const float weight : routed.weight) all.push_back(std::isnan(weight) ? -1 : std::bit_cast<int32_t>(weight));
    for (const ExpertTile& tile : routed.tiles) all.insert(all.end(), {tile.expert, tile.first, tile.rows});
    return all;
  });
  return routed;
}

// Each row's choices and weights, by expert, are the CPU's; the exponential differs in its last bits.
void ExpectTheCpusChoices(const std::vector<float>& scores, int32_t experts, int32_t used, const Routed& routed) {
  std::vector<int32_t> chosen(routed.expert.size());
  std::vector<float> weights(routed.expert.size());
  MakeTestOps({.threads = 1})->Route(scores, experts, used, chosen, weights);
  for (size_t first = 0; first < chosen.size(); first += static_cast<size_t>(used)) {
    std::map<int32_t, float> of_row;
    for (size_t i = first; i < first + static_cast<size_t>(used); ++i) of_row[chosen[i]] = weights[i];
    size_t at = first;
    for (const auto& [expert, weight] : of_row) {
      ASSERT_EQ(routed.expert[at], expert) << at;
      if (std::isnan(weight)) {
        ASSERT_TRUE(std::isnan(routed.weight[at])) << at;
      } else {
        ASSERT_NEAR(routed.weight[at], weight, 2e-6 * weight) << at;
      }
      ++at;
    }
  }
}

// Choices are sorted by expert, those of one by row, and cut into tiles; what is left of the tiles has no rows.
void ExpectSorted(int32_t experts, int32_t used, const Routed& routed) {
  std::vector<int32_t> order(routed.expert.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int32_t choice) { return routed.expert[choice]; });
  for (int32_t place = 0; place < std::ssize(order); ++place) {
    ASSERT_EQ(routed.place[order[place]], place);
    ASSERT_EQ(routed.row_of[place], order[place] / used);
  }
  auto tile = routed.tiles.begin();
  int32_t first = 0;
  for (int32_t expert = 0; expert < experts; ++expert) {
    auto left = static_cast<int32_t>(std::ranges::count(routed.expert, expert));
    while (left > 0) {
      const int32_t rows = std::min(left, kExpertTileRows);
      ASSERT_NE(tile, routed.tiles.end());
      ASSERT_EQ(tile->expert, expert);
      ASSERT_EQ(tile->first, first);
      ASSERT_EQ(tile->rows, rows);
      left -= rows;
      first += rows;
      ++tile;
    }
  }
  for (; tile != routed.tiles.end(); ++tile) ASSERT_EQ(tile->rows, 0);
}

void ExpectRouted(const std::vector<float>& scores, int32_t experts, int32_t used) {
  SCOPED_TRACE(testing::Message() << experts << " experts, " << used << " used, " << scores.size() / experts
                                  << " rows");
  const Routed routed = Route(scores, experts, used);
  ExpectTheCpusChoices(scores, experts, used, routed);
  ExpectSorted(experts, used, routed);
}

TEST(GpuRoute, ChoicesAreTheCpusAndSorted) {
  struct Shape {
    int32_t experts, used, rows;
  };
  for (const Shape& s : {Shape{6, 2, 1}, Shape{6, 2, 33}, Shape{128, 8, 70}, Shape{5, 5, 9}, Shape{1, 1, 130},
                         Shape{64, 32, 3}, Shape{kExpertsMax, 3, 2}, Shape{8, 1, 300}}) {
    ExpectRouted(RandomFloats(1, s.experts, int64_t{s.rows} * s.experts, 3), s.experts, s.used);
  }
}

// Of equal scores the first; -0 is 0; infinite ones leave no weight that is a number, as on the CPU.
TEST(GpuRoute, TiesAndWhatIsNoNumberGoAsOnTheCpu) {
  constexpr int32_t kExperts = 40;
  std::vector<float> scores(size_t{8} * kExperts, 1);
  const auto row = [&](int32_t t) { return std::span(scores).subspan(t * kExperts, kExperts); };
  row(1)[33] = 2;
  row(2)[7] = row(2)[39] = kNanScore;
  std::ranges::fill(row(3), kNanScore);
  row(4)[5] = kInfiniteScore;
  std::ranges::fill(row(5), -kInfiniteScore);
  std::ranges::fill(row(6), 0.0F);
  row(6)[0] = row(6)[1] = -0.0F;
  row(7)[3] = -kNanScore;
  row(7)[35] = kInfiniteScore;
  ExpectRouted(scores, kExperts, 2);
  ExpectRouted(scores, kExperts, 4);
}

TEST(GpuRoute, AllRowsMayChooseOneExpert) {
  constexpr int32_t kExperts = 7;
  constexpr int32_t kRows = 200;  // several tiles, the last shorter
  for (const int32_t favourite : {0, 4, kExperts - 1}) {
    std::vector<float> scores = RandomFloats(2, favourite, int64_t{kRows} * kExperts);
    for (int32_t t = 0; t < kRows; ++t) scores[t * kExperts + favourite] = 9;
    ExpectRouted(scores, kExperts, 1);
    ExpectRouted(scores, kExperts, 2);
  }
}

// Bytes that two values take.
int64_t PairBytes(Element type) {
  switch (type) {
    case Element::kF32:
      return 8;
    case Element::kF16:
    case Element::kBf16:
      return 4;
    case Element::kQ8:
      return 2;
    default:
      return 1;
  }
}

// One of `count` equal parts of a matrix, by its rows, where it lies.
Matrix PartOf(const Matrix& all, int32_t part, int32_t count) {
  Matrix w = all;
  w.rows = all.rows / count;
  const int64_t before = int64_t{part} * w.rows * all.cols;
  w.values = static_cast<const std::byte*>(all.values) + before / 2 * PairBytes(all.type);
  if (all.scales != nullptr) w.scales = all.scales + before / kWeightBlock;
  if (all.supers != nullptr) w.supers = all.supers + before / kSuperBlock;
  if (all.upper != nullptr) w.upper = all.upper + before / (all.type == Element::kQ5K ? 32 : 16);
  return w;
}

struct ExpertsCase {
  DType type = DType::kF32;
  int32_t outputs = 0, inputs = 0;
  int32_t experts = 0, used = 0, rows = 0;
};

constexpr float kNotWritten = 0.25F;

// What linear_experts makes of x, whose rows the choices name or are, and what linear_tiles makes of each expert's rows
// alone, a matrix at a time.
void ExpectTheBitsOfEachExpertAlone(const ExpertsCase& c, bool is_sorted) {
  SCOPED_TRACE(testing::Message() << static_cast<int>(c.type) << ", " << c.outputs << " x " << c.inputs << ", "
                                  << c.rows << " rows, " << c.experts << " experts");
  const TestMatrix w(c.type, int64_t{c.experts} * c.outputs, c.inputs, 5);
  const Routed routed = Route(RandomFloats(6, c.rows, int64_t{c.rows} * c.experts), c.experts, c.used);
  const auto choices = static_cast<int32_t>(routed.row_of.size());
  const std::vector<float> x = RandomFloats(7, 1, int64_t{is_sorted ? choices : c.rows} * c.inputs);
  const int64_t stride = c.outputs + 3;
  const std::vector<float> y = OnEachTarget([&](const Table& table) {
    std::vector<float> out(choices * stride, kNotWritten);
    Mirror mirror(table);
    float* const to = mirror.In(out);
    table.linear_experts(
        {.linear = {.w = w.On(mirror), .x = mirror.In(x), .y = to, .y_stride = stride, .rows = choices},
         .experts = c.experts,
         .row_of = is_sorted ? nullptr : mirror.In(routed.row_of),
         .tiles = mirror.In(routed.tiles)},
        mirror.stream());
    mirror.Out(to, out);
    return out;
  });

  std::vector<float> alone(y.size(), kNotWritten);
  const auto row_of_x = [&](int32_t at) { return std::span(x).subspan(at * c.inputs, c.inputs); };
  for (int32_t expert = 0, first = 0; expert < c.experts; ++expert) {
    const auto rows = static_cast<int32_t>(std::ranges::count(routed.expert, expert));
    if (rows == 0) continue;
    std::vector<float> own_x;
    for (int32_t i = first; i < first + rows; ++i) {
      const auto row = row_of_x(is_sorted ? i : routed.row_of[i]);
      own_x.insert(own_x.end(), row.begin(), row.end());
    }
    std::vector<float> own_y(rows * stride, kNotWritten);
    Mirror mirror(TableUnderTest(32));
    float* const to = mirror.In(own_y);
    TableUnderTest(32).linear_tiles({.w = PartOf(w.On(mirror), expert, c.experts),
                                     .x = mirror.In(own_x),
                                     .y = to,
                                     .y_stride = stride,
                                     .rows = rows},
                                    mirror.stream());
    mirror.Out(to, own_y);
    std::ranges::copy(own_y, alone.begin() + first * stride);
    first += rows;
  }
  EXPECT_EQ(y, alone);

  // And numbers: of rows that linear_tiles rounds to BF16 where weights are exact in it.
  const bool is_rounded = c.type != DType::kF32 && c.type != DType::kF16;
  for (int32_t choice = 0; choice < choices; ++choice) {
    const int32_t place = routed.place[choice];
    const auto row = row_of_x(is_sorted ? place : choice / c.used);
    for (int32_t o = 0; o < c.outputs; ++o) {
      double expected = 0, size = 0;
      for (int32_t i = 0; i < c.inputs; ++i) {
        const float in = is_rounded ? FloatFromBf16(Bf16FromFloat(row[i])) : row[i];
        const double term = double{w.at(int64_t{routed.expert[choice]} * c.outputs + o, i)} * in;
        expected += term;
        size += std::abs(term);
      }
      ASSERT_NEAR(y[place * stride + o], expected, 1e-6 * size) << choice << ", " << o;
    }
  }
}

TEST(GpuLinearExperts, ARowsBitsAreThoseOfItsExpertAlone) {
  for (const DType type :
       {DType::kF32, DType::kF16, DType::kBf16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    const int32_t inputs = IsKType(type) ? 256 : 96;
    // Rows of x that choices name, and such as are sorted; tiles of few rows and several of one expert.
    ExpectTheBitsOfEachExpertAlone({.type = type, .outputs = 40, .inputs = inputs, .experts = 5, .used = 2, .rows = 1},
                                   false);
    ExpectTheBitsOfEachExpertAlone(
        {.type = type, .outputs = 150, .inputs = inputs, .experts = 3, .used = 2, .rows = Cases(120)}, true);
    ExpectTheBitsOfEachExpertAlone({.type = type, .outputs = 72, .inputs = inputs, .experts = 3, .used = 1, .rows = 40},
                                   false);
  }
}

// Whichever experts go unchosen, and in whichever company: the bits of a row are its own.
TEST(GpuLinearExperts, ARowsBitsDoNotDependOnTheOtherRows) {
  constexpr int32_t kExperts = 4, kUsed = 2, kRows = 90, kInputs = 64, kOutputs = 24;
  for (const DType type : {DType::kF32, DType::kBf16, DType::kQ8_0}) {
    const TestMatrix w(type, kExperts * kOutputs, kInputs, 8);
    const std::vector<float> scores = RandomFloats(9, 1, kRows * kExperts);
    const std::vector<float> x = RandomFloats(9, 2, kRows * kInputs);
    // Of each choice of rows first .. first + rows - 1.
    const auto run = [&](int32_t first, int32_t rows) {
      const Routed routed =
          Route({scores.begin() + first * kExperts, scores.begin() + (first + rows) * kExperts}, kExperts, kUsed);
      std::vector<float> y(routed.place.size() * kOutputs);
      Mirror mirror(TableUnderTest(32));
      float* const to = mirror.In(y);
      TableUnderTest(32).linear_experts(
          {.linear = {.w = w.On(mirror),
                      .x = mirror.In(
                          std::vector<float>(x.begin() + first * kInputs, x.begin() + (first + rows) * kInputs)),
                      .y = to,
                      .y_stride = kOutputs,
                      .rows = rows * kUsed},
           .experts = kExperts,
           .row_of = mirror.In(routed.row_of),
           .tiles = mirror.In(routed.tiles)},
          mirror.stream());
      mirror.Out(to, y);
      std::vector<float> by_choice;
      for (const int32_t place : routed.place) {
        by_choice.insert(by_choice.end(), y.begin() + place * kOutputs, y.begin() + (place + 1) * kOutputs);
      }
      return by_choice;
    };
    const std::vector<float> all = run(0, kRows);
    for (const int32_t t : {0, 31, 64, kRows - 1}) {
      const auto own = all.begin() + t * kUsed * kOutputs;
      EXPECT_EQ(run(t, 1), std::vector<float>(own, own + kUsed * kOutputs)) << t;
    }
  }
}

TEST(GpuCombine, PartsAreAddedByWeightInTheOrderOfTheirExperts) {
  constexpr int32_t kRows = 3, kUsed = 5;
  for (const int32_t n : {4, 96, 1300}) {
    std::vector<int32_t> place(kRows * kUsed);
    std::iota(place.begin(), place.end(), 0);
    std::ranges::reverse(place);
    const std::vector<float> parts = RandomFloats(1, n, int64_t{kRows} * kUsed * n);
    const std::vector<float> weight = RandomFloats(2, n, kRows * kUsed);
    const std::vector<float> before = RandomFloats(3, n, int64_t{kRows} * n);
    const std::vector<float> x = OnEachTarget([&](const Table& table) {
      std::vector<float> out = before;
      Mirror mirror(table);
      float* const to = mirror.In(out);
      table.combine({.parts = mirror.In(parts),
                     .place = mirror.In(place),
                     .weight = mirror.In(weight),
                     .x = to,
                     .n = n,
                     .rows = kRows,
                     .used = kUsed},
                    mirror.stream());
      mirror.Out(to, out);
      return out;
    });
    for (int32_t i = 0; i < kRows * n; ++i) {
      float expected = before[i];
      for (int32_t choice = 0; choice < kUsed; ++choice) {
        const int32_t at = i / n * kUsed + choice;
        expected = std::fma(weight[at], parts[place[at] * n + i % n], expected);
      }
      ASSERT_EQ(x[i], expected) << i;
    }
  }
}

}  // namespace
}  // namespace ebb::gpu
