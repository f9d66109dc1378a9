// What CAOTE (arXiv:2504.14051) promises, held against outputs computed again without the token, in double.
//
// Costs are float32 sums of up to 60 weighted values: 1e-5 of the longest value is allowed.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "policies/caote.h"
#include "policies/hash_random.h"
#include "policies/rank.h"
#include "policies/select.h"
#include "tests/property/policy_lane.h"
#include "tests/support/value_memory.h"

namespace ebb {
namespace {

using testing::ElementsAre;

constexpr CaoteForm kForms[] = {CaoteForm::kExact, CaoteForm::kFast};
constexpr uint64_t kSeeds = 300;

// Attention of some query heads over one lane with free slots, and the lane's values.
struct RandomLane {
  RandomLane(uint64_t seed, int32_t query_heads) : random(seed), d(random.Uniform(1, 40)) {
    const int32_t slots = random.Uniform(2, 60);
    for (int32_t slot = 0; slot < slots; ++slot) token.push_back(random.Uniform(0, 4) == 0 ? -1 : 7 + 3 * slot);
    token.front() = 0;
    token.back() = 1;
    for (size_t slot = token.size(); slot-- > 1;) {
      std::swap(token[slot], token[random.Uniform(0, static_cast<int32_t>(slot))]);
    }
    for (int32_t i = 0; i < slots * d; ++i) values.push_back(4 * random.UniformFloat() - 2);
    for (int32_t head = 0; head < query_heads; ++head) attention.push_back(Softmax(random.Uniform(0, 12)));
  }

  // Of logits in [0, gap).
  std::vector<float> Softmax(int32_t gap) {
    std::vector<double> weight;
    double total = 0;
    for (const int32_t t : token) {
      weight.push_back(t < 0 ? 0 : std::exp(gap * double{random.UniformFloat()}));
      total += weight.back();
    }
    std::vector<float> row;
    for (const double w : weight) row.push_back(static_cast<float>(w / total));
    return row;
  }

  std::vector<int32_t> Live() const {
    std::vector<int32_t> live;
    for (size_t slot = 0; slot < token.size(); ++slot) {
      if (token[slot] >= 0) live.push_back(static_cast<int32_t>(slot));
    }
    return live;
  }

  std::vector<float> Costs(CaoteForm form, const std::vector<float>& keep) const {
    const ValueMemory memory(d, values);
    CaoteScratch scratch;
    std::vector<float> costs = keep;
    Caote(View(memory), form, scratch, costs);
    return costs;
  }

  LaneView View(const ValueMemory& memory) const {
    return {.token = token, .live = static_cast<int32_t>(Live().size()), .memory = &memory};
  }

  double LongestValue() const {
    double longest = 0;
    for (const int32_t slot : Live()) {
      double square = 0;
      for (int32_t c = 0; c < d; ++c) square += double{values[slot * d + c]} * values[slot * d + c];
      longest = std::max(longest, std::sqrt(square));
    }
    return longest;
  }

