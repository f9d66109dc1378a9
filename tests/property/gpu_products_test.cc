// Prompts whose products a library makes: which of its ways are fit, and that a session yields the same bits whatever
// pieces its rows fall into. The library here multiplies in the emulation's memory, and has the habits that the test
// gives it; the makers' own run on a device (tests/gpu_check/dense.cc).

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "engine/gpu/blas_lt.h"
#include "engine/gpu/block_products.h"
#include "engine/gpu/device_options.h"
#include "engine/gpu/gpu_engine.h"
#include "engine/gpu/product_library.h"
#include "engine/model/quantization.h"
#include "engine/ops/gpu/emulated.h"
#include "policies/status.h"
#include "tests/support/gpu_world.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

// Of one way to multiply.
struct Habit {
  int32_t rows_min = 0;                // it does not multiply fewer
  int32_t adds_otherwise_below = 0;    // so many rows: from the last column on
  bool adds_otherwise_in_odd = false;  // rows
  bool adds_otherwise_in_turn = false;
  bool takes_the_row_before = false;
  bool writes_behind = false;
  bool reads_y = false;  // also where nothing is to be added to it: 0 times that
  float factor = 1;      // by which all is wrong
};

struct Habits {
  std::vector<Habit> ways = {Habit{}};
  bool fails = false;
  std::set<int32_t> pieces = {};       // that were multiplied,
  std::set<ProductShape> shapes = {};  // but for their rows
  int calls = 0;
};
Habits habits;

class HostLibrary : public ProductLibrary {
 public:
  absl::StatusOr<std::vector<ProductWay>> Ways(const ProductShape& /*shape*/) override {
    std::vector<ProductWay> ways(habits.ways.size());
    for (size_t i = 0; i < ways.size(); ++i) ways[i] = {static_cast<std::byte>(i)};
    return ways;
  }

  absl::Status Multiply(const ProductShape& shape, const ProductWay& way, const ProductOperands& o) override {
    if (habits.fails) return absl::InternalError("the library failed");
    const Habit& habit = habits.ways[static_cast<size_t>(way[0])];
    if (shape.rows < habit.rows_min) return absl::InternalError("too few rows");
    habits.pieces.insert(shape.rows);
    ProductShape without_rows = shape;
    without_rows.rows = 0;
    habits.shapes.insert(without_rows);
    const bool in_turn = habit.adds_otherwise_in_turn && ++habits.calls % 2 == 0;
    const auto* const w = static_cast<const uint16_t*>(o.w);
    for (int64_t row = 0; row < shape.rows; ++row) {
      const bool backwards =
          in_turn || (habit.adds_otherwise_in_odd && row % 2 == 1) || shape.rows < habit.adds_otherwise_below;
      const int64_t from = habit.takes_the_row_before && row > 0 ? row - 1 : row;
      const auto* const x = static_cast<const uint16_t*>(o.x) + from * shape.in;
      for (int64_t out = 0; out < shape.out; ++out) {
        float sum = 0;
        for (int64_t i = 0; i < shape.in; ++i) {
          const int64_t column = backwards ? shape.in - 1 - i : i;
          sum += FloatFromBf16(w[out * shape.in + column]) * FloatFromBf16(x[column]);
        }
        float& y = o.y[row * shape.y_stride + out];
        y = habit.factor * sum + (shape.add ? y : habit.reads_y ? 0 * y : 0);
      }
    }
    if (habit.writes_behind) o.y[shape.rows * shape.y_stride] = 1;
    return absl::OkStatus();
  }
};

absl::StatusOr<std::unique_ptr<ProductLibrary>> OpenHostLibrary(const Gpu& /*gpu*/) {
  return std::make_unique<HostLibrary>();
}

const TinyModel kModel = {.layers = 1, .type = DType::kBf16};

absl::StatusOr<std::unique_ptr<GpuEngine>> Open(const GpuWorld& world, OpenProductLibrary products) {
  return world.Open(gpu::EmulatedTable(32), {.arena_bytes = 16 << 20, .products = products});
}

