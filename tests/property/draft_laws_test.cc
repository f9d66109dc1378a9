// Laws of drafts at a full cache, under every policy of the registry: what is rejected leaves no trace, and what is
// accepted is decode steps.

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/hash_random.h"
#include "policies/registry.h"
#include "policies/status.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

constexpr int32_t kDraftBlockSize = 12;

struct NamedPolicy {
  std::string name = {};
  PolicySpec spec = {};
};

class DraftLaws : public testing::Test {
 protected:
  // Every scorer with every choice that goes with it.
  std::vector<NamedPolicy> Policies(int32_t budget) const {
    std::vector<NamedPolicy> policies;
    for (const ScorerRow& row : ScorerRegistry()) {
      const PolicySpec plain = {
          .scorer = std::string(row.name), .budget = row.evicts ? budget : 400, .schedule = Schedule::kEveryStep};
      const auto add = [&](const char* choice, const PolicySpec& spec) {
        if (!Resolve(spec, LimitsOf(engine_->config())).ok()) return;  // does not go with this scorer
        policies.push_back({absl::StrFormat("%s %s", row.name, choice), spec});
      };
      const auto with = [&](auto member, auto value) {
        PolicySpec spec = plain;
        spec.*member = value;
        return spec;
      };
      add("original", with(&PolicySpec::positions, Positions::kOriginal));
      add("compacted", with(&PolicySpec::positions, Positions::kCompacted));
      if (!row.evicts) continue;
      add("caote", with(&PolicySpec::modifier, Modifier::kCaote));
      add("fast_caote", with(&PolicySpec::modifier, Modifier::kFastCaote));
      add("layer", with(&PolicySpec::scope, Scope::kLayer));
      add("max", with(&PolicySpec::reduction, Reduction::kMax));
      add("pyramid", with(&PolicySpec::allocation, Allocation::kPyramid));
      add("ada", with(&PolicySpec::allocation, Allocation::kAda));
      add("rk", with(&PolicySpec::rope_cache, RopeCache::kRk));
      PolicySpec every_n = with(&PolicySpec::schedule, Schedule::kEveryN);
      every_n.every_n = 5;
      add("every 5", every_n);
    }
    EXPECT_GT(policies.size(), 5 * ScorerRegistry().size());
    return policies;
  }

  // Two sessions after the same random prompt.
  std::pair<std::unique_ptr<Session>, std::unique_ptr<Session>> OpenTwins(const NamedPolicy& policy, uint64_t seed,
                                                                          int32_t prompt_tokens) {
    const std::vector<int32_t> prompt = RandomTokens(seed, prompt_tokens, vocab_);
    auto one = OpenTestSession(*engine_, policy.spec, kDraftBlockSize);
    auto other = OpenTestSession(*engine_, policy.spec, kDraftBlockSize);
    Feed(*engine_, *one, prompt, kDraftBlockSize);
    Feed(*engine_, *other, prompt, kDraftBlockSize);
    return {std::move(one), std::move(other)};
  }

  // The bits of the row's logits.
  std::vector<float> RunDraft(Session& session, std::span<const int32_t> tokens) {
    EXPECT_TRUE(session.CanAppend(static_cast<int32_t>(tokens.size())).ok());
    BatchRow row = {.session = &session, .tokens = tokens, .want = Want::kAll, .draft = true};
    engine_->Run({&row, 1});
    return {row.logits.begin(), row.logits.end()};
  }
  void Accept(Session& session, int32_t count) {
    BatchRow row = {.session = &session};
    engine_->Accept(row, count);
  }
  std::vector<float> LastRow(const std::vector<float>& logits, int32_t rows) const {
    return {logits.begin() + (rows - 1) * vocab_, logits.begin() + rows * vocab_};
  }

  TinyModelFile file_ = TinyModelFile({});
  std::unique_ptr<Engine> engine_ = OpenTestEngine(file_.path(), {.threads = 2});
  int32_t vocab_ = engine_->config().vocab;
};

