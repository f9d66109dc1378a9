// Sessions that a device computes, emulated, beside sessions that the host does: they yield what they yield alone,
// wherever their caches were meanwhile, and what the device does not do the host does for them.

#include "engine/gpu/placed_engine.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache_work.h"
#include "engine/gpu/gpu_engine.h"
#include "engine/sampler.h"
#include "engine/snapshot/session_image.h"
#include "policies/status.h"
#include "tests/property/placed_world.h"
#include "tests/support/gpu_target.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

// In a batch with sessions of the host, in an arena that holds two of the four: what each yields is what it yields
// alone, bit for bit.
TEST_F(PlacedEngineTest, CompanyAndAFullDeviceChangeNothing) {
  const std::vector<std::string> scorers = {"h2o", "snapkv", "tova", "full", "streaming", "scissorhands"};
  constexpr size_t kEach = kIsSlow ? 20 : 40;
  const auto yields = [&](Engine& engine, std::vector<std::vector<float>>& logits, bool alone,
                          const gpu::DrawNeeds& enough = {}) {
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::vector<int32_t>> tokens;
    for (size_t i = 0; i < scorers.size(); ++i) {
      sessions.push_back(OpenTestSession(engine, Spec(scorers[i]), 8));
      tokens.push_back(Tokens(i, kEach));
    }
    logits.assign(scorers.size(), {});
    for (size_t first = 0; first < kEach; first += first < 16 ? 8 : 1) {
      const size_t count = first < 16 ? 8 : 1;
      std::vector<BatchRow> rows;
      for (size_t i = 0; i < sessions.size(); ++i) {
        BatchRow row = {.session = sessions[i].get(),
                        .tokens = std::span(tokens[i]).subspan(first, count),
                        .want = Want::kLast,
                        .enough = enough};
        ASSERT_THAT(engine.OwnPages(row), IsOk());
        rows.push_back(std::move(row));
      }
      for (size_t i = 0; i < rows.size(); i += alone ? 1 : rows.size()) {
        engine.Run(std::span(rows).subspan(i, alone ? 1 : rows.size()));
        for (size_t j = i; j < (alone ? i + 1 : rows.size()); ++j) {
          ASSERT_THAT(rows[j].fault, IsOk());
          const std::vector<float> whole = Whole(engine, rows[j]);
          logits[j].insert(logits[j].end(), whole.begin(), whole.end());
        }
      }
    }
  };
  std::vector<std::vector<float>> alone, together, crowded;
  yields(*Open(), alone, true);
  const auto roomy = Open();
  yields(*roomy, together, false);
  EXPECT_EQ(together, alone);
  EXPECT_EQ(roomy->device_use()->brought, 4);
  EXPECT_EQ(roomy->device_use()->fetched, 0);
  // `full` needs a lane of the model's context, the others one page a lane.
  const int64_t page_bytes = roomy->device_use()->page_bytes;
  const int64_t full_pages = (model_.context + 63) / 64 * int64_t{model_.layers} * model_.kv_heads;
  const auto small = Open({.arena_bytes = (full_pages + 4) * page_bytes});
  yields(*small, crowded, false);
  EXPECT_EQ(crowded, alone);
  EXPECT_GT(small->device_use()->fetched, kIsSlow ? 3 : 20);
  std::vector<std::vector<float>> few;
  yields(*small, few, false,
         {.largest = 3,
          .temperature = 0.5F,
          .share = 0.5});  // of which those whose caches leave for the next wave's bring their logits along
  EXPECT_EQ(few, alone);
  EXPECT_EQ(small->device_use()->rows_kept, small->device_use()->rows_copied);  // as many as before, of the same steps
  EXPECT_EQ(small->device_use()->rows_fetched, small->device_use()->rows_kept);
  EXPECT_EQ(small->device_use()->sessions, 0);
  EXPECT_EQ(small->device_use()->pages_free, small->device_use()->pages_total);
}

