// The engine on a device, emulated, against the engine of the CPU: the same tokens in the same blocks give the same
// logits, and in every lane the same tokens live, step by step.

#include <gmock/gmock.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "engine/gpu/gpu_engine.h"
#include "policies/hash_random.h"
#include "tests/support/gpu_target.h"
#include "tests/support/gpu_world.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

// Both sides compute in float32 and add in orders of their own; eviction_oracle_test.cc says what that comes to on
// models of this size.
constexpr double kTolerance = 2.6e-5;
// Where K and V are BF16 or bytes, a device rounds queries, keys and weights of prompts' blocks to BF16, by up to 2^-9
// of each (attend_block.cc), and a key that differs in its last bit may rest as the next number; the CPU attends in
// float32. Logits of these models are of size 2: a fiftieth of that.
constexpr double kRoundedTolerance = 4e-2;
// Where weights are quantised, all that a prompt's block multiplies with them is rounded so (linear_tiles_tensor.cc):
// seven products of a layer, where attention has two.
constexpr double kRoundedProductsTolerance = 1e-1;

void ExpectTheCpusRun(const TinyModel& model, const PolicySpec& spec, int32_t warp, int32_t count, uint64_t seed) {
  const double tolerance = model.type != DType::kF32      ? kRoundedProductsTolerance
                           : spec.kv_type != KvType::kF32 ? kRoundedTolerance
                                                          : kTolerance;
  SCOPED_TRACE(spec.scorer + ", warps of " + std::to_string(warp) + ", seed " + std::to_string(seed));
  const GpuWorld world(model);
  const auto cpu = OpenTestEngine(world.path());
  const auto cpu_session = OpenTestSession(*cpu, spec, 16);
  const auto gpu = world.OpenOrDie(gpu::TableUnderTest(warp), spec.kv_type);
  const auto session = OpenOrDie(*gpu, world.Policy(spec));
  HashRandom random(seed);
  const std::vector<int32_t> tokens = RandomTokens(seed, count, model.vocab);
  constexpr size_t kPrompt = 26;  // it ends with the step that goes past
  for (size_t first = 0; first < tokens.size();) {
    const auto block = std::min<size_t>(random.Uniform(0, 2) == 0 ? random.Uniform(1, 16) : 1, tokens.size() - first);
    const std::span<const int32_t> step(tokens.data() + first, block);
    const bool prompt_ends = first <= kPrompt && first + block > kPrompt;
    BatchRow on_cpu = {.session = cpu_session.get(), .tokens = step, .want = Want::kAll, .prompt_ends = prompt_ends};
    ASSERT_THAT(cpu->OwnPages(on_cpu), IsOk());
    cpu->Run({&on_cpu, 1});
    const std::vector<float> expected(on_cpu.logits.begin(), on_cpu.logits.end());
    GpuRow row = {.session = session.get(), .tokens = step, .prompt_ends = prompt_ends, .want = GpuWant::kAll};
    ASSERT_THAT(gpu->Run({&row, 1}), IsOk());
    ASSERT_EQ(row.logits.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(row.logits[i], expected[i], tolerance) << "after token " << first;
    }
    EXPECT_EQ(row.next, BestToken(row.logits.last(static_cast<size_t>(model.vocab))));
    ASSERT_EQ(session->live(), cpu_session->cache_length());
    for (int32_t lane = 0; lane < model.layers * model.kv_heads; ++lane) {
      ASSERT_EQ(LiveTokens(*session, lane),
                LiveTokens(*cpu, *cpu_session, lane / model.kv_heads, lane % model.kv_heads))
          << "lane " << lane << " after token " << first;
    }
    first += block;
  }
  if (model.window > 0) return;  // the host counts of each step what left the lane that most left
  EXPECT_EQ(session->evicted(), cpu_session->evicted());
}

TEST(GpuEngine, LogitsAndVictimsAreTheCpusWithHeavyHitters) {
  const TinyModel model = {.layers = 2, .heads = 6, .kv_heads = 3};
  ExpectTheCpusRun(model, F32({.scorer = "h2o", .budget = 24}), 32, kEmulationIsSlow ? 35 : 90, 1);
  if (kEmulationIsSlow) return;
  ExpectTheCpusRun(model, F32({.scorer = "h2o", .budget = 20, .overflow = 5, .positions = Positions::kCompacted}), 64,
                   60, 2);
}

