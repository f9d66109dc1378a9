#include "engine/evict_request.h"

#include <gmock/gmock.h>

#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::Not;

// Two layers, two KV heads: four lanes.
class EvictRequestTest : public testing::Test {
 protected:
  std::unique_ptr<Session> Open(const PolicySpec& spec, int32_t tokens) {
    auto session = OpenTestSession(*engine_, spec);
    Feed(*engine_, *session, RandomTokens(3, tokens, engine_->config().vocab), 16);
    return session;
  }

  TinyModelFile file_ = TinyModelFile({});
  std::unique_ptr<Engine> engine_ = OpenTestEngine(file_.path());
};

TEST_F(EvictRequestTest, ARangeLeavesEveryLane) {
  const auto session = Open({.scorer = "full"}, 10);
  const auto report = engine_->Evict(*session, {.range = {{2, 5}}});
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->length_before, 10);
  EXPECT_EQ(report->length_after, 7);
  EXPECT_EQ(report->slots_evicted, 12);
  ASSERT_EQ(report->victims.size(), 4);
  EXPECT_THAT(report->victims[3].tokens, ElementsAre(2, 3, 4));
  EXPECT_THAT(LiveTokens(*engine_, *session, 1, 1), ElementsAre(0, 1, 5, 6, 7, 8, 9));
  EXPECT_EQ(session->evicted(), 3);
}

TEST_F(EvictRequestTest, FreedRoomTakesNewTokensUnderFull) {
  const auto session = Open({.scorer = "full", .budget = 10}, 10);
  EXPECT_THAT(session->CanAppend(1), Not(IsOk()));
  ASSERT_THAT(engine_->Evict(*session, {.range = {{0, 3}}}), IsOk());
  EXPECT_THAT(session->CanAppend(3), IsOk());
  Step(*engine_, *session, std::vector<int32_t>{1, 2, 3});
  EXPECT_EQ(session->cache_length(), 10);
}

TEST_F(EvictRequestTest, ADryRunSaysTheSameAndChangesNothing) {
  const auto session = Open({.scorer = "h2o", .budget = 64}, 30);
  const auto before = engine_->Describe(*session, std::nullopt, std::nullopt);
  const auto dry = engine_->Evict(*session, {.keep = 12, .dry_run = true});
  ASSERT_THAT(dry, IsOk());
  const auto after = engine_->Describe(*session, std::nullopt, std::nullopt);
  for (size_t i = 0; i < before->size(); ++i) EXPECT_EQ((*before)[i].tokens, (*after)[i].tokens);
  EXPECT_EQ(session->evicted(), 0);
  const auto done = engine_->Evict(*session, {.keep = 12});
  ASSERT_THAT(done, IsOk());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(dry->victims[i].tokens, done->victims[i].tokens);
  EXPECT_EQ(session->cache_length(), 12);
}

TEST_F(EvictRequestTest, KeepGoesByTheSessionsOwnScores) {
  const auto session = Open({.scorer = "h2o", .budget = 64}, 30);
  const LaneReport lane = engine_->Describe(*session, 0, 1)->front();
  ASSERT_THAT(engine_->Evict(*session, {.keep = 10}), IsOk());
  const std::vector<int32_t> kept = LiveTokens(*engine_, *session, 0, 1);
  ASSERT_EQ(kept.size(), 10);
  // Protection follows the new budget: the newest 5, and the 5 largest sums of the others.
  std::vector<std::pair<float, int32_t>> others;
  for (size_t i = 0; i < lane.tokens.size(); ++i) {
    if (lane.tokens[i] < 25) others.emplace_back(-lane.scores[i], lane.tokens[i]);
  }
  std::ranges::sort(others);
  std::vector<int32_t> expected = {25, 26, 27, 28, 29};
  for (int i = 0; i < 5; ++i) expected.push_back(others[i].second);
  std::ranges::sort(expected);
  EXPECT_EQ(kept, expected);
}

