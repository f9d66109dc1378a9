// Laws of edits on a warm cache (POLICIES 9.4): what an exact one yields is what a fresh session yields, what an
// approximate one keeps is where it says, and what was evicted stays so.

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "policies/hash_random.h"
#include "policies/registry.h"
#include "policies/status.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

constexpr int32_t kEditBlock = 12;
constexpr int32_t kRoomy = 400;  // a budget that nobody here fills

std::vector<int32_t> Spliced(std::span<const int32_t> log, const std::vector<EditSpan>& spans) {
  std::vector<int32_t> edited(log.begin(), log.end());
  for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
    edited.erase(edited.begin() + span->start, edited.begin() + span->end);
    edited.insert(edited.begin() + span->start, span->tokens.begin(), span->tokens.end());
  }
  return edited;
}

std::vector<int32_t> LogOf(const Session& session) { return {session.log().begin(), session.log().end()}; }

class EditLaws : public testing::Test {
 protected:
  explicit EditLaws(const TinyModel& model = {}) : file_(model) {}

  EditPlan Planned(const Session& session, const EditRequest& request) const {
    auto plan = engine_->PlanEdit(session, request);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }

  // The whole edit, in blocks; the logits of the log's last token.
  std::vector<float> Edit(Session& session, const EditRequest& request, int32_t block = kEditBlock) {
    const EditPlan plan = Planned(session, request);
    engine_->BeginEdit(session, plan);
    std::vector<float> logits = RunSome(session, plan, static_cast<int32_t>(plan.work.size()), block);
    EXPECT_EQ(session.edit_left(), 0);
    EXPECT_EQ(LogOf(session), plan.log);
    return logits;
  }

  std::vector<float> RunSome(Session& session, const EditPlan& plan, int32_t count, int32_t block) {
    const std::vector<int32_t> tokens = plan.WorkTokens();
    std::vector<float> logits;
    for (int32_t done = 0; done < count; done += block) {
      const int32_t size = std::min(block, count - done);
      BatchRow row = {.session = &session, .tokens = std::span(tokens).subspan(done, size), .want = Want::kLast};
      engine_->Run({&row, 1});
      logits.assign(row.logits.begin(), row.logits.end());
    }
    return logits;
  }

  std::vector<LaneReport> Lanes(const Session& session) const {
    return *engine_->Describe(session, std::nullopt, std::nullopt);
  }

  // The same tokens in the same slots at the same positions.
  void ExpectSameSeats(const Session& session, const Session& other) const {
    const std::vector<LaneReport> lanes = Lanes(session), others = Lanes(other);
    ASSERT_EQ(lanes.size(), others.size());
    for (size_t i = 0; i < lanes.size(); ++i) {
      ASSERT_EQ(lanes[i].tokens, others[i].tokens) << "lane " << i;
      ASSERT_EQ(lanes[i].slots, others[i].slots) << "lane " << i;
      ASSERT_EQ(lanes[i].positions, others[i].positions) << "lane " << i;
    }
  }

  // Positions rise with tokens, in every lane.
  void ExpectOrdered(const Session& session) const {
    for (const LaneReport& lane : Lanes(session)) {
      std::map<int32_t, int32_t> position;
      for (size_t i = 0; i < lane.tokens.size(); ++i) position[lane.tokens[i]] = lane.positions[i];
      ASSERT_EQ(position.size(), lane.tokens.size());
      int32_t before = -1;
      for (const auto& [token, at] : position) {
        ASSERT_GT(at, before) << "token " << token;
        before = at;
      }
    }
  }

  // Up to `most` spans, ascending and apart, of a log of `length`.
  std::vector<EditSpan> RandomSpans(HashRandom& random, int32_t length, int32_t most) const {
    std::vector<EditSpan> spans;
    int32_t at = random.Uniform(0, length - 1);
    const int32_t count = random.Uniform(1, most);
    while (static_cast<int32_t>(spans.size()) < count && at < length) {
      EditSpan span = {.start = at, .end = std::min(length, at + random.Uniform(0, 9))};
      const int32_t inserted = random.Uniform(span.start == span.end ? 1 : 0, 9);
      for (int32_t i = 0; i < inserted; ++i) span.tokens.push_back(random.Uniform(0, vocab_ - 1));
      at = span.end + random.Uniform(1, 20);
      spans.push_back(std::move(span));
    }
    return spans;
  }

