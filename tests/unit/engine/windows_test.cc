// Sessions of models whose layers see the newest tokens alone, and of models that learned their positions.

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/snapshot/session_image.h"
#include "policies/registry.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

constexpr int32_t kWindow = 24;
constexpr int32_t kBudget = 40;
constexpr int32_t kTokens = 130;
constexpr double kRounding = 1e-4;  // slots lie in another order, and compacted positions turn by other angles

// Every layer sees kWindow tokens, or all but the last.
class Windows : public testing::Test {
 protected:
  std::unique_ptr<Session> Open(Engine& engine, PolicySpec spec) {
    spec.kv_type = KvType::kF32;
    const auto policy = Resolve(spec, LimitsOf(engine.config()));
    EXPECT_THAT(policy, IsOk());
    auto session = engine.OpenSession({.policy = *policy, .block_size_max = 16});
    EXPECT_THAT(session, IsOk());
    return *std::move(session);
  }

  TinyModelFile near_file_ = TinyModelFile({.vocab = 300, .window = kWindow});
  TinyModelFile mixed_file_ = TinyModelFile({.layers = 3, .vocab = 300, .window = kWindow, .window_pattern = 3});
  std::vector<int32_t> tokens_ = RandomTokens(1, kTokens, 300);
};

std::vector<int32_t> Newest(int32_t count, int32_t of) {
  std::vector<int32_t> newest(static_cast<size_t>(count));
  std::iota(newest.begin(), newest.end(), of - count);
  return newest;
}

// Whoever scores, a layer with a window loses nothing that it would look at again.
TEST_F(Windows, ForgetNothingThatIsSeenUnderAnyPolicy) {
  const auto engine = OpenTestEngine(near_file_.path());
  const auto unevicted = Open(*engine, {.scorer = "full", .budget = kTokens});
  const std::vector<float> expected = Feed(*engine, *unevicted, tokens_, 10);
  for (const ScorerRow& row : ScorerRegistry()) {
    if (!row.evicts) continue;
    for (const Positions positions : {Positions::kOriginal, Positions::kCompacted}) {
      SCOPED_TRACE(testing::Message() << row.name << (positions == Positions::kOriginal ? "" : ", compacted"));
      PolicySpec spec = {.scorer = std::string(row.name), .budget = 64};
      spec.positions = positions;
      spec.schedule = Schedule::kEveryStep;
      const auto session = Open(*engine, spec);
      EXPECT_LE(LargestDifference(Feed(*engine, *session, tokens_, 10), expected), kRounding);
      EXPECT_EQ(session->cache_length(), kWindow);
      EXPECT_EQ(LiveTokens(*engine, *session, 0, 0), Newest(kWindow, kTokens));
    }
  }
}

TEST_F(Windows, LeaveTheBudgetToLayersWithoutOne) {
  const auto engine = OpenTestEngine(mixed_file_.path());
  for (const std::string scorer : {"h2o", "streaming"}) {
    SCOPED_TRACE(scorer);
    const auto session = Open(*engine, {.scorer = scorer, .budget = kBudget, .sinks = 4, .recent = 8});
    Feed(*engine, *session, tokens_, 7);
    const auto lanes = engine->Describe(*session, {}, {});
    ASSERT_THAT(lanes, IsOk());
    for (const LaneReport& lane : *lanes) {
      EXPECT_EQ(lane.budget, lane.layer == 2 ? kBudget : kWindow);
      EXPECT_EQ(static_cast<int32_t>(lane.tokens.size()), lane.budget);
      if (lane.layer == 2) {
        EXPECT_EQ(LiveTokens(*engine, *session, lane.layer, lane.head).front(), 0) << "a sink";
      }
    }
  }
}

// What is set on a warm cache prunes the layers with a window to it, and reserves what that takes.
TEST_F(Windows, AreKeptByAPolicyThatIsSetLater) {
  const auto engine = OpenTestEngine(mixed_file_.path());
  const auto session = Open(*engine, {.scorer = "full", .budget = 2 * kTokens});
  Feed(*engine, *session, tokens_, 16);
  const auto policy = Resolve({.scorer = "tova", .budget = kBudget, .sinks = 0, .recent = 8, .kv_type = KvType::kF32},
                              LimitsOf(engine->config()));
  ASSERT_THAT(policy, IsOk());
  const auto swap = engine->SetPolicy(*session, *policy);
  ASSERT_THAT(swap, IsOk());
  EXPECT_LT(swap->pages_after, swap->pages_before);
  EXPECT_EQ(LiveTokens(*engine, *session, 0, 1), Newest(kWindow, kTokens));
  EXPECT_EQ(static_cast<int32_t>(LiveTokens(*engine, *session, 2, 1).size()), kBudget);
}

// A draft's later tokens see past what the earlier ones would have evicted, and their windows hide it.
TEST_F(Windows, HideFromADraftWhatDecodingEvicts) {
  constexpr int32_t kDraft = 5;
  const auto engine = OpenTestEngine(near_file_.path());
  const PolicySpec spec = {.scorer = "h2o", .budget = kBudget, .sinks = 0, .recent = 8};
  const auto decoded = Open(*engine, spec), drafted = Open(*engine, spec);
  const size_t prompt = tokens_.size() - kDraft;
  Feed(*engine, *decoded, std::span(tokens_).first(prompt), 16);
  Feed(*engine, *drafted, std::span(tokens_).first(prompt), 16);
  const std::vector<float> expected = Feed(*engine, *decoded, std::span(tokens_).last(kDraft), 1);
  BatchRow row = {
      .session = drafted.get(), .tokens = std::span(tokens_).last(kDraft), .want = Want::kAll, .draft = true};
  ASSERT_THAT(engine->OwnPages(row), IsOk());
  engine->Run({&row, 1});
  EXPECT_LE(LargestDifference(row.logits, expected), kRounding);
  BatchRow verdict = {.session = drafted.get()};
  engine->Accept(verdict, kDraft);
  for (int32_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(LiveTokens(*engine, *drafted, layer, 0), LiveTokens(*engine, *decoded, layer, 0));
  }
}