  HashRandom random;
  int32_t d;
  std::vector<int32_t> token;
  std::vector<float> values;                  // [slots, d]
  std::vector<std::vector<float>> attention;  // [query_heads][slots]
};

// The output of attention over the live slots that do not leave, renormalised.
std::vector<double> Output(const RandomLane& lane, const std::vector<float>& attention,
                           const std::vector<int32_t>& leaving) {
  std::vector<double> output(lane.d, 0.0);
  double total = 0;
  for (const int32_t slot : lane.Live()) {
    if (std::ranges::find(leaving, slot) != leaving.end()) continue;
    total += attention[slot];
    for (int32_t c = 0; c < lane.d; ++c) output[c] += double{attention[slot]} * lane.values[slot * lane.d + c];
  }
  for (double& x : output) x /= total;
  return output;
}

// How far the output of all heads together moves.
double Error(const RandomLane& lane, const std::vector<int32_t>& leaving) {
  double square = 0;
  for (const std::vector<float>& attention : lane.attention) {
    const std::vector<double> before = Output(lane, attention, {});
    const std::vector<double> after = Output(lane, attention, leaving);
    for (int32_t c = 0; c < lane.d; ++c) square += (after[c] - before[c]) * (after[c] - before[c]);
  }
  return std::sqrt(square);
}

// CAOTE-1 of POLICIES 11, theorem 3.1: what attends to the survivors is what attended to them before, over 1 - what
// left; the survivors' output is then where MeasureEviction says it is.
TEST(CaoteLaw, EvictionRenormalisesAttention) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomAttention attention({.seed = seed, .slots = 30});
    attention.Step(30);
    const auto attend = [&] {
      std::vector<double> row(30, 0.0);
      attention.AddProbes(0, std::vector{29}, attention.Query({}, 29), 1.0, row);
      return row;
    };
    const auto output = [&](const std::vector<double>& row) {
      std::vector<double> x(RandomAttention::kHeadDim, 0.0);
      for (int32_t slot = 0; slot < 30; ++slot) {
        for (size_t c = 0; c < x.size(); ++c) x[c] += row[slot] * attention.memory(0).Values(slot, 1)[c];
      }
      return x;
    };
    const std::vector<double> before = attend();
    const std::vector<double> output_before = output(before);
    HashRandom random(seed);
    std::vector<int32_t> victims;
    double left = 0;
    for (int32_t slot = 0; slot < 29; ++slot) {
      if (random.Uniform(0, 3) > 0) continue;
      victims.push_back(slot);
      left += before[slot];
    }
    LaneView lane = attention.View(0, 0, 0);
    lane.memory = &attention.memory(0);
    CaoteScratch scratch;
    const EvictionLoss loss = MeasureEviction(lane, std::vector<float>(before.begin(), before.end()), victims, scratch);
    attention.Evict(victims);
    const std::vector<double> after = attend();
    for (const int32_t token : attention.LiveTokens()) ASSERT_NEAR(after[token], before[token] / (1 - left), 1e-12);
    double square = 0;
    const std::vector<double> output_after = output(after);
    for (size_t c = 0; c < output_after.size(); ++c) square += std::pow(output_after[c] - output_before[c], 2);
    ASSERT_NEAR(loss.mass, left, 1e-6);
    ASSERT_NEAR(loss.error, std::sqrt(square), 1e-5);
  }
}

// CAOTE-2, theorem 3.2.
TEST(CaoteLaw, TheCostIsTheErrorOfLosingTheToken) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const RandomLane lane(seed, 1);
    const std::vector<float> costs = lane.Costs(CaoteForm::kExact, lane.attention[0]);
    for (const int32_t slot : lane.Live()) {
      ASSERT_NEAR(costs[slot], Error(lane, {slot}), 1e-5 * lane.LongestValue());
    }
  }
}

// CAOTE-3: several together, up to all but one, of which the error of any number alone says nothing.
TEST(CaoteLaw, TheErrorOfASetIsExact) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomLane lane(seed, 1);
    std::vector<int32_t> victims = lane.Live();
    for (size_t i = victims.size(); i-- > 1;) {
      std::swap(victims[i], victims[lane.random.Uniform(0, static_cast<int32_t>(i))]);
    }
    victims.resize(static_cast<size_t>(lane.random.Uniform(1, static_cast<int32_t>(victims.size()) - 1)));
    const ValueMemory memory(lane.d, lane.values);
    CaoteScratch scratch;
    const EvictionLoss loss = MeasureEviction(lane.View(memory), lane.attention[0], victims, scratch);
    double mass = 0;
    for (const int32_t slot : victims) mass += lane.attention[0][slot];
    double square = 0;
    for (const double x : Output(lane, lane.attention[0], {})) square += x * x;
    ASSERT_NEAR(loss.mass, mass, 1e-6);
    ASSERT_NEAR(loss.error, Error(lane, victims), 1e-5 * lane.LongestValue());
    ASSERT_NEAR(loss.output, std::sqrt(square), 1e-5 * lane.LongestValue());
  }
}

// Keep scores of caote(h2o) with Reduction::kL2, where the sums are the attention of one query.
std::vector<float> GroupCosts(const RandomLane& lane, const ValueMemory& memory) {
  const auto heads = static_cast<int32_t>(lane.attention.size());
  const PolicySpec asked = {.scorer = "h2o", .budget = 1000, .reduction = Reduction::kL2, .modifier = Modifier::kCaote};
  const ValidSpec spec = Resolve(asked, {.query_heads = heads}).value();
  std::vector<Track> tracks;
  for (const std::vector<float>& row : lane.attention) {
    tracks.push_back({.lane = lane.View(memory), .state = {.slot = row}});
  }
  RankScratch scratch;
  std::vector<float> keep(lane.token.size());
  Rank(spec, tracks, scratch, keep);
  return keep;
}

