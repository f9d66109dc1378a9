// Laws of sessions under every policy of the registry: budget, capacity, what a lane holds and where, and that nobody
// reads what another session left.

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "engine/model/gguf.h"
#include "policies/hash_random.h"
#include "policies/registry.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

class SessionLaws : public testing::Test {
 protected:
  TinyModelFile file_ = TinyModelFile({});
  std::unique_ptr<Engine> engine_ = OpenTestEngine(file_.path(), {.threads = 2});
  int32_t vocab_ = engine_->config().vocab;
};

TEST_F(SessionLaws, WithRoomForAllEveryPolicyIsFullBitForBit) {
  const std::vector<int32_t> tokens = RandomTokens(1, 200, vocab_);
  const auto full = OpenTestSession(*engine_, {.scorer = "full", .budget = 200});
  const std::vector<float> expected = Feed(*engine_, *full, tokens, 32);
  for (const ScorerRow& row : ScorerRegistry()) {
    SCOPED_TRACE(row.name);
    for (const Positions positions : {Positions::kOriginal, Positions::kCompacted}) {
      const auto session =
          OpenTestSession(*engine_, {.scorer = std::string(row.name), .budget = 200, .positions = positions});
      EXPECT_EQ(LargestDifference(Feed(*engine_, *session, tokens, 32), expected), 0);
      EXPECT_EQ(session->evicted(), 0);
    }
  }
}

// length = budget after every step with R = 1 and sigma = 0, and never above capacity at any R, sigma, delta and block.
TEST_F(SessionLaws, LengthNeverExceedsCapacityAndReturnsToTheBudget) {
  for (const ScorerRow& row : ScorerRegistry()) {
    if (!row.evicts) continue;
    for (uint64_t seed = 0; seed < 12; ++seed) {
      SCOPED_TRACE(std::string(row.name) + ", seed " + std::to_string(seed));
      HashRandom random(seed);
      PolicySpec spec = {.scorer = std::string(row.name),
                         .budget = random.Uniform(40, 80),
                         .positions = seed / 2 % 2 == 0 ? Positions::kOriginal : Positions::kCompacted,
                         .schedule = Schedule::kEveryStep};
      const bool eager = seed % 2 == 0;
      if (!eager) {
        spec.overflow = random.Uniform(1, 20);
        spec.slack = random.Uniform(0, 20);
        spec.max_drop = random.Uniform(0, 20);
      }
      const auto session = OpenTestSession(*engine_, spec, 48);
      EXPECT_EQ(session->capacity(), Capacity(session->policy().trigger, 48));
      for (int32_t total = 0; total < 300;) {
        const int32_t count = random.Uniform(0, 1) == 0 ? 1 : random.Uniform(1, 48);
        const int32_t before = session->cache_length();
        ASSERT_LE(before + count, session->capacity());
        Step(*engine_, *session, RandomTokens(seed + 100, count, vocab_), Want::kNone);
        total += count;
        const int32_t dropped = TokensToDrop(session->policy().trigger, before + count);
        ASSERT_EQ(session->cache_length(), before + count - dropped);
        ASSERT_TRUE(!eager || session->cache_length() == std::min(total, *spec.budget));
        ASSERT_EQ(session->evicted(), total - session->cache_length());
      }
    }
  }
}

// The paper's (S, W, R, sigma, delta) = (4, 2044, 32, 16, 32).
TEST_F(SessionLaws, LazyPruningFollowsTheWorkedExample) {
  const TinyModelFile file({.layers = 1, .dim = 32, .heads = 1, .kv_heads = 1, .head_dim = 8, .ffn_dim = 32});
  const auto engine = OpenTestEngine(file.path());
  const auto session = OpenTestSession(
      *engine, {.scorer = "streaming", .budget = 2048, .overflow = 32, .slack = 16, .max_drop = 32, .sinks = 4}, 512);
  const std::vector<int32_t> tokens = RandomTokens(2, 512, engine->config().vocab);
  for (int i = 0; i < 4; ++i) Step(*engine, *session, tokens, Want::kNone);
  Step(*engine, *session, std::span(tokens).first(42), Want::kNone);
  EXPECT_EQ(session->cache_length(), 2058);  // 2090 -> 2058
  std::vector<int32_t> lengths;
  for (int i = 0; i < 22 + 32 + 32; ++i) {
    const int64_t evicted = session->evicted();
    Step(*engine, *session, std::span(tokens).first(1), Want::kNone);
    if (session->evicted() != evicted) lengths.push_back(session->cache_length() + 32);
    ASSERT_LT(session->cache_length(), 2080);
  }
  EXPECT_THAT(lengths, testing::ElementsAre(2080, 2080, 2080));  // each down to 2048
  EXPECT_EQ(session->cache_length(), 2048);
}