TEST_F(DraftLaws, RejectingLeavesTheSessionBitForBitAsItWas) {
  for (const NamedPolicy& policy : Policies(44)) {
    SCOPED_TRACE(policy.name);
    const auto speculates = OpenTestSession(*engine_, policy.spec, kDraftBlockSize);
    const auto decodes = OpenTestSession(*engine_, policy.spec, kDraftBlockSize);
    const std::vector<int32_t> prompt = RandomTokens(1, 90, vocab_);
    Feed(*engine_, *speculates, prompt, kDraftBlockSize);
    std::vector<float> logits = Feed(*engine_, *decodes, prompt, kDraftBlockSize);
    logits = LastRow(logits, 90);
    HashRandom random(2);
    for (uint64_t round = 0; round < 8; ++round) {
      const uint64_t before = engine_->Digest(*speculates);
      ASSERT_EQ(before, engine_->Digest(*decodes));
      const std::vector<int32_t> draft = RandomTokens(3 + round, random.Uniform(1, kDraftBlockSize), vocab_);
      RunDraft(*speculates, draft);
      ASSERT_EQ(speculates->draft_tokens(), static_cast<int32_t>(draft.size()));
      ASSERT_EQ(engine_->Digest(*speculates), before) << "while it waits";
      Accept(*speculates, 0);
      ASSERT_EQ(speculates->draft_tokens(), 0);
      ASSERT_EQ(engine_->Digest(*speculates), before);
      const int32_t next = BestToken(logits);
      logits = Step(*engine_, *decodes, {&next, 1});
      ASSERT_EQ(LargestDifference(Step(*engine_, *speculates, {&next, 1}), logits), 0);
    }
  }
}

// With an overflow of a draft's length nobody leaves before the last accepted token.
TEST_F(DraftLaws, AcceptedTokensAreTheDecodeStepsTheyStandForWhileNobodyLeavesBeforeTheLast) {
  for (NamedPolicy& policy : Policies(44)) {
    SCOPED_TRACE(policy.name);
    if (policy.spec.schedule == Schedule::kEveryStep && policy.name.find("full") == std::string::npos) {
      policy.spec.overflow = kDraftBlockSize;
      if (!Resolve(policy.spec, LimitsOf(engine_->config())).ok()) continue;  // lags of lagkv are its trigger
    }
    const auto [speculates, decodes] = OpenTwins(policy, 4, 50);
    HashRandom random(5);
    int32_t decoded = 0;
    for (uint64_t round = 0; round < 25; ++round) {
      const std::vector<int32_t> draft = RandomTokens(6 + round, random.Uniform(1, kDraftBlockSize), vocab_);
      int32_t most = static_cast<int32_t>(draft.size());
      if (policy.spec.schedule == Schedule::kEveryN)
        most = std::min(most, policy.spec.every_n - decoded % policy.spec.every_n);
      const ValidSpec& in_force = speculates->policy();
      if (in_force.evicts && policy.spec.schedule == Schedule::kEveryStep) {
        most = std::min(most, in_force.trigger.budget + kDraftBlockSize - speculates->cache_length());
      }
      const int32_t keep = random.Uniform(0, most);
      const std::vector<float> scored = RunDraft(*speculates, draft);
      Accept(*speculates, keep);
      decoded += keep;
      for (int32_t i = 0; i < keep; ++i) {
        const std::vector<float> logits = Step(*engine_, *decodes, std::span(draft).subspan(i, 1));
        ASSERT_EQ(LargestDifference(LastRow(scored, i + 1), logits), 0) << "round " << round;
      }
      ASSERT_EQ(engine_->Digest(*speculates), engine_->Digest(*decodes)) << "round " << round;
    }
    EXPECT_TRUE(!speculates->policy().evicts || speculates->evicted() > 0);
  }
}

