#include "engine/engine.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/model/head_gates_file.h"
#include "tests/support/hub_folder.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class EngineTest : public testing::Test {
 protected:
  TinyModelFile file_ = TinyModelFile({.vocab = 300});
  std::unique_ptr<Engine> engine_ = OpenTestEngine(file_.path());
  std::vector<int32_t> tokens_ = RandomTokens(1, 200, 300);

  std::span<const int32_t> Tokens(size_t first, size_t count) const { return std::span(tokens_).subspan(first, count); }
};

TEST_F(EngineTest, RefusesOptionsOutOfRange) {
  EXPECT_THAT(Engine::Open({.model_path = file_.path(), .threads = 257}),
              IsRefusal(kInvalidArgument, "THREADS_OUT_OF_RANGE", ""));
  EXPECT_THAT(Engine::Open({.model_path = file_.path(), .step_tokens_max = 0}),
              IsRefusal(kInvalidArgument, "STEP_TOKENS_OUT_OF_RANGE", ""));
  EXPECT_THAT(Engine::Open({.model_path = file_.path(), .arena_bytes = 100}),
              IsRefusal(kInvalidArgument, "ARENA_TOO_SMALL", ""));
  EXPECT_THAT(Engine::Open({.model_path = file_.path(), .isa = "z80"}),
              IsRefusal(kInvalidArgument, "ISA_UNAVAILABLE", ""));
}

// What lies beside the model is read with it: nothing is half loaded.
TEST_F(EngineTest, RefusesADamagedCalibration) {
  const std::string path = testing::TempDir() + "engine_test.calibration.json";
  std::ofstream(path) << "{";
  const auto engine = Engine::Open({.model_path = file_.path(), .calibration_path = path, .arena_bytes = 1 << 20});
  std::filesystem::remove(path);
  ASSERT_THAT(engine.status(), IsRefusal(absl::StatusCode::kDataLoss, "CALIBRATION_DAMAGED", ""));
  EXPECT_THAT(std::string(engine.status().message()), testing::StartsWith(path + ": byte "));
}

