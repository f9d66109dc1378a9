// One step at a time, by hand: what a call gets, and how many steps it still runs after it was told to stop.

#include "server/dispatcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/hash_random.h"
#include "policies/registry.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/server/dispatcher_fixture.h"
#include "tests/unit/server/test_calls.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;

class OneRowDispatcherTest : public DispatcherTest {
 protected:
  OneRowDispatcherTest() : DispatcherTest({.step_rows_max = 1}) {}
};

class ImpatientDispatcherTest : public DispatcherTest {
 protected:
  ImpatientDispatcherTest() : DispatcherTest({.live = {.reader_patience = absl::ZeroDuration()}}) {}
};

class SixteenRowsTest : public DispatcherTest {
 protected:
  SixteenRowsTest() : DispatcherTest({.step_rows_max = 16}) {}

  // A call of a session of its own.
  RecordedCall& Ask(const std::string& tenant, int32_t prompt, int32_t tokens, RecordedCall::Reading reading = {}) {
    CallRequest request = AnswerRequest("", prompt, tokens);
    request.tenant = tenant;
    request.open = OpenRequest(absl::StrFormat("s%d", ++made_));
    request.open->tenant = tenant;
    RecordedCall& call = NewCall(std::move(reading));
    dispatcher_.Start(made_, std::move(request), call);
    return call;
  }
  // A turn of a worker whose greedy tenant asks again as soon as it has an answer.
  void BusyTurn() {
    for (const RecordedCall*& call : greedy_) {
      if (call->ended()) call = &Ask("greedy", random_.Uniform(1, 40), random_.Uniform(1, 40));
    }
    Turn();
  }
  // The most of fifty questions, one after the other, asked between two steps.
  int64_t StepsToAFirstToken(int32_t prompt) {
    int64_t most = 0;
    for (int32_t question = 0; question < 50; ++question) {
      for (int32_t pause = random_.Uniform(0, 10); pause > 0; --pause) BusyTurn();
      const int64_t before = steps();
      const RecordedCall& call = Ask("polite", prompt, 1, [&](const RecordedCall& so_far) {
        if (!so_far.tokens().empty()) most = std::max(most, steps() - before);
        return Reader::kReady;
      });
      while (!call.ended()) BusyTurn();
    }
    return most;
  }

  HashRandom random_{1};
  CallId made_ = 0;
  std::vector<const RecordedCall*> greedy_;
};

class SmallQueueTest : public DispatcherTest {
 protected:
  SmallQueueTest() : DispatcherTest({.live = {.queue_max = 16}, .step_rows_max = 1}) {}
};

// However many calls a tenant has, another that has none is let in; and finds no place when those like it have taken as
// many again.
TEST_F(SmallQueueTest, WhoFillsTheQueueKeepsOutOnlyItself) {
  CallId id = 0;
  const auto ask = [&](const std::string& tenant) -> const RecordedCall& {
    SessionRequest open = OpenRequest(absl::StrFormat("s%d", ++id));
    open.tenant = tenant;
    EXPECT_THAT(dispatcher_.Create(open), IsOk());
    CallRequest request = AnswerRequest(open.id, 1, kEndless);
    request.tenant = tenant;
    RecordedCall& call = NewCall();
    dispatcher_.Start(id, std::move(request), call);
    return call;
  };
  const auto full = IsRefusal(absl::StatusCode::kUnavailable, "QUEUE_FULL", "");
  for (int i = 0; i < 16; ++i) EXPECT_FALSE(ask("greedy").ended()) << i;
  EXPECT_THAT(ask("greedy").end().status, full);
  for (int i = 0; i < 16; ++i) EXPECT_FALSE(ask(absl::StrFormat("polite%d", i)).ended()) << i;
  EXPECT_THAT(ask("late").end().status, full);
  EXPECT_THAT(ask("polite0").end().status, full) << "it has one already, a sixteenth";
}

// What the scheduler promises (SchedulerSimulation.AGreedyNeighbour...), of a whole dispatcher with its engine.
TEST_F(SixteenRowsTest, AGreedyTenantCostsAnothersFirstTokenAtMostAStep) {
  std::map<int32_t, int64_t> alone;  // by the prompt's length: of a part of a block, of two, of five
  for (const int32_t prompt : {5, 20, 80}) alone[prompt] = StepsToAFirstToken(prompt);
  EXPECT_THAT(alone, ElementsAre(Pair(5, 1), Pair(20, 2), Pair(80, 5)));
  for (int call = 0; call < 48; ++call) greedy_.push_back(&Ask("greedy", 1, 1));
  for (const auto& [prompt, steps] : alone) EXPECT_LE(StepsToAFirstToken(prompt), steps + 1) << prompt << " tokens";
}

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

TEST_F(DispatcherTest, ATokenIsSentWhenItIsDrawnAndNotWhenItsStepIsOver) {
  Open("a");
  std::vector<int64_t> in_log;
  RecordedCall& call = NewCall([&](const RecordedCall& so_far) {
    if (!so_far.tokens().empty()) in_log.push_back(log_length("a"));
    return Reader::kReady;
  });
  dispatcher_.Start(kA, AnswerRequest("a", 40, 4), call);
  RunToEnd();
  EXPECT_THAT(call.end().status, IsOk());
  EXPECT_THAT(in_log, ElementsAre(40, 41, 42, 43));
}