TEST_F(PlacedEngineTest, WhatTheDeviceDoesNotDoTheHostDoes) {
  const auto engine = Open();
  const auto host = OpenHost();
  const auto session = OpenTestSession(*engine, Spec("h2o"), 16);
  const auto on_host = OpenTestSession(*host, Spec("h2o"), 16);
  const std::vector<int32_t> tokens = Tokens(3, 120);
  std::span<const int32_t> left = tokens;
  const auto step = [&](size_t count) {
    const auto now = left.first(count);
    left = left.subspan(count);
    EXPECT_LT(LargestDifference(Run(*engine, *session, now), Run(*host, *on_host, now)), kTolerance);
    EXPECT_TRUE(session->on_device());
    ExpectTheSameLanes(*engine, *session, *host, *on_host);
  };
  step(20);
  const auto draft = [](Engine& of, Session& whose, std::span<const int32_t> drafted) {
    BatchRow row = {.session = &whose, .tokens = drafted, .want = Want::kAll, .draft = true};
    EBB_CHECK(of.OwnPages(row).ok());
    of.Run({&row, 1});
    std::vector<float> logits(row.logits.begin(), row.logits.end());
    of.Accept(row, 3);
    return logits;
  };
  EXPECT_LT(LargestDifference(draft(*engine, *session, left.first(4)), draft(*host, *on_host, left.first(4))),
            kTolerance);
  step(5);
  const EvictRequest evict = {.range = EvictRequest::Range{10, 14}};
  const auto evicted = engine->Evict(*session, evict);
  ASSERT_THAT(evicted, IsOk());
  EXPECT_EQ(evicted->slots_evicted, host->Evict(*on_host, evict)->slots_evicted);
  const auto policy = TestPolicy(Spec("tova"), model_.context);
  ASSERT_THAT(engine->SetPolicy(*session, policy), IsOk());
  ASSERT_THAT(host->SetPolicy(*on_host, policy), IsOk());
  const auto edit = [&](Engine& of, Session& whose) {
    const EditRequest request = {.spans = {{.start = 5, .end = 7, .tokens = {left[0], left[1], left[2]}}},
                                 .mode = EditMode::kRecomputeTail};
    const auto plan = of.PlanEdit(whose, request);
    EBB_CHECK(plan.ok());
    EBB_CHECK(of.OwnAllPages(whose).ok());
    of.BeginEdit(whose, *plan);
    const std::vector<int32_t> work = plan->WorkTokens();
    for (size_t first = 0; first < work.size(); first += 16) {
      BatchRow row = {.session = &whose,
                      .tokens = std::span(work).subspan(first, std::min<size_t>(16, work.size() - first)),
                      .want = Want::kLast};
      EBB_CHECK(of.OwnPages(row).ok());
      of.Run({&row, 1});
    }
  };
  edit(*engine, *session);
  edit(*host, *on_host);
  EXPECT_EQ(std::vector(session->log().begin(), session->log().end()),
            std::vector(on_host->log().begin(), on_host->log().end()));
  engine->Rewind(*session, static_cast<int32_t>(session->log().size()) - 2);
  host->Rewind(*on_host, static_cast<int32_t>(on_host->log().size()) - 2);
  // Lanes that hold unequally many are the host's.
  if (session->live_slots() == int64_t{session->cache_length()} * model_.layers * model_.kv_heads) step(10);
}

