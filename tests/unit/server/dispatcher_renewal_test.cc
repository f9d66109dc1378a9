// Snapshots that take the place of journals: made in pieces while their session alone is held, and whole for whoever
// needs it sooner.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "engine/snapshot/snapshot_file.h"
#include "server/folder_health.h"
#include "server/folder_store.h"
#include "server/journal.h"
#include "server/session_files.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/server/dispatcher_fixture.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

constexpr int64_t kSnapshotEvery = 60;
constexpr int32_t kPrompt = 20;
const std::vector<std::string> kBegun = {"a.1.journal", "a.1.snapshot"};
const std::vector<std::string> kRenewed = {"a.2.journal", "a.2.snapshot"};

std::string SealOf(SaveOutcome outcome) {
  std::string bytes = outcome.snapshot.Finish();
  SealSnapshot(bytes);
  return bytes;
}

struct JournalInFolder {
  TemporaryFolder folder;
  Metrics metrics = Metrics({});
  std::unique_ptr<SessionFiles> files = *SessionFiles::Open(folder.path());
  FolderHealth health = FolderHealth(folder.path());
  Journal journal = Journal(std::make_unique<FolderStore>(*files, Sync::kNone, health, metrics.journal()), &SealOf,
                            metrics.journal());
};

// A piece before each step is one lane for each thread, whatever the clock says.
class RenewalTest : protected JournalInFolder, public DispatcherTest {
 protected:
  RenewalTest() : DispatcherTest({.live = {.snapshot_every = kSnapshotEvery}, .work_share = 0, .journal = &journal}) {}
  ~RenewalTest() override { dispatcher_.FlushJournal(); }

  void JournaledTurn() {
    Turn();
    dispatcher_.Commit();
  }
  // Begins an endless answer in "a" and runs it until `tokens` are in the session.
  void AnswerInA(RecordedCall& call, int64_t tokens) {
    Open("a");
    dispatcher_.Start(kA, AnswerRequest("a", kPrompt, kEndless), call);
    while (log_length("a") < tokens) JournaledTurn();
  }
  // Until it misses a step: a snapshot of its session is in the making.
  void TurnUntilHeld() {
    for (int64_t before = -1; log_length("a") != before; JournaledTurn()) before = log_length("a");
    ASSERT_GE(log_length("a"), kSnapshotEvery);
    ASSERT_LT(log_length("a"), kSnapshotEvery + 3);
  }
  absl::StatusOr<SessionInfo> Fork() {
    const SessionId session = dispatcher_.Look("default", "a")->id;
    return dispatcher_.Fork({.tenant = "default", .session = "a", .made_for = session, .id = "b"});
  }
  // The files of "a", as soon as they are these: the journal's thread writes a snapshot in its own time.
  std::vector<std::string> FilesOfA(const std::vector<std::string>& awaited) {
    std::vector<std::string> found;
    for (const absl::Time end = absl::Now() + absl::Seconds(20); absl::Now() < end;
         absl::SleepFor(absl::Milliseconds(1))) {
      dispatcher_.FlushJournal();
      EXPECT_EQ(ListNames(files->FolderOf({"default", "a"}), found), 0);
      std::erase_if(found, [](const std::string& name) { return !name.starts_with("a."); });
      if (found == awaited) break;
    }
    return found;
  }
  // The first tokens of that answer where nothing is journaled.
  std::vector<int32_t> Undisturbed(size_t tokens) {
    Metrics of_calm = Metrics({});
    Dispatcher calm(*engine_, {}, of_calm);
    EXPECT_THAT(calm.Create(OpenRequest("a")), IsOk());
    RecordedCall call;
    calm.Start(kA, AnswerRequest("a", kPrompt, static_cast<int32_t>(tokens)), call);
    for (; !calm.idle(); calm.Settle()) {
      if (calm.has_step()) calm.RunStep();
    }
    return call.tokens();
  }
};