TEST_F(EngineTest, RefusesAnArenaThatThisMachineCannotHold) {
  const auto refused = Engine::Open({.model_path = file_.path(), .threads = 1, .arena_bytes = int64_t{1} << 42});
  EXPECT_THAT(refused, IsRefusal(absl::StatusCode::kUnavailable, "ARENA_UNAVAILABLE", "cache.arena"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("4398046511104 bytes"));
}

TEST_F(EngineTest, RefusesAFileWithoutATokenForEveryRowOfTheEmbedding) {
  const std::string path = file_.path() + ".short";
  GgufWriter writer = MakeTinyTransformer({.vocab = 300});
  writer.Add("tokenizer.ggml.model", "gpt2");
  writer.Add("tokenizer.ggml.pre", "gpt-2");
  writer.AddArray("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
  writer.AddArray("tokenizer.ggml.merges", std::vector<std::string>());
  writer.Write(path);
  const auto engine = Engine::Open({.model_path = path, .threads = 1, .arena_bytes = 1 << 20});
  std::remove(path.c_str());
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kDataLoss) << engine.status();
}

TEST_F(EngineTest, RefusesAFolderThatSaysNothingOfItsTokens) {
  const TemporaryFolder folder;
  HubFolder model;
  model.Finish();
  model.Write(folder.path());
  const auto engine = Engine::Open({.model_path = folder.path(), .threads = 1, .arena_bytes = 1 << 20});
  EXPECT_THAT(engine, IsRefusal(absl::StatusCode::kFailedPrecondition, "UNSUPPORTED_TOKENIZER", ""));
  EXPECT_THAT(std::string(engine.status().message()), HasSubstr("ebb-lab convert " + folder.path()));
}

TEST_F(EngineTest, ReservesWhatASessionMayEverNeedAndGivesItBack) {
  const SessionOptions options = {.policy = TestPolicy({.scorer = "h2o", .budget = 64}), .block_size_max = 32};
  const int64_t pages = *engine_->PagesFor(options);
  EXPECT_GT(pages, 0);
  {
    const auto session = engine_->OpenSession(options);
    ASSERT_THAT(session, IsOk());
    EXPECT_EQ((*session)->capacity(), 64 + 32);
    EXPECT_EQ((*session)->pages(), pages);
    EXPECT_EQ(engine_->memory().pages_reserved, pages);
  }
  EXPECT_EQ(engine_->memory().pages_reserved, 0);
}

TEST_F(EngineTest, RefusesASessionThatDoesNotFitUntilAnotherLeaves) {
  const auto engine = OpenTestEngine(file_.path(), {.arena_bytes = 1 << 20});
  const SessionOptions options = {.policy = TestPolicy({.scorer = "full", .budget = 512})};
  std::vector<std::unique_ptr<Session>> sessions;
  absl::Status last;
  while (last.ok()) {
    auto session = engine->OpenSession(options);
    last = session.status();
    if (session.ok()) sessions.push_back(*std::move(session));
  }
  EXPECT_THAT(last, IsRefusal(absl::StatusCode::kUnavailable, "NO_PAGES", ""));
  ASSERT_FALSE(sessions.empty());
  sessions.pop_back();
  EXPECT_THAT(engine->OpenSession(options), IsOk());
}

TEST_F(EngineTest, RefusesBlocksThatNoStepCouldTake) {
  const ValidSpec policy = TestPolicy({.scorer = "full", .budget = 64});
  for (const int32_t block : {0, 513}) {
    EXPECT_THAT(engine_->PagesFor({.policy = policy, .block_size_max = block}).status(),
                IsRefusal(kInvalidArgument, "BLOCK_SIZE_OUT_OF_RANGE", "block_size"));
  }
  const auto session = OpenTestSession(*engine_, {.scorer = "full", .budget = 64}, 8);
  EXPECT_THAT(session->CanAppend(9), IsRefusal(kInvalidArgument, "BLOCK_TOO_LARGE", ""));
  EXPECT_THAT(session->CanAppend(0), IsRefusal(kInvalidArgument, "BLOCK_TOO_LARGE", ""));
  EXPECT_THAT(session->CanAppend(8), IsOk());
}

TEST_F(EngineTest, FullHoldsItsLimitAndStaysUsableBelowIt) {
  const auto session = OpenTestSession(*engine_, {.scorer = "full", .budget = 20});
  EXPECT_EQ(session->capacity(), 20);
  Step(*engine_, *session, Tokens(0, 18));
  const absl::Status refused = session->CanAppend(3);
  EXPECT_THAT(refused, IsRefusal(absl::StatusCode::kResourceExhausted, "LENGTH_LIMIT", ""));
  EXPECT_THAT(std::string(refused.message()), testing::AllOf(HasSubstr("20"), HasSubstr("18")));
  EXPECT_EQ(session->cache_length(), 18);
  Step(*engine_, *session, Tokens(18, 2));
  EXPECT_THAT(session->CanAppend(1), IsRefusal(absl::StatusCode::kResourceExhausted, "LENGTH_LIMIT", ""));
}

TEST_F(EngineTest, GivesTheLogitsThatAreWanted) {
  const auto vocab = static_cast<size_t>(engine_->config().vocab);
  const auto all = OpenTestSession(*engine_, {.scorer = "full"});
  const auto last = OpenTestSession(*engine_, {.scorer = "full"});
  const auto none = OpenTestSession(*engine_, {.scorer = "full"});
  std::vector<BatchRow> rows = {{.session = all.get(), .tokens = Tokens(0, 5), .want = Want::kAll},
                                {.session = none.get(), .tokens = Tokens(0, 5)},
                                {.session = last.get(), .tokens = Tokens(0, 5), .want = Want::kLast}};
  engine_->Run(rows);
  ASSERT_THAT(rows[0].logits, SizeIs(5 * vocab));
  EXPECT_THAT(rows[1].logits, SizeIs(0));
  ASSERT_THAT(rows[2].logits, SizeIs(vocab));
  EXPECT_EQ(LargestDifference(rows[0].logits.last(vocab), rows[2].logits), 0);
}

TEST_F(EngineTest, TheLogKeepsWhatTheCacheLost) {
  const auto session = OpenTestSession(*engine_, {.scorer = "streaming", .budget = 16});
  Feed(*engine_, *session, Tokens(0, 100), 7);
  EXPECT_THAT(session->log(), testing::ElementsAreArray(Tokens(0, 100)));
  EXPECT_EQ(session->cache_length(), 16);
  EXPECT_EQ(session->evicted(), 84);
  EXPECT_EQ(session->position_max(), 15);  // compacted
}

TEST_F(EngineTest, ReportsWhatAStepEvicted) {
  const auto session = OpenTestSession(*engine_, {.scorer = "h2o", .budget = 16});
  BatchRow row = {.session = session.get(), .tokens = Tokens(0, 30)};
  engine_->Run({&row, 1});
  EXPECT_EQ(row.evicted, 14);
  EXPECT_EQ(row.evicted_slots, 14 * 4);
  EXPECT_EQ(row.nan_scores, 0);
  EXPECT_EQ(session->position_max(), 29);  // original
}

TEST_F(EngineTest, ARatioBecomesABudgetWhenTheFirstPromptEnds) {
  const auto session = OpenTestSession(*engine_, {.scorer = "h2o", .budget_ratio = 0.25});
  Step(*engine_, *session, Tokens(0, 60));
  EXPECT_EQ(session->cache_length(), 60);  // held whole until then
  BatchRow row = {.session = session.get(), .tokens = Tokens(60, 40), .prompt_ends = true};
  engine_->Run({&row, 1});
  EXPECT_THAT(row.status, IsOk());
  EXPECT_EQ(session->policy().trigger.budget, 25);
  EXPECT_EQ(session->policy().recent, 12);
  EXPECT_EQ(row.evicted, 75);
  EXPECT_EQ(session->cache_length(), 25);
  // A second turn's prompt changes nothing.
  row = {.session = session.get(), .tokens = Tokens(100, 50), .prompt_ends = true};
  engine_->Run({&row, 1});
  EXPECT_EQ(session->policy().trigger.budget, 25);
}

TEST_F(EngineTest, ARatioOfTooShortAPromptIsRefusedAndKeepsItsTokens) {
  const auto session = OpenTestSession(*engine_, {.scorer = "h2o", .budget_ratio = 0.1, .recent = 10});
  BatchRow row = {.session = session.get(), .tokens = Tokens(0, 20), .prompt_ends = true};
  engine_->Run({&row, 1});
  EXPECT_THAT(row.status, IsRefusal(kInvalidArgument, "BUDGET_TOO_SMALL", "budget_ratio"));
  EXPECT_EQ(session->cache_length(), 20);
  EXPECT_THAT(session->CanAppend(10), IsOk());
}

TEST_F(EngineTest, DescribesLanesWithSlotsPositionsAndScores) {
  const auto session = OpenTestSession(*engine_, {.scorer = "h2o", .budget = 8});
  Feed(*engine_, *session, Tokens(0, 20), 1);
  const auto lanes = engine_->Describe(*session, std::nullopt, std::nullopt);
  ASSERT_THAT(lanes, IsOk());
  ASSERT_THAT(*lanes, SizeIs(4));
  EXPECT_EQ((*lanes)[3].layer, 1);
  EXPECT_EQ((*lanes)[3].head, 1);
  for (const LaneReport& lane : *lanes) {
    EXPECT_THAT(lane.slots, SizeIs(8));
    EXPECT_THAT(lane.scores, SizeIs(8));
    EXPECT_EQ(lane.tokens, lane.positions);  // original
    EXPECT_TRUE(std::ranges::is_sorted(lane.slots));
  }
  const auto one = engine_->Describe(*session, 1, 0);
  ASSERT_THAT(*one, SizeIs(1));
  EXPECT_EQ(one->front().tokens, (*lanes)[2].tokens);
  EXPECT_EQ(engine_->Describe(*session, 2, 0).status().code(), kInvalidArgument);
  EXPECT_EQ(engine_->Describe(*session, 0, -1).status().code(), kInvalidArgument);
}

TEST_F(EngineTest, FullHasNoScores) {
  const auto session = OpenTestSession(*engine_, {.scorer = "full"});
  Step(*engine_, *session, Tokens(0, 4));
  EXPECT_THAT(engine_->Describe(*session, 0, 0)->front().scores, SizeIs(0));
}

TEST_F(EngineTest, ShiftsCachedPositionsAndTheNextTokensWithThem) {
  const auto session = OpenTestSession(*engine_, {.scorer = "full"});
  Step(*engine_, *session, Tokens(0, 6));
  EXPECT_EQ(*engine_->RemovePositions(*session, 1, 3), 2);
  ASSERT_THAT(engine_->ShiftPositions(*session, 3, -2), IsOk());
  Step(*engine_, *session, Tokens(6, 1));
  const LaneReport lane = engine_->Describe(*session, 0, 0)->front();
  EXPECT_THAT(lane.tokens, ElementsAre(0, 6, 3, 4, 5));
  EXPECT_THAT(lane.positions, ElementsAre(0, 4, 1, 2, 3));
  EXPECT_EQ(session->evicted(), 2);
}

TEST_F(EngineTest, RefusesAShiftBelowZeroAndMovesNothing) {
  const auto session = OpenTestSession(*engine_, {.scorer = "full"});
  Step(*engine_, *session, Tokens(0, 4));
  EXPECT_EQ(engine_->ShiftPositions(*session, 1, -2).code(), kInvalidArgument);
  EXPECT_THAT(engine_->Describe(*session, 0, 0)->front().positions, ElementsAre(0, 1, 2, 3));
}

TEST_F(EngineTest, FingerprintNamesModelInstructionSetAndAccuracy) {
  const TinyModelFile other({.vocab = 300, .seed = 2});
  const auto scalar = OpenTestEngine(file_.path(), {.isa = "scalar"});
  EXPECT_THAT(scalar->fingerprint(), HasSubstr("scalar exact"));
  const std::string same = OpenTestEngine(file_.path(), {.threads = 2, .isa = "scalar"})->fingerprint();
  EXPECT_EQ(scalar->fingerprint(), same);
  EXPECT_NE(scalar->fingerprint(), OpenTestEngine(other.path(), {.isa = "scalar"})->fingerprint());
}

TEST_F(EngineTest, GoesByTheHeadGatesBesideTheModel) {
  const PolicySpec duo = {.scorer = "h2o", .budget = 400, .allocation = Allocation::kDuo};
  EXPECT_THAT(Resolve(duo, LimitsOf(engine_->config())),
              IsRefusal(absl::StatusCode::kFailedPrecondition, "HEAD_GATES_MISSING", "policy.duo"));
  const std::string path = HeadGatesPath(file_.path());
  const auto lanes = static_cast<size_t>(engine_->config().layers * engine_->config().kv_heads);
  HeadGates gates(lanes, 1);
  gates[1] = 0;
  ASSERT_THAT(WriteHeadGates(path, engine_->config(), "a test", gates), IsOk());
  const auto reopened = OpenTestEngine(file_.path());
  const auto policy = Resolve(duo, LimitsOf(reopened->config()));
  ASSERT_THAT(policy, IsOk());
  EXPECT_EQ(policy->rule(0).budget, 400);
  EXPECT_EQ(policy->rule(1).budget, 64 + 256);

  const TinyModelFile other({.vocab = 300, .seed = 2});
  const auto foreign = Engine::Open({.model_path = other.path(), .head_gates_path = path, .arena_bytes = 1 << 20});
  ASSERT_THAT(foreign, IsOk());
  EXPECT_THAT(Resolve(duo, LimitsOf((*foreign)->config())),
              IsRefusal(absl::StatusCode::kFailedPrecondition, "HEAD_GATES_FOREIGN", "policy.duo"));
  std::ofstream(path) << "{";
  EXPECT_EQ(Engine::Open({.model_path = file_.path(), .arena_bytes = 1 << 20}).status().code(),
            absl::StatusCode::kDataLoss);
  std::remove(path.c_str());
}

TEST(PackPath, IsBesideTheModelOrInAFolder) {
  EXPECT_EQ(PackPath("", "/models/a.gguf"), "");
  EXPECT_EQ(PackPath("beside", "/models/a.b.gguf"), "/models/a.b.packed");
  EXPECT_EQ(PackPath("/var/cache/ebb", "/models/a.gguf"), "/var/cache/ebb/a.packed");
}

TEST(EngineWithPackCache, AnswersBitForBitAsWithout) {
  const TemporaryFolder folder;
  for (const DType type : {DType::kQ8_0, DType::kBf16}) {
    const TinyModelFile file({.type = type});
    const auto logits = [&](const std::string& cache, const std::string& isa, PackReport& report) {
      const auto engine = *Engine::Open(
          {.model_path = file.path(), .threads = 2, .arena_bytes = 8 << 20, .isa = isa, .pack_cache = cache});
      report = engine->packs();
      const auto session = OpenTestSession(*engine, {});
      return Feed(*engine, *session, RandomTokens(1, 50, 261), 16);
    };
    PackReport none, made, used, scalar, moved;
    const std::vector<float> expected = logits("", "", none);
    EXPECT_EQ(none.path, "");
    EXPECT_EQ(logits(folder.path(), "", made), expected);
    EXPECT_TRUE(made.written);
    EXPECT_EQ(logits(folder.path(), "", used), expected);
    EXPECT_EQ(used.read, made.packed);
    EXPECT_EQ(used.packed, 0);
    EXPECT_EQ(logits(folder.path(), "scalar", scalar), expected) << "one layout for all instruction sets";
    EXPECT_EQ(scalar.packed, 0);
    std::filesystem::last_write_time(file.path(),
                                     std::filesystem::last_write_time(file.path()) + std::chrono::hours(1));
    EXPECT_EQ(logits(folder.path(), "", moved), expected);
    EXPECT_THAT(moved.ignored, HasSubstr("the model's file was changed since"));
    EXPECT_TRUE(moved.written);
  }
}

}  // namespace
}  // namespace ebb
