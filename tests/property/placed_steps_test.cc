// Steps of a device, emulated, beside the host's: what is counted of them; and those for which it has no memory are
// computed in parts, and yield what they yield where there is plenty.

#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/gpu/placed_engine.h"
#include "engine/gpu/step_bound.h"
#include "tests/support/gpu_target.h"
#include "tests/support/gpu_world.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

constexpr int64_t kPlenty = int64_t{1} << 30;
constexpr size_t kSessions = 6;
constexpr size_t kBlock = 8;                          // tokens of each session that come together, then
constexpr size_t kSingle = kEmulationIsSlow ? 2 : 6;  // one by one

class PlacedSteps : public testing::Test {
 protected:
  // Whose steps and sessions have `free` bytes.
  std::unique_ptr<Engine> Open(int64_t free = kPlenty) { return Open(free, table_); }
  std::unique_ptr<Engine> Open(int64_t free, const gpu::Table& table) {
    ScarceMemory::free = kPlenty;
    auto gpu = world_.Open(table, {.arena_bytes = 16 << 20, .kv_type = KvType::kF32});
    EBB_CHECK(gpu.ok());
    auto engine = PlaceOn(*std::move(gpu), OpenTestEngine(world_.path()));
    EBB_CHECK(engine.ok());
    ScarceMemory::free = ScarceMemory::least = free;
    return *std::move(engine);
  }
  std::unique_ptr<Session> OpenSession(Engine& engine) const {
    return OpenTestSession(engine, F32({.scorer = "h2o", .budget = 16, .recent = 6}), kBlock);
  }

  // Each session's logits, of all its tokens.
  static std::vector<std::vector<float>> Run(Engine& engine, std::span<const std::unique_ptr<Session>> sessions,
                                             size_t tokens) {
    std::vector<std::vector<float>> logits(sessions.size());
    for (size_t first = 0; first < tokens; first += first == 0 ? kBlock : 1) {
      std::vector<std::vector<int32_t>> brings;
      std::vector<BatchRow> rows;
      for (size_t i = 0; i < sessions.size(); ++i) {
        brings.push_back(RandomTokens(100 * first + i, first == 0 ? kBlock : 1, engine.config().vocab));
      }
      for (size_t i = 0; i < sessions.size(); ++i) {
        rows.push_back({.session = sessions[i].get(), .tokens = brings[i], .want = Want::kAll});
        EBB_CHECK(engine.OwnPages(rows.back()).ok());
      }
      engine.Run(rows);
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_THAT(rows[i].fault, IsOk());
        logits[i].insert(logits[i].end(), rows[i].logits.begin(), rows[i].logits.end());
      }
    }
    return logits;
  }

  GpuWorld world_ = GpuWorld({.layers = 1});
  const gpu::Table table_ = ScarceMemory::Of(gpu::TableUnderTest(32));
};

// Down to what the largest step of one session takes alone. With a byte less that step is the host's, in any company.
TEST_F(PlacedSteps, WhatHasNoMemoryTogetherIsComputedInPartsAndYieldsTheSame) {
  const auto yields = [&](Engine& engine, size_t count = kSessions, size_t tokens = kBlock + kSingle) {
    std::vector<std::unique_ptr<Session>> sessions;
    for (size_t i = 0; i < count; ++i) sessions.push_back(OpenSession(engine));
    return Run(engine, sessions, tokens);
  };
  // Of the first step, which brings most.
  const auto needed_by = [&](size_t count) {
    yields(*Open(), count, kBlock);
    return kPlenty - ScarceMemory::least;
  };
  const int64_t all = needed_by(kSessions);
  const int64_t alone = needed_by(1);
  ASSERT_LT(alone, all / 2);
  const std::vector<std::vector<float>> expected = yields(*Open());
  for (const int64_t free : {all, all - 1, (all + alone) / 2, alone}) {
    SCOPED_TRACE(testing::Message() << free << " bytes; all need " << all << " and one " << alone);
    const auto engine = Open(free);
    EXPECT_EQ(yields(*engine), expected);
    const DeviceUse use = *engine->device_use();
    EXPECT_EQ(use.short_steps.halved > 0, free < all);
    EXPECT_EQ(use.short_steps.unfit, 0);
    EXPECT_EQ(use.shortage.empty(), free == all);
  }
  const auto engine = Open(alone - 1);
  const std::vector<std::vector<float>> near = yields(*engine);
  // As placed_engine_test.cc says.
  for (size_t i = 0; i < kSessions; ++i) EXPECT_LT(LargestDifference(near[i], expected[i]), 2.6e-5);
  EXPECT_EQ(engine->device_use()->short_steps.unfit, kSessions);
  EXPECT_THAT(std::string(engine->device_use()->shortage), testing::HasSubstr("needs"));
  EXPECT_GT(engine->device_use()->decode_steps, 0);
}

