#include "server/scheduler.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ebb {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const absl::Time kStart = absl::UnixEpoch();

std::string Text(const Admit& admit) { return absl::StrCat("admit ", admit.id); }
std::string Text(const Release& release) { return absl::StrCat("release ", release.session); }
std::string Text(const Reject& refuse) {
  static const std::vector<std::string> kReasons = {"no pages", "too large", "queue full", "draining"};
  const std::string retry = refuse.retry_after ? absl::FormatDuration(*refuse.retry_after) : "never";
  return absl::StrFormat("refuse %d: %s, retry %s", refuse.id, kReasons.at(static_cast<size_t>(refuse.reason)), retry);
}
std::string Text(const End& end) {
  static const std::vector<std::string> kCauses = {"done",        "cancelled", "deadline",
                                                   "slow reader", "closed",    "draining"};
  return absl::StrCat("end ", end.id, ": ", kCauses.at(static_cast<size_t>(end.cause)));
}
// "run 3d 4p128": a decode of request 3 beside a block of 128 tokens of request 4.
std::string Text(const RunStep& step) {
  std::string text = "run";
  for (const RunStep::Row& row : step.rows) {
    absl::StrAppend(&text, " ", row.id, row.phase == StepPhase::kDecode ? "d" : absl::StrCat("p", row.tokens));
    EXPECT_TRUE(row.phase == StepPhase::kPrefill || row.tokens == 1);
  }
  return text;
}

// A scheduler with a clock in its hand; every event's effects come back as text, and every event checks the invariants.
class Desk {
 public:
  explicit Desk(const SchedulerLimits& limits) : scheduler_(limits) {}

  std::vector<std::string> On(const Event& event) {
    std::vector<Effect> effects;
    scheduler_.On(event, now_, effects);
    scheduler_.CheckInvariants();
    std::vector<std::string> text;
    for (const Effect& effect : effects) {
      text.push_back(std::visit([](const auto& e) { return Text(e); }, effect));
    }
    return text;
  }
  // Admits session `id`, whose tenant is given, and its request of the same id.
  std::vector<std::string> Begin(uint64_t id, RequestArrived request, TenantId tenant = 0) {
    EXPECT_THAT(On(SessionArrived{.id = id, .session = id, .tenant = tenant, .pages = 1}),
                ElementsAre(absl::StrCat("admit ", id)));
    request.id = id;
    request.session = id;
    return On(request);
  }
  void Wait(absl::Duration duration) { now_ += duration; }
  absl::Time now() const { return now_; }
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  Scheduler scheduler_;
  absl::Time now_ = kStart;
};

SchedulerLimits Limits() { return {.pages_total = 100, .step_tokens_max = 8, .step_rows_max = 4}; }

// Admission

TEST(Scheduler, ReservesPagesUntilTheSessionIsClosed) {
  Desk desk(Limits());
  // Situation: 100 pages; 60 are asked for, then 41, then 40.
  // Verdict: the first and the last fit; the second is refused and leaves no trace.
  EXPECT_THAT(desk.On(SessionArrived{.id = 1, .session = 1, .pages = 60}), ElementsAre("admit 1"));
  EXPECT_THAT(desk.On(SessionArrived{.id = 2, .session = 2, .pages = 41}),
              ElementsAre("refuse 2: no pages, retry 30s"));
  EXPECT_THAT(desk.On(SessionArrived{.id = 3, .session = 3, .pages = 40}), ElementsAre("admit 3"));
  EXPECT_EQ(desk.scheduler().load().pages_reserved, 100);
  // Situation: the session of 60 is closed; then 60 are asked for.
  // Verdict: released at once, since nothing of it is in flight; the newcomer is admitted.
  EXPECT_THAT(desk.On(SessionClosed{.session = 1}), ElementsAre("release 1"));
  EXPECT_THAT(desk.On(SessionArrived{.id = 4, .session = 4, .pages = 60}), ElementsAre("admit 4"));
  // Situation: more pages than there are, also a number that would overflow a sum.
  // Verdict: refused for good: no retry time.
  EXPECT_THAT(desk.On(SessionArrived{.id = 5, .session = 5, .pages = 101}),
              ElementsAre("refuse 5: too large, retry never"));
  EXPECT_THAT(desk.On(SessionArrived{.id = 6, .session = 6, .pages = INT64_MAX}),
              ElementsAre("refuse 6: too large, retry never"));
}

