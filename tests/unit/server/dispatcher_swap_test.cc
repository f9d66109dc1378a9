// Questions that wait for pages which others give up: whose turn it is, and whom there is no place for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/snapshot/snapshot_file.h"
#include "server/mailbox.h"
#include "server/swap_folder.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/server/dispatcher_fixture.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string SealToSwap(SaveOutcome outcome) {
  std::string bytes = outcome.snapshot.Finish();
  SealSnapshot(bytes);
  return bytes;
}

struct SwapInFolder {
  TemporaryFolder folder;
  std::unique_ptr<SwapFolder> swap = *SwapFolder::Open(folder.path(), int64_t{1} << 30);
  Mailbox<Dispatcher::Message> news = Mailbox<Dispatcher::Message>(0);  // from the folder's thread
};

// A memory that is full of sessions that nobody uses.
class WaitingTest : protected SwapInFolder, public DispatcherTest {
 protected:
  explicit WaitingTest(int32_t queue_max = 100)
      : DispatcherTest({.live = {.queue_max = queue_max}, .swap = {.folder = swap.get(), .seal = &SealToSwap}},
                       {.arena_bytes = 1 << 20}) {
    dispatcher_.SetPost([this](Dispatcher::Message message) { news.Post(std::move(message)); });
    Open("first");
    small_ = pages_reserved();
    for (int i = 0; free() >= small_; ++i) Open(newest_ = absl::StrCat("idle", i));
  }
  ~WaitingTest() override {
    dispatcher_.Drain(absl::InfinitePast());
    while (!dispatcher_.idle()) SwapTurn();
  }

  void SwapTurn() {
    std::vector<Dispatcher::Message> messages;
    news.Take(messages, absl::Milliseconds(1));
    for (Dispatcher::Message& message : messages) message(dispatcher_);
    dispatcher_.Settle();
    dispatcher_.Swap();
    dispatcher_.Work();
  }
  int64_t free() const { return dispatcher_.Totals().load.pages_total - pages_reserved(); }

  // As a worker asks it to open a session: `answered_` has its id when it is open, or with a "!" when it is refused.
  struct Question {
    WaitingTest* test = nullptr;
    SessionRequest request = {};
    void operator()(Dispatcher& dispatcher) {
      const bool made = dispatcher.Create(request).ok();
      if (dispatcher.awaits()) return dispatcher.Park(*this);
      test->answered_.push_back(made ? request.id : request.id + "!");
    }
  };
  void Ask(const std::string& tenant, const std::string& id, int32_t budget = 24) {
    SessionRequest request = OpenRequest(id, budget);
    request.tenant = tenant;
    Question{.test = this, .request = request}(dispatcher_);
  }
  void TurnUntilAnswered(size_t questions) {
    for (int turn = 0; answered_.size() < questions; ++turn) {
      ASSERT_LT(turn, 100'000);
      SwapTurn();
    }
  }

  int64_t small_ = 0;        // pages of a session
  std::string newest_ = {};  // the last to leave
  std::vector<std::string> answered_ = {};
};

class FewPlacesTest : public WaitingTest {
 protected:
  FewPlacesTest() : WaitingTest(3) {}
};

TEST_F(WaitingTest, TenantsTakeTurnsHoweverManyQuestionsOneHas) {
  for (const char* const id : {"greedy1", "greedy2", "greedy3"}) Ask("greedy", id);
  Ask("meek", "meek1");
  Ask("shy", "shy1");
  Ask("meek", "meek2");
  EXPECT_THAT(answered_, IsEmpty()) << "nobody has left yet";
  TurnUntilAnswered(6);
  EXPECT_THAT(answered_, ElementsAre("greedy1", "meek1", "shy1", "greedy2", "meek2", "greedy3"));
}

TEST_F(WaitingTest, NobodyWhoComesLaterTakesThePagesThatAreWaitedFor) {
  Ask("default", "large", 200);
  while (free() < small_) SwapTurn();
  ASSERT_THAT(answered_, IsEmpty()) << "it needs those of several";
  Ask("default", "small");
  Ask("other", "other");
  ForkRequest fork = {.tenant = "default", .session = newest_, .id = "branch"};
  fork.made_for = dispatcher_.Look("default", newest_)->id;
  EXPECT_FALSE(dispatcher_.Fork(fork).ok());
  ASSERT_TRUE(dispatcher_.awaits());
  dispatcher_.Park(
      [this, fork](Dispatcher& dispatcher) { answered_.push_back(dispatcher.Fork(fork).ok() ? "branch" : "branch!"); });
  EXPECT_THAT(answered_, IsEmpty()) << "there are pages for each of them, which are not for them";
  TurnUntilAnswered(4);
  EXPECT_THAT(answered_, ElementsAre("large", "other", "small", "branch"));
}

TEST_F(FewPlacesTest, WhoHasMostWaitingMakesPlaceForAnother) {
  for (const char* const id : {"greedy1", "greedy2", "greedy3"}) Ask("greedy", id);
  Ask("greedy", "greedy4");
  EXPECT_THAT(answered_, ElementsAre("greedy4!")) << "its own three have all places";
  Ask("meek", "meek1");
  EXPECT_THAT(answered_, SizeIs(1)) << "it waits";
  TurnUntilAnswered(5);
  EXPECT_THAT(answered_, ElementsAre("greedy4!", "greedy3!", "greedy1", "meek1", "greedy2"));
}

}  // namespace
}  // namespace ebb