// What was kept because of windows is kept in a snapshot, and goes on as it would have.
TEST_F(Windows, GoOnFromASnapshot) {
  const auto engine = OpenTestEngine(mixed_file_.path());
  const auto session = Open(*engine, {.scorer = "h2o", .budget = kBudget, .sinks = 4, .recent = 8});
  Feed(*engine, *session, std::span(tokens_).first(100), 16);
  SnapshotWriter writer;
  ASSERT_THAT(engine->Save(*session, writer), IsOk());
  std::string bytes = writer.Finish();
  SealSnapshot(bytes);
  const auto records = ReadSnapshot(std::as_bytes(std::span(bytes)));
  ASSERT_THAT(records, IsOk());
  auto image = ReadSession(*records, engine->image_limits());
  ASSERT_THAT(image, IsOk());
  const auto reopened = engine->Reopen(*image);
  ASSERT_THAT(reopened, IsOk());
  EXPECT_EQ(engine->Digest(**reopened), engine->Digest(*session));
  const std::span<const int32_t> rest = std::span(tokens_).subspan(100);
  EXPECT_EQ(Feed(*engine, **reopened, rest, 3), Feed(*engine, *session, rest, 3));
  EXPECT_EQ(engine->Digest(**reopened), engine->Digest(*session));
}

class LearnedPositions : public Windows {
 protected:
  static constexpr int32_t kPositions = 60;

  SpecLimits Limits(const Engine& engine) const {
    SpecLimits limits = LimitsOf(engine.config());
    limits.learned_positions = kPositions;
    return limits;
  }
};

TEST_F(LearnedPositions, AreOriginalUnlessSomebodyInsists) {
  const auto engine = OpenTestEngine(near_file_.path());
  const auto streaming = Resolve({.budget = 32}, Limits(*engine));
  ASSERT_THAT(streaming, IsOk());
  EXPECT_EQ(streaming->positions, Positions::kOriginal);
  PolicySpec compacted = {.budget = 32};
  compacted.positions = Positions::kCompacted;
  EXPECT_THAT(Resolve(compacted, Limits(*engine)),
              IsRefusal(absl::StatusCode::kFailedPrecondition, "POSITIONS_FIXED", "policy.positions"));
}

TEST_F(LearnedPositions, AreToldByTheModel) {
  const TinyModelFile opt({.architecture = "opt", .kv_heads = 4, .vocab = 300, .context = 64});
  const auto engine = OpenTestEngine(opt.path());
  EXPECT_EQ(LimitsOf(engine->config()).learned_positions, 64);
  const auto session = Open(*engine, {.budget = 32, .sinks = 2});
  const std::vector<float> whole = Feed(*engine, *session, std::span(tokens_).first(20), 10);
  const auto other = Open(*engine, {.budget = 32, .sinks = 2});
  EXPECT_LE(LargestDifference(Feed(*engine, *other, std::span(tokens_).first(20), 3), whole), kRounding);
}

TEST_F(LearnedPositions, EndASessionThatEvicts) {
  const auto engine = OpenTestEngine(near_file_.path());
  const auto policy = Resolve({.budget = 32}, Limits(*engine));
  ASSERT_THAT(policy, IsOk());
  const auto session = engine->OpenSession({.policy = *policy, .block_size_max = 16});
  ASSERT_THAT(session, IsOk());
  Feed(*engine, **session, std::span(tokens_).first(kPositions - 2), 16);
  EXPECT_EQ((*session)->room(), 2);
  EXPECT_THAT((*session)->CanAppend(2), IsOk());
  EXPECT_THAT((*session)->CanAppend(3), IsRefusal(absl::StatusCode::kResourceExhausted, "LENGTH_LIMIT", ""));
}

TEST_F(LearnedPositions, DoNotMoveUnderAnEdit) {
  const auto engine = OpenTestEngine(near_file_.path());
  const auto policy = Resolve({.scorer = "full", .budget = 50}, Limits(*engine));
  ASSERT_THAT(policy, IsOk());
  const auto session = engine->OpenSession({.policy = *policy, .block_size_max = 16});
  ASSERT_THAT(session, IsOk());
  Feed(*engine, **session, std::span(tokens_).first(30), 16);
  const auto plan = [&](EditMode mode, std::vector<int32_t> tokens) {
    return engine->PlanEdit(**session, {.spans = {{.start = 5, .end = 7, .tokens = std::move(tokens)}}, .mode = mode});
  };
  EXPECT_THAT(plan(EditMode::kReposition, {1}),
              IsRefusal(absl::StatusCode::kFailedPrecondition, "POSITIONS_FIXED", "mode"));
  EXPECT_THAT(plan(EditMode::kReposition, {1, 2}), IsOk());
  EXPECT_THAT(plan(EditMode::kRecomputeTail, {1}), IsOk());
}

}  // namespace
}  // namespace ebb