TEST(Scheduler, CountsPagesThatSessionsShareOnce) {
  Desk desk(Limits());
  // Situation: a session of 60 pages is forked; the branch brings 10 of its own, and another would need 31.
  // Verdict: the first fits, the second does not.
  desk.On(SessionArrived{.id = 1, .session = 1, .pages = 60});
  EXPECT_THAT(desk.On(SessionArrived{.id = 2, .session = 2, .pages = 60, .shared = 50}), ElementsAre("admit 2"));
  EXPECT_THAT(desk.On(SessionArrived{.id = 3, .session = 3, .pages = 60, .shared = 29}),
              ElementsAre("refuse 3: no pages, retry 30s"));
  EXPECT_EQ(desk.scheduler().load().pages_reserved, 70);
  // Situation: the branch copies 20 of the pages it shares; then the first session goes.
  // Verdict: what the branch holds stays reserved.
  desk.On(PagesCounted{.pages = 90});
  EXPECT_THAT(desk.On(SessionClosed{.session = 1}), ElementsAre("release 1"));
  desk.On(PagesCounted{.pages = 60});
  desk.scheduler().CheckInvariants();
  EXPECT_THAT(desk.On(SessionArrived{.id = 4, .session = 4, .pages = 40}), ElementsAre("admit 4"));
  desk.On(SessionClosed{.session = 2});
  desk.On(SessionClosed{.session = 4});
  EXPECT_EQ(desk.scheduler().load().pages_reserved, 0);
}

TEST(Scheduler, TakesAnotherNumberOfPagesForASession) {
  Desk desk(Limits());
  // Situation: a session of 60 pages shrinks to 40, then grows to all there are, and is closed.
  // Verdict: what it gives back is there for others at once; in the end nothing is reserved.
  EXPECT_THAT(desk.On(SessionArrived{.id = 1, .session = 1, .pages = 60}), ElementsAre("admit 1"));
  EXPECT_THAT(desk.On(SessionResized{.session = 1, .pages = 40}), IsEmpty());
  EXPECT_THAT(desk.On(SessionArrived{.id = 2, .session = 2, .pages = 60}), ElementsAre("admit 2"));
  EXPECT_THAT(desk.On(SessionClosed{.session = 2}), ElementsAre("release 2"));
  EXPECT_THAT(desk.On(SessionResized{.session = 1, .pages = 100}), IsEmpty());
  EXPECT_EQ(desk.scheduler().load().pages_reserved, 100);
  desk.scheduler().CheckInvariants();
  EXPECT_THAT(desk.On(SessionClosed{.session = 1}), ElementsAre("release 1"));
  EXPECT_EQ(desk.scheduler().load().pages_reserved, 0);
}

TEST(Scheduler, KeepsThePagesOfARowInFlight) {
  Desk desk(Limits());
  // Situation: a session is closed while its row is in flight.
  // Verdict: nothing happens until the step is done; then the stream ends, and only then its pages are free.
  EXPECT_THAT(desk.Begin(1, {.decode_tokens = 5}), ElementsAre("admit 1", "run 1d"));
  EXPECT_THAT(desk.On(SessionClosed{.session = 1}), IsEmpty());
  EXPECT_EQ(desk.scheduler().load().pages_reserved, 1);
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("end 1: closed", "release 1"));
  EXPECT_EQ(desk.scheduler().load().pages_reserved, 0);
}