// The logits of a session's blocks; with company, others' rows stand before and behind its own.
std::vector<float> Logits(const GpuWorld& world, GpuEngine& engine, bool company) {
  const ValidSpec policy = world.Policy({.scorer = "h2o", .budget = 60});
  const std::vector<int32_t> tokens = RandomTokens(8, 120, world.model().vocab);
  const auto session = OpenOrDie(engine, policy, 64);
  std::vector<std::unique_ptr<GpuSession>> others;
  std::vector<float> logits;
  size_t first = 0;
  const std::vector<size_t> blocks = kEmulationIsSlow ? std::vector<size_t>{20, 1} : std::vector<size_t>{50, 1, 3, 17};
  for (const size_t block : blocks) {
    std::vector<GpuRow> rows;
    if (company) {
      for (const size_t length : {size_t{1}, size_t{60}, size_t{33}}) {
        others.push_back(OpenOrDie(engine, policy, 64));
        rows.push_back({.session = others.back().get(), .tokens = std::span(tokens).subspan(length, length)});
      }
    }
    rows.insert(rows.begin() + static_cast<int64_t>(rows.size() / 2),
                {.session = session.get(), .tokens = std::span(tokens).subspan(first, block), .want = GpuWant::kAll});
    EXPECT_THAT(engine.Run(rows), IsOk());
    const GpuRow& own = *std::ranges::find(rows, session.get(), &GpuRow::session);
    logits.insert(logits.end(), own.logits.begin(), own.logits.end());
    first += block;
  }
  return logits;
}

class GpuProducts : public testing::Test {
 protected:
  GpuProducts() { habits = {}; }
  const GpuWorld world_ = GpuWorld(kModel);
};

TEST_F(GpuProducts, LogitsAreThoseOfTheSameNumbersAndTheSameBesideOthers) {
  const auto own = Open(world_, NoProductLibrary);
  const auto library = Open(world_, OpenHostLibrary);
  ASSERT_THAT(own, IsOk());
  ASSERT_THAT(library, IsOk());
  const std::vector<float> expected = Logits(world_, **own, false);
  habits.pieces = {};
  habits.shapes = {};
  const std::vector<float> logits = Logits(world_, **library, false);
  EXPECT_THAT(habits.pieces, testing::ElementsAre(64));
  EXPECT_THAT(habits.shapes, testing::SizeIs(5));  // q; k and v; o; gate and up; down
  EXPECT_EQ(logits, expected);  // both multiply the same BF16, and this library adds in the order that the kernel has
  EXPECT_EQ(Logits(world_, **library, true), logits);
  EXPECT_THAT(habits.pieces, testing::ElementsAre(64, 128));
}

TEST_F(GpuProducts, PiecesThatAWayDoesNotMultiplyAreMadeLarger) {
  habits.ways = {Habit{.rows_min = 200}};
  const auto library = Open(world_, OpenHostLibrary);
  ASSERT_THAT(library, IsOk());
  EXPECT_THAT(habits.pieces, testing::ElementsAre(256, 512, 1024));
  habits.pieces = {};
  const std::vector<float> logits = Logits(world_, **library, false);
  EXPECT_THAT(habits.pieces, testing::ElementsAre(256));
  habits.ways = {Habit{}};
  const auto every = Open(world_, OpenHostLibrary);
  ASSERT_THAT(every, IsOk());
  EXPECT_EQ(Logits(world_, **every, false), logits);
}

TEST_F(GpuProducts, PiecesWhoseRowsAreNotThoseOfTheLargestAreMadeLarger) {
  habits.ways = {Habit{.adds_otherwise_below = 200}};
  const auto library = Open(world_, OpenHostLibrary);
  ASSERT_THAT(library, IsOk());
  habits.pieces = {};
  const std::vector<float> logits = Logits(world_, **library, false);
  EXPECT_THAT(habits.pieces, testing::ElementsAre(256));
  habits.ways = {Habit{}};
  const auto every = Open(world_, OpenHostLibrary);
  ASSERT_THAT(every, IsOk());
  EXPECT_EQ(Logits(world_, **every, false), logits);
}