// A session that yields its largest logits alone, beside a twin that yields all: they say which token is drawn, and the
// row that stays is the twin's, bit for bit, wherever the cache went before somebody asked for it.
TEST_F(PlacedEngineTest, TheRowThatADeviceKeepsGoesWhereTheCacheGoes) {
  const std::vector<SamplingOptions> sampling = {
      {.temperature = 0},
      {.temperature = 0.8F, .top_k = 5, .top_p = 0.9F, .seed = 3},
      {.temperature = 0.7F, .top_p = 0.6F, .seed = 4},
      {.temperature = 1.2F, .top_k = 4, .repetition_penalty = 1.3F, .frequency_penalty = 0.5F, .penalty_window = 8},
      {.seed = 5},
      {.min_p = 0.3F, .seed = 6}};
  using Visit = void (*)(Engine&, Session&);
  const std::vector<Visit> visits = {
      [](Engine&, Session&) {},
      [](Engine& engine, Session& session) { EBB_CHECK(engine.Describe(session, {}, {}).ok()); },
      [](Engine& engine, Session& session) {
        EBB_CHECK(engine.Evict(session, {.older_than = 1 << 20, .dry_run = true}).ok());
        EXPECT_FALSE(session.on_device());
      },
      [](Engine& engine, Session& session) { EBB_CHECK(engine.ForkSession(session, {}).ok()); },
      [](Engine& engine, Session& session) {
        const std::vector<int32_t> tokens = {1, 2};
        BatchRow row = {
            .session = &session, .tokens = tokens, .want = Want::kAll, .enough = {.largest = 1}, .draft = true};
        EBB_CHECK(engine.OwnPages(row).ok());
        engine.Run({&row, 1});
        EXPECT_EQ(row.logits.size(), 2 * static_cast<size_t>(engine.config().vocab));
        engine.Accept(row, 0);
      }};
  for (const int32_t warp : {32, 64}) {
    SCOPED_TRACE(warp);
    const auto engine = Open({.table = &gpu::TableUnderTest(warp)});
    const auto all = OpenTestSession(*engine, Spec("h2o"), 8);
    const auto few = OpenTestSession(*engine, Spec("h2o"), 8);
    Sampler sampler(model_.vocab);
    std::vector<int32_t> next = Tokens(8, 8);
    int64_t fetched = 0;
    int decided = 0;
    const int steps = kIsSlow ? 12 : 40;
    for (int step = 0; step < steps; ++step) {
      SCOPED_TRACE(step);
      const SamplingOptions& options = sampling[step % sampling.size()];
      std::vector<BatchRow> rows = {
          {.session = all.get(), .tokens = next, .want = Want::kLast},
          {.session = few.get(),
           .tokens = next,
           .want = Want::kLast,
           .enough = NeedsOf(options, model_.vocab, std::ssize(few->log()) + std::ssize(next))}};
      if (step % 2 == 1) std::swap(rows[0], rows[1]);
      for (const BatchRow& row : rows) ASSERT_THAT(engine->OwnPages(row), IsOk());
      engine->Run(rows);
      for (const BatchRow& row : rows) ExpectWhatIsAskedFor(row);
      const BatchRow& whole = rows[step % 2];
      const BatchRow& largest = rows[1 - step % 2];
      const int32_t token = sampler.DrawToken(options, whole.logits, all->log());
      const std::optional<int32_t> drawn = sampler.DrawTokenFrom(options, largest.facts, few->log());
      ASSERT_EQ(drawn.value_or(token), token);
      decided += drawn ? 1 : 0;
      next.assign(1, token);
      if (step % 3 == 2) continue;  // nobody asks, and another row takes its place
      const std::vector<float> expected(whole.logits.begin(), whole.logits.end());
      visits[static_cast<size_t>(step) % visits.size()](*engine, *few);
      const auto kept = engine->TakeLogits(*few);
      ASSERT_THAT(kept, IsOk());
      ASSERT_EQ(*kept, expected);
      ++fetched;
    }
    EXPECT_EQ(engine->Digest(*few), engine->Digest(*all));
    EXPECT_EQ(engine->device_use()->rows_copied, steps);
    EXPECT_EQ(engine->device_use()->rows_kept, steps);
    EXPECT_GE(engine->device_use()->rows_fetched, fetched);
    EXPECT_GT(decided, steps * 3 / 4);
  }
}