  std::unique_ptr<Session> Open(const std::string& scorer, int32_t budget,
                                std::optional<Positions> positions = std::nullopt) {
    PolicySpec spec = {.scorer = scorer, .budget = budget};
    if (positions) spec.positions = *positions;
    return OpenTestSession(*engine_, spec, kEditBlock);
  }

  std::string Reason(Session& session, const EditRequest& request) const {
    return GetRefusal(engine_->PlanEdit(session, request).status()).reason;
  }

  TinyModelFile file_;
  std::unique_ptr<Engine> engine_ = OpenTestEngine(file_.path(), {.threads = 2});
  int32_t vocab_ = engine_->config().vocab;
};

// EXACT means bits: logits, seats, and the tokens that follow.
TEST_F(EditLaws, ARecomputedTailIsAFreshSessionWhereNobodyWasEvicted) {
  for (const ScorerRow& row : ScorerRegistry()) {
    for (const Positions positions : {Positions::kOriginal, Positions::kCompacted}) {
      SCOPED_TRACE(std::string(row.name) + (positions == Positions::kOriginal ? " original" : " compacted"));
      PolicySpec spec = {.scorer = std::string(row.name), .budget = kRoomy, .schedule = Schedule::kEveryStep};
      spec.positions = positions;
      if (!Resolve(spec, LimitsOf(engine_->config())).ok()) continue;
      const auto edited = OpenTestSession(*engine_, spec, kEditBlock);
      Feed(*engine_, *edited, RandomTokens(1, 70, vocab_), kEditBlock);
      HashRandom random(2);
      for (int32_t round = 0; round < 6; ++round) {
        SCOPED_TRACE(round);
        const std::vector<EditSpan> spans = RandomSpans(random, static_cast<int32_t>(edited->log().size()), 3);
        const std::vector<int32_t> log = Spliced(edited->log(), spans);
        const EditPlan plan = Planned(*edited, {.spans = spans});
        EXPECT_EQ(plan.exactness, EditExactness::kExact);
        EXPECT_EQ(plan.reused + static_cast<int32_t>(plan.work.size()), static_cast<int32_t>(log.size()));
        std::vector<float> logits = Edit(*edited, {.spans = spans}, round % 2 == 0 ? kEditBlock : 5);
        ASSERT_EQ(LogOf(*edited), log);
        const auto fresh = OpenTestSession(*engine_, spec, kEditBlock);
        std::vector<float> expected = Feed(*engine_, *fresh, log, kEditBlock);
        expected.erase(expected.begin(), expected.end() - vocab_);
        ASSERT_EQ(LargestDifference(logits, expected), 0);
        ExpectSameSeats(*edited, *fresh);
        ASSERT_EQ(Greedy(*engine_, *edited, logits, 5), Greedy(*engine_, *fresh, expected, 5));
      }
    }
  }
}

TEST_F(EditLaws, AtTheEndItIsWhatPrefillWouldHaveDone) {
  const auto edited = Open("streaming", 40), prefilled = Open("streaming", 40);
  const std::vector<int32_t> prompt = RandomTokens(3, 90, vocab_), more = RandomTokens(4, 8, vocab_);
  Feed(*engine_, *edited, prompt, kEditBlock);
  Feed(*engine_, *prefilled, prompt, kEditBlock);
  Edit(*edited, {.spans = {{.start = 90, .end = 90, .tokens = more}}});
  Feed(*engine_, *prefilled, more, kEditBlock);
  EXPECT_EQ(engine_->Digest(*edited), engine_->Digest(*prefilled));
}

