#include "engine/session_on_engine.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

constexpr int32_t kContext = 64;

class SessionOnEngineTest : public testing::Test {
 protected:
  void Append(Session& session, int32_t count) {
    Feed(*engine_, session, RandomTokens(1, count, engine_->config().vocab), 16);
  }

  absl::Status EndPrompt(Session& session, int32_t count) {
    const std::vector<int32_t> tokens = RandomTokens(2, count, engine_->config().vocab);
    BatchRow row = {.session = &session, .tokens = tokens, .prompt_ends = true};
    engine_->Run({&row, 1});
    return row.status;
  }

  TinyModelFile file_ = TinyModelFile({.context = kContext});
  std::unique_ptr<Engine> engine_ = OpenTestEngine(file_.path());
};

// Tokens evicted by hand make room for a prompt longer than what was reserved; its share must not become the budget.
TEST_F(SessionOnEngineTest, ARatioNeverGivesMoreThanWasReserved) {
  const auto session = OpenTestSession(*engine_, {.scorer = "h2o", .budget_ratio = 1}, 16);
  Append(*session, kContext);
  ASSERT_THAT(engine_->Evict(*session, {.range = {{0, 40}}}), IsOk());
  Append(*session, 20);
  EXPECT_THAT(EndPrompt(*session, 10), IsRefusal(kInvalidArgument, "BUDGET_TOO_LARGE", "policy.trigger.budget_ratio"));
  EXPECT_EQ(session->policy().trigger.budget, 0);
  // Still a session bounded by its length, which it can fill and no more.
  EXPECT_EQ(session->cache_length(), kContext - 10);
  Append(*session, 10);
  EXPECT_THAT(session->CanAppend(1), IsRefusal(absl::StatusCode::kResourceExhausted, "LENGTH_LIMIT", ""));
}

TEST_F(SessionOnEngineTest, ARatioThatFitsAfterEvictionByHandIsFixed) {
  const auto session = OpenTestSession(*engine_, {.scorer = "h2o", .budget_ratio = 0.5}, 16);
  Append(*session, kContext);
  ASSERT_THAT(engine_->Evict(*session, {.range = {{0, 40}}}), IsOk());
  EXPECT_THAT(EndPrompt(*session, 16), IsOk());
  EXPECT_EQ(session->policy().trigger.budget, 40);
  Append(*session, 100);
  EXPECT_EQ(session->cache_length(), 40);
}

TEST_F(SessionOnEngineTest, ShiftingMovesTheNextTokenToo) {
  const auto session = OpenTestSession(*engine_, {.scorer = "full"});
  Append(*session, 4);
  ASSERT_THAT(engine_->ShiftPositions(*session, 2, 5), IsOk());
  Append(*session, 1);
  EXPECT_THAT(engine_->Describe(*session, 1, 1)->front().positions, testing::ElementsAre(0, 1, 7, 8, 9));
  EXPECT_EQ(session->position_max(), 9);
}

TEST_F(SessionOnEngineTest, RefusesToShiftTheNextTokenOutOfRange) {
  const auto session = OpenTestSession(*engine_, {.scorer = "full"});
  Append(*session, 6);
  ASSERT_EQ(*engine_->RemovePositions(*session, 0, 6), 6);  // no cached position is left to stand in the way
  EXPECT_THAT(engine_->ShiftPositions(*session, 0, -7), IsRefusal(kInvalidArgument, "POSITION_OUT_OF_RANGE", "delta"));
  EXPECT_THAT(engine_->ShiftPositions(*session, 0, std::numeric_limits<int32_t>::max()),
              IsRefusal(kInvalidArgument, "POSITION_OUT_OF_RANGE", "delta"));
  EXPECT_EQ(session->position_max(), 5);
  ASSERT_THAT(engine_->ShiftPositions(*session, 6, -6), IsOk());
  Append(*session, 2);
  EXPECT_THAT(engine_->Describe(*session, 0, 0)->front().positions, testing::ElementsAre(0, 1));
}

TEST_F(SessionOnEngineTest, HasNoPositionBeforeTheFirstToken) {
  for (const Positions positions : {Positions::kOriginal, Positions::kCompacted}) {
    const auto session = OpenTestSession(*engine_, {.scorer = "h2o", .budget = 20, .positions = positions});
    EXPECT_EQ(session->position_max(), -1);
    EXPECT_EQ(session->cache_length(), 0);
    EXPECT_TRUE(session->log().empty());
  }
}

TEST_F(SessionOnEngineTest, CompactedPositionsNeverPassTheLengthWhileOriginalOnesGrow) {
  const PolicySpec spec = {.scorer = "streaming", .budget = 20};
  const auto compacted = OpenTestSession(*engine_, spec, 16);
  PolicySpec with_original = spec;
  with_original.positions = Positions::kOriginal;
  const auto original = OpenTestSession(*engine_, with_original, 16);
  Append(*compacted, 200);
  Append(*original, 200);
  EXPECT_EQ(compacted->position_max(), 19);
  EXPECT_EQ(original->position_max(), 199);
}

// POS-1, the scenario of transformers issue 35350: a prompt three times the window, then decoding. There the first
// decoded key lay ahead of the query, and distances were wrong. Here, in every lane and at every step, the newest key
// is the query's own, no key is ahead of it, and every distance is the one that the mode defines: between ranks, or
// between places in the text.
TEST_F(SessionOnEngineTest, NoKeyIsAheadOfTheQueryAndAllDistancesAreAsDefined) {
  for (const std::string scorer : {"streaming", "knorm", "h2o"}) {
    for (const Positions positions : {Positions::kCompacted, Positions::kOriginal}) {
      SCOPED_TRACE(scorer + (positions == Positions::kCompacted ? " compacted" : " original"));
      const auto session =
          OpenTestSession(*engine_, {.scorer = scorer, .budget = 20, .sinks = 4, .positions = positions}, 16);
      Append(*session, 60);
      for (int step = 0; step < 24; ++step) {
        Append(*session, 1);
        const auto lanes = engine_->Describe(*session, {}, {});
        ASSERT_THAT(lanes, IsOk());
        for (const LaneReport& lane : *lanes) {
          std::vector<size_t> order(lane.tokens.size());
          std::iota(order.begin(), order.end(), size_t{0});
          std::ranges::sort(order, {}, [&](size_t i) { return lane.tokens[i]; });
          ASSERT_EQ(order.size(), 20u);
          ASSERT_EQ(lane.tokens[order.back()], 60 + step);
          for (size_t rank = 0; rank < order.size(); ++rank) {
            const size_t i = order[rank];
            ASSERT_EQ(lane.positions[i],
                      positions == Positions::kCompacted ? static_cast<int32_t>(rank) : lane.tokens[i]);
          }
          ASSERT_EQ(session->position_max(), lane.positions[order.back()]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ebb
