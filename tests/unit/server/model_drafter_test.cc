// A draft model's caches follow the sessions that they draft for, whatever becomes of these, and keep to their memory.

#include "server/model_drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/support/test_engine.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int32_t kBudget = 64;

class ModelDrafterTest : public testing::Test {
 protected:
  explicit ModelDrafterTest(int64_t arena_bytes = 8 << 20)
      : engine_(OpenTestEngine(file_.path(), {.arena_bytes = arena_bytes})) {}

  std::vector<int32_t> Draft(SessionId session, const std::vector<int32_t>& log, int32_t token, int32_t most) {
    ModelDrafter::Wish wish = {.session = session, .log = log, .token = token, .most = most};
    round_ = drafter_.Draft({&wish, 1});
    return wish.draft;
  }

  // What the model goes on with behind the log and the token, read in one go: while nobody is evicted.
  std::vector<int32_t> Expected(std::vector<int32_t> log, int32_t token, int32_t count) {
    const auto session = OpenTestSession(*engine_, {.scorer = "streaming", .budget = kBudget}, 128);
    log.push_back(token);
    std::vector<float> logits = Step(*engine_, *session, log);
    std::vector<int32_t> tokens;
    while (static_cast<int32_t>(tokens.size()) < count) {
      tokens.push_back(BestToken(logits));
      if (engine_->tokenizer().IsStop(tokens.back())) break;
      logits = Step(*engine_, *session, {&tokens.back(), 1});
    }
    return tokens;
  }

  int64_t reserved() const { return engine_->memory().pages_reserved; }
  const DraftCacheMetrics& counted() const { return metrics_.worker().drafts; }

  TinyModelFile file_ = TinyModelFile(TinyModel{});
  std::unique_ptr<Engine> engine_;
  Metrics metrics_ = Metrics({});
  ModelDrafter drafter_ =
      ModelDrafter(engine_.get(), TestPolicy({.scorer = "streaming", .budget = kBudget}), metrics_.worker().drafts);
  ModelDrafter::Round round_ = {};
};

TEST_F(ModelDrafterTest, DraftsWhatTheModelWouldSay) {
  const std::vector<int32_t> log = RandomTokens(1, 20, 256);
  EXPECT_THAT(Draft(7, log, 5, 6), ElementsAreArray(Expected(log, 5, 6)));
  EXPECT_EQ(round_.read, 21);
}

// Some of a draft is accepted, or none, or all, and sometimes the session goes on without one.
TEST_F(ModelDrafterTest, FollowsWhateverBecameOfItsDraft) {
  std::vector<int32_t> log = RandomTokens(2, 10, 256);
  for (int32_t round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    const int32_t token = 40 + round;
    const std::vector<int32_t> draft = Draft(7, log, token, 4);
    ASSERT_THAT(draft, ElementsAreArray(Expected(log, token, 4)));
    EXPECT_LE(round_.read, round == 0 ? 11 : 4) << "what it has read it keeps";
    log.push_back(token);
    const auto accepted = std::min<size_t>(static_cast<size_t>(round % 5), draft.size());
    log.insert(log.end(), draft.begin(), draft.begin() + static_cast<ptrdiff_t>(accepted));
    if (round % 4 == 3) log.push_back(99);
  }
  // The token in flight was not committed, and another takes its place.
  Draft(7, log, 1, 3);
  EXPECT_THAT(Draft(7, log, 2, 3), ElementsAreArray(Expected(log, 2, 3)));
  // The same one again.
  EXPECT_THAT(Draft(7, log, 2, 3), ElementsAreArray(Expected(log, 2, 3)));
}

TEST_F(ModelDrafterTest, CatchesUpInBlocksAndReadsNoMoreThanItCanKeep) {
  const std::vector<int32_t> log = RandomTokens(3, 3000, 256);
  EXPECT_THAT(Draft(7, log, 5, 4), SizeIs(4)) << "only the newest are read";
  EXPECT_EQ(round_.read, kBudget);
  std::vector<ModelDrafter::Wish> wishes;
  for (SessionId session = 10; session < 18; ++session) {
    wishes.push_back({.session = session, .log = log, .token = 5, .most = 2});
  }
  round_ = drafter_.Draft(wishes);
  EXPECT_EQ(round_.read, ModelDrafter::kCatchUp) << "for all of them together";
  EXPECT_EQ(round_.drafted, 2 * ModelDrafter::kCatchUp / kBudget);
  for (int32_t round = 0; round < 2; ++round) {
    for (ModelDrafter::Wish& wish : wishes) wish.draft.clear();
    drafter_.Draft(wishes);
  }
  for (const ModelDrafter::Wish& wish : wishes) EXPECT_THAT(wish.draft, SizeIs(2)) << wish.session;
}

