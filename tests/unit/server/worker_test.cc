// The worker's thread and those that talk to it: everybody gets one answer, and news come in time.

#include "server/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/hash_random.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/server/test_calls.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;
using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A worker that takes nothing out of its mailbox, from the end of the constructor on.
class HeldWorker {
 public:
  explicit HeldWorker(Worker& worker) {
    worker.Ask<bool>(
        [this](Dispatcher& /*dispatcher*/) {
          inside_.set_value();
          go_on_.get_future().wait();
          return true;
        },
        [this](const absl::StatusOr<bool>& answer) { answered_.set_value(answer.ok()); });
    inside_.get_future().wait();
  }

  void LetGo() { go_on_.set_value(); }
  // Once it has been let go: waits until the worker has gone on.
  bool WentOn() { return answered_.get_future().get(); }

 private:
  std::promise<void> inside_, go_on_;
  std::promise<bool> answered_;
};

class WorkerTest : public testing::Test {
 protected:
  explicit WorkerTest(const DispatcherOptions& options = {})
      : worker_(std::make_unique<Worker>(OpenTestEngine(file_.path(), {.threads = 2}), options, metrics_)) {}

  // Asks and waits for the answer.
  template <typename Answer>
  absl::StatusOr<Answer> Ask(absl::AnyInvocable<absl::StatusOr<Answer>(Dispatcher&)> question) {
    std::promise<absl::StatusOr<Answer>> answered;
    worker_->Ask<Answer>(std::move(question),
                         [&](absl::StatusOr<Answer> answer) { answered.set_value(std::move(answer)); });
    return answered.get_future().get();
  }
  absl::StatusOr<SessionInfo> Create(const std::string& id) {
    return Ask<SessionInfo>([&](Dispatcher& dispatcher) { return dispatcher.Create(OpenRequest(id)); });
  }
  absl::StatusOr<SessionInfo> Get(const std::string& id) {
    return Ask<SessionInfo>([&](Dispatcher& dispatcher) { return dispatcher.Get("default", id); });
  }
  absl::StatusOr<int64_t> Delete(const std::string& id) {
    return Ask<int64_t>([&](Dispatcher& dispatcher) { return dispatcher.Delete("default", id, {}); });
  }
  WorkTotals Totals() {
    return *Ask<WorkTotals>([](Dispatcher& dispatcher) -> absl::StatusOr<WorkTotals> { return dispatcher.Totals(); });
  }

  TinyModelFile file_ = TinyModelFile(TinyModel{});
  Metrics metrics_ = Metrics({});
  std::unique_ptr<Worker> worker_;
};

TEST_F(WorkerTest, AnswersEveryoneOnce) {
  constexpr int kThreads = 4, kSessions = 25;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < kSessions; ++i) {
        const std::string id = absl::StrFormat("s%d-%d", t, i);
        EXPECT_THAT(Create(id), IsOk());
        EXPECT_EQ(worker_->Look("default", id)->generation, 1U);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Totals().load.sessions, kThreads * kSessions);
}

TEST_F(WorkerTest, SaysHowLongItHasBeenAtWhatItDoes) {
  HeldWorker held(*worker_);
  const absl::Duration before = worker_->busy_for();
  const absl::Time asked = worker_->Now();
  while (worker_->Now() < asked + absl::Milliseconds(20)) std::this_thread::yield();
  EXPECT_GE(worker_->busy_for(), before + absl::Milliseconds(20));
  held.LetGo();
  EXPECT_TRUE(held.WentOn());
  while (worker_->busy_for() != absl::ZeroDuration()) std::this_thread::yield();  // it waits for work
}

TEST_F(WorkerTest, ACallsWaitBeginsWhenItComesNotWhenTheStepUnderWayIsOver) {
  ASSERT_THAT(Create("a"), IsOk());
  HeldWorker held(*worker_);
  RecordedCall call;
  worker_->Start(worker_->NewCallId(), AnswerRequest("a", 20, 1), call);
  const absl::Time came = worker_->Now();
  while (worker_->Now() < came + absl::Milliseconds(20)) std::this_thread::yield();
  held.LetGo();
  ASSERT_THAT(call.Wait().status, IsOk());
  EXPECT_GE(call.end().timings.queue, absl::Milliseconds(20));
  EXPECT_GE(*call.end().timings.first_token, absl::Milliseconds(20));
  EXPECT_TRUE(held.WentOn());
}

