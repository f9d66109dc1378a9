// Sessions that a device computes, emulated, beside the same on the host: what they yield, who lives in their lanes,
// who leaves, and that a cache is the same wherever it was meanwhile. Models without windows and with.

#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cache_work.h"
#include "engine/gpu/placed_engine.h"
#include "tests/property/placed_world.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

class PlacedRunsTest : public PlacedEngineTest {
 protected:
  using PlacedEngineTest::PlacedEngineTest;
  void ExpectTheCacheComesHome(const std::vector<PolicySpec>& specs, int32_t count = kTokens) const;
  void ExpectWhatTheHostYields(std::span<const std::string> scorers) const;
  void ExpectToldWhoLeaves(std::span<const std::string> scorers) const;
};

// Two layers that see the newest nine tokens, by frequencies of their own, beside one that sees all.
class PlacedWindowsTest : public PlacedRunsTest {
 protected:
  PlacedWindowsTest()
      : PlacedRunsTest({.architecture = "gemma3",
                        .layers = 3,
                        .heads = 2,
                        .kv_heads = 2,
                        .context = 128,
                        .window = 9,
                        .window_pattern = 3}) {}
};

TEST_F(PlacedRunsTest, ACacheThatComesHomeAndGoesBackIsTheCache) {
  std::vector<PolicySpec> specs = {Spec("full"), Spec("tova", KvType::kF16), Spec("h2o", KvType::kBf16),
                                   Spec("h2o", KvType::kInt8), Spec("streaming", KvType::kBf16)};
  specs.push_back(Spec("h2o", KvType::kF32));
  specs.back().modifier = Modifier::kCaote;
  specs.push_back(Spec("sage", KvType::kBf16));
  specs.back().recent = std::nullopt;
  specs.push_back(Spec("knorm", KvType::kInt8));
  specs.push_back(Spec("h2o", KvType::kFp8));
  specs.push_back(Spec("keydiff", KvType::kF16));
  specs[2].positions = Positions::kOriginal;
  specs[3].positions = Positions::kCompacted;
  if (kIsSlow) specs.erase(specs.begin(), specs.begin() + 3);
  ExpectTheCacheComesHome(specs);
}
TEST_F(PlacedWindowsTest, ACacheThatComesHomeAndGoesBackIsTheCache) {
  std::vector<PolicySpec> specs = {Spec("h2o", KvType::kBf16)};
  if (!kIsSlow) specs.insert(specs.end(), {Spec("full"), Spec("tova", KvType::kInt8), Spec("streaming")});
  specs.back().positions = Positions::kCompacted;
  ExpectTheCacheComesHome(specs);
}
// Heads whose components lie in another order on the device (GpuModel::head_order).
class PlacedHeadOrderTest : public PlacedRunsTest {
 protected:
  PlacedHeadOrderTest()
      : PlacedRunsTest(
            {.architecture = "gptneox", .layers = 1, .heads = 4, .kv_heads = 4, .rotary_dims = 12, .context = 128}) {}
};

TEST_F(PlacedHeadOrderTest, ACacheThatComesHomeAndGoesBackIsTheCache) {
  ExpectTheCacheComesHome({Spec("h2o", KvType::kInt8), Spec("keydiff", KvType::kBf16)});
}

// Drafts are the host's, with the cache at home, and the step after them the device's. A wrong order moves logits by as
// much as they are; rounding, where K and V are rounded, by what gpu_engine_run_test.cc says.
TEST_F(PlacedHeadOrderTest, AtHomeComponentsAreInTheHostsOrder) {
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kInt8}) {
    SCOPED_TRACE(static_cast<int>(type));
    const double tolerance = type == KvType::kF32 ? kTolerance : 4e-2;
    const auto engine = Open({.kv_type = type});
    const auto host = OpenHost();
    const auto session = OpenTestSession(*engine, Spec("full", type), 16);
    const auto on_host = OpenTestSession(*host, Spec("full", type), 16);
    const std::vector<int32_t> all = Tokens(3, 30);
    std::span<const int32_t> left = all;
    const auto step = [&](size_t count) {
      const auto now = left.first(count);
      left = left.subspan(count);
      EXPECT_LT(LargestDifference(Run(*engine, *session, now), Run(*host, *on_host, now)), tolerance);
      EXPECT_TRUE(session->on_device());
    };
    const auto draft = [&](Engine& of, Session& whose) {
      BatchRow row = {.session = &whose, .tokens = left.first(4), .want = Want::kAll, .draft = true};
      EBB_CHECK(of.OwnPages(row).ok());
      of.Run({&row, 1});
      std::vector<float> logits(row.logits.begin(), row.logits.end());
      of.Accept(row, 3);
      return logits;
    };
    step(16);
    EXPECT_LT(LargestDifference(draft(*engine, *session), draft(*host, *on_host)), tolerance);
    EXPECT_FALSE(session->on_device());
    step(5);
  }
}