TEST_F(EditLaws, DeletingTheEndRunsTheLastTokenThatStays) {
  const auto edited = Open("full", kRoomy), fresh = Open("full", kRoomy);
  const std::vector<int32_t> prompt = RandomTokens(5, 60, vocab_);
  Feed(*engine_, *edited, prompt, kEditBlock);
  const EditRequest request = {.spans = {{.start = 40, .end = 60}}};
  EXPECT_THAT(Planned(*edited, request).work, testing::ElementsAre(39));
  const std::vector<float> logits = Edit(*edited, request);
  const std::vector<float> expected = Feed(*engine_, *fresh, std::span(prompt).first(40), kEditBlock);
  const std::vector<float> last(expected.end() - vocab_, expected.end());
  EXPECT_EQ(LargestDifference(logits, last), 0);
  ExpectSameSeats(*edited, *fresh);
  EXPECT_EQ(Greedy(*engine_, *edited, logits, 8), Greedy(*engine_, *fresh, last, 8));
}

TEST_F(EditLaws, TwoEditsAreTheirComposition) {
  const std::vector<int32_t> prompt = RandomTokens(6, 64, vocab_);
  const std::vector<int32_t> a = RandomTokens(7, 5, vocab_), b = RandomTokens(8, 2, vocab_);
  for (const EditMode mode : {EditMode::kRecomputeTail, EditMode::kReposition}) {
    for (const Positions positions : {Positions::kOriginal, Positions::kCompacted}) {
      const auto twice = Open("streaming", kRoomy, positions), once = Open("streaming", kRoomy, positions);
      Feed(*engine_, *twice, prompt, kEditBlock);
      Feed(*engine_, *once, prompt, kEditBlock);
      Edit(*twice, {.spans = {{.start = 20, .end = 23, .tokens = a}}, .mode = mode});
      Edit(*twice, {.spans = {{.start = 42, .end = 48, .tokens = b}}, .mode = mode});
      Edit(*once,
           {.spans = {{.start = 20, .end = 23, .tokens = a}, {.start = 40, .end = 46, .tokens = b}}, .mode = mode});
      EXPECT_EQ(LogOf(*twice), LogOf(*once));
      const std::vector<LaneReport> lanes = Lanes(*twice), others = Lanes(*once);
      for (size_t i = 0; i < lanes.size(); ++i) {
        std::set<std::pair<int32_t, int32_t>> seats, expected;
        for (size_t k = 0; k < lanes[i].tokens.size(); ++k) seats.emplace(lanes[i].tokens[k], lanes[i].positions[k]);
        for (size_t k = 0; k < others[i].tokens.size(); ++k)
          expected.emplace(others[i].tokens[k], others[i].positions[k]);
        EXPECT_EQ(seats, expected);
      }
    }
  }
}

// Under every policy that evicts, tail or in place: who comes in was inserted; all others were there before.
TEST_F(EditLaws, WhatWasEvictedStaysEvictedAndBudgetsHold) {
  for (const ScorerRow& row : ScorerRegistry()) {
    if (!row.evicts) continue;
    for (const EditMode mode : {EditMode::kRecomputeTail, EditMode::kReposition, EditMode::kRecomputeSpan}) {
      SCOPED_TRACE(std::string(row.name) + " mode " + std::to_string(static_cast<int>(mode)));
      const PolicySpec spec = {.scorer = std::string(row.name), .budget = 44, .schedule = Schedule::kEveryStep};
      if (!Resolve(spec, LimitsOf(engine_->config())).ok()) continue;
      const auto session = OpenTestSession(*engine_, spec, kEditBlock);
      Feed(*engine_, *session, RandomTokens(9, 100, vocab_), kEditBlock);
      HashRandom random(10);
      for (int32_t round = 0; round < 8; ++round) {
        const EditRequest request = {
            .spans = RandomSpans(random, static_cast<int32_t>(session->log().size()), 3), .mode = mode, .window = 7};
        const EditPlan plan = Planned(*session, request);
        const std::vector<LaneReport> before = Lanes(*session);
        std::vector<float> logits = Edit(*session, request);
        const std::vector<LaneReport> after = Lanes(*session);
        for (size_t lane = 0; lane < after.size(); ++lane) {
          const std::set<int32_t> lived(before[lane].tokens.begin(), before[lane].tokens.end());
          ASSERT_LE(after[lane].tokens.size(), 44U);
          for (const int32_t token : after[lane].tokens) {
            const int32_t former = plan.former[token];
            ASSERT_TRUE(former < 0 || lived.contains(former)) << "token " << token << " of lane " << lane;
          }
        }
        ExpectOrdered(*session);
        Greedy(*engine_, *session, logits, 3);  // and it goes on
      }
    }
  }
}