// STR-1, slots and ranks. Evicted after attention: one slot more than the budget C = S + W.
TEST_F(SessionLaws, StreamingKeepsSinksAndARing) {
  constexpr int32_t kSinks = 4;
  constexpr int32_t kRing = 13;  // W + 1
  const auto session = OpenTestSession(*engine_, {.scorer = "streaming", .budget = kSinks + kRing - 1}, 1);
  for (int32_t t = 0; t < 80; ++t) {
    Step(*engine_, *session, RandomTokens(t, 1, vocab_), Want::kNone);
    const LaneReport lane = engine_->Describe(*session, 1, 1)->front();
    ASSERT_EQ(lane.tokens.size(), std::min(t + 1, kSinks + kRing - 1));
    for (size_t i = 0; i < lane.slots.size(); ++i) {
      const int32_t token = lane.tokens[i];
      const bool sink = token < kSinks;
      ASSERT_TRUE(sink || token > t - kRing + 1 || t < kSinks + kRing - 1) << token << " at " << t;
      ASSERT_EQ(lane.slots[i], token < kSinks + kRing ? token : kSinks + (token - kSinks) % kRing);
      const int32_t gone = std::max(0, t + 1 - (kSinks + kRing - 1));
      ASSERT_EQ(lane.positions[i], sink ? token : token - gone);
    }
  }
}

// The embedding row of this token is not a number, so its K and V are none, in every layer.
constexpr int32_t kPoison = 3;

void PoisonEmbedding(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const auto model = GgufFile::Parse(path, std::as_bytes(std::span(bytes)));
  ASSERT_TRUE(model.ok());
  const GgufTensor* const embedding = model->FindTensor("token_embd.weight");
  ASSERT_NE(embedding, nullptr);
  const std::vector<float> row(static_cast<size_t>(embedding->cols()), std::numeric_limits<float>::quiet_NaN());
  file.clear();
  file.seekp(static_cast<std::streamoff>(embedding->data_offset + kPoison * row.size() * sizeof(float)));
  file.write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(row.size() * sizeof(float)));
}

TEST_F(SessionLaws, FreedPagesAreUnreadableByTheNextOwner) {
  PoisonEmbedding(file_.path());
  for (const RopeCache rope_cache : {RopeCache::kFused, RopeCache::kRk}) {
    for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kF16, KvType::kInt8, KvType::kFp8}) {
      const PolicySpec spec = {.scorer = "h2o", .budget = 40, .kv_type = type, .rope_cache = rope_cache};
      const std::vector<int32_t> clean = RandomTokens(5, 150, kPoison);  // ids below it
      const auto fresh = OpenTestEngine(file_.path());
      const auto first_owner = OpenTestSession(*fresh, spec, 32);
      const std::vector<float> expected = Feed(*fresh, *first_owner, clean, 7);

      const auto used = OpenTestEngine(file_.path());
      {
        const auto before = OpenTestSession(*used, spec, 32);
        const std::vector<int32_t> poison(static_cast<size_t>(before->capacity()), kPoison);
        for (const float logit : Step(*used, *before, std::span(poison).first(32))) ASSERT_TRUE(std::isnan(logit));
        Feed(*used, *before, poison, 32);
      }
      const auto next_owner = OpenTestSession(*used, spec, 32);
      EXPECT_EQ(LargestDifference(Feed(*used, *next_owner, clean, 7), expected), 0);
    }
  }
}

}  // namespace
}  // namespace ebb