// What families have beside a llama: norms of heads, norms of what a layer adds, a scale of embeddings, GELU, experts.
TEST(GpuEngine, LogitsAndVictimsAreTheCpusOfEveryFamily) {
  ExpectTheCpusRun({.architecture = "qwen3", .heads = 6, .kv_heads = 2, .head_dim = 32},
                   F32({.scorer = "h2o", .budget = 20}), 32, kEmulationIsSlow ? 30 : 60, 61);
  ExpectTheCpusRun({.architecture = "gemma3", .kv_heads = 1}, F32({.scorer = "tova", .budget = 20}), 64,
                   kEmulationIsSlow ? 30 : 60, 62);
  ExpectTheCpusRun({.architecture = "gemma2", .heads = 6, .kv_heads = 3}, F32({.scorer = "h2o", .budget = 20}), 32,
                   kEmulationIsSlow ? 30 : 60, 63);
  // Of two experts whose scores are all but equal, either side may choose another, and the logits would be far apart:
  // in float32 scores differ by some 1e-6, so of a few hundred choices none is that near.
  ExpectTheCpusRun({.architecture = "qwen3moe", .heads = 6, .kv_heads = 2, .head_dim = 32},
                   F32({.scorer = "h2o", .budget = 20}), 64, kEmulationIsSlow ? 30 : 60, 64);
}

// Those with layer norms: learned positions, biases everywhere, no gate; a feed-forward part beside attention, under a
// norm of its own or the same; few components that turn, which fill no unit of sixteen; slopes instead of RoPE.
TEST(GpuEngine, LogitsAndVictimsAreTheCpusOfFamiliesWithLayerNorms) {
  const int32_t count = kEmulationIsSlow ? 30 : 60;
  const PolicySpec h2o = F32({.scorer = "h2o", .budget = 20});
  const PolicySpec tova = F32({.scorer = "tova", .budget = 20});
  ExpectTheCpusRun({.architecture = "opt", .kv_heads = 4}, h2o, 32, count, 64);
  ExpectTheCpusRun({.architecture = "gptneox", .kv_heads = 4, .rotary_dims = 4}, h2o, 64, count, 65);
  ExpectTheCpusRun({.architecture = "bloom", .kv_heads = 4}, h2o, 32, count, 66);
  if (kEmulationIsSlow) return;
  ExpectTheCpusRun({.architecture = "gpt2", .kv_heads = 4}, tova, 64, count, 67);
  ExpectTheCpusRun({.architecture = "gptneox", .heads = 2, .kv_heads = 2, .head_dim = 32, .rotary_dims = 24}, tova, 32,
                   count, 68);
  ExpectTheCpusRun({.architecture = "gptj", .kv_heads = 4, .rotary_dims = 8}, h2o, 64, count, 69);
  ExpectTheCpusRun({.architecture = "bloom", .kv_heads = 4},
                   F32({.scorer = "tova", .budget = 20, .positions = Positions::kCompacted}), 64, count, 70);
  PolicySpec rounded = tova;
  rounded.kv_type = KvType::kBf16;
  rounded.scorer = "streaming";
  ExpectTheCpusRun({.architecture = "bloom", .kv_heads = 4}, rounded, 32, count, 81);
}

// Layers that see the newest tokens alone, with frequencies of their own, beside one that sees all.
TEST(GpuEngine, LogitsAreTheCpusWithSlidingWindows) {
  constexpr int32_t kPast = gpu::kSplitSlotsMax + 20;  // the first split is out of sight by the end
  const PolicySpec full = F32({.scorer = "full"});
  ExpectTheCpusRun({.window = 9}, full, 32, kEmulationIsSlow ? 30 : kPast, 71);
  if (kEmulationIsSlow) return;
  ExpectTheCpusRun({.architecture = "gemma3", .layers = 3, .window = 9, .window_pattern = 3}, full, 64, 90, 72);
  ExpectTheCpusRun({.architecture = "gemma2", .window = 9, .window_pattern = 2}, full, 32, 60, 73);
  PolicySpec rounded = full;
  rounded.kv_type = KvType::kBf16;
  ExpectTheCpusRun({.architecture = "gemma3", .window = 9}, rounded, 32, kPast, 74);
}

