#include "policies/allocation.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>

#include "policies/hash_random.h"
#include "policies/registry.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::SizeIs;

int64_t Sum(const std::vector<int32_t>& rooms) { return std::accumulate(rooms.begin(), rooms.end(), int64_t{0}); }

// Budgets as POLICIES 3.15 writes them: of `capacity` tokens, a window of which is protected.
std::vector<int32_t> PyramidBudgets(const PyramidShape& shape, int32_t capacity, int32_t window, int32_t tokens) {
  std::vector<int32_t> budgets = PyramidRooms(shape, capacity - window, tokens - window);
  for (int32_t& each : budgets) each += window;
  return budgets;
}

TEST(AllocationRegistry, HasARowForEveryChoice) {
  for (const AllocationRow& row : AllocationRegistry()) {
    EXPECT_EQ(&RowOf(row.allocation), &row);
    EXPECT_EQ(FindAllocation(row.name), &row);
  }
  EXPECT_EQ(FindAllocation("obelisk"), nullptr);
}

// PYR-1 of POLICIES 11, here and in the three below: the golden budgets.
TEST(Pyr1, ALongPrompt) {
  const std::vector<int32_t> budgets = PyramidBudgets({.layers = 32}, 2048, 32, 100000);
  EXPECT_EQ(budgets[0] - budgets[1], 123);
  EXPECT_EQ(budgets.front(), 3964);
  EXPECT_EQ(budgets.back(), 151);
  EXPECT_EQ(Sum(budgets), 65840);
}

TEST(Pyr1, ASmallBudget) {
  const std::vector<int32_t> budgets = PyramidBudgets({.layers = 32}, 128, 8, 4000);
  EXPECT_EQ(budgets.front(), 242);
  EXPECT_EQ(budgets.back(), 25);
  EXPECT_EQ(Sum(budgets), 4272);
}

TEST(Pyr1, APromptThatTheFirstLayerWouldExceed) {
  const std::vector<int32_t> budgets = PyramidBudgets({.layers = 32}, 512, 32, 600);
  EXPECT_EQ(budgets.front(), 600);
  EXPECT_EQ(budgets[0] - budgets[1], 5);
  EXPECT_EQ(budgets.back(), 445);
  EXPECT_EQ(Sum(budgets), 16720);
}

TEST(Pyr1, SixLayers) {
  EXPECT_THAT(PyramidBudgets({.layers = 6}, 64, 8, 1000), ElementsAre(118, 97, 76, 55, 34, 13));
  EXPECT_THAT(PyramidBudgets({.layers = 6, .exact_total = true}, 64, 8, 1000), ElementsAre(116, 95, 74, 54, 33, 12));
}

TEST(PyramidRooms, APromptThatFitsIsNobodysToShare) {
  EXPECT_THAT(PyramidRooms({.layers = 4}, 100, 100), Each(100));
  EXPECT_THAT(PyramidRooms({.layers = 4}, 100, 7), Each(100));
}

TEST(PyramidRooms, BetaOneIsUniform) { EXPECT_THAT(PyramidRooms({.layers = 5, .beta = 1}, 33), Each(33)); }

// POLICIES 3.15, property 7, over random shapes.
TEST(PyramidLaw, DescendsInEqualStepsAndKeepsItsTotal) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    PyramidShape shape = {.layers = random.Uniform(2, 80), .beta = random.Uniform(1, 40)};
    const int32_t room = random.Uniform(shape.beta, 3000);
    const int32_t most = random.Uniform(0, 3) == 0 ? std::numeric_limits<int32_t>::max() : random.Uniform(0, 8000);
    const int64_t total = int64_t{shape.layers} * room;
    const std::vector<int32_t> rooms = PyramidRooms(shape, room, most);
    ASSERT_THAT(rooms, SizeIs(shape.layers));
    ASSERT_THAT(rooms, Each(Ge(1)));
    for (size_t l = 1; l < rooms.size(); ++l) ASSERT_EQ(rooms[l - 1] - rooms[l], rooms[0] - rooms[1]);
    ASSERT_GE(rooms[0], rooms[1]);
    ASSERT_GE(Sum(rooms), total);
    ASSERT_LE(2 * (Sum(rooms) - total), shape.layers * (shape.layers - 2));  // less than layers (layers - 1) / 2
    ASSERT_LE(rooms[0], std::max(room, most));

    shape.exact_total = true;
    const std::vector<int32_t> exact = PyramidRooms(shape, room, most);
    ASSERT_EQ(Sum(exact), total);
    ASSERT_THAT(exact, Each(Ge(1)));
    for (size_t l = 1; l < exact.size(); ++l) ASSERT_GE(exact[l - 1], exact[l]);
  }
}