TEST_F(EvictRequestTest, KeepShrinksStreamingBelowItsBudget) {
  const auto session = Open({.scorer = "streaming", .budget = 64}, 30);
  ASSERT_THAT(engine_->Evict(*session, {.keep = 8}), IsOk());
  EXPECT_THAT(LiveTokens(*engine_, *session, 0, 0), ElementsAre(0, 1, 2, 3, 26, 27, 28, 29));
  EXPECT_THAT(engine_->Evict(*session, {.keep = 4}), IsRefusal(kInvalidArgument, "NOT_ENOUGH_CANDIDATES", "keep"));
}

TEST_F(EvictRequestTest, KeepByAnotherScorerSeesWhatTheNewestTokenAttendsTo) {
  const auto session = Open({.scorer = "full"}, 10);
  EXPECT_THAT(engine_->Evict(*session, {.keep = 5, .scorer = "none"}),
              IsRefusal(absl::StatusCode::kNotFound, "UNKNOWN_SCORER", "scorer"));
  // h2o has gathered nothing here; it begins from the newest token's attention, so its choice costs no more of it than
  // any other five do.
  const auto by_attention = engine_->Evict(*session, {.keep = 5, .scorer = "h2o", .dry_run = true});
  const auto by_age = engine_->Evict(*session, {.keep = 5, .scorer = "streaming", .dry_run = true});
  ASSERT_THAT(by_attention, IsOk());
  ASSERT_THAT(by_age, IsOk());
  EXPECT_GT(by_age->loss.mass, 0);
  EXPECT_LE(by_attention->loss.mass, by_age->loss.mass);
  EXPECT_EQ(session->cache_length(), 10);
  EXPECT_EQ(session->policy().scorer_name, "full");
  ASSERT_THAT(engine_->Evict(*session, {.keep = 5, .scorer = "streaming"}), IsOk());
  EXPECT_THAT(LiveTokens(*engine_, *session, 0, 0), ElementsAre(0, 1, 2, 3, 9));  // with its own sinks
}

TEST_F(EvictRequestTest, RefusesToKeepByAScorerThatRanksNobody) {
  const auto refused = IsRefusal(kInvalidArgument, "MEANINGLESS_COMBINATION", "keep.scorer");
  EXPECT_THAT(engine_->Evict(*Open({.scorer = "h2o", .budget = 64}, 10), {.keep = 5, .scorer = "full"}), refused);
  EXPECT_THAT(engine_->Evict(*Open({.scorer = "full"}, 10), {.keep = 5}), refused) << "its own";
}

TEST_F(EvictRequestTest, AgeCountsFromTheEndOfTheLog) {
  const auto session = Open({.scorer = "full"}, 10);
  ASSERT_THAT(engine_->Evict(*session, {.older_than = 4}), IsOk());
  EXPECT_THAT(LiveTokens(*engine_, *session, 0, 0), ElementsAre(6, 7, 8, 9));
}

