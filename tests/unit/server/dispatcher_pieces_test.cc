// Work that is done in pieces: other sessions take their steps between them, and what is given up leaves no trace.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/snapshot/session_image.h"
#include "policies/registry.h"
#include "server/dispatcher.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/server/dispatcher_fixture.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A piece of work before each step is one lane for each thread, whatever the clock says.
class PieceByPieceTest : public DispatcherTest {
 protected:
  PieceByPieceTest() : DispatcherTest({.work_share = 0}) {}
};

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

// A session of 45 tokens as the store would give it back under another name, and three tokens of its journal.
std::unique_ptr<LoadedSession> Saved(Dispatcher& dispatcher, const Engine& engine, const std::string& name) {
  std::optional<absl::StatusOr<SaveOutcome>> saved;
  dispatcher.Save("default", "a", std::nullopt,
                  {.answer = [&](absl::StatusOr<SaveOutcome> outcome) { saved = std::move(outcome); }});
  while (!saved) dispatcher.Work();
  auto loaded = std::make_unique<LoadedSession>();
  loaded->bytes = (*saved)->snapshot.Finish();
  SealSnapshot(loaded->bytes);
  const auto records = ReadSnapshot(std::as_bytes(std::span(loaded->bytes)));
  loaded->past.image = *ReadSession(*records, engine.image_limits());
  loaded->past.saved = std::move((*saved)->session);
  loaded->past.saved.past.reset();
  loaded->past.saved.request.id = name;
  for (const int32_t token : {4, 9, 4}) {
    loaded->past.records.push_back({.generation = 7, .what = JournalRecord::Token{token}});
  }
  return loaded;
}

TEST_F(PieceByPieceTest, WhileASessionIsRestoredOthersTakeEveryStepAndNobodyFindsIt) {
  RecordedCall& first = NewCall();
  RecordedCall& other = NewCall();
  Open("a");
  dispatcher_.Start(kA, AnswerRequest("a", 40, 5), first);
  RunToEnd();
  Answer(kB, "b", other, 5);
  using Restored = std::optional<absl::StatusOr<SessionInfo>>;
  const auto restore = [&](const std::string& name, Restored& info, std::function<bool()> is_gone) {
    dispatcher_.Restore(Saved(dispatcher_, *engine_, name),
                        {.answer = [&info](absl::StatusOr<SessionInfo> answer) { info = std::move(answer); },
                         .is_gone = std::move(is_gone)});
  };
  size_t expected = other.tokens().size();
  Turn();
  EXPECT_THAT(other.tokens(), SizeIs(++expected));
  Restored info;
  int turns = 0;
  for (restore("back", info, [] { return false; }); !info; ++turns) {
    ASSERT_LT(turns, 1000);
    EXPECT_THAT(dispatcher_.Get("default", "back"), IsRefusal(absl::StatusCode::kNotFound, "UNKNOWN_SESSION", ""));
    Turn();
    EXPECT_THAT(other.tokens(), SizeIs(++expected)) << "a token in every turn";
  }
  EXPECT_GT(turns, 4) << "lanes, then record by record";
  ASSERT_THAT(*info, IsOk());
  EXPECT_EQ((*info)->tokens, 48);
  EXPECT_EQ(log_length("back"), 48);
  // Given up after any number of pieces, or because another took the name meanwhile, it leaves nothing.
  const int64_t reserved = pages_reserved();
  for (int pieces = 0; pieces < turns; ++pieces) {
    SCOPED_TRACE(pieces);
    Restored dropped;
    int done = 0;
    for (restore("gone", dropped, [&] { return done == pieces; }); !dropped; ++done) Turn();
    EXPECT_THAT(*dropped, IsRefusal(absl::StatusCode::kCancelled, "CALL_CANCELLED", ""));
    EXPECT_EQ(pages_reserved(), reserved);
    Restored late;
    restore("taken", late, [] { return false; });
    for (done = 0; done < pieces; ++done) Turn();
    Open("taken");
    while (!late) Turn();
    EXPECT_THAT(*late, IsRefusal(absl::StatusCode::kAlreadyExists, "NAME_TAKEN", ""));
    ASSERT_THAT(dispatcher_.Delete("default", "taken", std::nullopt), IsOk());
    EXPECT_EQ(pages_reserved(), reserved);
  }
  dispatcher_.Cancel(kB);
  RunToEnd();
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