TEST_F(WorkerTest, WhatACallDidIsSeenByWhoWaitedForItsEnd) {
  ASSERT_THAT(Create("a"), IsOk());
  RecordedCall call;
  worker_->Start(worker_->NewCallId(), AnswerRequest("a", 20, 10), call);
  ASSERT_THAT(call.Wait().status, IsOk());
  const absl::StatusOr<SessionView> view = worker_->Look("default", "a");
  ASSERT_THAT(view, IsOk());
  EXPECT_EQ(view->generation, call.end().generation);
  EXPECT_THAT(view->log_tail, ElementsAreArray(call.tokens().end() - kLogTail, call.tokens().end()));
}

// The cancel comes while a step is about to end, so the next one is planned with it known.
TEST_F(WorkerTest, ACallCancelledDuringAStepRunsNoFurtherStep) {
  ASSERT_THAT(Create("a"), IsOk());
  const CallId id = worker_->NewCallId();
  RecordedCall call([&](const RecordedCall& so_far) {
    if (so_far.tokens().size() == 5) worker_->Cancel(id);
    return Reader::kReady;
  });
  worker_->Start(id, AnswerRequest("a", 2 * kTestBlock, kEndless), call);
  EXPECT_THAT(call.Wait().status, IsRefusal(absl::StatusCode::kCancelled, "CALL_CANCELLED", ""));
  EXPECT_THAT(call.tokens(), SizeIs(5));
  EXPECT_EQ(Totals().steps, 2 + 5) << "two blocks and five tokens";
  EXPECT_EQ(Get("a")->tokens, 2 * kTestBlock + 5);
}

TEST_F(WorkerTest, ACallCancelledByANeighbourGetsAtMostTheStepThatRuns) {
  ASSERT_THAT(Create("a"), IsOk());
  ASSERT_THAT(Create("b"), IsOk());
  const CallId a = worker_->NewCallId(), b = worker_->NewCallId();
  RecordedCall cancelled;
  size_t had = 0;
  RecordedCall neighbour([&](const RecordedCall& so_far) {
    if (so_far.tokens().size() == 20) {
      had = cancelled.tokens().size();
      worker_->Cancel(b);
    }
    return Reader::kReady;
  });
  worker_->Start(b, AnswerRequest("b", 20, kEndless), cancelled);
  worker_->Start(a, AnswerRequest("a", 20, 40), neighbour);
  EXPECT_THAT(neighbour.Wait().status, IsOk());
  EXPECT_THAT(cancelled.Wait().status, IsRefusal(absl::StatusCode::kCancelled, "CALL_CANCELLED", ""));
  EXPECT_LE(cancelled.tokens().size(), had + 1);
}

TEST_F(WorkerTest, ACancelThatFollowsItsCallAtOnceStillFindsIt) {
  ASSERT_THAT(Create("a"), IsOk());
  for (int round = 0; round < 50; ++round) {
    RecordedCall call;
    const CallId id = worker_->NewCallId();
    worker_->Start(id, AnswerRequest("a", 20, kEndless), call);
    worker_->Cancel(id);
    EXPECT_THAT(call.Wait().status, IsRefusal(absl::StatusCode::kCancelled, "CALL_CANCELLED", ""));
  }
}

TEST_F(WorkerTest, AFullReaderGoesOnWhenItIsReadyAgain) {
  ASSERT_THAT(Create("a"), IsOk());
  ASSERT_THAT(Create("b"), IsOk());
  std::promise<void> full;
  RecordedCall slow([&](const RecordedCall& so_far) {
    if (so_far.tokens().size() != 4) return Reader::kReady;
    full.set_value();
    return Reader::kFull;
  });
  RecordedCall other;
  const CallId id = worker_->NewCallId();
  worker_->Start(id, AnswerRequest("a", 20, 10), slow);
  full.get_future().wait();
  worker_->Start(worker_->NewCallId(), AnswerRequest("b", 20, 50), other);
  EXPECT_THAT(other.Wait().status, IsOk());
  EXPECT_FALSE(slow.ended());
  EXPECT_EQ(Get("a")->tokens, 20 + 4) << "not a step while the other one made fifty";
  worker_->ReaderReady(id);
  EXPECT_THAT(slow.Wait().status, IsOk());
  EXPECT_THAT(slow.tokens(), ElementsAreArray(other.tokens().begin(), other.tokens().begin() + 10));
}

