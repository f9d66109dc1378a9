// One step at a time, by hand: what a call gets, and how many steps it still runs after it was told to stop.

#include "server/dispatcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "policies/registry.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/server/test_calls.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr CallId kA = 1;
constexpr CallId kB = 2;

class DispatcherTest : public testing::Test {
 protected:
  explicit DispatcherTest(const DispatcherOptions& options = {}) : dispatcher_(*engine_, options, metrics_) {}
  ~DispatcherTest() override {
    dispatcher_.Drain(absl::InfinitePast());
    while (!dispatcher_.idle()) Turn();
  }

  // What the worker does between two looks into its mailbox.
  void Turn() {
    dispatcher_.Settle();
    dispatcher_.Work();
    if (dispatcher_.has_step()) dispatcher_.RunStep();
  }
  void RunToEnd() {
    while (!dispatcher_.idle()) Turn();
  }

  // A call lives until the dispatcher is empty.
  RecordedCall& NewCall(RecordedCall::Reading reading = {}) { return calls_.emplace_back(std::move(reading)); }
  void Open(const std::string& id) { ASSERT_THAT(dispatcher_.Create(OpenRequest(id)), IsOk()); }
  // Opens a session and starts an endless answer in it, which has `tokens` tokens when this returns.
  void Answer(CallId id, const std::string& session, RecordedCall& call, size_t tokens) {
    Open(session);
    dispatcher_.Start(id, AnswerRequest(session, 20, kEndless), call);
    while (call.tokens().size() < tokens) Turn();
  }
  // The first tokens of that answer when nobody disturbs it.
  std::vector<int32_t> Undisturbed(int32_t tokens) {
    Open("undisturbed");
    RecordedCall call;
    dispatcher_.Start(99, AnswerRequest("undisturbed", 20, tokens), call);
    RunToEnd();
    return call.tokens();
  }

  // Another policy, of which `outcome` is told when it is in force, or why it is not.
  using PolicyAnswer = std::optional<absl::StatusOr<PolicyOutcome>>;
  void Order(
      const std::string& session, const PolicySpec& spec, PolicyAnswer& outcome,
      std::function<bool()> is_gone = [] { return false; }) {
    dispatcher_.SetPolicy("default", session, std::nullopt, {.policy = TestPolicy(spec)},
                          {.answer = [&outcome](absl::StatusOr<PolicyOutcome> answer) { outcome = std::move(answer); },
                           .is_gone = std::move(is_gone)});
  }
  // The same in one go.
  absl::StatusOr<PolicyOutcome> SetPolicy(const std::string& session, const PolicySpec& spec) {
    PolicyAnswer outcome;
    Order(session, spec, outcome);
    while (!outcome) dispatcher_.Work();
    return *std::move(outcome);
  }

  int64_t steps() const { return dispatcher_.Totals().steps; }
  int64_t log_length(const std::string& session) { return dispatcher_.Get("default", session)->tokens; }
  int64_t pages_reserved() const { return dispatcher_.Totals().load.pages_reserved; }

  TinyModelFile file_ = TinyModelFile(TinyModel{});
  std::unique_ptr<Engine> engine_ = OpenTestEngine(file_.path());
  Metrics metrics_ = Metrics({});
  std::deque<RecordedCall> calls_;
  Dispatcher dispatcher_;
};

class OneRowDispatcherTest : public DispatcherTest {
 protected:
  OneRowDispatcherTest() : DispatcherTest({.step_rows_max = 1}) {}
};

class ImpatientDispatcherTest : public DispatcherTest {
 protected:
  ImpatientDispatcherTest() : DispatcherTest({.reader_patience = absl::ZeroDuration()}) {}
};

// A piece of work before each step is one lane for each thread, whatever the clock says.
class PieceByPieceTest : public DispatcherTest {
 protected:
  PieceByPieceTest() : DispatcherTest({.work_share = 0}) {}
};

