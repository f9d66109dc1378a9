#include "server/token_draws.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <vector>

#include "policies/hash_random.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

struct Row {
  SamplingOptions options = {};
  std::vector<float> whole = {};
  LastLogits logits = {};
  bool explained = false;
  Drawn drawn = {};
};

// However many threads draw however many rows, each has the token, and the log-probabilities, that it has alone.
TEST(TokenDraws, EachIsDrawnAsIfAlone) {
  const TinyModelFile file = TinyModelFile(TinyModel{});
  for (const int32_t threads : {1, 3, TokenDraws::kThreadsMax + 2}) {
    const std::unique_ptr<Engine> engine = OpenTestEngine(file.path(), {.threads = threads});
    const std::unique_ptr<Session> session = OpenTestSession(*engine, {.scorer = "streaming", .budget = 24});
    const auto vocab = static_cast<size_t>(engine->config().vocab);
    Sampler alone(engine->config().vocab);
    TokenDraws draws(*engine);
    HashRandom random(7, threads);
    for (const int64_t count : {1, 2, 3, 40, 0, 5}) {
      std::deque<Row> rows;
      for (int64_t i = 0; i < count; ++i) {
        Row& row = rows.emplace_back();
        row.options = {.temperature = static_cast<float>(random.Uniform(0, 2)),
                       .top_k = random.Uniform(0, 1) * 5,
                       .top_p = random.Uniform(0, 1) == 0 ? 1.0F : 0.7F,
                       .seed = static_cast<uint64_t>(random.Uniform(0, 1000)),
                       .logprobs = 2};
        for (size_t token = 0; token < vocab; ++token) {
          row.whole.push_back(static_cast<float>(random.Uniform(0, 1000)) / 100);
        }
        row.logits = LastLogits(row.whole);
        row.explained = random.Uniform(0, 1) == 0;
        ASSERT_THAT(draws.Add(row.options, row.logits, *session, row.explained, row.drawn), IsOk());
      }
      draws.Run();
      for (const Row& row : rows) {
        const Drawn expected = alone.Draw(row.options, row.whole, {});
        EXPECT_EQ(row.drawn.token, expected.token);
        ASSERT_EQ(row.drawn.top.size(), row.explained ? 2U : 0U);
        if (!row.explained) continue;
        EXPECT_EQ(row.drawn.logprob, expected.logprob);
        for (size_t i = 0; i < 2; ++i) EXPECT_EQ(row.drawn.top[i].token, expected.top[i].token);
      }
    }
  }
}

}  // namespace
}  // namespace ebb