TEST_F(RenewalTest, WhileASnapshotIsMadeOthersTakeEveryStep) {
  RecordedCall& held = NewCall();
  RecordedCall& other = NewCall();
  AnswerInA(held, kSnapshotEvery / 2);
  Open("b");
  dispatcher_.Start(kB, AnswerRequest("b", kPrompt, kEndless), other);
  TurnUntilHeld();
  const int64_t length = log_length("a");
  int turns = 0;
  for (int64_t expected = log_length("b"); log_length("a") == length; ++turns) {
    ASSERT_LT(turns, 1000);
    JournaledTurn();
    EXPECT_EQ(log_length("b"), ++expected) << "a token in every turn";
  }
  EXPECT_GT(turns, 1);
  while (log_length("a") < length + 10) JournaledTurn();
  EXPECT_EQ(FilesOfA(kRenewed), kRenewed);
  EXPECT_THAT(held.tokens(), ElementsAreArray(Undisturbed(held.tokens().size())));
}

TEST_F(RenewalTest, HowManyTokensASnapshotHasToWaitForMayChange) {
  RecordedCall& call = NewCall();
  dispatcher_.SetLive({.snapshot_every = 2 * kSnapshotEvery});
  AnswerInA(call, kSnapshotEvery + 3);
  EXPECT_EQ(FilesOfA(kBegun), kBegun);
  dispatcher_.SetLive({.snapshot_every = kSnapshotEvery});
  while (log_length("a") < kSnapshotEvery + 10) JournaledTurn();
  EXPECT_EQ(FilesOfA(kRenewed), kRenewed);
}

TEST_F(RenewalTest, WhoNeedsTheSessionMeanwhileFindsItWithItsSnapshotMade) {
  RecordedCall& call = NewCall();
  AnswerInA(call, kPrompt);
  TurnUntilHeld();
  const int64_t length = log_length("a");
  EXPECT_THAT(Fork(), IsRefusal(absl::StatusCode::kAborted, "SESSION_BUSY", ""));
  dispatcher_.Commit();
  EXPECT_EQ(FilesOfA(kRenewed), kRenewed);
  JournaledTurn();
  JournaledTurn();
  EXPECT_GT(log_length("a"), length) << "it goes on";
}

TEST_F(RenewalTest, AnotherPolicyComesBehindTheSnapshot) {
  RecordedCall& call = NewCall();
  AnswerInA(call, kPrompt);
  TurnUntilHeld();
  PolicyAnswer outcome;
  Order("a", {.scorer = "lagkv", .budget = 20}, outcome);
  for (int turns = 0; !outcome; ++turns) {
    ASSERT_LT(turns, kSnapshotEvery / 2);
    JournaledTurn();
    dispatcher_.FlushJournal();  // by whose thread the answer comes
  }
  ASSERT_THAT(*outcome, IsOk());
  EXPECT_EQ(FilesOfA(kRenewed), kRenewed);
  const auto pieces = files->Read({"default", "a"});
  ASSERT_THAT(pieces, IsOk());
  EXPECT_FALSE((*pieces)->records.empty());
}

TEST_F(RenewalTest, ACallThatEndsMeanwhileLeavesTheSnapshotMade) {
  RecordedCall& call = NewCall();
  AnswerInA(call, kPrompt);
  TurnUntilHeld();
  dispatcher_.Cancel(kA);
  dispatcher_.Commit();
  EXPECT_EQ(FilesOfA(kRenewed), kRenewed);
  ASSERT_TRUE(call.ended());
  EXPECT_THAT(call.end().status, IsRefusal(absl::StatusCode::kCancelled, "CALL_CANCELLED", ""));
  EXPECT_THAT(Fork(), IsOk());
}

TEST_F(RenewalTest, ASessionThatIsDeletedMeanwhileLeavesNothing) {
  RecordedCall& call = NewCall();
  AnswerInA(call, kPrompt);
  TurnUntilHeld();
  EXPECT_THAT(dispatcher_.Delete("default", "a", std::nullopt), IsOk());
  dispatcher_.Commit();
  RunToEnd();
  EXPECT_THAT(FilesOfA({}), IsEmpty());
  ASSERT_TRUE(call.ended());
  EXPECT_THAT(call.end().status, IsRefusal(absl::StatusCode::kCancelled, "SESSION_DELETED", ""));
  EXPECT_EQ(pages_reserved(), 0);
}

}  // namespace
}  // namespace ebb