TEST(Scheduler, BoundsItsQueue) {
  SchedulerLimits limits = Limits();
  limits.queue_max = 2;
  Desk desk(limits);
  // Situation: places for two requests that have not run; one runs, two wait, a fourth comes.
  // Verdict: refused; the one in flight does not count. Nothing was measured yet, so the shortest retry.
  desk.Begin(1, {.prompt_tokens = 80, .block_size = 8});
  EXPECT_THAT(desk.Begin(2, {.prompt_tokens = 8, .block_size = 8}), ElementsAre("admit 2"));
  EXPECT_THAT(desk.Begin(3, {.decode_tokens = 1}), ElementsAre("admit 3"));
  EXPECT_THAT(desk.Begin(4, {.decode_tokens = 1}), ElementsAre("refuse 4: queue full, retry 100ms"));
  // Situation: one of the waiting is cancelled.
  // Verdict: there is a place.
  EXPECT_THAT(desk.On(Cancelled{.id = 3}), ElementsAre("end 3: cancelled"));
  EXPECT_THAT(desk.On(RequestArrived{.id = 5, .session = 4, .decode_tokens = 1}), ElementsAre("admit 5"));
}

TEST(Scheduler, TakesAnotherQueueWhileRequestsWait) {
  SchedulerLimits limits = Limits();
  limits.queue_max = 2;
  Desk desk(limits);
  desk.Begin(1, {.decode_tokens = 1000});
  desk.Begin(2, {.decode_tokens = 1});
  desk.Begin(3, {.decode_tokens = 1});
  // Situation: two requests wait, for whom there are two places; there are to be three, then one.
  // Verdict: one more is admitted; then no more, and those who wait do so until they run.
  desk.On(LimitsChanged{.queue_max = 3, .reader_patience = limits.reader_patience});
  EXPECT_THAT(desk.Begin(4, {.decode_tokens = 1}), ElementsAre("admit 4"));
  EXPECT_THAT(desk.On(LimitsChanged{.queue_max = 1, .reader_patience = limits.reader_patience}), ElementsAre());
  EXPECT_THAT(desk.Begin(5, {.decode_tokens = 1}), ElementsAre(testing::StartsWith("refuse 5: queue full")));
  EXPECT_EQ(desk.scheduler().load().requests_waiting, 3);
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 2d 3d 4d 1d"));
}

TEST(Scheduler, CountsNobodyWhoseTimeIsUp) {
  SchedulerLimits limits = Limits();
  limits.queue_max = 1;
  Desk desk(limits);
  // Situation: the queue is full of a request whose deadline has passed, but no tick came yet; another one arrives.
  // Verdict: first the dead one ends, then the other takes its place.
  desk.Begin(1, {.decode_tokens = 1000});
  desk.Begin(2, {.decode_tokens = 1, .deadline = kStart + absl::Seconds(1)});
  desk.Wait(absl::Seconds(2));
  EXPECT_THAT(desk.On(SessionArrived{.id = 3, .session = 3, .pages = 1}), ElementsAre("end 2: deadline", "admit 3"));
  EXPECT_THAT(desk.On(RequestArrived{.id = 4, .session = 3, .decode_tokens = 1, .deadline = desk.now()}),
              ElementsAre("admit 4", "end 4: deadline"));
  EXPECT_THAT(desk.On(RequestArrived{.id = 5, .session = 3, .decode_tokens = 1}), ElementsAre("admit 5"));
}