const SpecLimits kLimits = {.trained_context = 2048, .query_heads = 2, .layers = 6, .kv_heads = 2};

TEST(ResolvePyramid, SharesWhatIsLeftBesideTheProtected) {
  const auto valid = Resolve({.scorer = "snapkv",
                              .parameters = {{"window", 8}},
                              .budget = 64,
                              .allocation = Allocation::kPyramid,
                              .allocation_parameters = {{"exact_total", 1}}},
                             kLimits);
  ASSERT_THAT(valid, IsOk());
  ASSERT_THAT(valid->lanes, SizeIs(12));
  EXPECT_EQ(valid->lanes[0], (LaneRule{.budget = 116, .sinks = 0, .recent = 8}));
  EXPECT_EQ(valid->lanes[1], valid->lanes[0]);
  EXPECT_EQ(valid->lanes[11], (LaneRule{.budget = 12, .sinks = 0, .recent = 8}));
  EXPECT_EQ(valid->budget_most(), 116);
  EXPECT_EQ(valid->trigger_of(11).budget, 12);
  EXPECT_EQ(valid->trigger_of(11).overflow, 1);
}

TEST(ResolvePyramid, WaitsForThePromptThatItsScheduleWaitsFor) {
  const PolicySpec spec = {.scorer = "snapkv",
                           .parameters = {{"window", 8}},
                           .budget = 64,
                           .schedule = Schedule::kOncePrompt,
                           .allocation = Allocation::kPyramid};
  const auto valid = Resolve(spec, kLimits);
  ASSERT_THAT(valid, IsOk());
  EXPECT_THAT(valid->lanes, SizeIs(0));
  const auto fixed = FixBudget(*valid, 100);
  ASSERT_THAT(fixed, IsOk());
  EXPECT_EQ(fixed->lanes[0].budget, 100);  // the whole prompt
  EXPECT_EQ(fixed->lanes[11].budget, 30);  // 92 - 5 * 14 + 8
  const auto again = FixBudget(*fixed, 1000);
  EXPECT_EQ(again->lanes, fixed->lanes);
}

