// A change of policy for all sessions of a tenant, which its caller may give up half-way.

#include "server/set_all_policies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/unit/server/test_calls.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;

class SetAllPoliciesTest : public testing::Test {
 protected:
  SetAllPoliciesTest() {
    for (const std::string id : {"a", "b", "c"}) {
      EXPECT_THAT(Ask<SessionInfo>([&](Dispatcher& dispatcher) { return dispatcher.Create(OpenRequest(id)); }), IsOk());
    }
  }

  template <typename Answer>
  absl::StatusOr<Answer> Ask(absl::AnyInvocable<absl::StatusOr<Answer>(Dispatcher&)> question) {
    std::promise<absl::StatusOr<Answer>> answered;
    worker_.Ask<Answer>(std::move(question),
                        [&](absl::StatusOr<Answer> answer) { answered.set_value(std::move(answer)); });
    return answered.get_future().get();
  }

  // The verdict on a change to `keydiff`.
  absl::Status Set(absl::AnyInvocable<bool()> is_cancelled) {
    std::promise<absl::Status> done;
    SetAllPolicies(worker_, "default", {.policy = TestPolicy({.scorer = "keydiff", .budget = 40})},
                   std::move(is_cancelled), response_, [&done](const absl::Status& status) { done.set_value(status); });
    return done.get_future().get();
  }

  // Of all sessions, by name.
  std::vector<std::string> Policies() {
    const auto sessions =
        Ask<std::vector<SessionInfo>>([](Dispatcher& dispatcher) -> absl::StatusOr<std::vector<SessionInfo>> {
          return dispatcher.List("default", "", 10);
        });
    std::vector<std::string> policies;
    for (const SessionInfo& session : *sessions) policies.push_back(session.policy.scorer_name);
    return policies;
  }

  TinyModelFile file_ = TinyModelFile(TinyModel{});
  Metrics metrics_ = Metrics({});
  Worker worker_ = Worker(OpenTestEngine(file_.path()), {}, metrics_);
  v1::SetPolicyResponse response_;
};

TEST_F(SetAllPoliciesTest, ChangesEverySession) {
  EXPECT_THAT(Set([] { return false; }), IsOk());
  EXPECT_THAT(Policies(), ElementsAre("keydiff", "keydiff", "keydiff"));
  ASSERT_EQ(response_.changes_size(), 3);
  EXPECT_EQ(response_.changes(2).session(), "sessions/c");
}

TEST_F(SetAllPoliciesTest, StopsWhereItsCallerGaveUp) {
  EXPECT_THAT(Set([this] { return response_.changes_size() == 2; }),
              IsRefusal(absl::StatusCode::kCancelled, "CALL_CANCELLED", ""));
  EXPECT_THAT(Policies(), ElementsAre("keydiff", "keydiff", "streaming")) << "what was changed stays changed";
}

}  // namespace
}  // namespace ebb