// A policy that comes later learns of tokens what the newest queries say of them, and asks the host.
TEST_F(PlacedHeadOrderTest, TheNewestQueriesAreInTheHostsOrderAtHome) {
  const auto engine = Open();
  const auto host = OpenHost();
  const auto session = OpenTestSession(*engine, Spec("full"), 16);
  const auto on_host = OpenTestSession(*host, Spec("full"), 16);
  const std::vector<int32_t> tokens = Tokens(7, 16);
  Run(*engine, *session, tokens);
  Run(*host, *on_host, tokens);
  ASSERT_TRUE(session->on_device());
  const auto policy = TestPolicy(Spec("tova"), model_.context);
  ASSERT_THAT(engine->SetPolicy(*session, policy), IsOk());
  ASSERT_THAT(host->SetPolicy(*on_host, policy), IsOk());
  const auto lanes = engine->Describe(*session, {}, {});
  const auto expected = host->Describe(*on_host, {}, {});
  ASSERT_THAT(lanes, IsOk());
  ASSERT_EQ(lanes->size(), expected->size());
  for (size_t i = 0; i < lanes->size(); ++i) {
    EXPECT_EQ((*lanes)[i].tokens, (*expected)[i].tokens);
    ASSERT_FALSE((*lanes)[i].scores.empty());
    EXPECT_LT(LargestDifference((*lanes)[i].scores, (*expected)[i].scores), kTolerance);
  }
}

// Lanes whose last splits begin where slots are free between two evictions of sixteen: what a cache lost at its end on
// the way home has no other sums.
class PlacedSplitsTest : public PlacedRunsTest {
 protected:
  PlacedSplitsTest() : PlacedRunsTest({.layers = 1, .heads = 2, .kv_heads = 2, .context = 1024}) {}
};

TEST_F(PlacedSplitsTest, ACacheThatComesHomeAndGoesBackHasTheSameSplits) {
  if (kIsSlow) GTEST_SKIP() << "hundreds of slots are too many for a sanitizer";
  PolicySpec spec = Spec("streaming", KvType::kBf16);
  spec.budget = 260;
  spec.overflow = 16;
  ExpectTheCacheComesHome({spec}, 600);
}

void PlacedRunsTest::ExpectTheCacheComesHome(const std::vector<PolicySpec>& specs, int32_t count) const {
  for (const PolicySpec& spec : specs) {
    SCOPED_TRACE(spec.scorer + " " + std::to_string(static_cast<int>(spec.kv_type)));
    const auto engine = Open({.kv_type = spec.kv_type});
    const auto stays = OpenTestSession(*engine, spec, 16);
    const auto moves = OpenTestSession(*engine, spec, 16);
    const std::vector<int32_t> tokens = Tokens(1, count);
    const std::vector<float> expected = Run(*engine, *stays, tokens);
    ASSERT_TRUE(stays->on_device());
    // To be described brings it home, to be asked who would leave keeps it there until it runs.
    const std::vector<float> seen = Run(*engine, *moves, tokens, [&] {
      EBB_CHECK(engine->Describe(*moves, {}, {}).ok());
      EBB_CHECK(engine->Evict(*moves, {.older_than = 1 << 20, .dry_run = true}).ok());
      EXPECT_FALSE(moves->on_device());
    });
    EXPECT_EQ(seen, expected);
    EXPECT_EQ(engine->Digest(*moves), engine->Digest(*stays));
    EXPECT_EQ(moves->evicted(), stays->evicted());
    EXPECT_EQ(engine->device_use()->brought, engine->device_use()->fetched);
  }
}

TEST_F(PlacedRunsTest, ItYieldsWhatTheHostsEngineYields) {
  const std::vector<std::string> scorers = {"h2o", "full", "streaming", "tova", "sage", "keydiff", "random"};
  ExpectWhatTheHostYields(std::span(scorers).first(kIsSlow ? 1 : scorers.size()));
}
TEST_F(PlacedWindowsTest, ItYieldsWhatTheHostsEngineYields) {
  const std::vector<std::string> scorers = {"h2o", "full", "streaming", "keydiff"};
  ExpectWhatTheHostYields(std::span(scorers).first(kIsSlow ? 1 : scorers.size()));
}
void PlacedRunsTest::ExpectWhatTheHostYields(std::span<const std::string> scorers) const {
  for (const std::string& scorer : scorers) {
    SCOPED_TRACE(scorer);
    const auto engine = Open();
    const auto host = OpenHost();
    const auto session = OpenTestSession(*engine, Spec(scorer), 16);
    const auto on_host = OpenTestSession(*host, Spec(scorer), 16);
    const std::vector<int32_t> tokens = Tokens(2);
    EXPECT_LT(LargestDifference(Run(*engine, *session, tokens), Run(*host, *on_host, tokens)), kTolerance);
    EXPECT_EQ(engine->device_use()->fetched, 0);
    EXPECT_TRUE(session->on_device());
    EXPECT_EQ(session->cache_length(), on_host->cache_length());
    EXPECT_EQ(session->live_slots(), on_host->live_slots());
    EXPECT_EQ(session->evicted(), on_host->evicted());
    EXPECT_EQ(session->position_max(), on_host->position_max());
    EXPECT_EQ(session->steps_to_eviction(), on_host->steps_to_eviction());
    EXPECT_EQ(session->room(), on_host->room());
    ExpectTheSameLanes(*engine, *session, *host, *on_host);
  }
}