// The words of EVICTED: the tail is what a prompt would be behind what the cache holds of the tokens before it.
TEST_F(EditLaws, ATailBehindEvictedTokensSeesWhatTheCacheHolds) {
  const std::vector<int32_t> prompt = RandomTokens(11, 70, vocab_), inserted = RandomTokens(12, 4, vocab_);
  const auto edited = Open("full", kRoomy), oracle = Open("full", kRoomy);
  Feed(*engine_, *edited, prompt, kEditBlock);
  ASSERT_TRUE(engine_->Evict(*edited, {.range = EvictRequest::Range{.start = 5, .end = 17}}).ok());
  const EditRequest request = {.spans = {{.start = 40, .end = 43, .tokens = inserted}}};
  EXPECT_EQ(Planned(*edited, request).exactness, EditExactness::kEvicted);
  const std::vector<float> logits = Edit(*edited, request);

  Feed(*engine_, *oracle, std::span(prompt).first(40), kEditBlock);
  ASSERT_TRUE(engine_->Evict(*oracle, {.range = EvictRequest::Range{.start = 5, .end = 17}}).ok());
  std::vector<int32_t> tail = inserted;
  tail.insert(tail.end(), prompt.begin() + 43, prompt.end());
  const std::vector<float> expected = Feed(*engine_, *oracle, tail, kEditBlock);
  // Other slots, so another order of sums.
  EXPECT_LT(LargestDifference(logits, {expected.end() - vocab_, expected.end()}), 1e-4);
}

TEST_F(EditLaws, ARestoredSessionIsAFreshOneUnderEveryPolicy) {
  for (const ScorerRow& row : ScorerRegistry()) {
    SCOPED_TRACE(row.name);
    const PolicySpec spec = {
        .scorer = std::string(row.name), .budget = row.evicts ? 44 : kRoomy, .schedule = Schedule::kEveryStep};
    if (!Resolve(spec, LimitsOf(engine_->config())).ok()) continue;
    const auto edited = OpenTestSession(*engine_, spec, kEditBlock),
               fresh = OpenTestSession(*engine_, spec, kEditBlock);
    Feed(*engine_, *edited, RandomTokens(13, 100, vocab_), kEditBlock);
    HashRandom random(14);
    const EditRequest request = {.spans = RandomSpans(random, 100, 3), .restore = true};
    EXPECT_EQ(Planned(*edited, request).exactness, EditExactness::kExact);
    EXPECT_EQ(Planned(*edited, request).reused, 0);
    const std::vector<int32_t> log = Spliced(edited->log(), request.spans);
    const std::vector<float> logits = Edit(*edited, request);
    const std::vector<float> all = Feed(*engine_, *fresh, log, kEditBlock);
    const std::vector<float> expected(all.end() - vocab_, all.end());
    ASSERT_EQ(LargestDifference(logits, expected), 0);
    // The policy's states are as fresh: it goes on evicting the same tokens.
    ASSERT_EQ(Greedy(*engine_, *edited, logits, 40), Greedy(*engine_, *fresh, expected, 40));
    ExpectSameSeats(*edited, *fresh);
  }
}

