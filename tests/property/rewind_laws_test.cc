// Laws of rewinding: what was forgotten leaves no trace where nobody was evicted meanwhile.

#include <gmock/gmock.h>

#include <vector>

#include "policies/hash_random.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

class RewindLaws : public testing::Test {
 protected:
  TinyModelFile file_ = TinyModelFile({});
  std::unique_ptr<Engine> engine_ = OpenTestEngine(file_.path(), {.threads = 2});
  int32_t vocab_ = engine_->config().vocab;
};

TEST_F(RewindLaws, GoingOnIsBitForBitAsIfNothingHadBeenForgotten) {
  for (const char* scorer : {"full", "streaming"}) {
    SCOPED_TRACE(scorer);
    const auto rewinds = OpenTestSession(*engine_, {.scorer = scorer, .budget = 300}, 16);
    const auto plain = OpenTestSession(*engine_, {.scorer = scorer, .budget = 300}, 16);
    Feed(*engine_, *rewinds, RandomTokens(1, 50, vocab_), 16);
    Feed(*engine_, *plain, RandomTokens(1, 50, vocab_), 16);
    HashRandom random(2);
    for (uint64_t round = 0; round < 20; ++round) {
      const auto length = static_cast<int32_t>(plain->log().size());
      const int32_t guessed = random.Uniform(0, 12);
      if (guessed > 0) Feed(*engine_, *rewinds, RandomTokens(3 + round, guessed, vocab_), random.Uniform(1, 4));
      engine_->Rewind(*rewinds, length);
      ASSERT_EQ(rewinds->log().size(), plain->log().size());
      ASSERT_EQ(rewinds->cache_length(), plain->cache_length());
      const std::vector<int32_t> next = RandomTokens(100 + round, random.Uniform(1, 5), vocab_);
      ASSERT_EQ(LargestDifference(Step(*engine_, *rewinds, next), Step(*engine_, *plain, next)), 0)
          << "round " << round;
      const auto lanes = *engine_->Describe(*rewinds, std::nullopt, std::nullopt);
      const auto expected = *engine_->Describe(*plain, std::nullopt, std::nullopt);
      for (size_t lane = 0; lane < lanes.size(); ++lane) {
        ASSERT_EQ(lanes[lane].slots, expected[lane].slots) << "round " << round;
        ASSERT_EQ(lanes[lane].tokens, expected[lane].tokens) << "round " << round;
        ASSERT_EQ(lanes[lane].positions, expected[lane].positions) << "round " << round;
      }
    }
  }
}

TEST_F(RewindLaws, AtAFullCacheTheForgottenLeaveAndTheBudgetHolds) {
  const auto session = OpenTestSession(*engine_, {.scorer = "streaming", .budget = 40}, 16);
  Feed(*engine_, *session, RandomTokens(1, 90, vocab_), 16);
  for (int32_t round = 0; round < 10; ++round) {
    const auto length = static_cast<int32_t>(session->log().size());
    Feed(*engine_, *session, RandomTokens(2 + static_cast<uint64_t>(round), 6, vocab_), 1);
    engine_->Rewind(*session, length + 2);
    EXPECT_EQ(session->cache_length(), 36);
    EXPECT_EQ(LiveTokens(*engine_, *session, 0, 0).back(), length + 1);
    EXPECT_EQ(LiveTokens(*engine_, *session, 0, 0).front(), 0);
    Feed(*engine_, *session, RandomTokens(50, 7, vocab_), 7);
    EXPECT_EQ(session->cache_length(), 40);
  }
}

}  // namespace
}  // namespace ebb
