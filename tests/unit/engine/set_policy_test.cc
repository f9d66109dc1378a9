// Another policy on a warm cache: what carries over, what leaves, and that nothing is lost on the way.

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "policies/hash_random.h"
#include "policies/registry.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;
using ::testing::FloatEq;
using ::testing::IsSubsetOf;
using ::testing::Pointwise;
using ::testing::SizeIs;

constexpr absl::StatusCode kFailed = absl::StatusCode::kFailedPrecondition;
constexpr int32_t kLanes = 4;
constexpr int32_t kBlock = 16;

class SetPolicyTest : public testing::Test {
 protected:
  // A session that has read a prompt to its end.
  std::unique_ptr<Session> Open(const PolicySpec& spec, int32_t tokens) {
    auto session = OpenTestSession(*engine_, spec, kBlock);
    const std::vector<int32_t> prompt = RandomTokens(3, tokens, engine_->config().vocab);
    Feed(*engine_, *session, std::span(prompt).first(tokens - 1), kBlock);
    BatchRow row = {.session = session.get(), .tokens = std::span(prompt).last(1), .prompt_ends = true};
    engine_->Run({&row, 1});
    EXPECT_THAT(row.status, IsOk());
    return session;
  }

  // Tokens of every lane.
  std::vector<std::vector<int32_t>> Live(const Session& session) const {
    std::vector<std::vector<int32_t>> lanes;
    for (int32_t lane = 0; lane < kLanes; ++lane) lanes.push_back(LiveTokens(*engine_, session, lane / 2, lane % 2));
    return lanes;
  }

  int64_t pages_reserved() const { return engine_->memory().pages_reserved; }

  absl::StatusOr<PolicySwap> Set(Session& session, const PolicySpec& spec) {
    return engine_->SetPolicy(session, TestPolicy(spec, engine_->config().context));
  }

  TinyModelFile file_ = TinyModelFile({});
  std::unique_ptr<Engine> engine_ = OpenTestEngine(file_.path());
};

// Every scorer after every other, with steps between and budgets that shrink and grow.
TEST_F(SetPolicyTest, AChainThroughAllScorersLosesNoTokenAndNoPage) {
  HashRandom random(11);
  auto session = Open({.scorer = "streaming", .budget = 48}, 100);
  for (const ScorerRow& from : ScorerRegistry()) {
    for (const ScorerRow& to : ScorerRegistry()) {
      for (const ScorerRow* row : {&from, &to}) {
        SCOPED_TRACE(std::string(from.name) + " -> " + std::string(to.name) + ", now " + std::string(row->name));
        PolicySpec spec = {.scorer = std::string(row->name), .budget = random.Uniform(40, 72)};
        if (!row->evicts) spec.budget = engine_->config().context;
        const std::vector<int32_t> log(session->log().begin(), session->log().end());
        const std::vector<std::vector<int32_t>> before = Live(*session);
        const int32_t length = session->cache_length();
        const int64_t evicted = session->evicted();

        const auto swap = Set(*session, spec);
        ASSERT_THAT(swap, IsOk());
        const std::vector<std::vector<int32_t>> after = Live(*session);
        int64_t left = 0;
        for (int32_t lane = 0; lane < kLanes; ++lane) {
          EXPECT_THAT(after[lane], IsSubsetOf(before[lane]));
          left += static_cast<int64_t>(before[lane].size() - after[lane].size());
        }
        EXPECT_THAT(session->log(), ElementsAreArray(log));
        EXPECT_EQ(swap->length_before, length);
        EXPECT_EQ(swap->length_after, session->cache_length());
        EXPECT_LE(session->cache_length(), *spec.budget);
        EXPECT_EQ(swap->slots_evicted, left);
        EXPECT_EQ(session->evicted() - evicted, length - session->cache_length());
        EXPECT_EQ(swap->pages_after, session->pages());
        EXPECT_EQ(session->pages(), pages_reserved());
        EXPECT_EQ(session->policy().scorer_name, row->name);
        EXPECT_EQ(swap->loss.mass > 0, left > 0);
        EXPECT_LE(swap->loss.mass, 1.0);

        for (int32_t steps = random.Uniform(1, 6); steps > 0; --steps) {
          const int32_t tokens = random.Uniform(0, 2) == 0 ? random.Uniform(2, kBlock) : 1;
          Step(*engine_, *session, RandomTokens(log.size() + steps, tokens, engine_->config().vocab));
        }
        if (row->evicts && session->policy().schedule == Schedule::kEveryStep) {
          EXPECT_LE(session->cache_length(), *spec.budget);
        }
      }
    }
    // `full` may have gathered much: from here on each begins short of the context.
    ASSERT_THAT(Set(*session, {.scorer = "streaming", .budget = 48}), IsOk());
  }
  session.reset();
  EXPECT_EQ(pages_reserved(), 0);
}