TEST(ResolvePyramid, RefusesWhatCannotBeShared) {
  struct Case {
    PolicySpec spec;
    SpecLimits limits;
    std::string reason, field, message;
  };
  const Allocation pyramid = Allocation::kPyramid;
  const std::vector<Case> cases = {
      {{.scorer = "streaming", .allocation = pyramid},
       kLimits,
       "MEANINGLESS_COMBINATION",
       "policy.pyramid",
       "streaming"},
      {{.scorer = "full", .allocation = pyramid}, kLimits, "MEANINGLESS_COMBINATION", "policy.pyramid", "full"},
      {{.scorer = "h2o", .allocation = pyramid},
       {.trained_context = 2048},
       "MEANINGLESS_COMBINATION",
       "policy.pyramid",
       "one layer"},
      {{.scorer = "knorm", .budget = 33, .allocation = pyramid},
       kLimits,
       "BUDGET_TOO_SMALL",
       "policy.trigger.budget",
       "33 is below sinks 4 + recent 10 + beta 20; use at least 34"},
      {{.scorer = "h2o", .budget = kBudgetMax, .allocation = pyramid},
       kLimits,
       "BUDGET_TOO_LARGE",
       "policy.trigger.budget",
       "the first layer of the pyramid"},
      {{.scorer = "h2o", .allocation = pyramid, .allocation_parameters = {{"beta", 0}}},
       kLimits,
       "PARAMETER_OUT_OF_RANGE",
       "policy.pyramid.beta",
       "0 is not in [1, 1000]"},
      {{.scorer = "h2o", .allocation = pyramid, .allocation_parameters = {{"gamma", 1}}},
       kLimits,
       "UNKNOWN_PARAMETER",
       "policy.pyramid.gamma",
       "the allocation pyramid takes beta, exact_total"},
      {{.scorer = "h2o", .allocation_parameters = {{"beta", 2}}},
       kLimits,
       "UNKNOWN_PARAMETER",
       "policy.uniform.beta",
       "the allocation uniform takes no parameters"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    const auto valid = Resolve(c.spec, c.limits);
    ASSERT_THAT(valid, IsRefusal(absl::StatusCode::kInvalidArgument, c.reason, c.field));
    EXPECT_THAT(std::string(valid.status().message()), testing::HasSubstr(c.message));
  }
  EXPECT_THAT(Resolve({.scorer = "knorm", .budget = 34, .allocation = pyramid}, kLimits), IsOk());
}

std::vector<AdaCandidate> Lanes(const std::vector<std::vector<float>>& scores) {
  std::vector<AdaCandidate> candidates;
  for (size_t head = 0; head < scores.size(); ++head) {
    for (size_t token = 0; token < scores[head].size(); ++token) {
      candidates.push_back({scores[head][token], static_cast<int32_t>(token), static_cast<int32_t>(head)});
    }
  }
  return candidates;
}

// The scores that a head keeps with room for its `room` best.
double MassOf(std::vector<float> scores, int32_t room) {
  std::ranges::sort(scores, std::greater<>());
  return std::accumulate(scores.begin(), scores.begin() + std::min<size_t>(room, scores.size()), 0.0);
}

// ADA-1 of POLICIES 11: the golden shares; AdaLaw below has its sums, and that no other sharing keeps more.
TEST(Ada1, TheWorkedExample) {
  std::vector<AdaCandidate> candidates = Lanes({{.50F, .30F, .10F, .05F, .03F, .02F},
                                                {.17F, .17F, .17F, .17F, .16F, .16F},
                                                {.90F, .02F, .02F, .02F, .02F, .02F}});
  EXPECT_THAT(AdaRooms(candidates, 3, 3, 0), ElementsAre(2, 6, 1));    // b*
  EXPECT_THAT(AdaRooms(candidates, 3, 3, 0.2), ElementsAre(2, 6, 1));  // (2.2, 5.4, 1.4)
  EXPECT_THAT(AdaRooms(candidates, 3, 3, 1), ElementsAre(3, 3, 3));
}

TEST(Ada1, TokensThatFitAreNobodysToShare) {
  std::vector<AdaCandidate> candidates = Lanes({{1, 2, 3}, {9, 9, 9}});
  EXPECT_THAT(AdaRooms(candidates, 2, 3, 0), ElementsAre(3, 3));
}

TEST(Ada1, TiesAndWhatIsNoNumberLeaveAsInSelection) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<AdaCandidate> candidates = Lanes({{1, 1, nan}, {1, 1, 0}});
  EXPECT_THAT(AdaRooms(candidates, 2, 1, 0), ElementsAre(1, 1));  // both newest of score 1
  candidates = Lanes({{nan, nan, nan}, {-1, -1, -1}});
  EXPECT_THAT(AdaRooms(candidates, 2, 1, 0), ElementsAre(0, 2));
}

// POLICIES 3.16, property 7, over random scores.
TEST(AdaLaw, TheSumIsExactAndNoOtherSharingKeepsMore) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t heads = random.Uniform(1, 8);
    const int32_t tokens = random.Uniform(1, 60);
    const int32_t room = random.Uniform(0, tokens);
    std::vector<std::vector<float>> scores(heads);
    for (std::vector<float>& head : scores) {
      const float scale = random.UniformFloat();
      for (int32_t t = 0; t < tokens; ++t) head.push_back(scale * random.UniformFloat());
    }
    const double floor = seed % 3 == 0 ? 0.0 : random.UniformFloat();
    std::vector<AdaCandidate> candidates = Lanes(scores);
    const std::vector<int32_t> rooms = AdaRooms(candidates, heads, room, floor);
    ASSERT_EQ(Sum(rooms), int64_t{heads} * room);
    double mass = 0;
    double uniform = 0;
    for (int32_t h = 0; h < heads; ++h) {
      ASSERT_GE(rooms[h], static_cast<int32_t>(std::floor(floor * room * (1 - 1e-6))));
      ASSERT_LE(rooms[h], tokens);
      mass += MassOf(scores[h], rooms[h]);
      uniform += MassOf(scores[h], room);
    }
    ASSERT_TRUE(floor > 0 || mass >= uniform - 1e-9) << mass << " against " << uniform;
    std::vector<AdaCandidate> alike = Lanes(std::vector<std::vector<float>>(heads, scores[0]));
    ASSERT_THAT(AdaRooms(alike, heads, room, floor), Each(room));
    ASSERT_THAT(AdaRooms(candidates, heads, room, 1), Each(room));
  }
}