TEST_F(EditLaws, AbandonedItEndsBehindWhatWasRun) {
  const std::vector<int32_t> prompt = RandomTokens(15, 80, vocab_), inserted = RandomTokens(16, 20, vocab_);
  for (const EditMode mode : {EditMode::kRecomputeTail, EditMode::kReposition}) {
    const auto edited = Open("full", kRoomy), fresh = Open("full", kRoomy);
    Feed(*engine_, *edited, prompt, kEditBlock);
    const EditPlan plan = Planned(*edited, {.spans = {{.start = 30, .end = 35, .tokens = inserted}}, .mode = mode});
    engine_->BeginEdit(*edited, plan);
    EXPECT_EQ(GetRefusal(edited->CanAppend(1)).reason, "EDIT_PENDING");
    EXPECT_EQ(GetRefusal(engine_->Evict(*edited, {.keep = 40}).status()).reason, "EDIT_PENDING");
    const std::vector<float> logits = RunSome(*edited, plan, kEditBlock, kEditBlock);
    engine_->AbandonEdit(*edited);
    EXPECT_EQ(edited->edit_left(), 0);
    const std::vector<int32_t> log(plan.log.begin(), plan.log.begin() + 30 + kEditBlock);
    EXPECT_EQ(LogOf(*edited), log);
    EXPECT_EQ(edited->cache_length(), 30 + kEditBlock);
    const std::vector<float> all = Feed(*engine_, *fresh, log, kEditBlock);
    const std::vector<float> expected(all.end() - vocab_, all.end());
    EXPECT_LT(LargestDifference(logits, expected), mode == EditMode::kRecomputeTail ? 1e-30 : 1e-4);
    EXPECT_EQ(Greedy(*engine_, *edited, logits, 8), Greedy(*engine_, *fresh, expected, 8));
  }
}

// Nothing behind the edit has a hidden state to be stale: layer 0 sees embeddings alone.
class OneLayerEditLaws : public EditLaws {
 protected:
  OneLayerEditLaws() : EditLaws({.layers = 1}) {}
};

TEST_F(OneLayerEditLaws, RepositioningIsExact) {
  for (const Positions positions : {Positions::kOriginal, Positions::kCompacted}) {
    const auto edited = Open("streaming", kRoomy, positions);
    Feed(*engine_, *edited, RandomTokens(17, 70, vocab_), kEditBlock);
    HashRandom random(18);
    for (int32_t round = 0; round < 12; ++round) {
      const std::vector<EditSpan> spans = RandomSpans(random, static_cast<int32_t>(edited->log().size()), 3);
      const std::vector<int32_t> log = Spliced(edited->log(), spans);
      const std::vector<float> logits = Edit(*edited, {.spans = spans, .mode = EditMode::kReposition});
      const auto fresh = Open("streaming", kRoomy, positions);
      const std::vector<float> expected = Feed(*engine_, *fresh, log, kEditBlock);
      ASSERT_LT(LargestDifference(logits, {expected.end() - vocab_, expected.end()}), 1e-4) << "round " << round;
      ExpectOrdered(*edited);
    }
  }
}

TEST_F(EditLaws, RepositioningRunsNewTokensAndTheLastAndSaysWhatIsStale) {
  const auto session = Open("full", kRoomy, Positions::kOriginal);
  Feed(*engine_, *session, RandomTokens(19, 60, vocab_), kEditBlock);
  const EditRequest request = {.spans = {{.start = 10, .end = 12, .tokens = {1, 2, 3}}}, .mode = EditMode::kReposition};
  const EditPlan plan = Planned(*session, request);
  EXPECT_THAT(plan.work, testing::ElementsAre(10, 11, 12, 60));
  EXPECT_EQ(plan.exactness, EditExactness::kStale);
  EXPECT_EQ(plan.reused, 57);
  EXPECT_EQ(plan.stale, 47);
  Edit(*session, request);
  for (const LaneReport& lane : Lanes(*session)) {
    EXPECT_EQ(lane.tokens.size(), 61U);
    EXPECT_EQ(lane.tokens, lane.positions);  // original positions are indices, also of what moved
  }
  // As many for as many: nobody moves.
  const std::vector<LaneReport> before = Lanes(*session);
  Edit(*session, {.spans = {{.start = 20, .end = 22, .tokens = {5, 6}}}, .mode = EditMode::kReposition});
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(Lanes(*session)[i].tokens, before[i].tokens);
  // An exact edit before all of it makes it right again; one behind it does not.
  EXPECT_EQ(Planned(*session, {.spans = {{.start = 50, .end = 51}}}).exactness, EditExactness::kStale);
  EXPECT_EQ(Planned(*session, {.spans = {{.start = 10, .end = 11}}}).exactness, EditExactness::kExact);
}