TEST_F(SetPolicyTest, SaysWhatTheNewScorerStartsFrom) {
  const auto state = [&](const PolicySpec& from, const PolicySpec& to) {
    const auto session = Open(from, 60);
    return Set(*session, to)->state;
  };
  EXPECT_EQ(state({.scorer = "h2o", .budget = 40}, {.scorer = "streaming", .budget = 40}), StateOrigin::kNone);
  EXPECT_EQ(state({.scorer = "h2o", .budget = 40}, {.scorer = "h2o", .budget = 30}), StateOrigin::kCarried);
  EXPECT_EQ(state({.scorer = "h2o", .budget = 40}, {.scorer = "h2o", .budget = 40, .sinks = 6}), StateOrigin::kCarried);
  EXPECT_EQ(state({.scorer = "h2o", .budget = 40}, {.scorer = "knorm", .budget = 40}), StateOrigin::kRebuilt);
  EXPECT_EQ(state({.scorer = "tova", .budget = 40}, {.scorer = "h2o", .budget = 40}), StateOrigin::kFromScores);
  EXPECT_EQ(state({.scorer = "streaming", .budget = 40}, {.scorer = "h2o", .budget = 40}), StateOrigin::kFromAttention);
  EXPECT_EQ(state({.scorer = "h2o", .budget = 40}, {.scorer = "tova", .budget = 40}), StateOrigin::kFromAttention);
  EXPECT_EQ(state({.scorer = "h2o", .budget = 48}, {.scorer = "nacl", .budget = 48}), StateOrigin::kEmpty);
}

// Lagkv counts its partitions from the sinks on: with others it knows what it would, had they been the sinks from the
// first token, and goes on from there.
TEST_F(SetPolicyTest, LagkvWithOtherSinksKnowsWhatItWouldHaveKnownWithThem) {
  const PolicySpec four = {.scorer = "lagkv", .parameters = {{"lag", 4}}, .budget = 100, .sinks = 4};
  PolicySpec six = four;
  six.sinks = 6;
  const auto session = Open(four, 60);
  const auto always = Open(six, 60);
  const auto scores = [&](const Session& of) {
    std::vector<std::vector<float>> lanes;
    const auto report = engine_->Describe(of, std::nullopt, std::nullopt);
    for (const LaneReport& lane : *report) lanes.push_back(lane.scores);
    return lanes;
  };
  ASSERT_NE(scores(*session), scores(*always));
  const auto swap = Set(*session, six);
  ASSERT_THAT(swap, IsOk());
  EXPECT_EQ(swap->state, StateOrigin::kRebuilt);
  EXPECT_EQ(scores(*session), scores(*always));
  const std::vector<int32_t> more = RandomTokens(8, 20, engine_->config().vocab);
  for (Session* one : {session.get(), always.get()}) Feed(*engine_, *one, more, 1);
  EXPECT_EQ(scores(*session), scores(*always));
}

// Tova looks at the newest query alone, so it starts from what it would hold had it been there from the first token,
// and not from sums over all queries.
TEST_F(SetPolicyTest, TovaAfterH2oKnowsWhatTovaAlwaysKnew) {
  const auto session = Open({.scorer = "h2o", .budget = 80}, 60);
  const auto always = Open({.scorer = "tova", .budget = 80}, 60);
  ASSERT_THAT(Set(*session, {.scorer = "tova", .budget = 80}), IsOk());
  const auto scores = engine_->Describe(*session, std::nullopt, std::nullopt);
  const auto expected = engine_->Describe(*always, std::nullopt, std::nullopt);
  for (size_t lane = 0; lane < expected->size(); ++lane) {
    EXPECT_EQ((*scores)[lane].tokens, (*expected)[lane].tokens);
    EXPECT_THAT((*scores)[lane].scores, Pointwise(FloatEq(), (*expected)[lane].scores));
  }
}

