#include "policies/snapkv.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "policies/hash_random.h"

namespace ebb {
namespace {

using testing::ElementsAre;
using testing::FloatEq;
using testing::Pointwise;

// A lane of `tokens` by slot and the state of one scorer for it.
struct SnapkvLane {
  SnapkvLane(const SnapkvOptions& options, std::vector<int32_t> tokens)
      : scorer(MakeSnapkv(options)),
        token(std::move(tokens)),
        slot(token.size() * scorer->needs().state_floats),
        lane(static_cast<size_t>(scorer->lane_floats({}))) {}

  LaneView View() {
    by_age.clear();
    for (size_t s = 0; s < token.size(); ++s) {
      if (token[s] >= 0) by_age.push_back(static_cast<int32_t>(s));
    }
    std::ranges::sort(by_age, {}, [&](int32_t s) { return token[s]; });
    return {.token = token, .live = static_cast<int32_t>(by_age.size()), .by_age = by_age};
  }

  // `rows` are [rows, n].
  void Observe(const std::vector<float>& rows) {
    scorer->Observe(View(), {.window = rows, .queries = 1}, {.slot = slot, .lane = lane});
  }

  std::vector<float> Score() {
    std::vector<float> keep(token.size());
    scorer->Score(View(), {.slot = slot, .lane = lane}, keep);
    return keep;
  }