TEST_F(DraftLaws, AtAFullCacheRejectedTokensLeaveNoTraceInTheAccepted) {
  for (const NamedPolicy& policy : Policies(44)) {
    SCOPED_TRACE(policy.name);
    const auto [longer, exact] = OpenTwins(policy, 7, 90);
    HashRandom random(8);
    for (uint64_t round = 0; round < 10; ++round) {
      const std::vector<int32_t> draft = RandomTokens(9 + round, kDraftBlockSize, vocab_);
      const int32_t keep = random.Uniform(1, kDraftBlockSize);
      const std::vector<float> scored = RunDraft(*longer, draft);
      Accept(*longer, keep);
      if (keep == 1) {  // the first token sees what a decode step sees
        ASSERT_EQ(LargestDifference(Step(*engine_, *exact, std::span(draft).first(1)), LastRow(scored, 1)), 0);
      } else {
        const std::vector<float> alone = RunDraft(*exact, std::span(draft).first(keep));
        Accept(*exact, keep);
        ASSERT_EQ(LargestDifference(std::span(scored).first(alone.size()), alone), 0);
      }
      ASSERT_EQ(engine_->Digest(*longer), engine_->Digest(*exact)) << "round " << round << ", kept " << keep;
    }
  }
}

// SPEC-1. In a model of one layer K, V and queries follow from the token alone, so what drafts may see too much of
// cannot reach the cache: the whole session, down to bytes and scorers' states, is the one that decoded the tokens.
TEST_F(DraftLaws, AtAFullCacheOfOneLayerAcceptedTokensAreTheDecodeStepsTheyStandFor) {
  const TinyModelFile file({.layers = 1});
  engine_ = OpenTestEngine(file.path(), {.threads = 2});
  int64_t moved = 0;
  for (const NamedPolicy& policy : Policies(44)) {
    SCOPED_TRACE(policy.name);
    const auto [speculates, decodes] = OpenTwins(policy, 17, 90);
    HashRandom random(18);
    for (uint64_t round = 0; round < 12; ++round) {
      const std::vector<int32_t> draft = RandomTokens(19 + round, random.Uniform(1, kDraftBlockSize), vocab_);
      const int32_t keep = random.Uniform(0, static_cast<int32_t>(draft.size()));
      RunDraft(*speculates, draft);
      Accept(*speculates, keep);
      for (int32_t i = 0; i < keep; ++i) Step(*engine_, *decodes, std::span(draft).subspan(i, 1));
      ASSERT_EQ(engine_->Digest(*speculates), engine_->Digest(*decodes)) << "round " << round << ", kept " << keep;
      if (keep > 1 && policy.spec.schedule == Schedule::kEveryStep && speculates->policy().evicts) ++moved;
    }
  }
  EXPECT_GT(moved, 100) << "accepted tokens left the slots that their draft lay in";
}

// The same for rules that look at positions alone: who stays, where, and at which position.
TEST_F(DraftLaws, AtAFullCachePositionRulesKeepWhatDecodingKeepsSlotForSlot) {
  int32_t tried = 0;
  for (const NamedPolicy& policy : Policies(44)) {
    if (!Resolve(policy.spec, LimitsOf(engine_->config()))->lockstep) continue;
    SCOPED_TRACE(policy.name);
    ++tried;
    const auto [speculates, decodes] = OpenTwins(policy, 10, 90);
    HashRandom random(11);
    for (uint64_t round = 0; round < 12; ++round) {
      const std::vector<int32_t> draft = RandomTokens(12 + round, kDraftBlockSize, vocab_);
      const int32_t keep = random.Uniform(0, kDraftBlockSize);
      RunDraft(*speculates, draft);
      Accept(*speculates, keep);
      for (int32_t i = 0; i < keep; ++i) Step(*engine_, *decodes, std::span(draft).subspan(i, 1));
      const auto lanes = *engine_->Describe(*speculates, std::nullopt, std::nullopt);
      const auto expected = *engine_->Describe(*decodes, std::nullopt, std::nullopt);
      for (size_t lane = 0; lane < lanes.size(); ++lane) {
        ASSERT_EQ(lanes[lane].slots, expected[lane].slots);
        ASSERT_EQ(lanes[lane].tokens, expected[lane].tokens);
        ASSERT_EQ(lanes[lane].positions, expected[lane].positions);
      }
      ASSERT_EQ(speculates->evicted(), decodes->evicted());
    }
  }
  EXPECT_GE(tried, 4);
}