TEST_F(ModelDrafterTest, KeepsItsSizeHoweverLongTheSessionGets) {
  std::vector<int32_t> log = RandomTokens(4, 30, 256);
  Draft(7, log, 5, 1);
  const int64_t pages = reserved();
  for (int32_t i = 0; i < 300; ++i) {
    ASSERT_THAT(Draft(7, log, i % 256, 3), SizeIs(testing::Ge(1)));
    ASSERT_LE(round_.read, 2);
    log.push_back(i % 256);
  }
  EXPECT_EQ(reserved(), pages);
}

TEST_F(ModelDrafterTest, BeginsAnewWhereItFellTooFarBehind) {
  std::vector<int32_t> log = RandomTokens(5, 30, 256);
  Draft(7, log, 5, 2);
  const std::vector<int32_t> more = RandomTokens(6, 2 * kBudget, 256);
  log.insert(log.end(), more.begin(), more.end());
  EXPECT_THAT(Draft(7, log, 5, 2), SizeIs(2));
  EXPECT_EQ(round_.read, kBudget);
  EXPECT_EQ(counted().drops_length.value(), 1);
  EXPECT_EQ(counted().caches.value(), 1);
  // A log that is shorter than what was read is another.
  EXPECT_THAT(Draft(7, {1, 2, 3}, 5, 2), ElementsAreArray(Expected({1, 2, 3}, 5, 2)));
}

TEST_F(ModelDrafterTest, AnEndedSessionLeavesNothing) {
  const int64_t before = reserved();
  Draft(7, {1, 2, 3}, 5, 2);
  Draft(8, {1, 2, 3}, 5, 2);
  EXPECT_GT(reserved(), before);
  EXPECT_EQ(counted().caches.value(), 2);
  drafter_.End(7);
  drafter_.End(7);
  drafter_.End(8);
  EXPECT_EQ(reserved(), before);
  EXPECT_EQ(counted().caches.value(), 0);
  EXPECT_EQ(counted().reserved_pages.value(), 0);
}

TEST_F(ModelDrafterTest, WithoutAModelNothingIsDrafted) {
  ModelDrafter none(nullptr, {}, metrics_.worker().drafts);
  ModelDrafter::Wish wish = {.session = 1, .log = {}, .token = 1, .most = 4};
  EXPECT_EQ(none.Draft({&wish, 1}).drafted, 0);
  EXPECT_THAT(wish.draft, IsEmpty());
  none.End(1);
}

class LittleMemory : public ModelDrafterTest {
 protected:
  LittleMemory() : ModelDrafterTest(256 << 10) {}
};

TEST_F(LittleMemory, GivesTheRoomOfIdleSessionsAwayAndNeverThatOfOthers) {
  const std::vector<int32_t> log = {1, 2, 3};
  SessionId sessions = 0;  // that have a cache
  while (!Draft(sessions + 1, log, 5, 1).empty()) ++sessions;
  ASSERT_GE(sessions, 1U);
  ASSERT_LT(sessions, 30U);
  EXPECT_EQ(counted().drafts_no_room.value(), 1);
  EXPECT_EQ(counted().drops_pages.value(), 0);
  for (SessionId i = 1; i <= sessions; ++i) EXPECT_THAT(Draft(i, log, 6, 1), SizeIs(1)) << "those who were there go on";
  for (int64_t round = 0; round <= ModelDrafter::kIdleRounds; ++round) {
    for (SessionId i = 2; i <= sessions; ++i) Draft(i, log, 7, 1);
    if (sessions == 1) drafter_.Draft({});
  }
  if (sessions == 1) return;  // nobody else to let the time pass
  EXPECT_THAT(Draft(sessions + 1, log, 5, 1), SizeIs(1));
  EXPECT_EQ(counted().drops_pages.value(), 1) << "of the first session, which was idle";
  EXPECT_THAT(Draft(2, log, 8, 1), SizeIs(1));
  EXPECT_LE(round_.read, 2) << "its cache is still there";
}

}  // namespace
}  // namespace ebb