  std::unique_ptr<const Scorer> scorer;
  std::vector<int32_t> token, by_age;
  std::vector<float> slot, lane;
};

TEST(Snapkv, StatesItsBytes) {
  const auto snapkv = MakeSnapkv({.window = 32});
  const Needs needs = snapkv->needs();
  EXPECT_EQ(needs.window_rows, 32);
  EXPECT_TRUE(needs.by_age);
  EXPECT_FALSE(needs.column_sums || needs.last_row || needs.memory);
  EXPECT_EQ(needs.state_floats, 33);
  EXPECT_EQ(snapkv->lane_floats({.query_heads = 4, .head_dim = 128}), 1);
}

// SNAP-2: the reference's pooling of [5 0 0 1 0 0 4], and the forms at their ends.
TEST(Snapkv, PoolsTheWorkedExample) {
  struct Case {
    std::string name;
    SnapkvOptions options;
    std::vector<float> keep;
  };
  const std::vector<Case> cases = {
      {"mean", {.kernel = 5, .pooling = Pooling::kAverage}, {1, 1.2F, 1.2F, 0.2F, 1, 1, 0.8F}},
      {"max", {.kernel = 5, .pooling = Pooling::kMax}, {5, 5, 5, 1, 4, 4, 4}},
      {"none", {.kernel = 5, .pooling = Pooling::kNone}, {5, 0, 0, 1, 0, 0, 4}},
      {"a kernel of one", {.kernel = 1, .pooling = Pooling::kMax}, {5, 0, 0, 1, 0, 0, 4}},
      {"a kernel past both ends", {.kernel = 63, .pooling = Pooling::kMax}, {5, 5, 5, 5, 5, 5, 5}},
      {"its mean", {.kernel = 25, .pooling = Pooling::kAverage}, {0.4F, 0.4F, 0.4F, 0.4F, 0.4F, 0.4F, 0.4F}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    SnapkvOptions options = c.options;
    options.own_columns = true;
    SnapkvLane lane(options, {0, 1, 2, 3, 4, 5, 6});
    lane.Observe({5, 0, 0, 1, 0, 0, 4});
    EXPECT_THAT(lane.Score(), Pointwise(FloatEq(), c.keep));
  }
}

// POLICIES 1.6: the mean of the query heads [4 0 0 0 0] and [0 4 0 0 0] is pooled. Each pooled by itself comes to
// another mean.
TEST(Snapkv, PoolsTheMeanOfTheQueryHeads) {
  const auto pooled = [](const std::vector<float>& row) {
    SnapkvLane lane({.kernel = 3, .own_columns = true}, {0, 1, 2, 3, 4});
    lane.Observe(row);
    return lane.Score();
  };
  EXPECT_THAT(pooled({2, 2, 0, 0, 0}), ElementsAre(2, 2, 2, 0, 0));
  const std::vector<float> first = pooled({4, 0, 0, 0, 0});
  const std::vector<float> second = pooled({0, 4, 0, 0, 0});
  std::vector<float> mean;
  for (size_t j = 0; j < first.size(); ++j) mean.push_back((first[j] + second[j]) / 2);
  EXPECT_THAT(mean, ElementsAre(4, 4, 2, 0, 0));
}

TEST(Snapkv, PoolsAlongAgesAndSkipsFreeSlots) {
  SnapkvLane lane({.kernel = 3, .own_columns = true}, {9, 2, -1, 30, 4});  // by age: slots 1, 4, 0, 3
  lane.Observe({1, 8, 0, 2, 4});
  std::vector<float> keep = lane.Score();
  keep[2] = 0;  // free
  EXPECT_THAT(keep, ElementsAre(4, 8, 0, 2, 8));
}

// As in the paper: they neither lend nor borrow.
TEST(Snapkv, DropsTheWindowsOwnColumnsFromThePooling) {
  SnapkvLane dropping({.window = 2, .kernel = 3}, {0, 1, 2, 3, 4});
  dropping.Observe({1, 0, 0, 7, 9});
  EXPECT_THAT(dropping.Score(), ElementsAre(1, 1, 0, 7, 9));
  SnapkvLane keeping({.window = 2, .kernel = 3, .own_columns = true}, {0, 1, 2, 3, 4});
  keeping.Observe({1, 0, 0, 7, 9});
  EXPECT_THAT(keeping.Score(), ElementsAre(1, 1, 7, 9, 9));
}

// Rows come one by one or several at once; the sum is that of the last `window` of them, over many turns of the ring.
TEST(Snapkv, SumsTheLastRowsAndNoOther) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t window = random.Uniform(1, 9);
    SnapkvLane lane({.window = window, .pooling = Pooling::kNone}, {0, 1, 2});
    std::deque<std::vector<float>> last;
    for (int step = 0; step < 40; ++step) {
      std::vector<float> rows;
      for (int32_t row = random.Uniform(1, window); row > 0; --row) {
        last.push_back({random.UniformFloat(), random.UniformFloat(), random.UniformFloat()});
        if (static_cast<int32_t>(last.size()) > window) last.pop_front();
        rows.insert(rows.end(), last.back().begin(), last.back().end());
      }
      lane.Observe(rows);
      const std::vector<float> keep = lane.Score();
      for (size_t slot = 0; slot < 3; ++slot) {
        double sum = 0;
        for (const auto& row : last) sum += row[slot];
        ASSERT_NEAR(keep[slot], sum, 1e-5);
      }
    }
  }
}

TEST(Snapkv, ANewTokenInASlotStartsWithoutTheOldOnesRows) {
  SnapkvLane lane({.window = 3, .pooling = Pooling::kNone}, {0, 1});
  for (int row = 0; row < 4; ++row) lane.Observe({0.5F, 0.25F});
  lane.token[0] = 2;
  std::fill_n(lane.slot.begin(), 4, 0.0F);  // as the lane zeroes the slot of a token that enters
  lane.Observe({0.125F, 0.25F});
  EXPECT_THAT(lane.Score(), ElementsAre(0.125F, 0.75F));
}

// A seed ranks until the window is full of rows that were seen.
TEST(Snapkv, ASeedCountsAsOneRowOlderThanAllToCome) {
  SnapkvLane lane({.window = 2, .pooling = Pooling::kNone}, {0, 1});
  lane.Observe({0.5F, 0.5F});
  const std::vector<float> sums = {1, 4};
  ASSERT_TRUE(lane.scorer->Seed(sums, {.slot = lane.slot, .lane = lane.lane}));
  EXPECT_THAT(lane.Score(), ElementsAre(1, 4));
  lane.Observe({0.75F, 0.25F});
  EXPECT_THAT(lane.Score(), ElementsAre(1.75F, 4.25F));
  lane.Observe({0.5F, 0.5F});
  EXPECT_THAT(lane.Score(), ElementsAre(1.25F, 0.75F));
}

TEST(SnapkvDeathTest, AnEvenKernelIsABrokenInvariant) { EXPECT_DEATH(MakeSnapkv({.kernel = 4}), "broken invariant"); }

}  // namespace
}  // namespace ebb
