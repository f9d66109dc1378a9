#include "server/last_logits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/gpu/placed_engine.h"
#include "engine/model/gguf.h"
#include "policies/check.h"
#include "server/token_draws.h"
#include "tests/support/gpu_target.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

const SamplingOptions kGreedy = {.temperature = 0};
const SamplingOptions kPlain = {.temperature = 0.5F, .seed = 3};
const SamplingOptions kNucleus = {.temperature = 0.5F, .top_p = 0.3F, .seed = 3};
const SamplingOptions kAny = {.temperature = 1, .seed = 3};  // which any token may be, and nobody asked for

std::unique_ptr<Engine> OpenPlaced(const std::string& path) {
  const auto file = GgufFile::Open(path);
  EBB_CHECK(file.ok());
  const auto config = ReadConfig(*file);
  EBB_CHECK(config.ok());
  auto gpu = GpuEngine::Open(gpu::TableUnderTest(32), *config, *FindWeights(*file, *config),
                             {.arena_bytes = 16 << 20, .kv_type = PolicySpec{}.kv_type});
  EBB_CHECK(gpu.ok());
  auto engine = PlaceOn(*std::move(gpu), OpenTestEngine(path));
  EBB_CHECK(engine.ok());
  return *std::move(engine);
}

// Two sessions on an emulated device that read the same: one yields all logits, the other the largest alone.
class LastLogitsTest : public testing::Test {
 protected:
  LastLogitsTest() {
    const std::vector<int32_t> prompt = RandomTokens(1, 12, engine_->config().vocab);
    const std::vector<float> row = Step(*engine_, *all_, prompt);
    expected_.TakeWhole(row);
    const gpu::DrawNeeds nucleus = NeedsOf(kNucleus, engine_->config().vocab, std::ssize(prompt));
    BatchRow few = {.session = few_.get(),
                    .tokens = prompt,
                    .want = Want::kLast,
                    .enough = {.largest = std::min(nucleus.largest, 100),
                               .temperature = nucleus.temperature,
                               .share = NeedsOf(kPlain, engine_->config().vocab, std::ssize(prompt)).share}};
    engine_->Run({&few, 1});
    logits_.TakeFacts(few.facts);
  }

  int64_t fetched() const { return engine_->device_use()->rows_fetched; }
  int32_t Draw(LastLogits& from, Session& session, const SamplingOptions& options) {
    Drawn drawn = {.token = -1};
    EBB_CHECK(draws_.Add(options, from, session, false, drawn).ok());
    draws_.Run();
    return drawn.token;
  }
  std::vector<float> Whole(LastLogits& of, Session& session) {
    const auto whole = of.Whole(*engine_, session);
    EBB_CHECK(whole.ok());
    return {whole->begin(), whole->end()};
  }

  TinyModelFile file_ = TinyModelFile({.layers = 1, .context = 128});
  std::unique_ptr<Engine> engine_ = OpenPlaced(file_.path());
  std::unique_ptr<Session> all_ = OpenTestSession(*engine_, {.scorer = "h2o", .budget = 32}, 16);
  std::unique_ptr<Session> few_ = OpenTestSession(*engine_, {.scorer = "h2o", .budget = 32}, 16);
  TokenDraws draws_ = TokenDraws(*engine_);
  LastLogits expected_ = {};
  LastLogits logits_ = {};
};

TEST_F(LastLogitsTest, WhatTheFactsDecideFetchesNothing) {
  EXPECT_EQ(Draw(logits_, *few_, kGreedy), Draw(expected_, *all_, kGreedy));
  const SamplingOptions top = {.temperature = 0.9F, .top_k = 4, .seed = 5};
  EXPECT_EQ(Draw(logits_, *few_, top), Draw(expected_, *all_, top));
  EXPECT_EQ(Draw(logits_, *few_, kPlain), Draw(expected_, *all_, kPlain));
  EXPECT_EQ(Draw(logits_, *few_, kNucleus), Draw(expected_, *all_, kNucleus));
  EXPECT_EQ(fetched(), 0);
}

TEST_F(LastLogitsTest, WhatTheyLeaveOpenFetchesTheRowOnce) {
  EXPECT_EQ(Draw(logits_, *few_, kAny), Draw(expected_, *all_, kAny));
  EXPECT_EQ(fetched(), 1);
  const SamplingOptions lifted = {.temperature = 0, .logit_bias = {{7, 100.0F}}};
  EXPECT_EQ(Draw(logits_, *few_, lifted), 7);
  EXPECT_THAT(Whole(logits_, *few_), ElementsAreArray(Whole(expected_, *all_)));
  EXPECT_EQ(fetched(), 1);
}

TEST_F(LastLogitsTest, WhoAsksForTheRowHasItWhereverTheCacheIs) {
  ASSERT_THAT(engine_->Evict(*few_, {.older_than = 1 << 20, .dry_run = true}), IsOk());
  EXPECT_FALSE(few_->on_device());
  EXPECT_THAT(Whole(logits_, *few_), ElementsAreArray(Whole(expected_, *all_)));
}

TEST_F(LastLogitsTest, TheNextStepsTakeThePlaceOfTheLast) {
  logits_.TakeWhole(std::vector<float>{1, 3, 2});
  EXPECT_THAT(Whole(logits_, *few_), ElementsAreArray({1, 3, 2}));
  const std::vector<gpu::TokenLogit> largest = {{.logit = 2, .token = 9}};
  logits_.TakeFacts({.asked = {.largest = 1}, .largest = largest});
  EXPECT_EQ(Draw(logits_, *few_, kGreedy), 9);
  EXPECT_THAT(Whole(logits_, *few_), ElementsAreArray(Whole(expected_, *all_)));  // as its device has it
}

TEST_F(LastLogitsTest, ASessionWithoutTokensHasNone) {
  LastLogits none;
  EXPECT_THAT(Whole(none, *few_), IsEmpty());
}

}  // namespace
}  // namespace ebb