TEST_F(DispatcherTest, ACallIsItsBlocksThenItsTokensThenOneEnd) {
  Open("a");
  RecordedCall& call = NewCall();
  dispatcher_.Start(kA, AnswerRequest("a", 40, 5), call);
  RunToEnd();
  EXPECT_THAT(call.blocks(), ElementsAre(16, 32, 40));
  EXPECT_THAT(call.tokens(), SizeIs(5));
  EXPECT_THAT(call.end().status, IsOk());
  EXPECT_EQ(call.end().finish, FinishReason::kMaxTokens);
  EXPECT_EQ(call.end().usage.session_tokens, 45);
  EXPECT_EQ(steps(), 3 + 5);
}

// A cancelled call frees its work within one step: the four places where a cancel may find it.

TEST_F(DispatcherTest, ACancelBetweenTwoStepsRunsNoFurtherStep) {
  RecordedCall& call = NewCall();
  Answer(kA, "a", call, 5);
  const int64_t before = steps();
  dispatcher_.Cancel(kA);
  Turn();
  ASSERT_TRUE(call.ended());
  EXPECT_THAT(call.end().status, IsRefusal(absl::StatusCode::kCancelled, "CALL_CANCELLED", ""));
  EXPECT_EQ(steps(), before);
  EXPECT_THAT(call.tokens(), SizeIs(5));
  EXPECT_EQ(log_length("a"), 20 + 5);
}

TEST_F(DispatcherTest, ACancelOfAPlannedStepRunsThatStepAndNoOther) {
  RecordedCall& call = NewCall();
  Answer(kA, "a", call, 5);
  const int64_t before = steps();
  dispatcher_.Settle();
  ASSERT_TRUE(dispatcher_.has_step());
  dispatcher_.Cancel(kA);
  dispatcher_.RunStep();
  EXPECT_FALSE(call.ended());
  Turn();
  ASSERT_TRUE(call.ended());
  EXPECT_THAT(call.end().status, IsRefusal(absl::StatusCode::kCancelled, "CALL_CANCELLED", ""));
  EXPECT_EQ(steps(), before + 1);
  EXPECT_THAT(call.tokens(), SizeIs(6)) << "the token of the step that ran is sent";
  EXPECT_EQ(log_length("a"), 20 + 6) << "and in the log";
}

TEST_F(DispatcherTest, ACancelInsideAPromptRunsNoFurtherBlock) {
  Open("a");
  RecordedCall& call = NewCall();
  dispatcher_.Start(kA, AnswerRequest("a", 100, 10), call);
  while (call.blocks().size() < 2) Turn();
  dispatcher_.Cancel(kA);
  Turn();
  ASSERT_TRUE(call.ended());
  EXPECT_EQ(steps(), 2);
  EXPECT_EQ(log_length("a"), 2 * kTestBlock);
}

TEST_F(OneRowDispatcherTest, ACancelOfACallThatWaitsEndsItAtOnce) {
  RecordedCall &a = NewCall(), &b = NewCall();
  Answer(kA, "a", a, 2);
  Open("b");
  dispatcher_.Start(kB, AnswerRequest("b", 20, 10), b);
  dispatcher_.Cancel(kB);
  EXPECT_TRUE(b.ended());
  EXPECT_THAT(b.blocks(), IsEmpty());
  EXPECT_EQ(log_length("b"), 0);
  EXPECT_EQ(dispatcher_.Totals().load.requests, 1);
}

TEST_F(DispatcherTest, ACancelledCallLeavesTheStepToTheOthers) {
  RecordedCall &a = NewCall(), &b = NewCall();
  Answer(kA, "a", a, 3);
  Answer(kB, "b", b, 3);
  dispatcher_.Cancel(kB);
  const size_t a_before = a.tokens().size();
  const int64_t before = steps();
  const int64_t tokens_before = dispatcher_.Totals().completion_tokens;
  for (int turn = 0; turn < 10; ++turn) Turn();
  EXPECT_TRUE(b.ended());
  EXPECT_THAT(b.tokens(), SizeIs(3));
  EXPECT_THAT(a.tokens(), SizeIs(a_before + 10));
  EXPECT_EQ(steps(), before + 10);
  EXPECT_EQ(dispatcher_.Totals().completion_tokens, tokens_before + 10) << "every row was a's";
}