TEST_F(PlacedEngineTest, BranchesGoTheirWaysFromTheDevice) {
  const auto engine = Open();
  const auto session = OpenTestSession(*engine, Spec("h2o"), 16);
  const std::vector<int32_t> tokens = Tokens(4, 50);
  Run(*engine, *session, std::span(tokens).first(30));
  auto fork = engine->ForkSession(*session, {});
  ASSERT_THAT(fork, IsOk());
  EXPECT_EQ(engine->Digest(*fork->session), engine->Digest(*session));
  const uint64_t before = engine->Digest(*fork->session);
  const std::vector<float> expected = Run(*engine, *session, std::span(tokens).subspan(30));
  EXPECT_EQ(engine->Digest(*fork->session), before);
  EXPECT_EQ(Run(*engine, *fork->session, std::span(tokens).subspan(30)), expected);
  EXPECT_EQ(engine->Digest(*fork->session), engine->Digest(*session));
  EXPECT_EQ(engine->memory().pages_shared, 0);
}

TEST_F(PlacedEngineTest, ASnapshotIsOfWhatTheDeviceHas) {
  const auto engine = Open({.kv_type = KvType::kBf16});
  const auto session = OpenTestSession(*engine, Spec("tova", KvType::kBf16), 16);
  const std::vector<int32_t> tokens = Tokens(5, 50);
  Run(*engine, *session, std::span(tokens).first(30));
  SnapshotWriter writer;
  ASSERT_THAT(engine->Save(*session, writer), IsOk());
  std::string bytes = std::move(writer).Finish();
  SealSnapshot(bytes);
  const auto records = ReadSnapshot(std::as_bytes(std::span(bytes)));
  ASSERT_THAT(records, IsOk());
  auto image = ReadSession(*records, engine->image_limits());
  ASSERT_THAT(image, IsOk());
  const auto again = engine->Reopen(*image);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(Run(*engine, **again, std::span(tokens).subspan(30)),
            Run(*engine, *session, std::span(tokens).subspan(30)));
  EXPECT_EQ(engine->Digest(**again), engine->Digest(*session));
}

TEST_F(PlacedEngineTest, ADeviceThatFailsLosesWhatWasThereAloneAndTheHostGoesOn) {
  const auto engine = Open({.table = &FailingTable()});
  const auto newer = OpenTestSession(*engine, Spec("h2o"), 16);
  const auto same = OpenTestSession(*engine, Spec("h2o"), 16);
  const auto others = OpenTestSession(*engine, Spec("snapkv"), 16);
  const std::vector<int32_t> tokens = Tokens(7, 40);
  Run(*engine, *newer, std::span(tokens).first(20));
  Run(*engine, *same, std::span(tokens).first(20));
  Run(*engine, *others, std::span(tokens).first(20));
  const uint64_t digest = engine->Digest(*same);  // which brings it home

  device_fails = true;
  std::vector<BatchRow> rows;
  for (Session* const session : {newer.get(), same.get(), others.get()}) {
    rows.push_back({.session = session, .tokens = std::span(tokens).subspan(20, 1), .want = Want::kLast});
  }
  engine->Run(rows);
  EXPECT_EQ(GetRefusal(rows[0].fault).reason, "GPU_FAULT");
  EXPECT_TRUE(newer->is_lost());
  EXPECT_EQ(newer->log().size(), 20U);
  EXPECT_THAT(engine->Describe(*newer, {}, {}), testing::Not(IsOk()));
  EXPECT_TRUE(engine->device_use()->failed);
  for (size_t i = 1; i < rows.size(); ++i) {
    EXPECT_THAT(rows[i].fault, IsOk());
    EXPECT_EQ(rows[i].logits.size(), static_cast<size_t>(model_.vocab));
    EXPECT_FALSE(rows[i].session->is_lost());
    EXPECT_EQ(rows[i].session->log().size(), 21U);
  }
  EXPECT_NE(engine->Digest(*same), digest);
  EXPECT_FALSE(same->on_device());
  // Who comes now is the host's.
  const auto fresh = OpenTestSession(*engine, Spec("h2o"), 16);
  Run(*engine, *fresh, tokens);
  EXPECT_FALSE(fresh->on_device());
}