// Before the prompt's end a policy that runs once needs room for the trained context; afterwards it has run, and room
// for its budget is enough.
TEST_F(SetPolicyTest, APolicyThatRunsOnceTakesNoMoreThanItsBudgetAfterThePrompt) {
  for (const Then then : {Then::kSame, Then::kSlideRecent}) {
    SCOPED_TRACE(static_cast<int>(then));
    const PolicySpec once = {
        .scorer = "h2o", .budget = 40, .recent = 8, .schedule = Schedule::kOncePrompt, .then = then};
    const auto session = Open({.scorer = "streaming", .budget = 64}, 80);
    const auto swap = Set(*session, once);
    ASSERT_THAT(swap, IsOk());
    EXPECT_EQ(swap->length_after, 40);
    EXPECT_EQ(session->capacity(), 40 + kBlock);
    EXPECT_GT(OpenTestSession(*engine_, once, kBlock)->capacity(), engine_->config().context);
    for (int32_t step = 0; step < 20; ++step) {
      Step(*engine_, *session, RandomTokens(step, step % 2 == 0 ? kBlock : 1, engine_->config().vocab));
      EXPECT_EQ(session->cache_length(), 40);
    }
  }
}

TEST_F(SetPolicyTest, APolicyThatGrowsAfterThePromptHasRoomToGrowAndNoMore) {
  const auto session = Open({.scorer = "streaming", .budget = 64}, 80);
  const auto swap =
      Set(*session,
          {.scorer = "h2o", .budget = 40, .schedule = Schedule::kOncePrompt, .then = Then::kGrow, .grow_max = 50});
  ASSERT_THAT(swap, IsOk());
  EXPECT_EQ(swap->length_after, 40);
  EXPECT_EQ(session->room(), 10);
  Step(*engine_, *session, RandomTokens(1, 10, engine_->config().vocab));
  EXPECT_THAT(session->CanAppend(1), IsRefusal(absl::StatusCode::kResourceExhausted, "LENGTH_LIMIT", ""));
}

// A scorer that has yet to see leaves the first choice to the former one.
TEST_F(SetPolicyTest, AnEmptyStateLetsTheFormerPolicyChoose) {
  const auto session = Open({.scorer = "knorm", .budget = 64, .recent = 0}, 80);
  const auto other = Open({.scorer = "knorm", .budget = 64, .recent = 0}, 80);
  const auto swap = Set(*session, {.scorer = "nacl", .budget = 40, .sinks = 0, .recent = 8});
  ASSERT_THAT(swap, IsOk());
  ASSERT_EQ(swap->state, StateOrigin::kEmpty);
  EXPECT_TRUE(swap->old_chose);
  ASSERT_THAT(Set(*other, {.scorer = "knorm", .budget = 40, .sinks = 0, .recent = 8}), IsOk());
  EXPECT_EQ(Live(*session), Live(*other));
}

TEST_F(SetPolicyTest, ATrialSaysTheSameAndChangesNothing) {
  const auto session = Open({.scorer = "h2o", .budget = 64}, 80);
  const auto before = engine_->Describe(*session, std::nullopt, std::nullopt);
  const int64_t pages = session->pages();
  const ValidSpec next = TestPolicy({.scorer = "keydiff", .budget = 40, .positions = Positions::kCompacted});
  const auto trial = engine_->TryPolicy(*session, next, 0);
  ASSERT_THAT(trial, IsOk());
  const auto after = engine_->Describe(*session, std::nullopt, std::nullopt);
  ASSERT_THAT(*after, SizeIs(before->size()));
  for (size_t lane = 0; lane < before->size(); ++lane) {
    EXPECT_EQ((*before)[lane].tokens, (*after)[lane].tokens);
    EXPECT_EQ((*before)[lane].positions, (*after)[lane].positions);
    EXPECT_EQ((*before)[lane].scores, (*after)[lane].scores);
  }
  EXPECT_EQ(session->pages(), pages);
  EXPECT_EQ(session->evicted(), 80 - 64);
  EXPECT_EQ(pages_reserved(), pages);
  const auto swap = engine_->SetPolicy(*session, next);
  ASSERT_THAT(swap, IsOk());
  EXPECT_EQ(trial->state, swap->state);
  EXPECT_EQ(trial->length_after, swap->length_after);
  EXPECT_EQ(trial->slots_evicted, swap->slots_evicted);
  EXPECT_EQ(trial->pages_after, swap->pages_after);
  EXPECT_EQ(trial->loss.mass, swap->loss.mass);
  EXPECT_EQ(trial->loss.error, swap->loss.error);
}