TEST_F(DispatcherTest, ACancelledSessionGoesOnAsIfNothingHadHappened) {
  RecordedCall &first = NewCall(), &second = NewCall();
  Answer(kA, "a", first, 5);
  dispatcher_.Cancel(kA);
  RunToEnd();
  dispatcher_.Start(kB, AnswerRequest("a", 0, 10), second);
  RunToEnd();
  std::vector<int32_t> tokens = first.tokens();
  tokens.insert(tokens.end(), second.tokens().begin(), second.tokens().end());
  EXPECT_THAT(tokens, ElementsAreArray(Undisturbed(15)));
}

TEST_F(DispatcherTest, ACancelOfWhatIsOverOrNeverWasIsNoNews) {
  Open("a");
  RecordedCall& call = NewCall();
  dispatcher_.Start(kA, AnswerRequest("a", 20, 3), call);
  RunToEnd();
  dispatcher_.Cancel(kA);
  dispatcher_.Cancel(77);
  dispatcher_.ReaderReady(kA);
  EXPECT_TRUE(dispatcher_.idle());
  EXPECT_THAT(call.end().status, IsOk());
}

TEST_F(DispatcherTest, ACancelledThrowAwaySessionGivesItsPagesBack) {
  RecordedCall& call = NewCall();
  CallRequest request = AnswerRequest("", 20, kEndless);
  request.open = OpenRequest("nameless");
  dispatcher_.Start(kA, request, call);
  while (call.tokens().size() < 3) Turn();
  EXPECT_GT(pages_reserved(), 0);
  dispatcher_.Cancel(kA);
  Turn();
  EXPECT_TRUE(call.ended());
  EXPECT_EQ(pages_reserved(), 0);
  EXPECT_EQ(dispatcher_.Totals().used_bytes, 0);
}

// What a request takes from the session it names, its block size above all, must not reach the next of that name.
TEST_F(DispatcherTest, ACallMadeForASessionIsNotTakenByTheNextOfItsName) {
  Open("a");
  CallRequest request = AnswerRequest("a", 40, 5);
  request.made_for = dispatcher_.Look("default", "a")->id;
  request.block_size = kTestBlock;
  ASSERT_THAT(dispatcher_.Delete("default", "a", {}), IsOk());
  SessionRequest smaller = OpenRequest("a");
  smaller.block_size = kTestBlock / 2;
  ASSERT_THAT(dispatcher_.Create(smaller), IsOk());
  RecordedCall& call = NewCall();
  dispatcher_.Start(kA, request, call);
  ASSERT_TRUE(call.ended());
  EXPECT_THAT(call.end().status, IsRefusal(absl::StatusCode::kAborted, "SESSION_BUSY", ""));
  EXPECT_EQ(log_length("a"), 0);
}

TEST_F(DispatcherTest, ADeletedSessionIsGoneAtOnceAndFreeAfterItsStep) {
  RecordedCall& call = NewCall();
  Answer(kA, "a", call, 3);
  dispatcher_.Settle();
  const int64_t before = steps();
  ASSERT_THAT(dispatcher_.Delete("default", "a", {}), IsOk());
  EXPECT_THAT(dispatcher_.Get("default", "a"), IsRefusal(absl::StatusCode::kNotFound, "UNKNOWN_SESSION", ""));
  EXPECT_GT(pages_reserved(), 0) << "the step that is planned still needs them";
  dispatcher_.RunStep();
  Turn();
  EXPECT_THAT(call.end().status, IsRefusal(absl::StatusCode::kCancelled, "SESSION_DELETED", ""));
  EXPECT_EQ(pages_reserved(), 0);
  EXPECT_EQ(steps(), before + 1);
}

