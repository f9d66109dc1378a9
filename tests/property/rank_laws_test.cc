// How opinions become one score (policies/rank.h), against plain loops. The scorer is h2o, whose scores are its state,
// so that any opinion can be put there; free slots hold whatever a former token left.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "policies/caote.h"
#include "policies/hash_random.h"
#include "policies/rank.h"
#include "policies/select.h"
#include "tests/support/status_matchers.h"
#include "tests/support/value_memory.h"

namespace ebb {
namespace {

using testing::ElementsAreArray;

constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kDim = 5;

// Opinions of `kv_heads` times `heads` tracks over one slot map.
struct Opinions {
  Opinions(uint64_t seed, int32_t kv_heads, int32_t heads, float least)
      : random(seed), query_heads(heads), budget(random.Uniform(8, 40)) {
    const int32_t slots = random.Uniform(budget + 1, 70);
    for (int32_t slot = 0; slot < slots; ++slot) token.push_back(random.Uniform(0, 5) == 0 ? -1 : 2 * slot);
    for (size_t slot = token.size(); slot-- > 1;) {
      std::swap(token[slot], token[random.Uniform(0, static_cast<int32_t>(slot))]);
    }
    for (int32_t kv = 0; kv < kv_heads; ++kv) {
      std::vector<float> values;
      for (int32_t i = 0; i < slots * kDim; ++i) values.push_back(random.UniformFloat());
      memory.emplace_back(kDim, values);
      for (int32_t head = 0; head < heads; ++head) {
        std::vector<float>& scores = state.emplace_back();
        for (const int32_t t : token) {
          const float rests = random.Uniform(0, 1) == 0 ? kNoNumber : 1e30F;
          scores.push_back(t < 0 ? rests : least + 3 * random.UniformFloat());
        }
      }
    }
  }

  LaneView View(int32_t kv) const {
    return {.token = token,
            .live = static_cast<int32_t>(std::ranges::count_if(token, [](int32_t t) { return t >= 0; })),
            .sinks = 2,
            .recent = 3,
            .budget = budget,
            .query_heads = 1,
            .memory = &memory[kv]};
  }

  std::vector<float> Ranked(Scope scope, Reduction reduction, Modifier modifier) const {
    const PolicySpec asked = {.scorer = "h2o",
                              .budget = budget,
                              .sinks = 2,
                              .recent = 3,
                              .scope = scope,
                              .reduction = reduction,
                              .modifier = modifier};
    const ValidSpec spec = Resolve(asked, {.query_heads = query_heads}).value();
    std::vector<Track> tracks;
    for (size_t t = 0; t < state.size(); ++t) {
      tracks.push_back({.lane = View(static_cast<int32_t>(t) / query_heads), .state = {.slot = state[t]}});
    }
    RankScratch scratch;
    std::vector<float> keep(token.size());
    Rank(spec, tracks, scratch, keep);
    return keep;
  }

  HashRandom random;
  int32_t query_heads;
  int32_t budget;
  std::vector<int32_t> token;
  std::vector<ValueMemory> memory;        // [kv_heads]
  std::vector<std::vector<float>> state;  // [kv_heads * heads][slots]
};

TEST(RankLaw, KvHeadsThatDecideTogetherTakeTheMean) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto kv_heads = static_cast<int32_t>(1 + seed % 4);
    const Opinions opinions(seed, kv_heads, 1, -1.5F);
    const Scope scope = kv_heads == 1 ? Scope::kKvHead : Scope::kLayer;
    const std::vector<float> keep = opinions.Ranked(scope, Reduction::kMean, Modifier::kNone);
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      if (opinions.token[slot] < 0) continue;
      double sum = 0;
      for (const std::vector<float>& scores : opinions.state) sum += scores[slot];
      ASSERT_NEAR(keep[slot], sum / kv_heads, 1e-6);
    }
  }
}

TEST(RankLaw, TheLargestOfTheQueryHeadsSpeaksForTheKvHead) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto kv_heads = static_cast<int32_t>(1 + seed % 3);
    const auto heads = static_cast<int32_t>(1 + seed % 5);
    const Opinions opinions(seed, kv_heads, heads, -1.5F);
    const Scope scope = kv_heads == 1 ? Scope::kKvHead : Scope::kLayer;
    const std::vector<float> keep = opinions.Ranked(scope, Reduction::kMax, Modifier::kNone);
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      if (opinions.token[slot] < 0) continue;
      double sum = 0;
      for (int32_t kv = 0; kv < kv_heads; ++kv) {
        double largest = -HUGE_VAL;
        for (int32_t h = 0; h < heads; ++h) {
          largest = std::max(largest, double{opinions.state[kv * heads + h][slot]});
        }
        sum += largest;
      }
      ASSERT_NEAR(keep[slot], sum / kv_heads, 1e-6);
    }
  }
}

