// A dispatcher driven by hand, one turn of the worker at a time.

#ifndef EBB_TESTS_UNIT_SERVER_DISPATCHER_FIXTURE_H_
#define EBB_TESTS_UNIT_SERVER_DISPATCHER_FIXTURE_H_

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/dispatcher.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"
#include "tests/unit/server/test_calls.h"

namespace ebb {

inline constexpr CallId kA = 1;
inline constexpr CallId kB = 2;

class DispatcherTest : public testing::Test {
 protected:
  explicit DispatcherTest(const DispatcherOptions& options = {}, const TestEngineOptions& engine = {})
      : engine_(OpenTestEngine(file_.path(), engine)), dispatcher_(*engine_, options, metrics_) {}
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
  std::unique_ptr<Engine> engine_;
  Metrics metrics_ = Metrics({});
  std::deque<RecordedCall> calls_;
  Dispatcher dispatcher_;
};

}  // namespace ebb

#endif  // EBB_TESTS_UNIT_SERVER_DISPATCHER_FIXTURE_H_