TEST_F(DispatcherTest, ASessionDeletedAfterItsLastStepLeavesItsNameToTheNext) {
  Open("a");
  RecordedCall& call = NewCall();
  dispatcher_.Start(kA, AnswerRequest("a", 20, 5), call);
  while (call.tokens().size() < 5) Turn();
  ASSERT_FALSE(call.ended()) << "the step is not closed yet";
  ASSERT_THAT(dispatcher_.Delete("default", "a", {}), IsOk());
  Open("a");
  const SessionId next = dispatcher_.Look("default", "a")->id;
  Turn();
  EXPECT_TRUE(call.ended());
  EXPECT_EQ(dispatcher_.Look("default", "a")->id, next);
}

TEST_F(DispatcherTest, AFullReaderIsNotSteppedUntilItIsReady) {
  RecordedCall& slow =
      NewCall([](const RecordedCall& call) { return call.tokens().size() == 4 ? Reader::kFull : Reader::kReady; });
  RecordedCall& other = NewCall();
  Answer(kA, "a", slow, 4);
  Answer(kB, "b", other, 50);
  EXPECT_THAT(slow.tokens(), SizeIs(4));
  dispatcher_.ReaderReady(kA);
  while (slow.tokens().size() < 15) Turn();
  EXPECT_GE(other.tokens().size(), 50U + 10U) << "the other one went on meanwhile";
  const std::vector<int32_t> tokens = slow.tokens();
  dispatcher_.Cancel(kA);
  dispatcher_.Cancel(kB);
  RunToEnd();
  EXPECT_THAT(tokens, ElementsAreArray(Undisturbed(15)));
}

TEST_F(ImpatientDispatcherTest, AReaderThatStaysFullLosesItsStreamAndNoToken) {
  RecordedCall& slow =
      NewCall([](const RecordedCall& call) { return call.tokens().size() == 4 ? Reader::kFull : Reader::kReady; });
  Answer(kA, "a", slow, 4);
  Turn();
  ASSERT_TRUE(slow.ended());
  EXPECT_THAT(slow.end().status, IsRefusal(absl::StatusCode::kResourceExhausted, "SLOW_READER", ""));
  EXPECT_EQ(log_length("a"), 20 + 4);
}

TEST_F(DispatcherTest, ACallPastItsDeadlineRunsNothing) {
  Open("a");
  RecordedCall& call = NewCall();
  CallRequest request = AnswerRequest("a", 20, 5);
  request.deadline = absl::InfinitePast();
  dispatcher_.Start(kA, request, call);
  EXPECT_THAT(call.end().status, IsRefusal(absl::StatusCode::kDeadlineExceeded, "DEADLINE_PASSED", ""));
  Turn();
  EXPECT_EQ(steps(), 0);
}

TEST_F(DispatcherTest, TokensSentAgainCostNoStep) {
  RecordedCall &first = NewCall(), &again = NewCall();
  Answer(kA, "a", first, 10);
  dispatcher_.Cancel(kA);
  RunToEnd();
  const int64_t before = steps();
  CallRequest request = AnswerRequest("a", 0, 8);
  request.resume_from = 20;
  dispatcher_.Start(kB, request, again);
  RunToEnd();
  EXPECT_EQ(steps(), before);
  EXPECT_THAT(again.tokens(), ElementsAreArray(first.tokens().begin(), first.tokens().begin() + 8));
}