// Steps after one that lacked memory ask for no more than it got, which costs nobody what he kept; and once so many
// have found memory, for all that they want.
TEST_F(PlacedSteps, WhatHadMemoryIsRememberedAndNotForGood) {
  constexpr size_t kTwo = 2;
  const auto open = [&](Engine& engine) {
    std::vector<std::unique_ptr<Session>> sessions;
    for (size_t i = 0; i < kTwo; ++i) sessions.push_back(OpenSession(engine));
    return sessions;
  };
  const auto enough = Open();
  const auto at_ease = open(*enough);
  std::vector<std::vector<float>> expected = Run(*enough, at_ease, kBlock);
  const int64_t both = kPlenty - ScarceMemory::least;

  const auto engine = Open(both - 1);
  const auto sessions = open(*engine);
  EXPECT_EQ(Run(*engine, sessions, kBlock), expected);
  const ShortSteps first = engine->device_use()->short_steps;
  EXPECT_EQ(first.halved, 1);
  EXPECT_EQ(first.parted, 0);
  const int64_t allocated = ScarceMemory::allocated;
  constexpr int kMore = 3;
  for (int i = 0; i < kMore; ++i) {
    EXPECT_EQ(Run(*engine, sessions, kBlock), Run(*enough, at_ease, kBlock));
  }
  EXPECT_EQ(engine->device_use()->short_steps.halved, first.halved);
  EXPECT_EQ(engine->device_use()->short_steps.parted, kMore);
  EXPECT_EQ(ScarceMemory::allocated, allocated);
  if (kEmulationIsSlow) return;

  ScarceMemory::free += kPlenty;
  Run(*engine, std::span(sessions).first(1), kBlock + StepBound::kPatience);
  const int64_t before = engine->device_use()->prefill_steps;
  Run(*engine, sessions, kBlock);
  EXPECT_EQ(engine->device_use()->prefill_steps - before, 1);
  EXPECT_EQ(engine->device_use()->short_steps.halved, first.halved);
}

// Memory that the host cannot pin is no reason to make steps smaller.
TEST_F(PlacedSteps, WithoutPinnedMemoryTheyAreTheSameSteps) {
  static bool pins = true;
  gpu::Table table = table_;
  table.allocate_host = [](int64_t bytes, void** memory) {
    return pins ? ScarceMemory::sound->allocate_host(bytes, memory) : "told not to pin";
  };
  const auto yields = [&](const gpu::Table& of, bool pinned) {
    const auto engine = Open(kPlenty, of);
    pins = pinned;
    std::vector<std::unique_ptr<Session>> sessions;
    for (size_t i = 0; i < kSessions; ++i) sessions.push_back(OpenSession(*engine));
    const auto logits = Run(*engine, sessions, kBlock + kSingle);
    pins = true;
    const DeviceUse use = *engine->device_use();
    EXPECT_EQ(use.short_steps.all(), use.short_steps.unpinned);
    EXPECT_EQ(use.short_steps.unpinned, pinned ? 0 : 1 + kSingle) << "each that went through ordinary memory";
    EXPECT_EQ(use.shortage.empty(), pinned);
    EXPECT_EQ(use.decode_steps, kSingle);
    return logits;
  };
  EXPECT_EQ(yields(table, false), yields(table, true));
  if (kEmulationIsSlow) return;

  const auto engine = Open(kPlenty, table);
  std::vector<std::unique_ptr<Session>> sessions;
  sessions.push_back(OpenSession(*engine));
  pins = false;
  Run(*engine, sessions, kBlock);
  pins = true;
  Run(*engine, sessions, kBlock + StepBound::kPatience);
  const int64_t unpinned = engine->device_use()->short_steps.unpinned;
  EXPECT_GT(unpinned, 1);
  Run(*engine, sessions, kBlock + kSingle);
  EXPECT_EQ(engine->device_use()->short_steps.unpinned, unpinned) << "it is tried again after a while";
}

// A head of its own, or the embedding once more: a step multiplies with as much.
TEST(PlacedStepsOfAModel, CountTheWeightsThatAreReadAndNoMore) {
  for (const bool is_tied : {false, true}) {
    SCOPED_TRACE(is_tied);
    const TinyModel model = {.layers = 1, .tied_head = is_tied};
    const GpuWorld world(model);
    auto gpu = world.Open(gpu::TableUnderTest(32), {.arena_bytes = 16 << 20, .kv_type = KvType::kF32});
    ASSERT_THAT(gpu, IsOk());
    const auto engine = PlaceOn(*std::move(gpu), OpenTestEngine(world.path()));
    ASSERT_THAT(engine, IsOk());
    const auto session = OpenTestSession(**engine, F32({.scorer = "full"}), kBlock);
    const std::vector<int32_t> tokens = {1, 2, 3};
    Step(**engine, *session, tokens);
    EXPECT_EQ((*engine)->device_use()->decode_bytes, 0);
    Step(**engine, *session, std::span(tokens).first(1));
    const int64_t kv_dim = int64_t{model.kv_heads} * model.head_dim, q_dim = int64_t{model.heads} * model.head_dim;
    const int64_t layer = (2 * q_dim + 2 * kv_dim + 3 * int64_t{model.ffn_dim}) * model.dim;
    const int64_t weights = layer + int64_t{model.vocab} * model.dim;
    const int64_t live = 4;  // tokens, whose K and V are read
    EXPECT_EQ((*engine)->device_use()->decode_bytes, 4 * (weights + live * 2 * kv_dim));
    EXPECT_EQ((*engine)->device_use()->weight_bytes, 4 * (weights + (is_tied ? 0 : int64_t{model.vocab} * model.dim)));
  }
}

}  // namespace
}  // namespace ebb