// Victims, their ages, and what left with them, which the device tells with what else a step yields: of several in one
// step, some of which ask for one thing, some for the other, a block before single tokens; with room on the device for
// all, and in waves.
TEST_F(PlacedRunsTest, WhoLeavesAndWhatLeavesIsToldAsTheHostTellsIt) {
  ExpectToldWhoLeaves(std::vector<std::string>{"h2o", "tova", "streaming", "h2o"});
}
TEST_F(PlacedWindowsTest, WhoLeavesAndWhatLeavesIsToldAsTheHostTellsIt) {
  ExpectToldWhoLeaves(std::vector<std::string>{"h2o", "tova", "streaming", "h2o"});
}
void PlacedRunsTest::ExpectToldWhoLeaves(std::span<const std::string> scorers) const {
  const int64_t lanes = int64_t{model_.layers} * model_.kv_heads;
  const auto host = OpenHost();
  const int64_t page_bytes = Open()->device_use()->page_bytes;
  for (const int64_t pages_for : {int64_t{4}, int64_t{2}}) {
    SCOPED_TRACE(std::to_string(pages_for) + " sessions at a time");
    const auto engine = Open({.arena_bytes = pages_for * lanes * page_bytes});
    std::vector<std::unique_ptr<Session>> there, here;
    for (const std::string& scorer : scorers) {
      there.push_back(OpenTestSession(*engine, Spec(scorer), 16));
      here.push_back(OpenTestSession(*host, Spec(scorer), 16));
    }
    int told = 0;
    int measured = 0;
    std::vector<std::vector<int32_t>> tokens;
    for (size_t i = 0; i < scorers.size(); ++i) tokens.push_back(Tokens(20 + i, 100));
    for (int32_t step = 0; step < (kIsSlow ? 7 : 40); ++step) {
      const int32_t single = step == 0 ? 15 : 1;
      const auto run = [&](Engine& of, std::span<const std::unique_ptr<Session>> sessions) {
        std::vector<BatchRow> rows;
        for (size_t i = 0; i < sessions.size(); ++i) {
          const bool is_block = i == 0 && step % 4 == 1;
          rows.push_back({.session = sessions[i].get(),
                          .tokens = std::span(tokens[i]).subspan(sessions[i]->log().size(), is_block ? 3 : single),
                          .measure = (step + i) % 2 == 0,
                          .list_victims = (step + i) % 3 == 0});
          EBB_CHECK(of.OwnPages(rows.back()).ok());
        }
        of.Run(rows);
        return rows;
      };
      const std::vector<BatchRow> rows = run(*engine, there);
      const std::vector<BatchRow> expected = run(*host, here);
      for (size_t i = 0; i < rows.size(); ++i) {
        SCOPED_TRACE("session " + std::to_string(i) + " at step " + std::to_string(step));
        ASSERT_THAT(rows[i].fault, IsOk());
        ASSERT_EQ(rows[i].evicted, expected[i].evicted);
        EXPECT_EQ(rows[i].length, expected[i].length);
        EXPECT_EQ(rows[i].evicted_slots, expected[i].evicted_slots);
        EXPECT_EQ(rows[i].census.slots, expected[i].census.slots);
        EXPECT_EQ(rows[i].census.ages, expected[i].census.ages);
        EXPECT_EQ(rows[i].census.age_sum, expected[i].census.age_sum);
        EXPECT_NEAR(rows[i].loss.mass, expected[i].loss.mass, kTolerance);
        EXPECT_NEAR(rows[i].loss.error, expected[i].loss.error, 20 * kTolerance);  // a quotient of differences
        measured += rows[i].loss.mass > 0 ? 1 : 0;
        ASSERT_EQ(rows[i].victims.size(), expected[i].victims.size());
        for (size_t lane = 0; lane < rows[i].victims.size(); ++lane) {
          EXPECT_EQ(rows[i].victims[lane].layer, expected[i].victims[lane].layer);
          EXPECT_EQ(rows[i].victims[lane].head, expected[i].victims[lane].head);
          ASSERT_EQ(rows[i].victims[lane].tokens, expected[i].victims[lane].tokens);
          ++told;
        }
      }
    }
    EXPECT_GT(told, kIsSlow ? 1 : 20);
    EXPECT_GT(measured, kIsSlow ? 1 : 20);
    EXPECT_EQ(engine->device_use()->fetched > 0, pages_for == 2);
  }
}

}  // namespace
}  // namespace ebb