TEST_F(OneRowDispatcherTest, DrainingEndsWhatWaitsAndLetsRunWhatRuns) {
  RecordedCall &a = NewCall(), &b = NewCall(), &c = NewCall();
  Open("a");
  dispatcher_.Start(kA, AnswerRequest("a", 20, 10), a);
  while (a.tokens().size() < 2) Turn();
  Open("b");
  dispatcher_.Start(kB, AnswerRequest("b", 20, 10), b);
  dispatcher_.Drain(absl::InfiniteFuture());
  EXPECT_THAT(b.end().status, IsRefusal(absl::StatusCode::kUnavailable, "DRAINING", ""));
  dispatcher_.Start(3, AnswerRequest("b", 20, 10), c);
  EXPECT_THAT(c.end().status, IsRefusal(absl::StatusCode::kUnavailable, "DRAINING", ""));
  EXPECT_THAT(dispatcher_.Create(OpenRequest("d")), IsRefusal(absl::StatusCode::kUnavailable, "DRAINING", ""));
  RunToEnd();
  EXPECT_THAT(a.end().status, IsOk());
  EXPECT_THAT(a.tokens(), SizeIs(10));
}

TEST_F(DispatcherTest, TheEndOfADrainEndsWhatStillRuns) {
  RecordedCall& call = NewCall();
  Answer(kA, "a", call, 3);
  const int64_t before = steps();
  dispatcher_.Drain(absl::InfinitePast());
  Turn();
  EXPECT_THAT(call.end().status, IsRefusal(absl::StatusCode::kUnavailable, "DRAINING", ""));
  EXPECT_EQ(steps(), before);
}

TEST_F(DispatcherTest, ASessionExpiresOnlyBetweenItsCalls) {
  SessionRequest request = OpenRequest("a");
  request.ttl = absl::ZeroDuration();
  ASSERT_THAT(dispatcher_.Create(request), IsOk());
  RecordedCall& call = NewCall();
  dispatcher_.Start(kA, AnswerRequest("a", 20, 5), call);
  while (call.tokens().size() < 5) {
    Turn();
    EXPECT_THAT(dispatcher_.Get("default", "a"), IsOk()) << "a call holds it";
  }
  Turn();  // ends the call: the time to live starts anew
  ASSERT_TRUE(call.ended());
  EXPECT_THAT(call.end().status, IsOk());
  dispatcher_.Settle();
  EXPECT_THAT(dispatcher_.Get("default", "a"), IsRefusal(absl::StatusCode::kNotFound, "UNKNOWN_SESSION", ""));
  EXPECT_EQ(pages_reserved(), 0);
}

TEST_F(DispatcherTest, ARequestIdOpensOneSessionAsLongAsItLives) {
  SessionRequest request = OpenRequest("a");
  request.request_id = "once";
  ASSERT_THAT(dispatcher_.Create(request), IsOk());
  const int64_t pages = pages_reserved();
  request.id = "b";  // as a server does that names sessions itself
  const absl::StatusOr<SessionInfo> again = dispatcher_.Create(request);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->request.id, "a");
  EXPECT_EQ(pages_reserved(), pages);
  ASSERT_THAT(dispatcher_.Delete("default", "a", {}), IsOk());
  EXPECT_EQ(dispatcher_.Create(request)->request.id, "b");
}

// A policy is put in force between two steps, while calls write to its session and to others.

TEST_F(DispatcherTest, AnotherPolicyHoldsUpNoCallForAStep) {
  RecordedCall& swapped = NewCall();
  RecordedCall& other = NewCall();
  Answer(kA, "a", swapped, 5);
  Answer(kB, "b", other, 5);
  for (const ScorerRow& row : ScorerRegistry()) {
    SCOPED_TRACE(std::string(row.name));
    const PolicySpec spec = {.scorer = std::string(row.name), .budget = row.evicts ? 48 : engine_->config().context};
    const int64_t before = steps();
    const size_t swapped_tokens = swapped.tokens().size();
    const size_t other_tokens = other.tokens().size();
    const int64_t length = log_length("a");
    const auto outcome = SetPolicy("a", spec);
    ASSERT_THAT(outcome, IsOk());
    EXPECT_EQ(log_length("a"), length);
    Turn();
    EXPECT_EQ(steps(), before + 1);
    EXPECT_THAT(swapped.tokens(), SizeIs(swapped_tokens + 1));
    EXPECT_THAT(other.tokens(), SizeIs(other_tokens + 1));
    EXPECT_EQ(pages_reserved(), engine_->memory().pages_reserved);
  }
  for (const CallId id : {kA, kB}) dispatcher_.Cancel(id);
  RunToEnd();
  EXPECT_THAT(other.tokens(), ElementsAreArray(Undisturbed(static_cast<int32_t>(other.tokens().size()))));
}

