// A GPU that fails while it serves: who was computed there is told so and comes back from the journal with all that was
// told, and nobody else notices. Who it has no memory for gets its answer, and the log tells of it. The worker, its
// journal in a folder and the recovery are the server's; the GPU is an emulation that fails, or is full, when it is
// told to.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "engine/gpu/placed_engine.h"
#include "engine/model/gguf.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/folder_health.h"
#include "server/folder_store.h"
#include "server/journal.h"
#include "server/kept_sessions.h"
#include "server/recovery.h"
#include "server/saved_session.h"
#include "server/session_files.h"
#include "server/worker.h"
#include "tests/support/gpu_target.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/server/test_calls.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr int32_t kPrompt = 20;
constexpr size_t kTold = 12;  // tokens before the GPU fails

std::atomic<bool> device_fails = false;
std::atomic<bool> device_is_full = false;

const gpu::Table& FailingTable() {
  static const gpu::Table table = [] {
    gpu::Table failing = gpu::TableUnderTest(32);
    failing.wait = [](gpu::Stream stream) {
      return device_fails ? "told to fail" : gpu::TableUnderTest(32).wait(stream);
    };
    failing.allocate = [](int64_t bytes, void** memory) -> gpu::Error {
      return device_is_full ? "told to be full" : gpu::TableUnderTest(32).allocate(bytes, memory);
    };
    return failing;
  }();
  return table;
}

std::unique_ptr<Engine> OpenPlaced(const std::string& path) {
  device_fails = device_is_full = false;
  const auto file = GgufFile::Open(path);
  EBB_CHECK(file.ok());
  const auto config = ReadConfig(*file);
  EBB_CHECK(config.ok());
  auto gpu = GpuEngine::Open(FailingTable(), *config, *FindWeights(*file, *config),
                             {.arena_bytes = 16 << 20, .kv_type = PolicySpec{}.kv_type});
  EBB_CHECK(gpu.ok());
  auto engine = PlaceOn(*std::move(gpu), OpenTestEngine(path));
  EBB_CHECK(engine.ok());
  return *std::move(engine);
}

SessionRequest OnHost(const std::string& id) {
  SessionRequest request = OpenRequest(id);
  request.policy = TestPolicy({.scorer = "scissorhands", .budget = 48});
  return request;
}

class GpuFaultTest : public testing::Test {
 protected:
  explicit GpuFaultTest(bool is_journaled = true, double shadows = 0, bool recovers = true)
      : worker_(std::make_unique<Worker>(
            OpenPlaced(file_.path()),
            DispatcherOptions{.live = {.shadow = {.share = shadows}},
                              .journal = is_journaled ? &journal_ : nullptr,
                              .recover = recovers ? [this](const SessionName& name) { recovery_.Add(name); }
                                                  : std::function<void(const SessionName&)>()},
            metrics_)) {}
  ~GpuFaultTest() override {
    recovery_.Stop();
    worker_->Drain(absl::ZeroDuration());
    worker_->WaitUntilIdle();
    worker_.reset();
  }

  template <typename Answer>
  absl::StatusOr<Answer> Ask(absl::AnyInvocable<absl::StatusOr<Answer>(Dispatcher&)> question) {
    std::promise<absl::StatusOr<Answer>> answered;
    worker_->Ask<Answer>(std::move(question),
                         [&](absl::StatusOr<Answer> answer) { answered.set_value(std::move(answer)); });
    return answered.get_future().get();
  }
  absl::StatusOr<SessionInfo> Create(const SessionRequest& request) {
    return Ask<SessionInfo>([&](Dispatcher& dispatcher) { return dispatcher.Create(request); });
  }
  absl::StatusOr<SessionInfo> Get(const std::string& id) {
    return Ask<SessionInfo>([&](Dispatcher& dispatcher) { return dispatcher.Get("default", id); });
  }
  absl::StatusOr<SessionInfo> GetWhenBack(const std::string& id) {
    absl::StatusOr<SessionInfo> back = Get(id);
    for (; GetRefusal(back.status()).reason == "SESSION_RECOVERING"; back = Get(id)) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    return back;
  }
  // That the session answers with what was told of it, and goes on.
  void GoOn(const std::string& id, const std::vector<int32_t>& told) {
    RecordedCall rest;
    CallRequest resume = AnswerRequest(id, 0, static_cast<int32_t>(told.size()) + 10);
    resume.resume_from = kPrompt;
    Start(std::move(resume), rest);
    ASSERT_THAT(rest.Wait().status, IsOk());
    ASSERT_EQ(rest.tokens().size(), told.size() + 10);
    EXPECT_THAT(std::vector(rest.tokens().begin(), rest.tokens().end() - 10), ElementsAreArray(told));
  }
  void Start(CallRequest request, RecordedCall& call) {
    worker_->Start(worker_->NewCallId(), std::move(request), call);
  }
  // An endless answer in "a", in whose midst the GPU fails.
  void CutOff(RecordedCall& call) {
    Start(AnswerRequest("a", kPrompt, kEndless), call);
    const absl::Status status = call.Wait().status;
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(GetRefusal(status).reason, "GPU_FAULT");
    EXPECT_TRUE(GetRefusal(status).retry.has_value());
    EXPECT_GE(call.tokens().size(), kTold);
    EXPECT_EQ(metrics_.worker().gpu_sessions_lost.value(), 1);
  }
  static Reader FailAfterSome(const RecordedCall& call) {
    if (call.tokens().size() == kTold) device_fails = true;
    return Reader::kReady;
  }