TEST_F(GpuProducts, AWayIsNotUsedWhoseRowsDifferOrAreWrong) {
  const std::vector<Habit> unfit = {{.rows_min = 2000},
                                    {.adds_otherwise_in_odd = true},
                                    {.adds_otherwise_in_turn = true},
                                    {.takes_the_row_before = true},
                                    {.writes_behind = true},
                                    {.reads_y = true},
                                    {.factor = 1.1F},
                                    {.factor = std::numeric_limits<float>::quiet_NaN()}};
  habits.ways = unfit;
  habits.ways.push_back(Habit{});
  const auto library = Open(world_, OpenHostLibrary);
  ASSERT_THAT(library, IsOk());
  habits.ways[0] = Habit{};
  const auto good = Open(world_, OpenHostLibrary);
  ASSERT_THAT(good, IsOk());
  EXPECT_EQ(Logits(world_, **good, false), Logits(world_, **library, false));

  std::vector<std::vector<Habit>> all = {{}};
  for (const Habit& habit : unfit) all.push_back({habit});
  for (const std::vector<Habit>& ways : all) {
    SCOPED_TRACE(&ways - all.data());
    habits.ways = ways;
    const absl::Status refused = Open(world_, OpenHostLibrary).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_EQ(GetRefusal(refused).reason, "GPU_PRODUCTS_UNFIT");
    EXPECT_THAT(refused.message(), testing::HasSubstr("with 64 x 64 weights"));
  }
}

TEST_F(GpuProducts, WeightsOfOtherTypesAreTheOwnKernels) {
  const GpuWorld quantised({.layers = 1, .type = DType::kQ8_0});
  const auto own = Open(quantised, NoProductLibrary);
  const auto library = Open(quantised, OpenHostLibrary);
  ASSERT_THAT(own, IsOk());
  ASSERT_THAT(library, IsOk());
  EXPECT_EQ(Logits(quantised, **library, false), Logits(quantised, **own, false));
  EXPECT_THAT(habits.pieces, testing::IsEmpty());
}

TEST_F(GpuProducts, ALibraryThatFailsInAStepIsAFaultOfTheDevice) {
  const auto library = Open(world_, OpenHostLibrary);
  ASSERT_THAT(library, IsOk());
  const auto session = OpenOrDie(**library, world_.Policy({.scorer = "full"}), 64);
  const std::vector<int32_t> tokens = RandomTokens(1, 8, world_.model().vocab);
  habits.fails = true;
  GpuRow row = {.session = session.get(), .tokens = tokens};
  const absl::Status failed = (*library)->Run({&row, 1});
  EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
  EXPECT_EQ(GetRefusal(failed).reason, "GPU_FAULT");
  EXPECT_THAT(failed.message(), testing::HasSubstr("the library failed"));
  EXPECT_TRUE(session->is_lost());
}

TEST_F(GpuProducts, ADeviceWhoseMakerHasNoneIsRefusedByName) {
  const absl::Status refused = Open(world_, OpenBlasLt).status();
  EXPECT_EQ(GetRefusal(refused).reason, "GPU_PRODUCTS_UNAVAILABLE");
  EXPECT_THAT(refused.message(), testing::HasSubstr("emulated32"));
}

// Snapshots and journals are refused by a server whose numbers are others.
TEST_F(GpuProducts, TheFingerprintTellsWhoMultiplies) {
  EXPECT_EQ(NameOf({.kind = "cuda"}), "cuda");
  EXPECT_EQ(NameOf({.kind = "cuda", .by_library = true}), "cuda library");
}

}  // namespace
}  // namespace ebb