TEST_F(DispatcherTest, AfterAnotherPolicyACallRaisesTheGenerationAgain) {
  RecordedCall& call = NewCall();
  Answer(kA, "a", call, 5);
  const auto outcome = SetPolicy("a", {.scorer = "h2o", .budget = 24});
  ASSERT_THAT(outcome, IsOk());
  Turn();
  EXPECT_EQ(dispatcher_.Get("default", "a")->generation, outcome->generation + 1) << "it appended a token";
}

// Work on a cache is done in pieces: only the session that is worked on waits for all of them.

TEST_F(PieceByPieceTest, WhileACacheIsWorkedOnOthersTakeEveryStep) {
  RecordedCall& swapped = NewCall();
  RecordedCall& other = NewCall();
  Answer(kA, "a", swapped, 40);
  Answer(kB, "b", other, 5);
  for (const ScorerRow& row : ScorerRegistry()) {
    if (row.make == nullptr) continue;  // needs a calibration
    SCOPED_TRACE(std::string(row.name));
    const PolicySpec spec = {.scorer = std::string(row.name), .budget = row.evicts ? 48 : engine_->config().context};
    const size_t before = swapped.tokens().size();
    size_t expected = other.tokens().size();
    int turns = 0;
    PolicyAnswer outcome;
    for (Order("a", spec, outcome); !outcome; ++turns) {
      ASSERT_LT(turns, 1000);
      Turn();
      EXPECT_THAT(other.tokens(), SizeIs(++expected)) << "a token in every turn";
      EXPECT_THAT(swapped.tokens(), SizeIs(before));
    }
    ASSERT_THAT(*outcome, IsOk());
    EXPECT_GT(turns, 2);
    Turn();
    EXPECT_THAT(swapped.tokens(), SizeIs(before + 1));
  }
  for (const CallId id : {kA, kB}) dispatcher_.Cancel(id);
  RunToEnd();
  EXPECT_THAT(other.tokens(), ElementsAreArray(Undisturbed(static_cast<int32_t>(other.tokens().size()))));
}

TEST_F(PieceByPieceTest, WhileASessionIsSavedOthersTakeEveryStep) {
  RecordedCall& other = NewCall();
  RecordedCall& held = NewCall();
  Open("a");
  dispatcher_.Start(kA, AnswerRequest("a", 40, 5), held);
  RunToEnd();
  Answer(kB, "b", other, 5);
  std::optional<absl::StatusOr<SaveOutcome>> saved;
  dispatcher_.Save("default", "a", std::nullopt,
                   {.answer = [&](absl::StatusOr<SaveOutcome> outcome) { saved = std::move(outcome); }});
  size_t expected = other.tokens().size();
  Turn();
  EXPECT_THAT(other.tokens(), SizeIs(++expected));
  RecordedCall& late = NewCall();
  dispatcher_.Start(3, AnswerRequest("a", 0, 2), late);
  int turns = 0;
  for (; !saved; ++turns) {
    ASSERT_LT(turns, 1000);
    Turn();
    EXPECT_THAT(other.tokens(), SizeIs(++expected)) << "a token in every turn";
    EXPECT_THAT(late.tokens(), IsEmpty()) << "a call on it waits";
  }
  EXPECT_GT(turns, 1);
  ASSERT_THAT(*saved, IsOk());
  EXPECT_EQ((*saved)->tokens, 45);
  dispatcher_.Cancel(kB);
  RunToEnd();
  EXPECT_THAT(late.tokens(), SizeIs(2));
}