  TinyModelFile file_ = TinyModelFile({.layers = 2, .heads = 4, .kv_heads = 2});
  TemporaryFolder folder_;
  Metrics metrics_ = Metrics({});
  std::unique_ptr<SessionFiles> files_ = *SessionFiles::Open(folder_.path());
  Recovery recovery_ = Recovery(*files_, metrics_.journal());
  FolderHealth health_ = FolderHealth(folder_.path());
  Journal journal_ = Journal(std::make_unique<FolderStore>(*files_, Sync::kNone, health_, metrics_.journal()),
                             &SnapshotOf, metrics_.journal());
  std::unique_ptr<Worker> worker_;
};

TEST_F(GpuFaultTest, WhatWasToldComesBackAndTheAnswerGoesOn) {
  ASSERT_THAT(Create(OpenRequest("a")), IsOk());
  RecordedCall call(&FailAfterSome);
  CutOff(call);
  for (const absl::Status& status :
       {Get("a").status(), worker_->Look("default", "a").status(), Create(OpenRequest("a")).status()}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(GetRefusal(status).reason, "SESSION_RECOVERING");
    EXPECT_TRUE(GetRefusal(status).retry.has_value());
  }
  EXPECT_EQ(Ask<WorkTotals>([](Dispatcher& dispatcher) -> absl::StatusOr<WorkTotals> {
              return dispatcher.Totals();
            })->load.pages_reserved,
            0);

  recovery_.Start(*worker_);
  const absl::StatusOr<SessionInfo> back = GetWhenBack("a");
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(back->tokens, kPrompt + static_cast<int64_t>(call.tokens().size()));
  GoOn("a", call.tokens());
  EXPECT_EQ(metrics_.journal().brought_back.value(), 1);
  EXPECT_EQ(GetRefusal(Create(OpenRequest("a")).status()).reason, "NAME_TAKEN");
}

TEST_F(GpuFaultTest, WhoTheHostComputesDoesNotNotice) {
  for (const char* id : {"calm", "b"}) ASSERT_THAT(Create(OnHost(id)), IsOk());
  ASSERT_THAT(Create(OpenRequest("a")), IsOk());
  RecordedCall calm, beside, cut(&FailAfterSome);
  Start(AnswerRequest("calm", kPrompt, 60), calm);
  ASSERT_THAT(calm.Wait().status, IsOk());
  Start(AnswerRequest("b", kPrompt, 60), beside);
  CutOff(cut);
  ASSERT_THAT(beside.Wait().status, IsOk());
  EXPECT_THAT(beside.tokens(), ElementsAreArray(calm.tokens()));
  const Placement after = Get("b")->placement;
  EXPECT_EQ(after.worker, "cpu");
  EXPECT_EQ(after.why, WhyHost::kFailed);
  EXPECT_THAT(after.reason, HasSubstr("told to fail; the CPU computes all sessions"));
}

TEST_F(GpuFaultTest, WhoItHasNoMemoryForIsAnsweredAndTheLogSaysSo) {
  ASSERT_THAT(Create(OpenRequest("a")), IsOk());
  device_is_full = true;
  testing::internal::CaptureStderr();  // where lines go while no log is started
  RecordedCall call;
  Start(AnswerRequest("a", kPrompt, 5), call);
  EXPECT_THAT(call.Wait().status, IsOk());
  EXPECT_EQ(call.tokens().size(), 5U);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, testing::ContainsRegex("WARN  gpu_short .*device=emulated32 halved=0 parted=0 unpinned=0 "
                                          "unrecorded=0 cpu=1 error=.*needs [0-9]+ bytes"));
}

