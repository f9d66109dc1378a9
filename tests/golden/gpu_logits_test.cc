// The engine on a device, emulated, held to stored logits: every family of the golden data, in the blocks and single
// steps that the cases name, with the tokens taken out that they say.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/gpu/gpu_engine.h"
#include "engine/lab/golden_family.h"
#include "engine/lab/npy.h"
#include "engine/model/gguf.h"
#include "policies/check.h"
#include "tests/support/golden_folder.h"
#include "tests/support/gpu_target.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using lab::GoldenCase;
using lab::GoldenFamily;

const std::set<std::pair<std::string, std::string>> kLong = {{"llama.f32", "rand_compact"},
                                                             {"llama.f32", "window_keep"},
                                                             {"qwen3.f32", "rand_compact"},
                                                             {"bloom.f32", "rand_compact"},
                                                             {"gpt2.f32", "rand_keep"}};

absl::StatusOr<std::unique_ptr<GpuEngine>> OpenOnDevice(const GgufFile& file) {
  EBB_ASSIGN(const ModelConfig config, ReadConfig(file));
  EBB_ASSIGN(const Weights weights, FindWeights(file, config));
  return GpuEngine::Open(gpu::TableUnderTest(32), config, weights, {.arena_bytes = 64 << 20, .kv_type = KvType::kF32});
}

bool Moves(const GoldenCase& golden) {
  return std::ranges::any_of(golden.steps, [](const std::vector<lab::GoldenOp>& step) {
    return std::ranges::any_of(step, [](const lab::GoldenOp& op) { return op.kind == 'A'; });
  });
}

// Positions that are moved are always those past what was taken out, by as many: what compacted ones do by themselves.
void ExpectLogits(GpuEngine& engine, const GoldenCase& golden, size_t steps) {
  const absl::StatusOr<lab::Matrix> stored = lab::ReadNpy(golden.file);
  ASSERT_THAT(stored, IsOk());
  const auto policy = Resolve({.scorer = "full",
                               .positions = Moves(golden) ? Positions::kCompacted : Positions::kOriginal,
                               .kv_type = KvType::kF32},
                              {.trained_context = engine.config().context});
  ASSERT_THAT(policy, IsOk());
  const auto session = engine.OpenSession(*policy, golden.rows);
  ASSERT_THAT(session, IsOk());
  int64_t row_of_stored = 0;
  double largest = 0;
  for (const std::vector<lab::GoldenOp>& step : std::span(golden.steps).first(steps)) {
    std::vector<int32_t> tokens;
    for (const lab::GoldenOp& op : step) {
      if (op.kind == 'R') {
        ASSERT_THAT((*session)->Remove(op.a, op.b), IsOk());
      } else if (op.kind == 'D') {
        tokens.push_back(op.a);
      }
    }
    GpuRow row = {.session = session->get(), .tokens = tokens, .want = GpuWant::kAll};
    ASSERT_THAT(engine.Run({&row, 1}), IsOk());
    for (size_t i = 0; i < row.logits.size(); ++i) {
      const float expected = stored->values[row_of_stored * stored->cols + static_cast<int64_t>(i)];
      const double deviation = std::abs(static_cast<double>(row.logits[i]) - expected);
      largest = std::isnan(deviation) ? std::numeric_limits<double>::infinity() : std::max(largest, deviation);
    }
    row_of_stored += static_cast<int64_t>(tokens.size());
  }
  EXPECT_TRUE(row_of_stored == stored->rows || steps < golden.steps.size());
  EXPECT_LE(largest, golden.max_abs);
}

// BF16 and quantised weights meet numbers rounded to BF16 (linear_tiles), and are held to what rounding allows.
std::vector<GoldenCase> CasesOf(const std::string& folder, const GoldenFamily& family) {
  if (family.name.ends_with(".f32") || family.name.ends_with(".f16")) return family.cases;
  auto rounded = lab::ReadGoldenFamily(folder + "/" + family.name + ".json", Accuracy::kFast);
  EBB_CHECK(rounded.ok());
  return rounded->cases;
}

TEST(GoldenGpuLogits, EveryFamilyIsWithinTolerance) {
  const std::string folder = GoldenFolderOrPart();
  const auto families = lab::ReadGoldenFolder(folder);
  ASSERT_THAT(families, IsOk());
  int cases = 0;
  for (const GoldenFamily& family : *families) {
    SCOPED_TRACE(family.name);
    const auto file = GgufFile::Open(family.model);
    ASSERT_THAT(file, IsOk());
    const auto engine = OpenOnDevice(*file);
    ASSERT_THAT(engine, IsOk());
    const int before = cases;
    for (const GoldenCase& golden : CasesOf(folder, family)) {
      // In the emulation the long ones would take minutes, and one of each kind is enough; of the wide models a block
      // and two steps are.
      if (gpu::DeviceUnderTest() == nullptr && golden.rows > 100 && !kLong.contains({family.name, golden.name}))
        continue;
      SCOPED_TRACE(golden.name);
      const bool is_wide = gpu::DeviceUnderTest() == nullptr && family.name.find("-k.") != std::string::npos;
      ExpectLogits(**engine, golden, is_wide ? 3 : golden.steps.size());
      ++cases;
    }
    EXPECT_GT(cases, before) << "no case of it was run";
  }
  EXPECT_GE(families->size(), 5U);  // of the part that is committed
}

}  // namespace
}  // namespace ebb