// The L2 norm over all query heads of all KV heads that decide together: their outputs are one vector. Also where the
// costs are so small that their squares are no floats.
TEST(RankLaw, CostsAddUpByTheirSquares) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto kv_heads = static_cast<int32_t>(1 + seed % 3);
    const auto heads = static_cast<int32_t>(1 + seed % 5);
    Opinions opinions(seed, kv_heads, heads, 0);
    for (std::vector<float>& scores : opinions.state) {
      for (size_t slot = 0; slot < scores.size(); slot += 3) scores[slot] *= 1e-30F;
    }
    const Scope scope = kv_heads == 1 ? Scope::kKvHead : Scope::kLayer;
    for (const Modifier modifier : {Modifier::kCaote, Modifier::kFastCaote}) {
      const std::vector<float> keep = opinions.Ranked(scope, Reduction::kL2, modifier);
      std::vector<double> squares(keep.size());
      for (size_t track = 0; track < opinions.state.size(); ++track) {
        CaoteScratch scratch;
        std::vector<float> costs = opinions.state[track];
        Caote(opinions.View(static_cast<int32_t>(track) / heads),
              modifier == Modifier::kCaote ? CaoteForm::kExact : CaoteForm::kFast, scratch, costs);
        for (size_t slot = 0; slot < keep.size(); ++slot) squares[slot] += double{costs[slot]} * costs[slot];
      }
      for (size_t slot = 0; slot < keep.size(); ++slot) {
        if (opinions.token[slot] < 0) continue;
        const double expected = std::sqrt(squares[slot]);
        ASSERT_NEAR(keep[slot], expected, 2e-6 * expected);
        ASSERT_TRUE(keep[slot] > 0);
      }
    }
  }
}

// Slots that may leave, in the order in which one opinion lets them go.
std::vector<int32_t> Order(const Opinions& opinions, const std::vector<float>& scores) {
  const LaneView lane = opinions.View(0);
  std::vector<int32_t> order;
  for (size_t slot = 0; slot < lane.token.size(); ++slot) {
    if (lane.token[slot] >= 0) order.push_back(static_cast<int32_t>(slot));
  }
  std::ranges::sort(order, {}, [&](int32_t slot) { return lane.token[slot]; });
  if (static_cast<int32_t>(order.size()) <= lane.sinks + lane.recent) return {};
  order = {order.begin() + lane.sinks, order.end() - lane.recent};
  std::ranges::stable_sort(order, {}, [&](int32_t slot) { return scores[slot]; });
  return order;
}

// Who is among the k best of some query head stays while anyone else is left; the others leave by the mean.
TEST(RankLaw, TheUnionOfWhatEachHeadWouldKeepStaysLongest) {
  int32_t all_different = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto kv_heads = static_cast<int32_t>(1 + seed % 2);
    const auto heads = static_cast<int32_t>(1 + seed % 5);
    // Below 0, across it, above it; a wide range and a narrow one.
    const float leasts[] = {-400, -1.5F, 0, 1000};
    const Opinions opinions(seed, kv_heads, heads, leasts[seed % 4]);
    const auto tracks = static_cast<int32_t>(opinions.state.size());
    const int32_t k = (opinions.budget - 2 - 3) / tracks;
    std::vector<float> mean(opinions.token.size());
    std::vector<int32_t> wanted;
    for (const std::vector<float>& scores : opinions.state) {
      const std::vector<int32_t> order = Order(opinions, scores);
      const auto count = std::min<size_t>(order.size(), static_cast<size_t>(k));
      wanted.insert(wanted.end(), order.end() - static_cast<int64_t>(count), order.end());
      for (size_t slot = 0; slot < mean.size(); ++slot) mean[slot] += scores[slot] / static_cast<float>(tracks);
    }
    std::ranges::sort(wanted);
    const auto repeated = std::ranges::unique(wanted);
    all_different += tracks > 1 && k > 0 && repeated.empty() ? 1 : 0;
    wanted.erase(repeated.begin(), repeated.end());
    std::vector<int32_t> leaving = Order(opinions, mean);
    std::erase_if(leaving, [&](int32_t slot) { return std::ranges::binary_search(wanted, slot); });

    const Scope scope = kv_heads == 1 ? Scope::kKvHead : Scope::kLayer;
    const std::vector<float> keep = opinions.Ranked(scope, Reduction::kUnion, Modifier::kNone);
    SelectScratch scratch;
    std::vector<int32_t> victims;
    for (size_t count = 0; count <= leaving.size(); ++count) {
      ASSERT_THAT(SelectVictims(opinions.View(0), keep, static_cast<int32_t>(count), scratch, victims), IsOk());
      std::vector<int32_t> expected(leaving.begin(), leaving.begin() + static_cast<int64_t>(count));
      std::ranges::sort(expected);
      ASSERT_THAT(victims, ElementsAreArray(expected));
    }
  }
  EXPECT_GT(all_different, 5);
}

// Selection counts scores that are not a number and lets them go first, so no reduction may hide one.
TEST(RankLaw, WhatIsNotANumberStaysSo) {
  for (const Reduction reduction : {Reduction::kMax, Reduction::kUnion}) {
    for (size_t track = 0; track < 3; ++track) {
      Opinions opinions(7, 1, 3, 0);
      const int32_t slot = Order(opinions, opinions.state[0])[4];
      opinions.state[track][slot] = kNoNumber;
      const std::vector<float> keep = opinions.Ranked(Scope::kKvHead, reduction, Modifier::kNone);
      for (size_t other = 0; other < keep.size(); ++other) {
        if (opinions.token[other] >= 0) {
          EXPECT_EQ(std::isnan(keep[other]), static_cast<int32_t>(other) == slot);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ebb