class GivenUpGpuFaultTest : public GpuFaultTest {
 protected:
  GivenUpGpuFaultTest() : GpuFaultTest(true, 0, false) {}
};

// As where servers share their journals: somebody else's business once the journal has let go of it, and not before.
TEST_F(GivenUpGpuFaultTest, IsOnItsWayUntilItsJournalIsAnybodys) {
  ASSERT_THAT(Create(OpenRequest("a")), IsOk());
  RecordedCall call(&FailAfterSome);
  CutOff(call);
  EXPECT_EQ(GetRefusal(GetWhenBack("a").status()).reason, "UNKNOWN_SESSION");
  const absl::StatusOr<bool> back = BringBackJournal(*worker_, *files_, metrics_.journal(), {"default", "a"});
  ASSERT_THAT(back, IsOk());
  EXPECT_TRUE(*back);
  GoOn("a", call.tokens());
}

// What fetches the cache of "a" from the device, and meets the fault.
struct Operation {
  const char* name;
  absl::Status (*run)(Worker& worker);
};

template <typename Answer>
absl::Status Undertake(Worker& worker, absl::AnyInvocable<void(Dispatcher&, Asker<Answer>)> order) {
  std::promise<absl::Status> answered;
  worker.Undertake<Answer>(
      std::move(order), {.answer = [&](const absl::StatusOr<Answer>& answer) { answered.set_value(answer.status()); }});
  return answered.get_future().get();
}

absl::Status Run(Worker& worker, CallRequest request) {
  RecordedCall call;
  request.tenant = "default";
  request.session = "a";
  worker.Start(worker.NewCallId(), std::move(request), call);
  return call.Wait().status;
}

constexpr Operation kOperations[] = {
    {"Describe",
     [](Worker& worker) {
       return Undertake<CacheDescription>(worker, [](Dispatcher& dispatcher, Asker<CacheDescription> asker) {
         dispatcher.Describe("default", "a", std::nullopt, std::nullopt, std::move(asker));
       });
     }},
    {"SetPolicy",
     [](Worker& worker) {
       return Undertake<PolicyOutcome>(worker, [](Dispatcher& dispatcher, Asker<PolicyOutcome> asker) {
         const PolicyRequest request = {.policy = TestPolicy({.scorer = "h2o", .budget = 20})};
         dispatcher.SetPolicy("default", "a", std::nullopt, request, std::move(asker));
       });
     }},
    {"Evict",
     [](Worker& worker) {
       return Undertake<EvictOutcome>(worker, [](Dispatcher& dispatcher, Asker<EvictOutcome> asker) {
         const EvictRequest request = {.keep = 12};
         dispatcher.Evict("default", "a", std::nullopt, request, 10000, std::move(asker));
       });
     }},
    {"Save",
     [](Worker& worker) {
       return Undertake<SaveOutcome>(worker, [](Dispatcher& dispatcher, Asker<SaveOutcome> asker) {
         dispatcher.Save("default", "a", std::nullopt, std::move(asker));
       });
     }},
    {"Fork",
     [](Worker& worker) {
       std::promise<absl::Status> answered;
       worker.Ask<SessionInfo>(
           [made_for = worker.Look("default", "a")->id](Dispatcher& dispatcher) {
             return dispatcher.Fork({.tenant = "default", .session = "a", .made_for = made_for, .id = "branch"});
           },
           [&](const absl::StatusOr<SessionInfo>& answer) { answered.set_value(answer.status()); });
       return answered.get_future().get();
     }},
    {"Verify",
     [](Worker& worker) {
       return Run(worker, {.method = "Verify", .draft = DraftRequest{.proposal = {.tokens = {1, 2, 3}}}});
     }},
    {"Edit",
     [](Worker& worker) {
       return Run(worker, {.method = "Edit", .edit = EditJob{.edit = {.spans = {{.start = 24, .end = 26}}}}});
     }},
};

class GpuFaultOutsideAStepTest : public GpuFaultTest, public testing::WithParamInterface<Operation> {
 protected:
  RecordedCall& Answer(const std::string& id) {
    RecordedCall& call = calls_.emplace_back();
    Start(AnswerRequest(id, kPrompt, static_cast<int32_t>(kTold)), call);
    EXPECT_THAT(call.Wait().status, IsOk());
    return call;
  }

 private:
  std::deque<RecordedCall> calls_;
};

