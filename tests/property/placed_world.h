// A small model on the host's engine and on a device beside it, emulated, and what tests do with both.

#ifndef EBB_TESTS_PROPERTY_PLACED_WORLD_H_
#define EBB_TESTS_PROPERTY_PLACED_WORLD_H_

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/gpu/gpu_engine.h"
#include "engine/gpu/placed_engine.h"
#include "engine/model/gguf.h"
#include "policies/hash_random.h"
#include "tests/support/gpu_target.h"
#include "tests/support/gpu_world.h"
#include "tests/support/test_engine.h"

namespace ebb {

// As gpu_engine_run_test.cc says.
inline constexpr double kTolerance = 2.6e-5;

inline constexpr bool kIsSlow = kEmulationIsSlow;
inline constexpr int32_t kTokens = kIsSlow ? 22 : 60;
inline constexpr size_t kPrompt = kIsSlow ? 18 : 26;  // the first ends with the step that goes past

// The emulation's table, whose device fails when it is told to.
inline bool device_fails = false;
inline bool device_fails_once = false;
inline const gpu::Table& FailingTable() {
  static const gpu::Table table = [] {
    gpu::Table failing = gpu::TableUnderTest(32);
    failing.wait = [](gpu::Stream stream) {
      return device_fails || std::exchange(device_fails_once, false) ? "told to fail"
                                                                     : gpu::TableUnderTest(32).wait(stream);
    };
    return failing;
  }();
  return table;
}

struct Place {
  KvType kv_type = KvType::kF32;
  int64_t arena_bytes = 16 << 20;
  const gpu::Table* table = nullptr;
  double prefix_share = 0;
};

class PlacedEngineTest : public testing::Test {
 protected:
  explicit PlacedEngineTest(
      const TinyModel& model = {.layers = kIsSlow ? 1 : 2, .heads = kIsSlow ? 2 : 4, .kv_heads = 2, .context = 128})
      : model_(model), file_(model) {}
  void SetUp() override { device_fails = device_fails_once = false; }

  std::unique_ptr<Engine> Open(const Place& place = {}) const {
    const auto file = GgufFile::Open(file_.path());
    EBB_CHECK(file.ok());
    const auto config = ReadConfig(*file);
    EBB_CHECK(config.ok());
    auto gpu =
        GpuEngine::Open(place.table != nullptr ? *place.table : gpu::TableUnderTest(32), *config,
                        *FindWeights(*file, *config), {.arena_bytes = place.arena_bytes, .kv_type = place.kv_type});
    EBB_CHECK(gpu.ok());
    auto engine = PlaceOn(*std::move(gpu), OpenTestEngine(file_.path(), {.prefix_share = place.prefix_share}));
    EBB_CHECK(engine.ok());
    return *std::move(engine);
  }
  std::unique_ptr<Engine> OpenHost() const { return OpenTestEngine(file_.path()); }

  static PolicySpec Spec(const std::string& scorer, KvType type = KvType::kF32) {
    PolicySpec spec = {.scorer = scorer};
    spec.kv_type = type;
    if (scorer == "full") return spec;
    spec.budget = 16;
    spec.recent = 6;
    return spec;
  }
  std::vector<int32_t> Tokens(uint64_t seed, int32_t count = kTokens) const {
    return RandomTokens(seed, count, model_.vocab);
  }

  // Blocks and single tokens, as the seed says; between them `visit` does what it likes.
  template <typename Visit>
  static std::vector<float> Run(Engine& engine, Session& session, std::span<const int32_t> tokens, const Visit& visit) {
    HashRandom random(tokens.size());
    std::vector<float> all;
    for (size_t first = 0; first < tokens.size();) {
      const auto block = std::min<size_t>(random.Uniform(0, 2) == 0 ? random.Uniform(1, 16) : 1, tokens.size() - first);
      BatchRow row = {.session = &session, .tokens = tokens.subspan(first, block), .want = Want::kAll};
      const size_t at = session.log().size();
      row.prompt_ends = at <= kPrompt && at + block > kPrompt;
      EBB_CHECK(engine.OwnPages(row).ok());
      engine.Run({&row, 1});
      EBB_CHECK(row.fault.ok() && row.status.ok());
      all.insert(all.end(), row.logits.begin(), row.logits.end());
      first += block;
      visit();
    }
    return all;
  }
  static std::vector<float> Run(Engine& engine, Session& session, std::span<const int32_t> tokens) {
    return Run(engine, session, tokens, [] {});
  }

  // The row's last logits, wherever they are.
  static std::vector<float> Whole(Engine& engine, const BatchRow& row) {
    if (row.facts.empty()) return {row.logits.begin(), row.logits.end()};
    auto logits = engine.TakeLogits(*row.session);
    EBB_CHECK(logits.ok());
    return *std::move(logits);
  }
  // Either all logits, or facts: these where a device computed the row.
  static void ExpectWhatIsAskedFor(const BatchRow& row) {
    const bool few = row.enough.largest > 0 && row.session->on_device();
    EXPECT_EQ(row.facts.largest.size(), few ? static_cast<size_t>(row.enough.largest) : 0);
    EXPECT_EQ(row.facts.mass.mass > 0, few && row.enough.temperature > 0);
    EXPECT_EQ(row.logits.empty(), few);
  }

  void ExpectTheSameLanes(Engine& engine, Session& session, Engine& other, Session& others) const {
    for (int32_t layer = 0; layer < model_.layers; ++layer) {
      for (int32_t head = 0; head < model_.kv_heads; ++head) {
        EXPECT_EQ(LiveTokens(engine, session, layer, head), LiveTokens(other, others, layer, head));
      }
    }
  }

  TinyModel model_;
  TinyModelFile file_;
};

}  // namespace ebb

#endif  // EBB_TESTS_PROPERTY_PLACED_WORLD_H_