// They keep their windows, whatever the budget of the others, above it and below.
TEST(GpuEngine, LogitsAndVictimsAreTheCpusBesideSlidingWindows) {
  const TinyModel near = {.architecture = "gemma3", .layers = 3, .window = 9, .window_pattern = 3};
  ExpectTheCpusRun(near, F32({.scorer = "h2o", .budget = 20}), 32, kEmulationIsSlow ? 30 : 70, 75);
  if (kEmulationIsSlow) return;
  TinyModel far = near;
  far.window = 30;
  ExpectTheCpusRun(far, F32({.scorer = "tova", .budget = 16, .overflow = 3, .positions = Positions::kCompacted}), 64,
                   70, 76);
  ExpectTheCpusRun(far, F32({.scorer = "h2o", .budget = 16, .overflow = 3, .slack = 2, .max_drop = 4}), 32, 70, 77);
  ExpectTheCpusRun(near, F32({.scorer = "h2o", .budget = 20, .reduction = Reduction::kUnion}), 32, 60, 78);
  ExpectTheCpusRun(near,
                   F32({.scorer = "keydiff", .budget = 20, .recent = 4, .schedule = Schedule::kEveryN, .every_n = 3}),
                   64, 60, 79);
  ExpectTheCpusRun({.window = 9}, F32({.scorer = "streaming", .budget = 20}), 32, 60, 80);
}

TEST(GpuEngine, LogitsAndVictimsAreTheCpusByAgeAndByTheLastQuery) {
  ExpectTheCpusRun({}, F32({.scorer = "streaming", .budget = 20}), 64, kEmulationIsSlow ? 30 : 60, 3);
  if (kEmulationIsSlow) return;
  ExpectTheCpusRun({.heads = 4, .kv_heads = 1}, F32({.scorer = "tova", .budget = 20}), 32, 60, 4);
}

TEST(GpuEngine, LogitsAndVictimsAreTheCpusByWhatTheOutputLoses) {
  ExpectTheCpusRun({}, F32({.scorer = "h2o", .budget = 20, .modifier = Modifier::kCaote}), 32,
                   kEmulationIsSlow ? 30 : 60, 31);
  if (kEmulationIsSlow) return;
  ExpectTheCpusRun({.heads = 4, .kv_heads = 1},
                   F32({.scorer = "tova", .budget = 20, .overflow = 4, .modifier = Modifier::kFastCaote}), 64, 60, 32);
  const PolicySpec in_place = {.scorer = "tova", .budget = 20, .recent = 4, .modifier = Modifier::kCaote};
  ExpectTheCpusRun({.layers = 2}, F32(in_place), 32, 60, 33);
}

TEST(GpuEngine, LogitsAndVictimsAreTheCpusWithQueryHeadsApart) {
  const TinyModel model = {.layers = kEmulationIsSlow ? 1 : 2, .heads = kEmulationIsSlow ? 4 : 6, .kv_heads = 2};
  ExpectTheCpusRun(model, F32({.scorer = "sage", .budget = 16}), 32, kEmulationIsSlow ? 34 : 80, 41);
  if (kEmulationIsSlow) return;
  const TinyModel wide = {.heads = 4, .kv_heads = 1};
  ExpectTheCpusRun(wide, F32({.scorer = "sage", .budget = 20, .overflow = 3, .slack = 2, .max_drop = 4}), 64, 80, 42);
  ExpectTheCpusRun(wide, F32({.scorer = "h2o", .budget = 20, .reduction = Reduction::kUnion}), 64, 60, 43);
  ExpectTheCpusRun(model, F32({.scorer = "h2o", .budget = 20, .reduction = Reduction::kMax}), 32, 60, 44);
  ExpectTheCpusRun(model,
                   F32({.scorer = "tova", .budget = 20, .reduction = Reduction::kL2, .modifier = Modifier::kCaote}), 32,
                   60, 45);
}