// Answers have ended, and what they left is on the device alone, when somebody asks for it.
TEST_P(GpuFaultOutsideAStepTest, AllWhomItTookComeBackAndNobodyElseNotices) {
  for (const char* id : {"a", "b"}) ASSERT_THAT(Create(OpenRequest(id)), IsOk());
  ASSERT_THAT(Create(OnHost("calm")), IsOk());
  const std::vector<int32_t> a = Answer("a").tokens(), b = Answer("b").tokens();
  Answer("calm");
  device_fails = true;
  const absl::Status status = GetParam().run(*worker_);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(GetRefusal(status).reason, "GPU_FAULT");
  EXPECT_TRUE(GetRefusal(status).retry.has_value());
  EXPECT_THAT(std::string(status.message()), HasSubstr("sessions/a; it comes back from its journal"));
  EXPECT_EQ(metrics_.worker().gpu_sessions_lost.value(), 2);
  for (const char* id : {"a", "b"}) EXPECT_EQ(GetRefusal(Get(id).status()).reason, "SESSION_RECOVERING");
  EXPECT_THAT(Get("calm"), IsOk());
  EXPECT_EQ(GetRefusal(Get("branch").status()).reason, "UNKNOWN_SESSION");

  recovery_.Start(*worker_);
  for (const char* id : {"a", "b"}) {
    const absl::StatusOr<SessionInfo> back = GetWhenBack(id);
    ASSERT_THAT(back, IsOk());
    EXPECT_EQ(back->tokens, kPrompt + static_cast<int64_t>(kTold));
  }
  GoOn("a", a);
  GoOn("b", b);
  EXPECT_EQ(metrics_.journal().brought_back.value(), 2);
}

INSTANTIATE_TEST_SUITE_P(All, GpuFaultOutsideAStepTest, testing::ValuesIn(kOperations),
                         [](const auto& operation) { return std::string(operation.param.name); });

class RecordedWatcher final : public EvictionWatcher {
 public:
  void Begin() override { begun_.set_value(); }
  bool OnEviction(const EvictionEvent& /*event*/, bool /*with_victims*/) override { return true; }
  void End(const absl::Status& status) override { end_.set_value(status); }

  void WaitForBegin() { begun_.get_future().wait(); }
  absl::Status WaitForEnd() { return end_.get_future().get(); }

 private:
  std::promise<void> begun_;
  std::promise<absl::Status> end_;
};

TEST_F(GpuFaultTest, WhoWatchesASessionThatItTookIsToldSo) {
  ASSERT_THAT(Create(OpenRequest("a")), IsOk());
  RecordedWatcher watcher;
  worker_->Watch(worker_->NewCallId(), {.tenant = "default", .session = "a"}, watcher);
  watcher.WaitForBegin();
  RecordedCall call(&FailAfterSome);
  CutOff(call);
  EXPECT_EQ(GetRefusal(watcher.WaitForEnd()).reason, "GPU_FAULT");
}

class UnjournaledGpuFaultTest : public GpuFaultTest {
 protected:
  UnjournaledGpuFaultTest() : GpuFaultTest(false, 1) {}
};

// With shadows, of which the GPU has some, too.
TEST_F(UnjournaledGpuFaultTest, ASessionWithoutAJournalIsGoneAndItsNameIsFree) {
  ASSERT_THAT(Create(OpenRequest("a")), IsOk());
  RecordedCall call(&FailAfterSome);
  CutOff(call);
  EXPECT_EQ(GetRefusal(Get("a").status()).reason, "UNKNOWN_SESSION");
  ASSERT_THAT(Create(OpenRequest("a")), IsOk());
  RecordedCall again;
  Start(AnswerRequest("a", kPrompt, 20), again);
  EXPECT_THAT(again.Wait().status, IsOk());
  EXPECT_EQ(again.tokens().size(), 20U);
}

// Its last token is told, and then the step fails that would have put it in the cache.
TEST_F(UnjournaledGpuFaultTest, AnAnswerThatIsWholeEndsWell) {
  ASSERT_THAT(Create(OpenRequest("a")), IsOk());
  RecordedCall call(&FailAfterSome);
  Start(AnswerRequest("a", kPrompt, kTold), call);
  EXPECT_THAT(call.Wait().status, IsOk());
  EXPECT_EQ(call.tokens().size(), kTold);
  EXPECT_EQ(call.end().usage.session_tokens, kPrompt + static_cast<int64_t>(kTold));
  EXPECT_EQ(metrics_.worker().gpu_sessions_lost.value(), 1);
  EXPECT_EQ(GetRefusal(Get("a").status()).reason, "UNKNOWN_SESSION");
}

}  // namespace
}  // namespace ebb