TEST(Scheduler, DerivesTheRetryHintFromTheWorkInHand) {
  SchedulerLimits limits = Limits();
  limits.queue_max = 1;
  Desk desk(limits);
  // Situation: steps take 2 s; of the running, one has 3 blocks + 2 decodes left, another 4 decodes.
  // Verdict: pages may come back after 4 steps; the queue moves after the 24 + 16 prompt tokens, 5 steps, and one more.
  desk.On(SessionArrived{.id = 90, .session = 90, .pages = 98});
  desk.Begin(1, {.prompt_tokens = 32, .block_size = 8, .decode_tokens = 2});
  desk.Wait(absl::Seconds(2));
  desk.On(Cancelled{.id = 1});
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("end 1: cancelled"));
  desk.On(RequestArrived{.id = 2, .session = 1, .prompt_tokens = 32, .block_size = 8, .decode_tokens = 2});
  EXPECT_THAT(desk.On(SessionArrived{.id = 3, .session = 3, .pages = 2}), ElementsAre("refuse 3: no pages, retry 10s"));
  desk.On(RequestArrived{.id = 4, .session = 90, .prompt_tokens = 16, .block_size = 8});
  EXPECT_THAT(desk.On(SessionArrived{.id = 5, .session = 5, .pages = 2}), ElementsAre("refuse 5: no pages, retry 4s"));
  desk.On(SessionArrived{.id = 6, .session = 6, .pages = 1});
  EXPECT_THAT(desk.On(RequestArrived{.id = 7, .session = 6, .decode_tokens = 1}),
              ElementsAre("refuse 7: queue full, retry 12s"));
  // Situation: the block in flight takes 10 s; the shortest request has two blocks left.
  // Verdict: a step now counts (7 * 2 s + 10 s) / 8 = 3 s, and pages may come back after two.
  desk.Wait(absl::Seconds(10));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 2p8"));
  EXPECT_THAT(desk.On(SessionArrived{.id = 8, .session = 8, .pages = 2}), ElementsAre("refuse 8: no pages, retry 6s"));
}

// Composing a step

TEST(Scheduler, ComposesDecodesThenBlocks) {
  Desk desk(Limits());
  // Situation: a lone prompt of 7 tokens in blocks of 3, then two decodes.
  // Verdict: 3, 3, 1, decode, decode: one row per step, cut from the start, though two blocks would fit.
  EXPECT_THAT(desk.Begin(1, {.prompt_tokens = 7, .block_size = 3, .decode_tokens = 2}),
              ElementsAre("admit 1", "run 1p3"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 1p3"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 1p1"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 1d"));
  // Situation: a step is in flight when two prompts arrive whose blocks leave no room for each other beside a decode.
  // Verdict: they wait for the step; the decode goes first, the older block fits, the other is not cut to fit.
  EXPECT_THAT(desk.Begin(2, {.prompt_tokens = 10, .block_size = 5}), ElementsAre("admit 2"));
  EXPECT_THAT(desk.Begin(3, {.prompt_tokens = 10, .block_size = 5}), ElementsAre("admit 3"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 1d 2p5"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("end 1: done", "run 2p5"));
  // Situation: the older prompt is through.
  // Verdict: the younger has its turn.
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("end 2: done", "run 3p5"));
}

TEST(Scheduler, GivesABlockItsTurnAmongDecodes) {
  Desk desk(Limits());
  // Situation: one endless decode, and a prompt whose blocks fill a whole step, so that they never fit beside it.
  // Verdict: they alternate: a block waits for one step, then goes first; the decode has every second step.
  desk.Begin(1, {.decode_tokens = 1000});
  desk.Begin(2, {.prompt_tokens = 24, .block_size = 8});
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 1d"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 2p8"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 1d"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 2p8"));
  // Situation: as many decodes as rows, and a small block.
  // Verdict: in its turn it takes one row, and one decode waits for a step.
  desk.Begin(3, {.decode_tokens = 1000});
  desk.Begin(4, {.decode_tokens = 1000});
  desk.Begin(5, {.decode_tokens = 1000});
  desk.On(Cancelled{.id = 2});
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("end 2: cancelled", "run 1d 3d 4d 5d"));
  desk.Begin(6, {.prompt_tokens = 2, .block_size = 1});
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 1d 3d 4d 5d"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 6p1 1d 3d 4d"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 5d 1d 3d 4d"));
}

TEST(Scheduler, HoldsBlocksBesideDecodesToThePace) {
  SchedulerLimits limits = Limits();
  limits.step_tokens_max = 16;
  limits.step_rows_max = 8;
  Desk desk(limits);
  // Situation: a decode, and prompts in blocks of 3, where those who decode have time for 7 tokens.
  // Verdict: two blocks a step; the pace counts from the step on at whose end it was told.
  desk.Begin(1, {.decode_tokens = 3});
  for (const RequestId id : {2, 3, 4, 5}) desk.Begin(id, {.prompt_tokens = 12, .block_size = 3});
  EXPECT_THAT(desk.On(StepDone{.pace = 7}), ElementsAre("run 2p3 1d 3p3"));
  // Situation: there is time for nothing.
  // Verdict: one block a step all the same.
  EXPECT_THAT(desk.On(StepDone{.pace = 0}), ElementsAre("run 2p3 1d"));
  // Situation: nobody decodes any more.
  // Verdict: as many blocks as a step has tokens for.
  EXPECT_THAT(desk.On(StepDone{.pace = 0}), ElementsAre("end 1: done", "run 2p3 3p3 4p3 5p3"));
}

