// Prompts whose products a library makes: which of its ways are fit, and that a session yields the same bits whatever
// pieces its rows fall into. The library here multiplies in the emulation's memory, and has the habits that the test
// gives it; the makers' own run on a device (tests/gpu_check/dense.cc).

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/gpu/blas_lt.h"
#include "engine/gpu/block_products.h"
#include "engine/gpu/device_options.h"
#include "engine/gpu/gpu_engine.h"
#include "engine/gpu/product_library.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf.h"
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
  int64_t workspace_bytes = 0;
  std::set<int32_t> pieces = {};       // that were multiplied,
  std::set<ProductShape> shapes = {};  // but for their rows
  int calls = 0;
};
Habits habits;

class HostLibrary : public ProductLibrary {
 public:
  std::string name() const override { return "the host"; }
  int64_t workspace_bytes() const override { return habits.workspace_bytes; }
  std::string Describe(const ProductWay& way) const override { return absl::StrFormat("way %d", way[0]); }

  absl::StatusOr<std::vector<ProductWay>> Ways(const ProductShape& /*shape*/) override {
    std::vector<ProductWay> ways(habits.ways.size());
    for (size_t i = 0; i < ways.size(); ++i) ways[i] = {static_cast<std::byte>(i)};
    return ways;
  }

  absl::Status Multiply(const ProductShape& shape, const ProductWay& way, const ProductOperands& o) override {
    if (habits.fails) return absl::InternalError("the library failed");
    std::memset(o.workspace, 0, static_cast<size_t>(habits.workspace_bytes));
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
    EXPECT_THAT(refused.message(), testing::HasSubstr("with 32 x 64 weights"));
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

// Their rows are chosen on the device, and a library is told of rows by the host.
TEST_F(GpuProducts, ExpertsAreTheOwnKernels) {
  const GpuWorld mixture({.architecture = "qwen3moe", .layers = 1, .type = DType::kBf16});
  const auto own = Open(mixture, NoProductLibrary);
  const auto library = Open(mixture, OpenHostLibrary);
  ASSERT_THAT(own, IsOk());
  ASSERT_THAT(library, IsOk());
  habits.shapes = {};
  const std::vector<float> logits = Logits(mixture, **library, false);
  EXPECT_EQ(logits, Logits(mixture, **own, false));
  EXPECT_THAT(habits.shapes, testing::SizeIs(3));  // q; k and v; o
  EXPECT_EQ(Logits(mixture, **library, true), logits);
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
TEST_F(GpuProducts, TheFingerprintTellsWhatDecidesBits) {
  const DeviceOptions cuda = {.kind = "cuda"};
  EXPECT_EQ(NameOf(cuda, "sm_90 on 9.0", false), "cuda sm_90 on 9.0, bf16");
  EXPECT_EQ(NameOf(cuda, "sm_90 on 9.0", true), "cuda sm_90 on 9.0, bf16, library");
  EXPECT_EQ(NameOf(cuda, "sm_80 on 8.0", false), "cuda sm_80 on 8.0, bf16");
  EXPECT_EQ(NameOf({.kind = "hip", .kv_type = KvType::kFp8}, "gfx90a", false), "hip gfx90a, fp8");
  // Warps of 32 and of 64 give the same bits.
  for (const int32_t warp : {32, 64}) {
    const auto code = Gpu::Code(gpu::EmulatedTable(warp), 0);
    ASSERT_THAT(code, IsOk());
    EXPECT_EQ(NameOf({.kind = "emulated", .kv_type = KvType::kF32}, *code, false), "emulated, f32");
  }
}

// Where it is, and is fit, it multiplies; where not, the own kernels do, and it is said why.
TEST_F(GpuProducts, WhereTheLibraryIsMissingOrUnfitTheOwnKernelsMultiply) {
  const auto open = [&](OpenProductLibrary products) {
    return world_.Open(gpu::EmulatedTable(32),
                       {.arena_bytes = 16 << 20, .products = products, .own_where_unfit = true});
  };
  const auto own = Open(world_, NoProductLibrary);
  ASSERT_THAT(own, IsOk());
  EXPECT_FALSE((*own)->by_library());
  EXPECT_EQ((*own)->products(), "own kernels: model.gpu_products is own");

  habits.ways = {Habit{.rows_min = 200}};
  const auto fit = open(OpenHostLibrary);
  ASSERT_THAT(fit, IsOk());
  EXPECT_TRUE((*fit)->by_library());
  EXPECT_THAT((*fit)->products(), testing::StartsWith("the host: 32 x 64 by way 0 in pieces of 1024, 512, 256; "));
  EXPECT_THAT((*fit)->products(), testing::HasSubstr("; 64 x 64 added by way 0 in pieces of 1024, 512, 256"));

  habits.ways = {Habit{.factor = 1.1F}};
  const auto unfit = open(OpenHostLibrary);
  ASSERT_THAT(unfit, IsOk());
  EXPECT_FALSE((*unfit)->by_library());
  EXPECT_THAT((*unfit)->products(), testing::StartsWith("own kernels: products with 32 x 64 weights: none of"));
  habits.pieces = {};
  EXPECT_EQ(Logits(world_, **unfit, false), Logits(world_, **own, false));
  EXPECT_THAT(habits.pieces, testing::IsEmpty());

  const auto missing = open(OpenBlasLt);
  ASSERT_THAT(missing, IsOk());
  EXPECT_FALSE((*missing)->by_library());
  EXPECT_THAT((*missing)->products(), testing::StartsWith("own kernels: there is no library of products for"));
}

// Not of what the choice between them is about.
TEST_F(GpuProducts, AFaultInTheTrialIsRefusedWhoeverMayMultiply) {
  static bool is_broken = false;
  static const gpu::Table& sound = gpu::EmulatedTable(32);
  gpu::Table table = sound;
  table.linear_tiles = [](const gpu::LinearArgs&, gpu::Stream) { is_broken = true; };
  table.wait = [](gpu::Stream stream) -> gpu::Error { return is_broken ? "told to fail" : sound.wait(stream); };
  const absl::Status refused =
      world_.Open(table, {.arena_bytes = 16 << 20, .products = OpenHostLibrary, .own_where_unfit = true}).status();
  EXPECT_EQ(GetRefusal(refused).reason, "GPU_FAULT");
}

TEST_F(GpuProducts, TheWorkspaceIsAmongWhatALoadNeedsAndWhatStepsWorkIn) {
  const auto without = Open(world_, OpenHostLibrary);
  ASSERT_THAT(without, IsOk());
  habits.workspace_bytes = 4096;
  const auto with = Open(world_, OpenHostLibrary);
  ASSERT_THAT(with, IsOk());
  EXPECT_EQ((*with)->working_bytes(), (*without)->working_bytes() + 4096);

  ScarceMemory::free = ScarceMemory::allocated = 0;
  const gpu::Table table = ScarceMemory::Of(gpu::EmulatedTable(32));
  constexpr int64_t kArena = 16 << 20;
  const auto open = [&] { return world_.Open(table, {.arena_bytes = kArena, .products = OpenHostLibrary}).status(); };
  const absl::Status refused = open();
  EXPECT_EQ(GetRefusal(refused).reason, "GPU_OUT_OF_MEMORY");
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("the host's workspace (4096), the cache's arena ("));
  EXPECT_EQ(ScarceMemory::allocated, 0);
  const int64_t needed = std::stoll(GetRefusal(refused).metadata.at("bytes"));
  EXPECT_GT(needed, kArena + 4096);
  ScarceMemory::free = needed - 1;
  EXPECT_EQ(GetRefusal(open()).reason, "GPU_OUT_OF_MEMORY");
  ScarceMemory::free = needed + 13 * 4;  // a word of each of a step's buffers, for addresses while it is rehearsed
  EXPECT_THAT(open(), IsOk());
}

// What nobody multiplies by the library is not rounded for it.
TEST_F(GpuProducts, RowsAreRoundedForProductsThatTheLibraryMakes) {
  static int rounds = 0;
  static const gpu::Table& sound = gpu::EmulatedTable(32);
  gpu::Table table = sound;
  table.round = [](const gpu::RoundArgs& args, gpu::Stream stream) {
    ++rounds;
    sound.round(args, stream);
  };
  const auto file = GgufFile::Open(world_.path());
  ASSERT_THAT(file, IsOk());
  const auto weights = FindWeights(*file, world_.config());
  ASSERT_THAT(weights, IsOk());
  const auto count = [&](const Weights& of) {
    const auto engine =
        GpuEngine::Open(table, world_.config(), of, {.arena_bytes = 16 << 20, .products = OpenHostLibrary});
    EBB_CHECK(engine.ok());
    const auto session = OpenOrDie(**engine, world_.Policy({.scorer = "full"}), 64);
    const std::vector<int32_t> tokens = RandomTokens(1, 8, world_.model().vocab);
    GpuRow row = {.session = session.get(), .tokens = tokens};
    rounds = 0;
    EXPECT_THAT((*engine)->Run({&row, 1}), IsOk());
    return rounds;
  };
  EXPECT_EQ(count(*weights), 4);  // q, k and v; o; gate and up; down
  Weights biased = *weights;
  LayerWeights& layer = biased.layers[0];
  layer.q_bias = layer.k_bias = layer.v_bias = layer.attn_norm;  // as many numbers as q has, and more than k and v
  EXPECT_EQ(count(biased), 3);
}

}  // namespace
}  // namespace ebb