TEST_F(SetPolicyTest, WhatIsRefusedChangesNothing) {
  const auto session = Open({.scorer = "h2o", .budget = 64}, 80);
  const auto before = engine_->Describe(*session, std::nullopt, std::nullopt);
  const int64_t pages = session->pages();
  EXPECT_THAT(Set(*session, {.scorer = "h2o", .budget = 64, .kv_type = KvType::kF32}).status(),
              IsRefusal(kFailed, "CACHE_FORMAT_FIXED", "policy.cache"));
  EXPECT_THAT(Set(*session, {.scorer = "full", .budget = 63}).status(),
              IsRefusal(kFailed, "CACHE_TOO_LONG", "policy.trigger.budget"));
  EXPECT_THAT(Set(*session, {.scorer = "h2o", .budget = 64, .scope = Scope::kLayer}).status(),
              IsRefusal(kFailed, "LANES_DIFFER", "policy.scope"));
  EXPECT_THAT(Set(*session, {.scorer = "h2o", .budget = kBudgetMax}).status(),
              IsRefusal(absl::StatusCode::kInvalidArgument, "SESSION_TOO_LARGE", "policy.trigger.budget"));
  EXPECT_THAT(Set(*session, {.scorer = "streaming", .budget_ratio = 0.01}).status(),
              IsRefusal(absl::StatusCode::kInvalidArgument, "BUDGET_TOO_SMALL", "policy.trigger.budget_ratio"));
  const auto after = engine_->Describe(*session, std::nullopt, std::nullopt);
  for (size_t lane = 0; lane < before->size(); ++lane) {
    EXPECT_EQ((*before)[lane].slots, (*after)[lane].slots);
    EXPECT_EQ((*before)[lane].tokens, (*after)[lane].tokens);
    EXPECT_EQ((*before)[lane].scores, (*after)[lane].scores);
  }
  EXPECT_EQ(session->policy().scorer_name, "h2o");
  EXPECT_EQ(session->pages(), pages);
  EXPECT_EQ(pages_reserved(), pages);
}

TEST_F(SetPolicyTest, WithoutFreePagesASessionStaysAsItIs) {
  const auto engine = OpenTestEngine(file_.path(), {.arena_bytes = 1 << 20});
  auto session = OpenTestSession(*engine, {.scorer = "streaming", .budget = 40}, kBlock);
  std::vector<std::unique_ptr<Session>> others;
  const ValidSpec policy = TestPolicy({.scorer = "streaming", .budget = 40});
  for (auto other = engine->OpenSession({.policy = policy, .block_size_max = kBlock}); other.ok();
       other = engine->OpenSession({.policy = policy, .block_size_max = kBlock})) {
    others.push_back(*std::move(other));
  }
  const int64_t pages = session->pages();
  const ValidSpec larger = TestPolicy({.scorer = "streaming", .budget = 400});
  EXPECT_THAT(engine->SetPolicy(*session, larger).status(), IsRefusal(absl::StatusCode::kUnavailable, "NO_PAGES", ""));
  EXPECT_EQ(session->policy().trigger.budget, 40);
  EXPECT_EQ(session->pages(), pages);
  others.clear();
  ASSERT_THAT(engine->SetPolicy(*session, larger), IsOk());
  EXPECT_EQ(engine->memory().pages_reserved, session->pages());
}

}  // namespace
}  // namespace ebb