TEST(Scheduler, HoldsNoBlockToThePaceForADecodeThatNobodyGoesOnFrom) {
  SchedulerLimits limits = Limits();
  limits.step_tokens_max = 16;
  limits.step_rows_max = 8;
  Desk desk(limits);
  // Situation: no time for a second block beside a decode, which is the second last of its session.
  // Verdict: one block; and beside the last as many as a step has tokens for.
  desk.Begin(1, {.decode_tokens = 3, .closes = true});
  for (const RequestId id : {2, 3, 4}) desk.Begin(id, {.prompt_tokens = 12, .block_size = 3});
  EXPECT_THAT(desk.On(StepDone{.pace = 0}), ElementsAre("run 2p3 1d"));
  EXPECT_THAT(desk.On(StepDone{.pace = 0}), ElementsAre("run 1d 2p3 3p3 4p3"));
}

TEST(Scheduler, EndsARequestBeforeItsStepWhereItsRowIsDone) {
  Desk desk(Limits());
  for (const RequestId id : {1, 2}) desk.Begin(id, {.prompt_tokens = 2, .block_size = 1, .decode_tokens = 5});
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 1p1 2p1"));
  EXPECT_THAT(desk.On(RowDone{.id = 1}), ElementsAre("end 1: done"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 2p1"));
}

TEST(Scheduler, GivesEachTenantABlockBeyondThePace) {
  SchedulerLimits limits = Limits();
  limits.step_tokens_max = 16;
  limits.step_rows_max = 8;
  Desk desk(limits);
  // Situation: no time for any block beside the decode of one tenant; two others have two prompts each.
  // Verdict: a block of each in every step, up to a quarter of the rows, and no second one.
  desk.Begin(1, {.decode_tokens = 1000});
  for (const RequestId id : {2, 3}) desk.Begin(id, {.prompt_tokens = 6, .block_size = 3}, 1);
  for (const RequestId id : {4, 5}) desk.Begin(id, {.prompt_tokens = 6, .block_size = 3}, 2);
  EXPECT_THAT(desk.On(StepDone{.pace = 0}), ElementsAre("run 2p3 4p3 1d"));
  EXPECT_THAT(desk.On(StepDone{.pace = 0}), ElementsAre("run 2p3 4p3 1d"));
  EXPECT_THAT(desk.On(StepDone{.pace = 0}), ElementsAre("end 2: done", "end 4: done", "run 3p3 5p3 1d"));
}

TEST(Scheduler, RotatesDecodesThatAreTooMany) {
  SchedulerLimits limits = Limits();
  limits.step_rows_max = 2;
  Desk desk(limits);
  // Situation: three decodes of one tenant, two rows.
  // Verdict: each waits one step in three.
  desk.Begin(1, {.decode_tokens = 1000});
  desk.Begin(2, {.decode_tokens = 1000});
  desk.Begin(3, {.decode_tokens = 1000});
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 2d 3d"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 1d 2d"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 3d 1d"));
  // Situation: another tenant comes with one decode.
  // Verdict: it has every step, its fair half.
  EXPECT_THAT(desk.Begin(4, {.decode_tokens = 1000}, 1), ElementsAre("admit 4"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 4d 2d"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 4d 3d"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 4d 1d"));
}

TEST(Scheduler, SharesBlocksBetweenTenantsByWeight) {
  Desk desk(Limits());
  // Situation: tenant 0 of weight 3 has eight prompts, tenant 1 of weight 1 two.
  // Verdict: three blocks to one, two in a step.
  desk.On(TenantChanged{.tenant = 0, .weight = 3});
  desk.Begin(90, {.decode_tokens = 1}, 9);
  for (uint64_t id = 1; id <= 8; ++id) desk.Begin(id, {.prompt_tokens = 4, .block_size = 4});
  for (uint64_t id = 11; id <= 12; ++id) desk.Begin(id, {.prompt_tokens = 4, .block_size = 4}, 1);
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("end 90: done", "run 1p4 11p4"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("end 1: done", "end 11: done", "run 2p4 3p4"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("end 2: done", "end 3: done", "run 12p4 4p4"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("end 12: done", "end 4: done", "run 5p4 6p4"));
}

TEST(Scheduler, ServesTheHigherTierFirst) {
  SchedulerLimits limits = Limits();
  limits.step_rows_max = 2;
  limits.tier_floor = 3;
  Desk desk(limits);
  // Situation: tenant 0 can wait, and has two decodes; tenant 1 of the usual tier comes with two.
  // Verdict: its rows are tenant 1's from then on, but for one in four.
  desk.On(TenantChanged{.tenant = 0, .tier = Tier::kLow});
  desk.Begin(1, {.decode_tokens = 1000});
  desk.Begin(2, {.decode_tokens = 1000});
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 2d 1d"));
  desk.Begin(3, {.decode_tokens = 1000}, 1);
  desk.Begin(4, {.decode_tokens = 1000}, 1);
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 3d 4d"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 3d 2d"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 4d 3d"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 4d 1d"));
}

TEST(Scheduler, KeepsAQuarterOfTheQueueFromWhoCanWait) {
  SchedulerLimits limits = Limits();
  limits.queue_max = 4;
  limits.step_rows_max = 1;
  Desk desk(limits);
  desk.On(TenantChanged{.tenant = 0, .tier = Tier::kLow});
  desk.Begin(90, {.decode_tokens = 1}, 9);  // the step in flight
  for (uint64_t id = 1; id <= 3; ++id) desk.Begin(id, {.decode_tokens = 1});
  EXPECT_THAT(desk.Begin(4, {.decode_tokens = 1}), ElementsAre(testing::StartsWith("refuse 4: queue full")));
  EXPECT_THAT(desk.Begin(5, {.decode_tokens = 1}, 1), ElementsAre("admit 5"));
  EXPECT_THAT(desk.Begin(6, {.decode_tokens = 1}, 1), ElementsAre(testing::StartsWith("refuse 6: queue full")));
}

TEST(Scheduler, OrdersATenantsPromptsByPriorityThenAge) {
  SchedulerLimits limits = Limits();
  limits.step_rows_max = 1;
  Desk desk(limits);
  // Situation: three prompts of one tenant wait, the youngest with priority 1.
  // Verdict: priority first, with all its blocks; then the older.
  desk.Begin(90, {.decode_tokens = 1});
  desk.Begin(1, {.prompt_tokens = 4, .block_size = 4});
  desk.Begin(2, {.prompt_tokens = 4, .block_size = 4});
  desk.Begin(3, {.priority = 1, .prompt_tokens = 8, .block_size = 4});
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("end 90: done", "run 3p4"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 3p4"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("end 3: done", "run 1p4"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("end 1: done", "run 2p4"));
}

TEST(Scheduler, RunsNothingOfASessionThatIsHeld) {
  Desk desk(Limits());
  // Situation: a session is held while its row is in flight; the step ends, and another session's request runs.
  // Verdict: the row in flight completes, and the next is not planned until the session is held no more.
  desk.Begin(1, {.decode_tokens = 1000});
  EXPECT_THAT(desk.On(SessionHeld{.session = 1}), IsEmpty());
  EXPECT_THAT(desk.On(StepDone{}), IsEmpty());
  EXPECT_THAT(desk.On(SessionHeld{.session = 1, .held = false}), ElementsAre("run 1d"));
  // Situation: it is held again, and its request is cancelled.
  // Verdict: that ends it at once; a request that arrives is admitted, and waits.
  EXPECT_THAT(desk.On(SessionHeld{.session = 1}), IsEmpty());
  EXPECT_THAT(desk.On(StepDone{}), IsEmpty());
  EXPECT_THAT(desk.On(Cancelled{.id = 1}), ElementsAre("end 1: cancelled"));
  EXPECT_THAT(desk.On(RequestArrived{.id = 2, .session = 1, .decode_tokens = 1000}), ElementsAre("admit 2"));
  EXPECT_THAT(desk.On(SessionClosed{.session = 1}), ElementsAre("end 2: closed", "release 1"));
}

// Ends

TEST(Scheduler, EndsARequestOnce) {
  Desk desk(Limits());
  // Situation: the worker says that a request is finished before its last token: a stop.
  // Verdict: done, and the session takes the next request.
  desk.Begin(1, {.decode_tokens = 1000});
  EXPECT_THAT(desk.On(StepDone{.finished = {1}}), ElementsAre("end 1: done"));
  EXPECT_THAT(desk.On(RequestArrived{.id = 2, .session = 1, .decode_tokens = 1000}), ElementsAre("admit 2", "run 2d"));
  // Situation: cancelled during a step, and again; more events come late.
  // Verdict: one end, when the step is done; what comes late is ignored.
  EXPECT_THAT(desk.On(Cancelled{.id = 2}), IsEmpty());
  EXPECT_THAT(desk.On(Cancelled{.id = 2}), IsEmpty());
  EXPECT_THAT(desk.On(ReaderBlocked{.id = 2}), IsEmpty());
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("end 2: cancelled"));
  EXPECT_THAT(desk.On(Cancelled{.id = 2}), IsEmpty());
  EXPECT_THAT(desk.On(ReaderBlocked{.id = 2}), IsEmpty());
  EXPECT_THAT(desk.On(ReaderReady{.id = 2}), IsEmpty());
  // Situation: cancelled during the step that finishes it.
  // Verdict: it is done: its last token exists.
  desk.On(RequestArrived{.id = 3, .session = 1, .decode_tokens = 1});
  desk.On(Cancelled{.id = 3});
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("end 3: done"));
  // Situation: a request without prompt and without decodes.
  // Verdict: admitted and done.
  EXPECT_THAT(desk.On(RequestArrived{.id = 4, .session = 1}), ElementsAre("admit 4", "end 4: done"));
  EXPECT_EQ(desk.scheduler().load().requests, 0);
}

TEST(Scheduler, EndsAtTheDeadline) {
  Desk desk(Limits());
  // Situation: one request waits, one is in flight, both with a deadline; a third arrives past its own.
  // Verdict: the waiting one ends at the deadline, the one in flight with its step, the third at once.
  desk.Begin(1, {.decode_tokens = 1000, .deadline = kStart + absl::Seconds(2)});
  desk.Begin(2, {.decode_tokens = 1000, .deadline = kStart + absl::Seconds(1)});
  EXPECT_EQ(desk.scheduler().next_wake(), kStart + absl::Seconds(1));
  desk.Wait(absl::Seconds(1));
  EXPECT_THAT(desk.On(Tick{}), ElementsAre("end 2: deadline"));
  EXPECT_EQ(desk.scheduler().next_wake(), kStart + absl::Seconds(2));
  desk.Wait(absl::Seconds(1));
  EXPECT_THAT(desk.On(Tick{}), IsEmpty());
  EXPECT_EQ(desk.scheduler().next_wake(), absl::InfiniteFuture()) << "it waits for the step, not for the clock";
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("end 1: deadline"));
  EXPECT_THAT(desk.Begin(3, {.decode_tokens = 1, .deadline = kStart}), ElementsAre("admit 3", "end 3: deadline"));
}

TEST(Scheduler, LetsASlowReaderWaitAndThenEndsIt) {
  Desk desk(Limits());
  // Situation: of two decodes one has a full stream.
  // Verdict: the other goes on alone; ready again, it is back in the next step.
  desk.Begin(1, {.decode_tokens = 1000});
  desk.Begin(2, {.decode_tokens = 1000});
  EXPECT_THAT(desk.On(ReaderBlocked{.id = 2}), IsEmpty());
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 1d"));
  EXPECT_EQ(desk.scheduler().load().requests_blocked, 1);
  EXPECT_THAT(desk.On(ReaderReady{.id = 2}), IsEmpty());
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 2d 1d"));
  // Situation: it blocks again, says so twice, and outlasts the patience of 30 s.
  // Verdict: counted from the first time; ended at the tick that next_wake asked for.
  desk.On(ReaderBlocked{.id = 2});
  desk.Wait(absl::Seconds(20));
  desk.On(ReaderBlocked{.id = 2});
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 1d"));
  EXPECT_EQ(desk.scheduler().next_wake(), kStart + absl::Seconds(30));
  desk.Wait(absl::Seconds(10));
  EXPECT_THAT(desk.On(Tick{}), ElementsAre("end 2: slow reader"));
  // Situation: the only runnable request blocks and comes back while nothing is in flight.
  // Verdict: idle in between; a step starts at once when it is ready.
  desk.On(ReaderBlocked{.id = 1});
  EXPECT_THAT(desk.On(StepDone{}), IsEmpty());
  EXPECT_THAT(desk.On(ReaderReady{.id = 1}), ElementsAre("run 1d"));
}

TEST(Scheduler, Drains) {
  Desk desk(Limits());
  // Situation: one request decodes, one has run a block and is blocked, one has not run; drain within 5 s.
  // Verdict: the one that has not run ends, arrivals are refused, the others go on.
  desk.Begin(1, {.prompt_tokens = 4, .block_size = 2});
  desk.On(ReaderBlocked{.id = 1});
  desk.On(StepDone{});
  desk.Begin(2, {.decode_tokens = 1000});
  desk.Begin(3, {.decode_tokens = 1000});
  desk.On(SessionArrived{.id = 4, .session = 4, .pages = 1});
  EXPECT_THAT(desk.On(Draining{.until = kStart + absl::Seconds(5)}), ElementsAre("end 3: draining"));
  EXPECT_THAT(desk.On(SessionArrived{.id = 5, .session = 5}), ElementsAre("refuse 5: draining, retry 1s"));
  EXPECT_THAT(desk.On(RequestArrived{.id = 6, .session = 4}), ElementsAre("refuse 6: draining, retry 1s"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("run 2d"));
  EXPECT_EQ(desk.scheduler().next_wake(), kStart + absl::Seconds(5));
  // Situation: the 5 s are over.
  // Verdict: the blocked one ends at once, the one in flight with its step; then there is nothing to wait for.
  desk.Wait(absl::Seconds(5));
  EXPECT_THAT(desk.On(Tick{}), ElementsAre("end 1: draining"));
  EXPECT_THAT(desk.On(StepDone{}), ElementsAre("end 2: draining"));
  EXPECT_EQ(desk.scheduler().next_wake(), absl::InfiniteFuture());
  EXPECT_EQ(desk.scheduler().load().requests, 0);
}

TEST(SchedulerDeathTest, EndsTheProcessOnAWorkersMistake) {
  Desk desk(Limits());
  desk.Begin(1, {.decode_tokens = 1000});
  EXPECT_DEATH(desk.On(RequestArrived{.id = 2, .session = 1}), "broken invariant") << "a second writer";
  EXPECT_DEATH(desk.On(RequestArrived{.id = 2, .session = 9}), "broken invariant") << "a session that is not there";
  EXPECT_DEATH(desk.On(SessionArrived{.id = 2, .session = 1}), "broken invariant") << "a session twice";
  EXPECT_DEATH(desk.On(StepDone{.finished = {7}}), "broken invariant") << "a row that was not in the step";
  desk.On(StepDone{.finished = {1}});
  EXPECT_DEATH(desk.On(StepDone{}), "broken invariant") << "no step in flight";
  desk.Wait(-absl::Seconds(1));
  EXPECT_DEATH(desk.On(Tick{}), "broken invariant") << "time goes back";
}

}  // namespace
}  // namespace ebb