// A runtime tells of a launch that could not begin once. Who asks first need not be who waits for the step: here it is
// a row of the host's, which wants its cache home while the step runs.
TEST_F(PlacedEngineTest, AFaultThatIsToldOnceEndsTheStepThatRuns) {
  const auto engine = Open({.table = &FailingTable()});
  const auto runs = OpenTestSession(*engine, Spec("h2o"), 16);
  const auto comes_home = OpenTestSession(*engine, Spec("h2o"), 16);
  const std::vector<int32_t> tokens = Tokens(7, 24);
  for (Session* const session : {runs.get(), comes_home.get()}) Run(*engine, *session, std::span(tokens).first(20));
  std::vector<BatchRow> rows = {
      {.session = runs.get(), .tokens = std::span(tokens).subspan(20, 1), .want = Want::kLast},
      {.session = comes_home.get(), .tokens = std::span(tokens).subspan(20, 2), .want = Want::kLast, .draft = true}};
  for (const BatchRow& row : rows) ASSERT_THAT(engine->OwnPages(row), IsOk());
  device_fails_once = true;
  engine->Run(rows);
  EXPECT_FALSE(device_fails_once);
  for (const BatchRow& row : rows) {
    EXPECT_EQ(GetRefusal(row.fault).reason, "GPU_FAULT");
    EXPECT_TRUE(row.session->is_lost());
    EXPECT_EQ(row.session->log().size(), 20U);
  }
}

// Nor when the device has failed: what came home was computed there, and what did not is older than its log.
TEST_F(PlacedEngineTest, NothingThatADeviceComputedIsKeptForOthers) {
  const auto engine = Open({.table = &FailingTable(), .prefix_share = 0.5});
  const auto newer = OpenTestSession(*engine, Spec("full"), 16);
  const auto home = OpenTestSession(*engine, Spec("full"), 16);
  const auto others = OpenTestSession(*engine, Spec("full", KvType::kF16), 16);
  const std::vector<int32_t> tokens = Tokens(7, 32);
  for (Session* const session : {newer.get(), home.get(), others.get()}) Run(*engine, *session, tokens);
  engine->Digest(*home);
  device_fails = true;
  EXPECT_THAT(engine->Describe(*newer, {}, {}), testing::Not(IsOk()));
  ASSERT_TRUE(engine->device_use()->failed);
  Run(*engine, *home, std::span(tokens).first(1));
  for (const Session* const session : {newer.get(), home.get()}) engine->KeepPrefix(*session, "acme", 16);
  EXPECT_EQ(engine->memory().pages_kept, 0);
  engine->KeepPrefix(*others, "acme", 16);
  EXPECT_GT(engine->memory().pages_kept, 0);
}

// The row that a device keeps is lost with the session, and stays where the cache came home in time.
TEST_F(PlacedEngineTest, ARowGoesWithADeviceThatFailsAsItsCacheDoes) {
  const auto engine = Open({.table = &FailingTable()});
  const auto asked = OpenTestSession(*engine, Spec("h2o"), 16);
  const auto described = OpenTestSession(*engine, Spec("h2o"), 16);
  for (Session* const session : {asked.get(), described.get()}) {
    const std::vector<int32_t> tokens = Tokens(9, 12);
    BatchRow row = {.session = session, .tokens = tokens, .want = Want::kLast, .enough = {.largest = 1}};
    ASSERT_THAT(engine->OwnPages(row), IsOk());
    engine->Run({&row, 1});
    ExpectWhatIsAskedFor(row);
  }
  ASSERT_THAT(engine->Describe(*described, {}, {}), IsOk());
  device_fails = true;
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(GetRefusal(engine->TakeLogits(*asked).status()).reason, "GPU_FAULT");
    EXPECT_TRUE(asked->is_lost());
  }
  EXPECT_TRUE(engine->device_use()->failed);
  EXPECT_FALSE(described->is_lost());
  const auto kept = engine->TakeLogits(*described);
  ASSERT_THAT(kept, IsOk());
  EXPECT_EQ(kept->size(), static_cast<size_t>(model_.vocab));
}

}  // namespace
}  // namespace ebb