// However many ask for something long at once, calls wait for one of them before each step.
TEST_F(WorkerTest, BetweenTwoStepsThereIsOneLongQuestionAtMost) {
  constexpr int kQuestions = 8;
  ASSERT_THAT(Create("a"), IsOk());
  std::promise<void> begun;
  RecordedCall running([&](const RecordedCall& so_far) {
    if (so_far.tokens().size() == 1) begun.set_value();
    return Reader::kReady;
  });
  const CallId id = worker_->NewCallId();
  worker_->Start(id, AnswerRequest("a", 20, kEndless), running);
  begun.get_future().wait();
  HeldWorker held(*worker_);  // all of these are in when the worker looks again
  std::vector<std::promise<int64_t>> asked_at(kQuestions);
  for (int i = 0; i < kQuestions; ++i) {
    worker_->Ask<int64_t>([](Dispatcher& dispatcher) -> absl::StatusOr<int64_t> { return dispatcher.Totals().steps; },
                          [&, i](const absl::StatusOr<int64_t>& steps) { asked_at[i].set_value(*steps); },
                          Effort::kLong);
  }
  held.LetGo();
  int64_t before = asked_at[0].get_future().get();
  for (int i = 1; i < kQuestions; ++i) {
    const int64_t now = asked_at[i].get_future().get();
    EXPECT_GE(now, before + 1) << "question " << i;
    before = now;
  }
  worker_->Cancel(id);
  EXPECT_THAT(running.Wait().status, IsRefusal(absl::StatusCode::kCancelled, "CALL_CANCELLED", ""));
}

TEST_F(WorkerTest, DrainLetsRunWhatRunsAndRefusesTheRest) {
  ASSERT_THAT(Create("a"), IsOk());
  RecordedCall running([&](const RecordedCall& so_far) {
    if (so_far.tokens().size() == 3) worker_->Drain(absl::InfiniteDuration());
    return Reader::kReady;
  });
  worker_->Start(worker_->NewCallId(), AnswerRequest("a", 20, 30), running);
  worker_->WaitUntilIdle();
  EXPECT_THAT(running.Wait().status, IsOk());
  EXPECT_THAT(running.tokens(), SizeIs(30));
  EXPECT_THAT(Create("b"), IsRefusal(absl::StatusCode::kUnavailable, "DRAINING", ""));
}

TEST_F(WorkerTest, AnImpatientDrainEndsWhatRuns) {
  ASSERT_THAT(Create("a"), IsOk());
  RecordedCall running([&](const RecordedCall& so_far) {
    if (so_far.tokens().size() == 3) worker_->Drain(absl::ZeroDuration());
    return Reader::kReady;
  });
  worker_->Start(worker_->NewCallId(), AnswerRequest("a", 20, kEndless), running);
  worker_->WaitUntilIdle();
  EXPECT_THAT(running.Wait().status, IsRefusal(absl::StatusCode::kUnavailable, "DRAINING", ""));
  EXPECT_THAT(running.tokens(), SizeIs(3));
}

class SmallMailboxTest : public WorkerTest {
 protected:
  SmallMailboxTest() : WorkerTest({.live = {.queue_max = 4}}) {}
};