TEST_F(DispatcherTest, TheLastTokenOfAnAnswerWhoseSessionIsThrownAwayRunsNoStep) {
  const std::vector<int32_t> undisturbed = Undisturbed(8);
  RecordedCall &alone = NewCall(), &with_another = NewCall(), &another = NewCall();
  const auto start = [&](CallId id, RecordedCall& call) {
    CallRequest request = AnswerRequest("", 20, 5);
    request.open = OpenRequest("nameless");
    dispatcher_.Start(id, std::move(request), call);
  };
  const int64_t before = steps();
  start(kA, alone);
  RunToEnd();
  EXPECT_EQ(steps() - before, 2 + 4);
  Open("another");
  start(kA, with_another);
  dispatcher_.Start(kB, AnswerRequest("another", 20, 8), another);
  while (!with_another.ended()) {
    dispatcher_.Settle();
    ASSERT_FALSE(with_another.ended()) << "it waited for the step";
    dispatcher_.RunStep();
  }
  RunToEnd();
  for (const RecordedCall* const call : {&alone, &with_another}) {
    EXPECT_THAT(call->end().status, IsOk());
    EXPECT_THAT(call->tokens(), ElementsAreArray(undisturbed.begin(), undisturbed.begin() + 5));
    EXPECT_EQ(call->end().usage.completion_tokens, 5);
    EXPECT_EQ(call->end().usage.session_tokens, 20 + 5);
  }
  EXPECT_THAT(another.tokens(), ElementsAreArray(undisturbed)) << "its row took the place of the one that did not run";
  EXPECT_EQ(dispatcher_.Totals().completion_tokens, 8 + 5 + 5 + 8);
}

TEST_F(DispatcherTest, SoItIsOfAnAnswerThatFillsItsSession) {
  RecordedCall& call = NewCall();
  CallRequest request = AnswerRequest("", 20, 10);
  request.open = OpenRequest("nameless");
  request.open->policy = TestPolicy({.scorer = "full", .budget = 24});
  dispatcher_.Start(kA, std::move(request), call);
  RunToEnd();
  EXPECT_THAT(call.end().status, IsOk());
  EXPECT_EQ(call.end().finish, FinishReason::kLengthLimit);
  EXPECT_THAT(call.tokens(), SizeIs(4));
  EXPECT_EQ(steps(), 2 + 3);
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

// For which any time is long enough.
class HastyDispatcherTest : public DispatcherTest {
 protected:
  HastyDispatcherTest() : DispatcherTest({.live = {.ttft_target = absl::ZeroDuration()}}) {}

  // Leaves a call waiting until its time is over.
  RecordedCall& Keep(CallId id, const std::string& session) {
    RecordedCall& call = NewCall();
    CallRequest request = AnswerRequest(session, 20, 5);
    const absl::Time deadline = dispatcher_.clock().Now() + absl::Milliseconds(20);
    request.deadline = deadline;
    dispatcher_.Start(id, request, call);
    while (dispatcher_.clock().Now() <= deadline) std::this_thread::yield();
    return call;
  }
  double late() { return metrics_.tenant("default").late.value(); }
};

TEST_F(HastyDispatcherTest, ACallThatWaitedLongAndGotNothingByItsDeadlineIsLate) {
  Open("a");
  Open("b");
  const RecordedCall& call = Keep(kA, "a");
  RunToEnd();
  EXPECT_THAT(call.end().status, IsRefusal(absl::StatusCode::kDeadlineExceeded, "DEADLINE_PASSED", ""));
  EXPECT_EQ(late(), 1);
  // gRPC may say first that the caller is gone.
  Keep(kB, "b");
  dispatcher_.Cancel(kB);
  RunToEnd();
  EXPECT_EQ(late(), 2);
  // And a little early, by what the call took to come here.
  CallRequest request = AnswerRequest("b", 20, 5);
  request.deadline = dispatcher_.clock().Now() + absl::Milliseconds(50);
  dispatcher_.Start(3, request, NewCall());
  dispatcher_.Cancel(3);
  RunToEnd();
  EXPECT_EQ(late(), 3);
}

TEST_F(HastyDispatcherTest, WhoCancelsBeforeTheDeadlineOrHasATokenIsNotLate) {
  Open("a");
  Open("b");
  RecordedCall &cancelled = NewCall(), &answered = NewCall();
  CallRequest request = AnswerRequest("a", 20, 5);
  request.deadline = dispatcher_.clock().Now() + absl::Hours(1);
  dispatcher_.Start(kA, request, cancelled);
  dispatcher_.Cancel(kA);
  request = AnswerRequest("b", 20, kEndless);
  request.deadline = dispatcher_.clock().Now() + absl::Seconds(3);
  dispatcher_.Start(kB, request, answered);
  RunToEnd();
  EXPECT_THAT(cancelled.end().status, IsRefusal(absl::StatusCode::kCancelled, "CALL_CANCELLED", ""));
  EXPECT_THAT(answered.end().status, IsRefusal(absl::StatusCode::kDeadlineExceeded, "DEADLINE_PASSED", ""));
  EXPECT_THAT(answered.tokens(), Not(IsEmpty()));
  EXPECT_EQ(late(), 0);
}

TEST_F(DispatcherTest, ADeadlineThatIsSoonerThanTheTargetIsTheCallersChoice) {
  Open("a");
  RecordedCall& call = NewCall();
  CallRequest request = AnswerRequest("a", 20, 5);
  request.deadline = dispatcher_.clock().Now() + absl::Milliseconds(1);
  dispatcher_.Start(kA, request, call);
  while (dispatcher_.clock().Now() <= request.deadline) std::this_thread::yield();
  RunToEnd();
  EXPECT_THAT(call.end().status, IsRefusal(absl::StatusCode::kDeadlineExceeded, "DEADLINE_PASSED", ""));
  EXPECT_EQ(metrics_.tenant("default").late.value(), 0);
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

}  // namespace
}  // namespace ebb
