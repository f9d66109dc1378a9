// Which sessions get a shadow, what is measured on it, and that it disturbs nobody.

#include "server/shadows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/dispatcher.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/server/test_calls.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;
using ::testing::SizeIs;

TEST(IsSampled, GoesByTheIdAlone) {
  int quarter = 0;
  for (int i = 0; i < 10000; ++i) {
    const std::string id = "session-" + std::to_string(i);
    EXPECT_FALSE(IsSampled(id, 0));
    EXPECT_TRUE(IsSampled(id, 1));
    const bool sampled = IsSampled(id, 0.25);
    quarter += sampled ? 1 : 0;
    if (sampled) {
      EXPECT_TRUE(IsSampled(id, 0.5)) << "a larger share holds the smaller one";
    }
  }
  EXPECT_NEAR(quarter, 2500, 200);  // more than 4 standard deviations of 43
}

// A dispatcher with a shadow for every session.
class Shadowed {
 public:
  explicit Shadowed(const DispatcherOptions& options, int32_t step_tokens_max = 512)
      : engine_(OpenTestEngine(file_.path(), {.step_tokens_max = step_tokens_max})),
        dispatcher_(*engine_, options, metrics_) {}

  // The answer of one session to a prompt.
  std::vector<int32_t> Answer(const SessionRequest& session, int32_t prompt, int32_t tokens) {
    EXPECT_THAT(dispatcher_.Create(session), IsOk());
    RecordedCall call;
    dispatcher_.Start(++calls_, AnswerRequest(session.id, prompt, tokens), call);
    while (!dispatcher_.idle()) {
      dispatcher_.Settle();
      if (dispatcher_.has_step()) dispatcher_.RunStep();
    }
    EXPECT_THAT(call.end().status, IsOk());
    return call.tokens();
  }

  // The steps of two sessions at once: the second's call begins when the first has `head_start` tokens.
  template <typename Look>
  void Overlap(int32_t head_start, int32_t tokens, const Look& look) {
    for (const char* id : {"a", "b"}) EXPECT_THAT(dispatcher_.Create(OpenRequest(id)), IsOk());
    RecordedCall first, second;
    dispatcher_.Start(++calls_, AnswerRequest("a", 16, tokens), first);
    bool is_begun = false;
    while (!dispatcher_.idle()) {
      if (!is_begun && static_cast<int32_t>(first.tokens().size()) == head_start) {
        is_begun = true;
        dispatcher_.Start(++calls_, AnswerRequest("b", 16, 1), second);
      }
      dispatcher_.Settle();
      if (!dispatcher_.has_step()) continue;
      const bool waits = dispatcher_.Totals().load.requests_waiting > 0;
      dispatcher_.RunStep();
      look(waits);
    }
    EXPECT_THAT(first.tokens(), SizeIs(tokens));
    EXPECT_THAT(second.tokens(), SizeIs(1));
  }

  const PolicyMetrics& policy(const std::string& scorer) const { return metrics_.policy(scorer); }
  const WorkerMetrics& worker() const { return metrics_.worker(); }
  int64_t reserved() const { return dispatcher_.Totals().load.pages_reserved; }
  int64_t steps() const { return dispatcher_.Totals().steps; }

 private:
  TinyModelFile file_ = TinyModelFile(TinyModel{});
  std::unique_ptr<Engine> engine_;
  Metrics metrics_ = Metrics({});
  CallId calls_ = 0;
  Dispatcher dispatcher_;
};

SessionRequest FullRequest(const std::string& id, int32_t budget) {
  SessionRequest request = OpenRequest(id);
  request.policy = TestPolicy({.scorer = "full", .budget = budget});
  return request;
}