TEST(GpuEngine, LogitsAndVictimsAreTheCpusOnEverySchedule) {
  ExpectTheCpusRun({}, F32({.scorer = "h2o", .budget = 16, .schedule = Schedule::kEveryN, .every_n = 3}), 32,
                   kEmulationIsSlow ? 30 : 60, 46);
  if (kEmulationIsSlow) return;
  PolicySpec once = {.scorer = "tova", .budget = 16, .recent = 4, .schedule = Schedule::kOncePrompt};
  once.modifier = Modifier::kCaote;
  for (const Then then : {Then::kSame, Then::kSlideRecent, Then::kGrow}) {
    once.then = then;
    ExpectTheCpusRun({.context = 128}, F32(once), 32, 60, 47 + static_cast<int>(then));
  }
}

TEST(GpuEngine, LogitsAndVictimsAreTheCpusByKeysAndByChance) {
  ExpectTheCpusRun({}, F32({.scorer = "keydiff", .budget = 20, .recent = 4}), 32, kEmulationIsSlow ? 30 : 60, 51);
  ExpectTheCpusRun({}, F32({.scorer = "knorm", .budget = 20, .recent = 4}), 64, kEmulationIsSlow ? 30 : 60, 52);
  if (kEmulationIsSlow) return;
  ExpectTheCpusRun({.layers = 2, .heads = 6, .kv_heads = 3},
                   F32({.scorer = "knorm", .parameters = {{"keep", 1}}, .budget = 20, .overflow = 3}), 32, 60, 53);
  for (const double mode : {0, 1}) {
    ExpectTheCpusRun({.layers = 2},
                     F32({.scorer = "random", .parameters = {{"seed", 7}, {"mode", mode}}, .budget = 20, .recent = 4}),
                     32, 60, 54);
  }
}

TEST(GpuEngine, LogitsAreTheCpusWhereNobodyLeavesPastASplitAndWithQuantisedWeights) {
  // By the end tokens are in the second split, beyond what the first one takes more.
  constexpr int32_t kPast = gpu::kSplitSlotsMax + 20;
  if (!kEmulationIsSlow) ExpectTheCpusRun({.layers = 1}, F32({.scorer = "full"}), 32, kPast, 5);
  ExpectTheCpusRun({.layers = 1, .type = DType::kQ8_0}, F32({.scorer = "full"}), 32, kEmulationIsSlow ? 10 : 30, 6);
  ExpectTheCpusRun({.layers = 1, .type = DType::kQ4_0, .tied_head = true}, F32({.scorer = "full"}), 64,
                   kEmulationIsSlow ? 10 : 30, 7);
}

TEST(GpuEngine, LogitsAreNearTheCpusWithEveryTypeOfKAndV) {
  const PolicySpec spec = {.scorer = "streaming", .budget = 20, .positions = Positions::kCompacted};
  for (const KvType type : {KvType::kBf16, KvType::kF16, KvType::kInt8, KvType::kFp8}) {
    PolicySpec of_type = spec;
    of_type.kv_type = type;
    ExpectTheCpusRun({.layers = 1}, of_type, 64, kEmulationIsSlow ? 20 : 60, 10);
  }
}

// A token is placed in a slot past the budget, a whole split, before another leaves.
TEST(GpuEngine, LogitsAndVictimsAreTheCpusWhereTheBudgetIsASplit) {
  if (kEmulationIsSlow) return;
  constexpr int32_t kCount = gpu::kSplitSlots + 30;
  PolicySpec spec = {.scorer = "h2o", .budget = gpu::kSplitSlots};
  ExpectTheCpusRun({.layers = 1}, F32(spec), 64, kCount, 11);
  spec.kv_type = KvType::kBf16;
  spec.scorer = "streaming";
  ExpectTheCpusRun({.layers = 1}, spec, 32, kCount, 12);
}

}  // namespace
}  // namespace ebb
