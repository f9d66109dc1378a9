#include "policies/semantic.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "policies/hash_random.h"
#include "policies/query_rows.h"

namespace ebb {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::IsEmpty;

TEST(QueryRows, AreEmptyWhereMemoryIsZero) {
  std::vector<float> floats(static_cast<size_t>(QueryRows<float>::Floats(3, 2)));
  EXPECT_EQ(floats.size(), 9U);
  const QueryRows<float> rows(floats, 3);
  const std::vector<float> query = {1, 2};
  rows.Put(1, 0, query.data());
  EXPECT_EQ(rows.Token(0), -1);
  EXPECT_EQ(rows.Token(1), 0);
  EXPECT_THAT(rows.Query(1), ElementsAre(1, 2));
  rows.Put(1, 1 << 30, query.data());
  EXPECT_EQ(rows.Token(1), 1 << 30);
}

TEST(CeilShare, TakesAProductThatIsWholeOnPaperAsWhole) {
  EXPECT_EQ(CeilShare(100, 0.07), 7);  // 7.000000000000001 in float64
  EXPECT_EQ(CeilShare(101, 0.07), 8);
  EXPECT_EQ(CeilShare(1, 0.01), 1);
  EXPECT_EQ(CeilShare(50, 0.0), 0);
}

// One lane of two query heads whose queries have two numbers.
struct Lane {
  explicit Lane(const SemanticOptions& options)
      : scorer(MakeSemantic(options)), state(static_cast<size_t>(scorer->lane_floats({2, 2}))) {}

  LaneView View() const {
    const auto tokens = static_cast<int32_t>(token.size());
    return {.token = token, .live = tokens, .tokens = tokens, .query_heads = 2};
  }

  // Queries of tokens that follow each other, each of two heads: (x, 0) for the first and (0, y) for the second.
  void Observe(const std::vector<std::pair<float, float>>& queries) {
    std::vector<float> q;
    std::vector<int32_t> slots;
    for (const auto& [x, y] : queries) {
      q.insert(q.end(), {x, 0, 0, y});
      slots.push_back(static_cast<int32_t>(token.size()));
      token.push_back(slots.back());
    }
    scorer->Observe(View(),
                    {.queries = static_cast<int32_t>(queries.size()), .slots = slots, .q = q.data(), .q_stride = 4},
                    {.lane = state});
  }

  std::vector<int32_t> Probes(int32_t head) {
    std::vector<int32_t> tokens;
    rows.clear();
    scorer->AppendProbes(View(), head, {.lane = state}, tokens, rows);
    EXPECT_EQ(rows.size(), 2 * tokens.size());
    return tokens;
  }

  std::unique_ptr<const Scorer> scorer;
  std::vector<int32_t> token;
  std::vector<float> state, rows;
};

TEST(Semantic, AsksForQueriesAndStatesItsBytes) {
  const auto semantic = MakeSemantic({});
  const Needs needs = semantic->needs();
  EXPECT_TRUE(needs.queries);
  EXPECT_TRUE(needs.probes);
  EXPECT_FALSE(needs.attention());
  EXPECT_EQ(needs.state_floats, 0);
  EXPECT_EQ(4 * semantic->lane_floats({.query_heads = 1, .head_dim = 128}), 4 * 64 * (2 * 128 + 3));
  EXPECT_EQ(semantic->lane_floats({.query_heads = 4, .head_dim = 16}),
            4 * semantic->lane_floats({.query_heads = 1, .head_dim = 16}));
}

TEST(Semantic, NamesTheLargestAndTheNewestOfEachQueryHead) {
  Lane lane({.semantic_ratio = 0.2, .recent_ratio = 0.2});
  EXPECT_THAT(lane.Probes(0), IsEmpty());
  lane.Observe({{1, 9}, {-8, 1}, {3, 2}, {4, 3}});
  lane.Observe({{5, 4}});
  lane.Observe({{2, -8}, {1, 1}, {0, 1}, {3, 1}, {1, 1}});  // ten tokens: two largest, two newest
  EXPECT_THAT(lane.Probes(0), ElementsAre(1, 4, 8, 9));
  EXPECT_THAT(lane.rows, ElementsAre(-8, 0, 5, 0, 3, 0, 1, 0));
  EXPECT_THAT(lane.Probes(1), ElementsAre(0, 5, 8, 9));
  EXPECT_THAT(lane.rows, ElementsAre(0, 9, 0, -8, 0, 1, 0, 1));
}

TEST(Semantic, NamesAQueryOnceAndAppends) {
  Lane lane({.semantic_ratio = 0.5, .recent_ratio = 0.5});
  lane.Observe({{1, 1}, {2, 1}, {3, 1}, {4, 1}});
  std::vector<int32_t> tokens = {77};
  std::vector<float> queries = {0.5F};
  lane.scorer->AppendProbes(lane.View(), 0, {.lane = lane.state}, tokens, queries);
  EXPECT_THAT(tokens, ElementsAre(77, 2, 3));
  EXPECT_THAT(queries, ElementsAre(0.5F, 3, 0, 4, 0));
}

TEST(Semantic, OfEqualNormsTheNewerSpeaks) {
  Lane lane({.semantic_ratio = 0.25, .recent_ratio = 0, .rows_max = 2});
  lane.Observe({{3, 1}, {-3, 1}, {1, 1}, {3, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}});
  EXPECT_THAT(lane.Probes(0), ElementsAre(1, 3));
  EXPECT_THAT(lane.Probes(1), ElementsAre(6, 7));
}

// Whatever the blocks, the rows kept are those that sorting all queries would give.
TEST(Semantic, CutsBothHalvesToRowsMax) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t rows = random.Uniform(1, 12);
    Lane lane({.semantic_ratio = 1, .recent_ratio = 1, .rows_max = rows});
    std::vector<float> all;
    for (int step = 0; step < 20; ++step) {
      std::vector<std::pair<float, float>> queries;
      for (int32_t i = random.Uniform(1, 9); i > 0; --i) {
        queries.emplace_back(static_cast<float>(random.Uniform(-20, 20)), 1.0F);  // with ties
        all.push_back(queries.back().first);
      }
      lane.Observe(queries);
      std::vector<int32_t> order(all.size());
      std::iota(order.begin(), order.end(), 0);
      std::ranges::sort(order, std::greater(), [&](int32_t t) { return std::pair(all[t] * all[t], t); });
      order.resize(std::min<size_t>(order.size(), rows));
      for (int32_t t = static_cast<int32_t>(all.size()); t-- > std::max(static_cast<int32_t>(all.size()) - rows, 0);) {
        order.push_back(t);
      }
      std::ranges::sort(order);
      order.erase(std::unique(order.begin(), order.end()), order.end());
      ASSERT_THAT(lane.Probes(0), ElementsAreArray(order));
      for (size_t i = 0; i < order.size(); ++i) ASSERT_EQ(lane.rows[2 * i], all[order[i]]);
    }
  }
}

TEST(Semantic, ScoresWhatTheProbesAttendTo) {
  const auto semantic = MakeSemantic({});
  const std::vector<int32_t> token = {0, 1, 2};
  const std::vector<float> probed = {0.5F, 1.5F, 1.0F};
  std::vector<float> keep(3);
  semantic->Score({.token = token, .live = 3, .probed = probed}, {}, keep);
  EXPECT_THAT(keep, ElementsAre(0.5F, 1.5F, 1.0F));
}

}  // namespace
}  // namespace ebb