TEST(Shadows, LeaveTheSessionsTokensAsTheyAre) {
  Shadowed alone({});
  Shadowed followed({.live = {.shadow = {.share = 1}}});
  const std::vector<int32_t> tokens = alone.Answer(OpenRequest("a"), 40, 60);
  EXPECT_THAT(followed.Answer(OpenRequest("a"), 40, 60), ElementsAreArray(tokens));
  EXPECT_EQ(alone.worker().shadows.value(), 0);
  EXPECT_EQ(alone.policy("streaming").shadow_tokens.value(), 0);
  EXPECT_EQ(followed.worker().shadows.value(), 1);
  EXPECT_EQ(followed.policy("streaming").shadow_tokens.value(), 3 + 60) << "after each block and each token";
  EXPECT_GT(followed.policy("streaming").shadow_kl.sum(), 0);
  EXPECT_EQ(followed.steps(), alone.steps()) << "a shadow rides, it makes no steps";
  EXPECT_EQ(followed.reserved(), alone.reserved()) << "nobody accounts for its pages";
}

TEST(Shadows, RideOnlyInRowsThatAreLeft) {
  Shadowed shadowed({.live = {.shadow = {.share = 1}}, .step_rows_max = 1});
  EXPECT_THAT(shadowed.Answer(OpenRequest("a"), 40, 20), SizeIs(20));
  EXPECT_EQ(shadowed.policy("streaming").shadow_tokens.value(), 0);
}

TEST(Shadows, StayOutOfStepsWhileARequestWaitsForItsFirst) {
  Shadowed shadowed({.live = {.shadow = {.share = 1}}},
                    16);  // a block of the second session finds no room beside a token
  const PolicyMetrics& policy = shadowed.policy("streaming");
  int32_t waited = 0;
  double compared = 0;
  shadowed.Overlap(8, 40, [&](bool waits) {
    waited += waits ? 1 : 0;
    if (waits) {
      EXPECT_EQ(policy.shadow_tokens.value(), compared);
    }
    compared = policy.shadow_tokens.value();
  });
  EXPECT_GT(waited, 0);
  EXPECT_EQ(shadowed.worker().shadow_steps_without.value(), waited);
  EXPECT_GT(compared, 8) << "before and after that they rode";
}

TEST(Shadows, MakeUpForWhatFoundNoRoom) {
  Shadowed shadowed({.live = {.shadow = {.share = 1}}}, 16);  // two of three blocks fill their steps
  EXPECT_THAT(shadowed.Answer(FullRequest("a", 200), 40, 60), SizeIs(60));
  // It takes 8 tokens beside the third block, 15 beside each of the first two tokens of the answer, then all 5 that are
  // missing.
  EXPECT_EQ(shadowed.policy("full").shadow_tokens.value(), 60 - 2);
  EXPECT_LT(shadowed.policy("full").shadow_kl.sum() / 58, 1e-6) << "blocks are cut otherwise: equal but for rounding";
}

TEST(Shadows, EndWhereTheSessionOutgrowsThem) {
  Shadowed shadowed({.live = {.shadow = {.share = 1, .tokens_max = 30}}});
  EXPECT_THAT(shadowed.Answer(OpenRequest("a"), 20, 50), SizeIs(50));
  EXPECT_EQ(shadowed.policy("streaming").shadow_tokens.value(), 2 + 10);
  EXPECT_EQ(shadowed.worker().shadow_drops.length.value(), 1);
  EXPECT_EQ(shadowed.worker().shadows.value(), 0);
  EXPECT_EQ(shadowed.worker().pages.owned.value(), shadowed.reserved());
}

TEST(Shadows, EndAsSoonAsTheyCannotCatchUp) {
  Shadowed shadowed({.live = {.shadow = {.share = 1, .tokens_max = 30}}}, 16);
  EXPECT_THAT(shadowed.Answer(FullRequest("a", 200), 40, 1), SizeIs(1));
  EXPECT_EQ(shadowed.worker().shadow_drops.length.value(), 1) << "there is room for 8 tokens beside the third block";
  EXPECT_EQ(shadowed.worker().shadows.value(), 0);
}

TEST(Shadows, DoNotBeginWithoutFreePages) {
  Shadowed shadowed({.live = {.shadow = {.share = 1, .tokens_max = 1 << 24}}});
  EXPECT_THAT(shadowed.Answer(OpenRequest("a"), 20, 50), SizeIs(50));
  EXPECT_EQ(shadowed.policy("streaming").shadow_tokens.value(), 0);
  EXPECT_EQ(shadowed.worker().shadow_drops.no_room.value(), 1) << "tried once";
}

}  // namespace
}  // namespace ebb