TEST_F(EvictRequestTest, CompactedPositionsCloseUp) {
  const auto session = Open({.scorer = "full", .positions = Positions::kCompacted}, 10);
  ASSERT_THAT(engine_->Evict(*session, {.range = {{0, 6}}}), IsOk());
  EXPECT_THAT(engine_->Describe(*session, 0, 0)->front().positions, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(session->position_max(), 3);
}

TEST_F(EvictRequestTest, ExactSlotsMayDifferByLane) {
  const auto session = Open({.scorer = "full"}, 6);
  const auto report =
      engine_->Evict(*session, {.slots = {{0, 0, {1, 0}}, {0, 1, {2, 3}}, {1, 0, {0, 5}}, {1, 1, {4, 1}}}});
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->length_after, 4);
  EXPECT_THAT(LiveTokens(*engine_, *session, 0, 0), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(LiveTokens(*engine_, *session, 1, 1), ElementsAre(0, 2, 3, 5));
  // Each lane goes on by itself: the next tokens fill its own holes.
  Step(*engine_, *session, std::vector<int32_t>{7, 8});
  EXPECT_THAT(engine_->Describe(*session, 0, 1)->front().tokens, ElementsAre(0, 1, 6, 7, 4, 5));
  EXPECT_THAT(engine_->Describe(*session, 1, 0)->front().tokens, ElementsAre(6, 1, 2, 3, 4, 7));
}

TEST_F(EvictRequestTest, RefusesSlotsThatDoNotMakeSense) {
  const auto session = Open({.scorer = "full"}, 6);
  using Slots = std::vector<EvictRequest::LaneSlots>;
  const auto refused = [&](const Slots& slots) { return engine_->Evict(*session, {.slots = slots}).status(); };
  EXPECT_THAT(refused({{0, 0, {1}}}), IsRefusal(kInvalidArgument, "LANES_MISSING", "slots"));
  EXPECT_THAT(refused({{0, 2, {1}}}), IsRefusal(kInvalidArgument, "LANE_OUT_OF_RANGE", "slots.lanes[0].head"));
  EXPECT_THAT(refused({{0, 0, {1}}, {0, 0, {2}}}), IsRefusal(kInvalidArgument, "LANE_REPEATED", "slots"));
  EXPECT_THAT(refused({{0, 0, {1}}, {0, 1, {2, 3}}}), IsRefusal(kInvalidArgument, "LANES_UNEQUAL", "slots"));
  EXPECT_THAT(refused({{0, 0, {6}}}), IsRefusal(kInvalidArgument, "SLOT_NOT_LIVE", "slots"));
  EXPECT_THAT(refused({{0, 0, {-1}}}), IsRefusal(kInvalidArgument, "SLOT_NOT_LIVE", "slots"));
  EXPECT_THAT(refused({{0, 0, {1, 1}}}), IsRefusal(kInvalidArgument, "SLOT_REPEATED", "slots"));
  EXPECT_EQ(session->cache_length(), 6);
}

TEST_F(EvictRequestTest, RefusesWhatIsMalformedOrWouldLeaveNothing) {
  const auto session = Open({.scorer = "full"}, 6);
  EXPECT_THAT(engine_->Evict(*session, {}), IsRefusal(kInvalidArgument, "EVICT_AMBIGUOUS", "what"));
  EXPECT_THAT(engine_->Evict(*session, {.range = {{0, 2}}, .keep = 3}),
              IsRefusal(kInvalidArgument, "EVICT_AMBIGUOUS", "what"));
  EXPECT_THAT(engine_->Evict(*session, {.range = {{3, 3}}}), IsRefusal(kInvalidArgument, "RANGE_EMPTY", "range"));
  EXPECT_THAT(engine_->Evict(*session, {.keep = 0}), IsRefusal(kInvalidArgument, "KEEP_OUT_OF_RANGE", "keep.count"));
  EXPECT_THAT(engine_->Evict(*session, {.older_than = -1}),
              IsRefusal(kInvalidArgument, "NEGATIVE_VALUE", "older_than"));
  EXPECT_THAT(engine_->Evict(*session, {.range = {{0, 6}}}), IsRefusal(kInvalidArgument, "NOTHING_WOULD_STAY", "what"));
  EXPECT_THAT(engine_->Evict(*session, {.older_than = 0}), IsRefusal(kInvalidArgument, "NOTHING_WOULD_STAY", "what"));
  EXPECT_EQ(session->cache_length(), 6);
}

// Lanes that chose different tokens lose different numbers of a range; each stays sound, and they meet at the budget.
TEST_F(EvictRequestTest, LanesOfDifferentLengthMeetAgainAtTheBudget) {
  const auto session = Open({.scorer = "h2o", .budget = 12}, 60);
  ASSERT_THAT(engine_->Evict(*session, {.range = {{0, 50}}}), IsOk());
  EXPECT_LE(session->cache_length(), 12);
  Feed(*engine_, *session, RandomTokens(4, 30, engine_->config().vocab), 1);
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (int32_t head = 0; head < 2; ++head) EXPECT_EQ(LiveTokens(*engine_, *session, layer, head).size(), 12);
  }
}

}  // namespace
}  // namespace ebb