// CAOTE-4.
TEST(CaoteLaw, TheL2NormOverQueryHeadsIsTheErrorOfTheirOutputsTogether) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto heads = static_cast<int32_t>(1 + seed % 8);
    const RandomLane lane(seed, heads);
    const ValueMemory memory(lane.d, lane.values);
    const std::vector<float> costs = GroupCosts(lane, memory);
    for (const int32_t slot : lane.Live()) {
      ASSERT_NEAR(costs[slot], Error(lane, {slot}), 1e-5 * lane.LongestValue() * std::sqrt(heads));
    }
  }
}

// CAOTE-5: for one victim over the attention row that will be renormalised: nobody's leaving would have cost less, so
// not that of whom the base scorer had chosen either.
TEST(CaoteLaw, OneVictimHasTheSmallestErrorOfAll) {
  int better = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const RandomLane lane(seed, static_cast<int32_t>(1 + seed % 4));
    const ValueMemory memory(lane.d, lane.values);
    std::vector<float> base(lane.token.size());
    for (const std::vector<float>& row : lane.attention) {
      for (size_t slot = 0; slot < base.size(); ++slot) base[slot] += row[slot];
    }
    SelectScratch scratch;
    std::vector<int32_t> victim;
    std::vector<int32_t> base_victim;
    ASSERT_THAT(SelectVictims(lane.View(memory), GroupCosts(lane, memory), 1, scratch, victim), IsOk());
    ASSERT_THAT(SelectVictims(lane.View(memory), base, 1, scratch, base_victim), IsOk());
    const double tolerance = 2e-5 * lane.LongestValue();
    for (const int32_t slot : lane.Live()) ASSERT_LE(Error(lane, victim), Error(lane, {slot}) + tolerance);
    better += Error(lane, victim) < Error(lane, base_victim) - tolerance ? 1 : 0;
  }
  EXPECT_GT(better, 30);
}

// Over sums of several queries, and with several victims chosen apart, no theorem holds for one draw: only the mean.
TEST(CaoteLaw, InTheMeanItsVictimsCostLessThanTheBaseScorers) {
  double errors[3] = {};
  for (uint64_t seed = 0; seed < 200; ++seed) {
    for (const Modifier modifier : {Modifier::kNone, Modifier::kCaote, Modifier::kFastCaote}) {
      const ValidSpec spec = Resolve({.scorer = "h2o", .budget = 24, .recent = 8, .modifier = modifier}, {}).value();
      PolicyLane lane(spec, {.seed = seed, .slots = 32});
      lane.Observe(32);
      std::vector<double> row(32, 0.0);
      lane.attention.AddProbes(0, std::vector{31}, lane.attention.Query({}, 31), 1.0, row);
      LaneView view = lane.View();
      SelectScratch scratch;
      std::vector<int32_t> victims;
      ASSERT_THAT(SelectVictims(view, lane.Score(), 8, scratch, victims), IsOk());
      view.memory = &lane.attention.memory(0);
      CaoteScratch loss;
      errors[static_cast<int>(modifier)] +=
          MeasureEviction(view, std::vector<float>(row.begin(), row.end()), victims, loss).error;
    }
  }
  EXPECT_LT(errors[static_cast<int>(Modifier::kCaote)], errors[static_cast<int>(Modifier::kNone)]);
  EXPECT_LT(errors[static_cast<int>(Modifier::kFastCaote)], errors[static_cast<int>(Modifier::kNone)]);
}

// CAOTE-6. Adding t rounds each value by half an ulp of |v + t|, which is what the tolerance grows by.
TEST(CaoteLaw, CostsIgnoreWhatValuesShareAndScaleWithThem) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomLane lane(seed, 1);
    RandomLane moved = lane;
    RandomLane scaled = lane;
    std::vector<float> shift;
    for (int32_t c = 0; c < lane.d; ++c) shift.push_back(20 * lane.random.UniformFloat() - 10);
    for (size_t i = 0; i < lane.values.size(); ++i) {
      moved.values[i] += shift[i % lane.d];
      scaled.values[i] *= 3;
    }
    for (const CaoteForm form : kForms) {
      const std::vector<float> costs = lane.Costs(form, lane.attention[0]);
      const std::vector<float> of_moved = moved.Costs(form, lane.attention[0]);
      const std::vector<float> of_scaled = scaled.Costs(form, lane.attention[0]);
      for (const int32_t slot : lane.Live()) {
        const double a = lane.attention[0][slot];
        const double odds = std::max(1.0, a / (1 - a));  // the fast form multiplies rounding by them
        ASSERT_NEAR(of_moved[slot], costs[slot], 1e-5 * moved.LongestValue() * odds);
        ASSERT_NEAR(of_scaled[slot], 3 * costs[slot], 1e-5 * scaled.LongestValue() * odds);
      }
    }
  }
}

