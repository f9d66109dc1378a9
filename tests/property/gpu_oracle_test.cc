// Sessions that evict on a device, emulated, held against float64 models whose caches are shifted and appended to, as
// eviction_oracle_test.cc holds those of the CPU: logits and who lives in every lane, after every step. What the device
// shares with the CPU's engine, or both have wrong alike, shows here and in no comparison of the two.

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/gpu/gpu_engine.h"
#include "policies/hash_random.h"
#include "tests/support/gpu_target.h"
#include "tests/support/gpu_world.h"
#include "tests/support/reference_model.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

// As eviction_oracle_test.cc: float32 beside float64 on models of this size, errors of evicted tokens living on.
constexpr double kOracleTolerance = 2.6e-5;

struct OracleCase {
  TinyModel model = {};
  PolicySpec policy = {};
  ReferencePolicy reference = {};
  size_t prompt = 0;  // the first ends with the step that goes past so many tokens
};

// The same tokens in the same random blocks through both: blocks attend by tensor cores, tokens that come alone do not.
void ExpectTheOraclesRunOnDevice(const OracleCase& c, int32_t warp, uint64_t seed) {
  SCOPED_TRACE(c.policy.scorer + ", warps of " + std::to_string(warp) + ", seed " + std::to_string(seed) +
               (c.reference.compacted ? ", compacted" : ", original"));
  const GpuWorld world(c.model);
  const auto engine = world.OpenOrDie(gpu::TableUnderTest(warp));
  const auto session = OpenOrDie(*engine, world.Policy(c.policy));
  ReferenceModel oracle(world.path(), c.reference);
  HashRandom random(seed);
  const int32_t count = c.reference.budget + (kEmulationIsSlow ? 8 : 70);
  const std::vector<int32_t> tokens = RandomTokens(seed, count, world.config().vocab);
  for (size_t first = 0; first < tokens.size();) {
    const auto most = std::min<size_t>(random.Uniform(0, 2) == 0 ? random.Uniform(1, 16) : 1, tokens.size() - first);
    const std::span<const int32_t> block(tokens.data() + first, most);
    GpuRow row = {.session = session.get(),
                  .tokens = block,
                  .prompt_ends = first <= c.prompt && first + most > c.prompt,
                  .want = GpuWant::kAll};
    ASSERT_THAT(engine->Run({&row, 1}), IsOk());
    size_t at = 0;
    for (const std::vector<double>& expected : oracle.Step(block)) {
      for (const double logit : expected) {
        ASSERT_NEAR(row.logits[at++], logit, kOracleTolerance) << "after token " << first;
      }
    }
    ASSERT_EQ(at, row.logits.size());
    if (row.prompt_ends) oracle.EndPrompt();
    for (int32_t lane = 0; lane < c.model.layers * c.model.kv_heads; ++lane) {
      ASSERT_EQ(LiveTokens(*session, lane), oracle.Live(lane / c.model.kv_heads, lane % c.model.kv_heads))
          << "lane " << lane << " after token " << first;
    }
    first += block.size();
  }
  EXPECT_EQ(session->evicted(), count - c.reference.budget);
}

void ExpectTheOraclesRunOnEveryDevice(const OracleCase& c) {
  for (const uint64_t seed : {0, 1}) ExpectTheOraclesRunOnDevice(c, seed == 0 ? 32 : 64, seed);
}

using Rule = ReferencePolicy::Rule;

PolicySpec OracleSpec(PolicySpec spec, bool compacted) {
  spec.kv_type = KvType::kF32;
  spec.positions = compacted ? Positions::kCompacted : Positions::kOriginal;
  return spec;
}

TEST(GpuOracle, StreamingEqualsAFreshlyCompactedCache) {
  for (const bool compacted : {true, false}) {
    ExpectTheOraclesRunOnEveryDevice(
        {.model = {.layers = 2},
         .policy = OracleSpec({.scorer = "streaming", .budget = 24}, compacted),
         .reference = {.rule = Rule::kOldest, .budget = 24, .sinks = 4, .recent = 19, .compacted = compacted}});
  }
}

TEST(GpuOracle, H2oEqualsItsBruteForceReplicaInEveryLane) {
  for (const bool compacted : {false, true}) {
    ExpectTheOraclesRunOnEveryDevice(
        {.model = {.layers = 2, .heads = 6, .kv_heads = 3},
         .policy = OracleSpec({.scorer = "h2o", .budget = 24}, compacted),
         .reference = {.rule = Rule::kLeastAttended, .budget = 24, .recent = 12, .compacted = compacted}});
  }
}

// Its newest token leaves, too, where it paid least to itself.
TEST(GpuOracle, TovaEqualsItsBruteForceReplicaInEveryLane) {
  for (const bool compacted : {false, true}) {
    ExpectTheOraclesRunOnEveryDevice(
        {.model = {.layers = 2, .heads = 6, .kv_heads = 3},
         .policy = OracleSpec({.scorer = "tova", .budget = 24}, compacted),
         .reference = {.rule = Rule::kLeastAttendedLast, .budget = 24, .compacted = compacted}});
  }
}

// The whole prompt stays until it ends; then sinks, four of each query head's, and a window that slides over them.
TEST(GpuOracle, SageEqualsItsBruteForceReplicaInEveryLane) {
  for (const bool compacted : {false, true}) {
    ExpectTheOraclesRunOnEveryDevice({.model = {.layers = 2, .heads = 6, .kv_heads = 3},
                                      .policy = OracleSpec({.scorer = "sage", .budget = 24}, compacted),
                                      .reference = {.rule = Rule::kOnceByHead,
                                                    .budget = 24,
                                                    .sinks = 6,
                                                    .recent = 10,
                                                    .of_each_head = 4,
                                                    .compacted = compacted},
                                      .prompt = kEmulationIsSlow ? 26 : 50});
  }
}

TEST(GpuOracle, ProtectionHoldsWhateverTheScores) {
  for (const bool compacted : {false, true}) {
    ExpectTheOraclesRunOnEveryDevice(
        {.model = {.layers = 1},
         .policy = OracleSpec({.scorer = "h2o", .budget = 20, .sinks = 6, .recent = 3}, compacted),
         .reference = {.rule = Rule::kLeastAttended, .budget = 20, .sinks = 6, .recent = 3, .compacted = compacted}});
  }
}

}  // namespace
}  // namespace ebb