TEST_F(SmallMailboxTest, AFullMailboxRefusesAtOnceAndStillTakesNews) {
  ASSERT_THAT(Create("a"), IsOk());
  RecordedCall running([](const RecordedCall& so_far) {
    return so_far.tokens().size() == 3 ? Reader::kFull : Reader::kReady;  // stays until it is cancelled
  });
  const CallId id = worker_->NewCallId();
  worker_->Start(id, AnswerRequest("a", 20, kEndless), running);

  HeldWorker held(*worker_);  // the worker now takes nothing out of its mailbox
  std::vector<std::promise<absl::StatusOr<bool>>> answers(7);
  const auto ask = [&](size_t i) {
    worker_->Ask<bool>([](Dispatcher&) { return true; },
                       [&answers, i](const absl::StatusOr<bool>& answer) { answers[i].set_value(answer); });
  };
  for (size_t i = 0; i < 5; ++i) ask(i);
  const auto full = IsRefusal(absl::StatusCode::kUnavailable, "QUEUE_FULL", "");
  EXPECT_THAT(answers[4].get_future().get(), full) << "while the worker is busy";
  RecordedCall refused;
  worker_->Start(worker_->NewCallId(), AnswerRequest("a", 0, 1), refused);
  EXPECT_TRUE(refused.ended());
  EXPECT_THAT(refused.end().status, full);
  worker_->SetLive({.queue_max = 6});  // itself one of them
  for (size_t i = 5; i < 7; ++i) ask(i);
  EXPECT_THAT(answers[6].get_future().get(), full);
  worker_->Cancel(id);
  held.LetGo();
  for (const size_t i : {0, 1, 2, 3, 5}) EXPECT_THAT(answers[i].get_future().get(), IsOk());
  EXPECT_THAT(running.Wait().status, IsRefusal(absl::StatusCode::kCancelled, "CALL_CANCELLED", ""));
}

TEST_F(WorkerTest, WhatIsInTheMailboxIsAnsweredBeforeTheWorkerStops) {
  HeldWorker held(*worker_);
  int answered = 0;  // the worker's until it has stopped
  for (int i = 0; i < 20; ++i) {
    worker_->Ask<bool>([](Dispatcher&) { return true; }, [&](const absl::StatusOr<bool>&) { ++answered; });
  }
  held.LetGo();
  worker_.reset();
  EXPECT_EQ(answered, 20);
}

// Threads that open, answer, cancel, read slowly and delete as chance has it: each call ends once, and what is left at
// the end is nothing.
TEST_F(WorkerTest, NothingIsLeftOfManyCallsThatEndAnyhow) {
  constexpr int kThreads = 4, kRounds = 40;
  const auto talk = [this](uint64_t seed) {
    HashRandom random(seed);
    for (int round = 0; round < kRounds; ++round) {
      const std::string id = absl::StrFormat("s%d-%d", seed, round);
      ASSERT_THAT(Create(id), IsOk());
      const CallId call_id = worker_->NewCallId();
      const auto cancel_at = static_cast<size_t>(random.Uniform(0, 20));
      const auto full_at = static_cast<size_t>(random.Uniform(0, 20));
      RecordedCall call([&](const RecordedCall& so_far) {
        if (so_far.tokens().size() == cancel_at) worker_->Cancel(call_id);
        if (so_far.tokens().size() != full_at) return Reader::kReady;
        worker_->ReaderReady(call_id);
        return Reader::kFull;
      });
      worker_->Start(call_id, AnswerRequest(id, random.Uniform(1, 40), 12), call);
      const bool delete_early = random.Uniform(0, 3) == 0;
      if (delete_early) {
        EXPECT_THAT(Delete(id), IsOk());
      }
      if (random.Uniform(0, 3) == 0) worker_->Cancel(call_id);
      const absl::Status status = call.Wait().status;
      EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kCancelled) << status;
      if (status.ok()) {
        EXPECT_THAT(call.tokens(), SizeIs(12));
      }
      if (!delete_early) {
        EXPECT_THAT(Delete(id), IsOk());
      }
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(talk, t);
  for (std::thread& thread : threads) thread.join();
  const WorkTotals totals = Totals();
  EXPECT_EQ(totals.load.sessions, 0);
  EXPECT_EQ(totals.load.requests, 0);
  EXPECT_EQ(totals.load.pages_reserved, 0);
  EXPECT_EQ(totals.memory.pages_reserved, 0);
  EXPECT_EQ(totals.used_bytes, 0);
  EXPECT_THAT(totals.steps, Ge(1));
}

}  // namespace
}  // namespace ebb