TEST_F(EditLaws, AWindowThatReachesTheEndIsExactButForRounding) {
  for (const Positions positions : {Positions::kOriginal, Positions::kCompacted}) {
    const auto edited = Open("streaming", kRoomy, positions);
    Feed(*engine_, *edited, RandomTokens(20, 64, vocab_), kEditBlock);
    HashRandom random(21);
    for (int32_t round = 0; round < 8; ++round) {
      const std::vector<EditSpan> spans = RandomSpans(random, static_cast<int32_t>(edited->log().size()), 3);
      const EditRequest request = {.spans = spans, .mode = EditMode::kRecomputeSpan, .window = 1000};
      const std::vector<int32_t> log = Spliced(edited->log(), spans);
      EXPECT_EQ(Planned(*edited, request).exactness, EditExactness::kExact);
      const std::vector<float> logits = Edit(*edited, request);
      const auto fresh = Open("streaming", kRoomy, positions);
      const std::vector<float> expected = Feed(*engine_, *fresh, log, kEditBlock);
      ASSERT_LT(LargestDifference(logits, {expected.end() - vocab_, expected.end()}), 1e-4) << "round " << round;
    }
  }
}

TEST_F(EditLaws, ASpanIsBoundedWork) {
  const auto session = Open("full", kRoomy);
  Feed(*engine_, *session, RandomTokens(22, 100, vocab_), kEditBlock);
  const EditRequest request = {.spans = {{.start = 10, .end = 11, .tokens = {1}}, {.start = 50, .end = 52}},
                               .mode = EditMode::kRecomputeSpan,
                               .window = 4};
  EXPECT_THAT(Planned(*session, request).work, testing::ElementsAre(10, 11, 12, 13, 14, 50, 51, 52, 53, 97));
}

TEST_F(EditLaws, ARefusedEditSaysWhyAndChangesNothing) {
  const auto session = Open("full", 70), empty = Open("full", 70);
  Feed(*engine_, *session, RandomTokens(23, 60, vocab_), kEditBlock);
  const uint64_t before = engine_->Digest(*session);
  EXPECT_EQ(Reason(*empty, {.spans = {{.start = 0, .end = 0, .tokens = {1}}}}), "EMPTY_SESSION");
  EXPECT_EQ(Reason(*session, {}), "EDIT_EMPTY");
  EXPECT_EQ(Reason(*session, {.spans = {{.start = 4, .end = 4}}}), "EDIT_EMPTY");
  EXPECT_EQ(Reason(*session, {.spans = {{.start = 4, .end = 3}}}), "OUT_OF_RANGE");
  EXPECT_EQ(Reason(*session, {.spans = {{.start = 4, .end = 61}}}), "OUT_OF_RANGE");
  EXPECT_EQ(Reason(*session, {.spans = {{.start = 4, .end = 6}, {.start = 5, .end = 7}}}), "SPANS_OVERLAP");
  EXPECT_EQ(Reason(*session, {.spans = {{.start = 0, .end = 60}}}), "NOTHING_WOULD_STAY");
  EXPECT_EQ(Reason(*session, {.spans = {{.start = 4, .end = 5}}, .mode = EditMode::kReposition, .restore = true}),
            "RESTORE_NEEDS_TAIL");
  EXPECT_EQ(Reason(*session, {.spans = {{.start = 4, .end = 5, .tokens = RandomTokens(1, 12, vocab_)}}}),
            "LENGTH_LIMIT");
  EXPECT_EQ(Reason(*session, {.spans = {{.start = 4, .end = 5, .tokens = RandomTokens(1, 11, vocab_)}}}), "");
  BatchRow row = {.session = session.get(), .tokens = std::span(session->log()).first(3), .draft = true};
  const std::vector<int32_t> draft(row.tokens.begin(), row.tokens.end());
  row.tokens = draft;
  engine_->Run({&row, 1});
  EXPECT_EQ(Reason(*session, {.spans = {{.start = 4, .end = 5}}}), "DRAFT_PENDING");
  EXPECT_EQ(engine_->Digest(*session), before);
}

}  // namespace
}  // namespace ebb