TEST_F(PieceByPieceTest, AnAskerThatIsGoneLeavesTheSessionAsItWas) {
  for (int pieces = 0; pieces < 6; ++pieces) {
    SCOPED_TRACE(pieces);
    const std::string session = absl::StrCat("a", pieces);
    RecordedCall& call = NewCall();
    Answer(10 + pieces, session, call, 30);
    int turns = 0;
    PolicyAnswer outcome;
    for (Order(session, {.scorer = "lagkv", .budget = 20}, outcome, [&] { return turns == pieces; }); !outcome;
         ++turns) {
      Turn();
    }
    EXPECT_THAT(*outcome, IsRefusal(absl::StatusCode::kCancelled, "CALL_CANCELLED", ""));
    EXPECT_EQ(dispatcher_.Get("default", session)->policy.scorer_name, "streaming");
    while (call.tokens().size() < 40) Turn();
    dispatcher_.Cancel(10 + pieces);
    RunToEnd();
    EXPECT_THAT(std::vector(call.tokens().begin(), call.tokens().begin() + 40), ElementsAreArray(Undisturbed(40)));
    ASSERT_THAT(dispatcher_.Delete("default", "undisturbed", std::nullopt), IsOk());
  }
}

TEST_F(PieceByPieceTest, ASessionThatIsDeletedMeanwhileEndsItsWork) {
  RecordedCall& call = NewCall();
  Answer(kA, "a", call, 30);
  PolicyAnswer outcome;
  Order("a", {.scorer = "lagkv", .budget = 20}, outcome);
  Turn();
  Turn();
  ASSERT_FALSE(outcome);
  ASSERT_THAT(dispatcher_.Delete("default", "a", std::nullopt), IsOk());
  ASSERT_TRUE(outcome);
  EXPECT_THAT(*outcome, IsRefusal(absl::StatusCode::kCancelled, "SESSION_DELETED", ""));
  RunToEnd();
  EXPECT_THAT(call.end().status, IsRefusal(absl::StatusCode::kCancelled, "SESSION_DELETED", ""));
  EXPECT_EQ(pages_reserved(), 0);
}

TEST_F(PieceByPieceTest, ACallThatBeginsMeanwhileWaitsAndWhoWritesAtOnceIsRefused) {
  RecordedCall& first = NewCall();
  Open("a");
  dispatcher_.Start(kA, AnswerRequest("a", 40, 5), first);
  RunToEnd();
  PolicyAnswer outcome;
  Order("a", {.scorer = "lagkv", .budget = 20}, outcome);
  RecordedCall& second = NewCall();
  dispatcher_.Start(kB, AnswerRequest("a", 0, 3), second);
  RecordedCall& late = NewCall();
  Turn();
  ASSERT_FALSE(outcome);
  EXPECT_THAT(dispatcher_.Fork({.tenant = "default", .session = "a", .id = "b"}),
              IsRefusal(absl::StatusCode::kAborted, "SESSION_BUSY", ""));
  while (!outcome) {
    EXPECT_THAT(second.tokens(), IsEmpty());
    Turn();
  }
  ASSERT_THAT(*outcome, IsOk());
  RunToEnd();
  EXPECT_THAT(second.end().status, IsOk());
  EXPECT_THAT(second.tokens(), SizeIs(3));
  // One that is past its deadline ends, whatever goes on.
  PolicyAnswer again;
  Order("a", {.scorer = "h2o", .budget = 20}, again);
  Turn();
  CallRequest overdue = AnswerRequest("a", 0, 3);
  overdue.deadline = absl::InfinitePast();
  dispatcher_.Start(3, std::move(overdue), late);
  ASSERT_TRUE(late.ended());
  EXPECT_THAT(late.end().status, IsRefusal(absl::StatusCode::kDeadlineExceeded, "DEADLINE_PASSED", ""));
  RunToEnd();
  ASSERT_TRUE(again);
  EXPECT_THAT(*again, IsOk());
}

}  // namespace
}  // namespace ebb