TEST_F(DraftLaws, AcceptReportsWhatItsStepsEvicted) {
  const auto session = OpenTestSession(*engine_, {.scorer = "h2o", .budget = 44}, kDraftBlockSize);
  Feed(*engine_, *session, RandomTokens(13, 90, vocab_), kDraftBlockSize);
  RunDraft(*session, RandomTokens(14, kDraftBlockSize, vocab_));
  BatchRow row = {.session = session.get(), .measure = true, .list_victims = true};
  engine_->Accept(row, 7);
  EXPECT_EQ(row.evicted, 7);
  EXPECT_EQ(row.length, 44 + 7);
  EXPECT_EQ(session->cache_length(), 44);
  EXPECT_GT(row.loss.mass, 0);
  EXPECT_LT(row.loss.mass, 1);
  const int32_t lanes = engine_->config().layers * engine_->config().kv_heads;
  EXPECT_EQ(row.evicted_slots, 7 * lanes);
  ASSERT_THAT(row.victims, testing::SizeIs(lanes));
  for (int32_t lane = 0; lane < lanes; ++lane) {
    EXPECT_EQ(row.victims[lane].layer * engine_->config().kv_heads + row.victims[lane].head, lane);
    EXPECT_THAT(row.victims[lane].tokens, testing::SizeIs(7));
    EXPECT_TRUE(std::ranges::is_sorted(row.victims[lane].tokens));
    const std::vector<int32_t> live = LiveTokens(*engine_, *session, row.victims[lane].layer, row.victims[lane].head);
    for (const int32_t token : row.victims[lane].tokens) EXPECT_FALSE(std::ranges::binary_search(live, token));
  }
}

TEST_F(DraftLaws, WhileADraftWaitsNothingElseTouchesTheSession) {
  const auto session =
      OpenTestSession(*engine_, {.scorer = "h2o", .budget = 44, .positions = Positions::kOriginal}, kDraftBlockSize);
  Feed(*engine_, *session, RandomTokens(15, 60, vocab_), kDraftBlockSize);
  RunDraft(*session, RandomTokens(16, 5, vocab_));
  const uint64_t before = engine_->Digest(*session);
  const auto reason = [](const absl::Status& status) { return GetRefusal(status).reason; };
  EXPECT_EQ(reason(session->CanAppend(1)), "DRAFT_PENDING");
  EXPECT_EQ(reason(engine_->Evict(*session, {.keep = 40}).status()), "DRAFT_PENDING");
  const ValidSpec policy = session->policy();
  EXPECT_EQ(reason(engine_->SetPolicy(*session, policy).status()), "DRAFT_PENDING");
  EXPECT_EQ(reason(engine_->TryPolicy(*session, policy, 0).status()), "DRAFT_PENDING");
  EXPECT_EQ(reason(engine_->ShiftPositions(*session, 0, 1)), "DRAFT_PENDING");
  EXPECT_EQ(reason(engine_->RemovePositions(*session, 0, 1).status()), "DRAFT_PENDING");
  EXPECT_EQ(engine_->Digest(*session), before);
  Accept(*session, 5);
  EXPECT_TRUE(session->CanAppend(1).ok());
  EXPECT_EQ(session->log().size(), 65U);
}

}  // namespace
}  // namespace ebb