// Exactly, for values that no float sum hits by luck; the rule for ties then decides: the oldest leaves.
TEST(CaoteLaw, EqualValuesCostNothing) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomLane lane(seed, 1);
    for (size_t i = 0; i < lane.values.size(); ++i) lane.values[i] = lane.values[i % lane.d];
    const ValueMemory memory(lane.d, lane.values);
    for (const CaoteForm form : kForms) {
      const std::vector<float> costs = lane.Costs(form, lane.attention[0]);
      for (const int32_t slot : lane.Live()) ASSERT_EQ(costs[slot], 0);
      SelectScratch scratch;
      std::vector<int32_t> victims;
      ASSERT_THAT(SelectVictims(lane.View(memory), costs, 1, scratch, victims), IsOk());
      ASSERT_THAT(victims, ElementsAre(std::ranges::find(lane.token, 0) - lane.token.begin()));
    }
  }
}

TEST(CaoteLaw, CostsBelongToTheTokenNotToTheSlot) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const RandomLane lane(seed, 1);
    RandomLane reversed = lane;
    const auto slots = static_cast<int32_t>(lane.token.size());
    std::ranges::reverse(reversed.token);
    std::ranges::reverse(reversed.attention[0]);
    for (int32_t slot = 0; slot < slots; ++slot) {
      std::copy_n(lane.values.begin() + slot * lane.d, lane.d, reversed.values.end() - (slot + 1) * lane.d);
    }
    for (const CaoteForm form : kForms) {
      const std::vector<float> costs = lane.Costs(form, lane.attention[0]);
      const std::vector<float> others = reversed.Costs(form, reversed.attention[0]);
      for (const int32_t slot : lane.Live()) {
        const double a = lane.attention[0][slot];
        ASSERT_NEAR(others[slots - 1 - slot], costs[slot], 1e-6 * lane.LongestValue() * std::max(1.0, a / (1 - a)));
      }
    }
  }
}

// CAOTE-7: one logit rises above the others'. Its cost rises to |X' - v|, or where it is divided by 1 - a without end,
// and is infinite once float32 holds nothing of the others; theirs fall to 0.
TEST(CaoteLaw, CostsStayNumbersWhileOneTokenTakesAllAttention) {
  for (const CaoteForm form : kForms) {
    const RandomLane lane(5, 1);
    const auto live = static_cast<int32_t>(lane.Live().size());
    const int32_t largest = lane.Live()[3];
    std::vector<float> before;
    for (int32_t gap = 0; gap <= 200; ++gap) {
      SCOPED_TRACE(testing::Message() << "gap " << gap);
      std::vector<float> row(lane.token.size(), 0.0F);
      const double other = std::exp(-gap) / (1 + (live - 1) * std::exp(-gap));
      for (const int32_t slot : lane.Live()) row[slot] = static_cast<float>(other);
      row[largest] = static_cast<float>(1 / (1 + (live - 1) * std::exp(-gap)));
      const std::vector<float> costs = lane.Costs(form, row);
      for (const int32_t slot : lane.Live()) {
        ASSERT_FALSE(std::isnan(costs[slot]));
        if (slot != largest) {
          ASSERT_TRUE(std::isfinite(costs[slot]));
        }
        if (gap < 2) continue;  // the exact form's centre moves at first
        if (slot == largest) {
          ASSERT_GE(costs[slot], before[slot] * (1 - 1e-6F));
        } else {
          ASSERT_LE(costs[slot], before[slot] * (1 + 1e-6F));
        }
      }
      // float32 holds e^-g exactly enough up to g = 85 and as 0 from 104 on.
      ASSERT_TRUE(gap > 85 || std::isfinite(costs[largest]));
      ASSERT_TRUE(gap < 110 || std::isinf(costs[largest]));
      before = costs;
    }
  }
}

// FAST-1. FAST-2 asks that a running sum of the values stays true; Ebb adds them up afresh at each decision.
TEST(CaoteLaw, UnderEqualAttentionFastIsExact) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const RandomLane lane(seed, 1);
    const std::vector<float> equal(lane.token.size(), 0.125F);
    const std::vector<float> exact = lane.Costs(CaoteForm::kExact, equal);
    const std::vector<float> fast = lane.Costs(CaoteForm::kFast, equal);
    for (const int32_t slot : lane.Live()) ASSERT_NEAR(fast[slot], exact[slot], 1e-6 * lane.LongestValue());
  }
}

}  // namespace
}  // namespace ebb
