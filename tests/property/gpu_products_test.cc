// Prompts whose products a library makes: which of its ways are fit, and that a session yields the same bits whatever
// pieces its rows fall into. The library here multiplies in the emulation's memory, and has the habits that the test
// gives it; the makers' own run on a device (tests/gpu_check/dense.cc).

#include <gmock/gmock.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "engine/gpu/blas_lt.h"
#include "engine/gpu/block_products.h"
#include "engine/gpu/gpu_engine.h"
#include "engine/gpu/product_library.h"
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
  bool adds_otherwise_in_odd = false;  // rows: from the last column on
  float factor = 1;                    // by which all is wrong
};

struct Habits {
  std::vector<Habit> ways = {Habit{}};
  bool fails = false;
  std::set<int32_t> pieces = {};  // that were multiplied
};
Habits habits;

float FromBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

class HostLibrary : public ProductLibrary {
 public:
  absl::StatusOr<std::vector<ProductWay>> Ways(const ProductShape& /*shape*/) override {
    std::vector<ProductWay> ways(habits.ways.size());
    for (size_t i = 0; i < ways.size(); ++i) ways[i].algorithm[0] = static_cast<std::byte>(i);
    return ways;
  }

  absl::Status Multiply(const ProductShape& shape, const ProductWay& way, const ProductOperands& o) override {
    if (habits.fails) return absl::InternalError("the library failed");
    const Habit& habit = habits.ways[static_cast<size_t>(way.algorithm[0])];
    if (shape.rows < habit.rows_min) return absl::UnimplementedError("too few rows");
    habits.pieces.insert(shape.rows);
    const auto* const w = static_cast<const uint16_t*>(o.w);
    const auto* const x = static_cast<const uint16_t*>(o.x);
    for (int64_t row = 0; row < shape.rows; ++row) {
      const bool backwards = habit.adds_otherwise_in_odd && row % 2 == 1;
      for (int64_t out = 0; out < shape.out; ++out) {
        float sum = 0;
        for (int64_t i = 0; i < shape.in; ++i) {
          const int64_t column = backwards ? shape.in - 1 - i : i;
          sum += FromBf16(w[out * shape.in + column]) * FromBf16(x[row * shape.in + column]);
        }
        float& y = o.y[row * shape.y_stride + out];
        y = habit.factor * sum + (shape.add ? y : 0);
      }
    }
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
  for (const size_t block : {size_t{50}, size_t{1}, size_t{3}, size_t{17}}) {
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
  const auto own = Open(world_, nullptr);
  const auto library = Open(world_, OpenHostLibrary);
  ASSERT_THAT(own, IsOk());
  ASSERT_THAT(library, IsOk());
  const std::vector<float> expected = Logits(world_, **own, false);
  habits.pieces = {};
  const std::vector<float> logits = Logits(world_, **library, false);
  EXPECT_THAT(habits.pieces, testing::ElementsAre(64));
  EXPECT_EQ(logits, expected);  // both multiply the same BF16, and this library adds in the order that the kernel has
  if (kEmulationIsSlow) return;
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

TEST_F(GpuProducts, AWayIsNotUsedWhoseRowsDifferOrAreWrong) {
  const Habit differs = {.adds_otherwise_in_odd = true};
  const Habit wrong = {.factor = 1.1F};
  habits.ways = {differs, wrong, Habit{}};
  const auto library = Open(world_, OpenHostLibrary);
  ASSERT_THAT(library, IsOk());
  const std::vector<float> logits = Logits(world_, **library, false);
  habits.ways = {Habit{}};
  const auto good = Open(world_, OpenHostLibrary);
  ASSERT_THAT(good, IsOk());
  EXPECT_EQ(Logits(world_, **good, false), logits);

  for (const std::vector<Habit>& ways :
       {std::vector<Habit>{differs}, {wrong}, {Habit{.factor = std::numeric_limits<float>::quiet_NaN()}}, {}}) {
    habits.ways = ways;
    const absl::Status refused = Open(world_, OpenHostLibrary).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_EQ(GetRefusal(refused).reason, "GPU_PRODUCTS_UNFIT");
    EXPECT_THAT(refused.message(), testing::HasSubstr("64 x 64 weights"));
  }
}

TEST_F(GpuProducts, WeightsOfOtherTypesAreTheOwnKernels) {
  const GpuWorld quantised({.layers = 1, .type = DType::kQ8_0});
  const auto own = Open(quantised, nullptr);
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

}  // namespace
}  // namespace ebb