TEST(AppendCandidates, LeavesOutTheProtectedWhereverTheySit) {
  const std::vector<int32_t> token = {9, -1, 4, 0, 7, 2, -1, 3};
  const std::vector<float> keep = {1, 99, 2, 3, 4, 5, 99, 6};
  std::vector<AdaCandidate> candidates;
  AppendCandidates({.token = token, .live = 6, .sinks = 1, .recent = 2, .head = 3}, keep, candidates);
  ASSERT_THAT(candidates, SizeIs(3));  // 2, 3 and 4
  EXPECT_EQ(candidates[0].keep, 5);
  EXPECT_EQ(candidates[1].keep, 6);
  EXPECT_EQ(candidates[2].keep, 2);
  EXPECT_EQ(candidates[2].head, 3);
  AppendCandidates({.token = token, .live = 6, .sinks = 3, .recent = 9}, keep, candidates);
  EXPECT_THAT(candidates, SizeIs(3));
}

TEST(StreamingHeads, AreThoseAtOrBelowTheThreshold) {
  EXPECT_THAT(StreamingHeads(HeadGates{0, 0.5, 0.51, 1}, 0.5), ElementsAre(true, true, false, false));
}

SpecLimits WithGates() {
  SpecLimits limits = kLimits;
  limits.head_gates = std::make_shared<const HeadGates>(HeadGates{0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0.2});
  return limits;
}

TEST(ResolveDuo, GivesStreamingHeadsAWindow) {
  const PolicySpec spec = {.scorer = "h2o", .budget = 400, .allocation = Allocation::kDuo};
  const auto valid = Resolve(spec, WithGates());
  ASSERT_THAT(valid, IsOk());
  EXPECT_FALSE(valid->bounded);
  EXPECT_EQ(valid->rule(0), (LaneRule{.budget = 320, .sinks = 64, .recent = 256}));
  EXPECT_EQ(valid->rule(1), (LaneRule{.budget = 400, .sinks = 0, .recent = 200}));
  EXPECT_EQ(valid->rule(11), valid->rule(0));
}

TEST(ResolveDuo, OverFullIsALengthLimit) {
  const PolicySpec spec = {.scorer = "full", .budget = 400, .allocation = Allocation::kDuo};
  const auto valid = Resolve(spec, WithGates());
  ASSERT_THAT(valid, IsOk());
  EXPECT_TRUE(valid->bounded);
  EXPECT_TRUE(valid->evicts);
}

TEST(ResolveHeads, RefuseWhatMeansNothing) {
  struct Case {
    PolicySpec spec;
    std::string reason, field, message;
  };
  const Allocation ada = Allocation::kAda;
  const Allocation duo = Allocation::kDuo;
  const std::vector<Case> cases = {
      {{.scorer = "streaming", .allocation = ada}, "MEANINGLESS_COMBINATION", "policy.ada", "streaming"},
      {{.scorer = "h2o", .scope = Scope::kLayer, .allocation = ada},
       "MEANINGLESS_COMBINATION",
       "policy.scope",
       "use KV_HEAD"},
      {{.scorer = "h2o", .schedule = Schedule::kEveryStep, .allocation = ada},
       "MEANINGLESS_COMBINATION",
       "policy.schedule",
       "ONCE_AFTER_PROMPT"},
      {{.scorer = "sage", .budget = 400, .allocation = ada}, "MEANINGLESS_COMBINATION", "policy.reduction", "UNION"},
      {{.scorer = "h2o", .budget = 400, .scope = Scope::kLayer, .allocation = duo},
       "MEANINGLESS_COMBINATION",
       "policy.scope",
       "use KV_HEAD"},
      {{.scorer = "h2o", .budget = 319, .allocation = duo},
       "BUDGET_TOO_SMALL",
       "policy.trigger.budget",
       "319 is below the 320 tokens of a streaming head; use at least 320"},
      {{.scorer = "full", .budget = 320, .allocation = duo},
       "BUDGET_TOO_SMALL",
       "policy.trigger.budget",
       "and one more; use at least 321"},
      {{.scorer = "full", .budget = 400, .slack = 3, .allocation = duo},
       "MEANINGLESS_COMBINATION",
       "policy.trigger.slack",
       "never evicts"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    const auto valid = Resolve(c.spec, WithGates());
    ASSERT_THAT(valid, IsRefusal(absl::StatusCode::kInvalidArgument, c.reason, c.field));
    EXPECT_THAT(std::string(valid.status().message()), testing::HasSubstr(c.message));
  }
  EXPECT_THAT(Resolve({.scorer = "h2o", .budget = 400, .allocation = ada}, {.layers = 2}),
              IsRefusal(absl::StatusCode::kInvalidArgument, "MEANINGLESS_COMBINATION", "policy.ada"));
  EXPECT_THAT(Resolve({.scorer = "h2o", .budget = 400, .allocation = duo}, kLimits),
              IsRefusal(absl::StatusCode::kFailedPrecondition, "HEAD_GATES_MISSING", "policy.duo"));
}

}  // namespace
}  // namespace ebb
