// Laws of sessions whose budget is not the same in every lane: each lane keeps to its own, what is reserved is the sum
// of what lanes may need, and the policy may be swapped at any time.

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "engine/cache/session_cache.h"
#include "policies/hash_random.h"
#include "policies/registry.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kLayers = 5;
constexpr int32_t kHeads = 2;
constexpr int32_t kLanes = kLayers * kHeads;
constexpr int32_t kBlock = 24;

class AllocationLaws : public testing::Test {
 protected:
  ValidSpec Valid(const PolicySpec& spec, const HeadGates& gates = {}) const {
    SpecLimits limits = LimitsOf(engine_->config());
    if (!gates.empty()) limits.head_gates = std::make_shared<const HeadGates>(gates);
    auto valid = Resolve(spec, limits);
    EXPECT_THAT(valid, IsOk());
    return *std::move(valid);
  }

  std::vector<std::vector<int32_t>> Live(const Session& session) const {
    std::vector<std::vector<int32_t>> lanes;
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      lanes.push_back(LiveTokens(*engine_, session, lane / kHeads, lane % kHeads));
    }
    return lanes;
  }

  std::vector<int32_t> Capacities(const Session& session) const {
    std::vector<int32_t> capacities;
    const std::vector<LaneReport> lanes = engine_->Describe(session, {}, {}).value();
    for (const LaneReport& lane : lanes) capacities.push_back(lane.capacity);
    return capacities;
  }

  // Every lane within its own budget, all its protected tokens in it.
  void ExpectLanesKeepToTheirBudgets(const Session& session, int32_t spare) const {
    const ValidSpec& policy = session.policy();
    const auto tokens = static_cast<int32_t>(session.log().size());
    const std::vector<std::vector<int32_t>> live = Live(session);
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      SCOPED_TRACE("lane " + std::to_string(lane));
      const LaneRule rule = policy.rule(lane);
      const auto length = static_cast<int32_t>(live[lane].size());
      EXPECT_GE(length, std::min(tokens, rule.budget));
      EXPECT_LE(length, rule.budget + spare);
      for (int32_t i = 0; i < std::min(rule.sinks, length); ++i) EXPECT_EQ(live[lane][i], i);
      for (int32_t i = 1; i <= std::min(rule.recent, length); ++i) EXPECT_EQ(live[lane][length - i], tokens - i);
    }
  }

  void Steps(Session& session, HashRandom& random, int32_t tokens) {
    while (tokens > 0) {
      const int32_t count = std::min(tokens, random.Uniform(0, 1) == 0 ? 1 : random.Uniform(1, kBlock));
      Step(*engine_, session, RandomTokens(session.log().size(), count, engine_->config().vocab), Want::kNone);
      tokens -= count;
    }
  }

  TinyModelFile file_ = TinyModelFile({.layers = kLayers, .dim = 32, .ffn_dim = 32});
  std::unique_ptr<Engine> engine_ = OpenTestEngine(file_.path(), {.threads = 2});
};

std::vector<std::string> ScoredPolicies() {
  std::vector<std::string> names;
  for (const ScorerRow& row : ScorerRegistry()) {
    if (!row.lockstep) names.emplace_back(row.name);
  }
  return names;
}

TEST_F(AllocationLaws, EveryLaneKeepsToItsOwnBudget) {
  for (const std::string& scorer : ScoredPolicies()) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE(scorer + ", seed " + std::to_string(seed));
      HashRandom random(seed);
      PolicySpec spec = {.scorer = scorer,
                         .budget = random.Uniform(50, 70),
                         .sinks = 2,
                         .recent = 6,
                         .positions = seed % 2 == 0 ? Positions::kOriginal : Positions::kCompacted,
                         .schedule = Schedule::kEveryStep,
                         .scope = seed < 2 ? Scope::kKvHead : Scope::kLayer,
                         .allocation = Allocation::kPyramid,
                         .allocation_parameters = {{"exact_total", seed % 2}}};
      int32_t spare = 0;
      if (seed == 3) spec.overflow = 8, spare = 7;
      const auto session = OpenTestSession(*engine_, spec, kBlock);
      ASSERT_GT(session->policy().rule(0).budget, session->policy().rule(kLanes - 1).budget + 20);
      for (int i = 0; i < 8; ++i) {
        Steps(*session, random, random.Uniform(1, 40));
        ExpectLanesKeepToTheirBudgets(*session, spare);
      }
    }
  }
}

// POLICIES 11, 13.
TEST_F(AllocationLaws, MemoryAccountingEqualsTheSumOfCapacities) {
  const PolicySpec spec = {.scorer = "h2o",
                           .budget = 400,
                           .overflow = 5,
                           .allocation = Allocation::kPyramid,
                           .allocation_parameters = {{"exact_total", 1}}};
  const auto session = OpenTestSession(*engine_, spec, kBlock);
  const std::vector<int32_t> capacities = Capacities(*session);
  int64_t pages = 0;
  for (int32_t lane = 0; lane < kLanes; ++lane) {
    EXPECT_EQ(capacities[lane], session->policy().rule(lane).budget + 4 + kBlock);
    const CacheShape one = {.layers = 1,
                            .kv_heads = 1,
                            .format = {.type = KvType::kBf16, .head_dim = 16, .page_tiles = 4},
                            .capacity = capacities[lane]};
    ASSERT_EQ(engine_->memory().page_bytes, 4 * one.format.tile_bytes());
    pages += one.pages();
  }
  EXPECT_EQ(session->capacity(), capacities[0]);
  EXPECT_EQ(session->pages(), pages);
  EXPECT_EQ(engine_->memory().pages_reserved, pages);
  EXPECT_EQ(*engine_->PagesFor({.policy = session->policy(), .block_size_max = kBlock}), pages);
}

// The reference's rule for a prompt: nothing leaves before its end, and no layer gets more than it has tokens.
TEST_F(AllocationLaws, APyramidOnceAfterThePromptIsThePrompts) {
  const PolicySpec spec = {.scorer = "snapkv",
                           .parameters = {{"window", 8}},
                           .budget = 64,
                           .schedule = Schedule::kOncePrompt,
                           .then = Then::kSame,
                           .allocation = Allocation::kPyramid};
  const auto session = OpenTestSession(*engine_, spec, kBlock);
  HashRandom random(1);
  Steps(*session, random, 99);
  EXPECT_EQ(session->cache_length(), 99);
  const std::vector<int32_t> last = {7};
  BatchRow row = {.session = session.get(), .tokens = last, .prompt_ends = true};
  engine_->Run({&row, 1});
  EXPECT_THAT(row.status, IsOk());
  std::vector<size_t> lengths;
  for (const std::vector<int32_t>& lane : Live(*session)) lengths.push_back(lane.size());
  EXPECT_THAT(lengths, ElementsAre(100, 100, 82, 82, 64, 64, 46, 46, 28, 28));
  EXPECT_EQ(row.evicted, 72);
  EXPECT_EQ(row.evicted_slots, 2 * (18 + 36 + 54 + 72));
  Steps(*session, random, 50);
  ExpectLanesKeepToTheirBudgets(*session, 0);
}

TEST_F(AllocationLaws, ASlidingWindowSlidesInEveryLane) {
  const PolicySpec spec = {.scorer = "h2o",
                           .budget = 60,
                           .recent = 10,
                           .schedule = Schedule::kOncePrompt,
                           .then = Then::kSlideRecent,
                           .allocation = Allocation::kPyramid};
  const auto session = OpenTestSession(*engine_, spec, kBlock);
  HashRandom random(2);
  Steps(*session, random, 149);
  const std::vector<int32_t> last = {7};
  BatchRow row = {.session = session.get(), .tokens = last, .prompt_ends = true};
  engine_->Run({&row, 1});
  const std::vector<std::vector<int32_t>> chosen = Live(*session);
  Steps(*session, random, 60);
  const std::vector<std::vector<int32_t>> after = Live(*session);
  for (int32_t lane = 0; lane < kLanes; ++lane) {
    ASSERT_EQ(after[lane].size(), chosen[lane].size());
    const auto kept = static_cast<std::ptrdiff_t>(chosen[lane].size()) - 10;
    EXPECT_TRUE(std::equal(after[lane].begin(), after[lane].begin() + kept, chosen[lane].begin())) << lane;
  }
}

// POLICIES 3.16: the sum is exact in every layer, and every head keeps its floor.
TEST_F(AllocationLaws, AdaKeepsTheTotalOfEveryLayer) {
  for (const std::string& scorer : ScoredPolicies()) {
    if (scorer == "sage") continue;  // whose heads vote by rank
    for (const double floor : {0.0, 0.2, 1.0}) {
      SCOPED_TRACE(scorer + ", floor " + std::to_string(floor));
      const PolicySpec spec = {.scorer = scorer,
                               .budget = 60,
                               .sinks = 2,
                               .recent = 8,
                               .then = Then::kSame,
                               .allocation = Allocation::kAda,
                               .allocation_parameters = {{"floor", floor}}};
      const auto session = OpenTestSession(*engine_, spec, kBlock);
      EXPECT_EQ(session->policy().schedule, Schedule::kOncePrompt);
      HashRandom random(3);
      Steps(*session, random, 149);
      EXPECT_EQ(session->cache_length(), 149);
      const std::vector<int32_t> last = {7};
      BatchRow row = {.session = session.get(), .tokens = last, .prompt_ends = true};
      engine_->Run({&row, 1});
      ASSERT_THAT(row.status, IsOk());
      const std::vector<std::vector<int32_t>> live = Live(*session);
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        size_t total = 0;
        for (int32_t head = 0; head < kHeads; ++head) {
          const size_t length = live[layer * kHeads + head].size();
          EXPECT_GE(length, 10 + static_cast<size_t>(floor * 50));
          total += length;
        }
        EXPECT_EQ(total, kHeads * 60);
      }
      EXPECT_EQ(row.evicted_slots, kLanes * 90);
      Steps(*session, random, 70);
      ExpectLanesKeepToTheirBudgets(*session, 0);
    }
  }
}

TEST_F(AllocationLaws, AdaOfAPromptThatFitsIsUniform) {
  const PolicySpec spec = {.scorer = "h2o", .budget = 60, .recent = 8, .allocation = Allocation::kAda};
  const auto session = OpenTestSession(*engine_, spec, kBlock);
  HashRandom random(3);
  Steps(*session, random, 59);
  const std::vector<int32_t> last = {7};
  BatchRow row = {.session = session.get(), .tokens = last, .prompt_ends = true};
  engine_->Run({&row, 1});
  EXPECT_EQ(row.evicted_slots, 0);
  for (int32_t lane = 0; lane < kLanes; ++lane) EXPECT_EQ(session->policy().rule(lane).budget, 60);
}

// On a warm cache heads share by what the scorer says now; where it has yet to see, nothing changes.
TEST_F(AllocationLaws, AdaOnAWarmCacheNeedsScores) {
  const auto session = OpenTestSession(*engine_, {.scorer = "h2o", .budget = 90, .recent = 8}, kBlock);
  HashRandom random(6);
  Steps(*session, random, 149);
  const std::vector<int32_t> last = {7};
  BatchRow row = {.session = session.get(), .tokens = last, .prompt_ends = true};
  engine_->Run({&row, 1});
  PolicySpec spec = {.scorer = "h2o", .budget = 60, .recent = 8, .allocation = Allocation::kAda};
  const auto swap = engine_->SetPolicy(*session, Valid(spec));
  ASSERT_THAT(swap, IsOk());
  EXPECT_EQ(swap->state, StateOrigin::kCarried);
  EXPECT_EQ(swap->slots_evicted, kLanes * 30);
  EXPECT_EQ(session->pages(), engine_->memory().pages_reserved);
  ExpectLanesKeepToTheirBudgets(*session, 0);
  Steps(*session, random, 100);
  ExpectLanesKeepToTheirBudgets(*session, 0);

  const std::vector<std::vector<int32_t>> before = Live(*session);
  spec.scorer = "nacl";
  EXPECT_THAT(engine_->SetPolicy(*session, Valid(spec)),
              IsRefusal(absl::StatusCode::kFailedPrecondition, "SCORER_HAS_NO_STATE", "policy.ada"));
  EXPECT_EQ(Live(*session), before);
  EXPECT_EQ(session->pages(), engine_->memory().pages_reserved);
}

// DUO-1 of POLICIES 11.
TEST_F(AllocationLaws, DuoWithGatesOfOneIsFullAndOfZeroIsStreaming) {
  const std::vector<int32_t> tokens = RandomTokens(8, 200, engine_->config().vocab);
  PolicySpec duo = {.scorer = "full",
                    .budget = 200,
                    .allocation = Allocation::kDuo,
                    .allocation_parameters = {{"sinks", 4}, {"recent", 36}}};
  const auto fed = [&](const ValidSpec& policy) {
    const auto session = *engine_->OpenSession({.policy = policy, .block_size_max = kBlock});
    return Feed(*engine_, *session, tokens, kBlock);
  };
  const std::vector<float> full = fed(Valid({.scorer = "full", .budget = 200}));
  const std::vector<float> streaming =
      fed(Valid({.scorer = "streaming", .budget = 40, .sinks = 4, .positions = Positions::kOriginal}));
  EXPECT_EQ(LargestDifference(fed(Valid(duo, HeadGates(kLanes, 1))), full), 0);
  EXPECT_EQ(LargestDifference(fed(Valid(duo, HeadGates(kLanes, 0))), streaming), 0);
  HeadGates mixed(kLanes, 1);
  mixed[3] = 0;
  const std::vector<float> some = fed(Valid(duo, mixed));
  EXPECT_GT(LargestDifference(some, full), 0);
  EXPECT_GT(LargestDifference(some, streaming), 0);
}

// Heads that look far back under any scorer, the others under a window; both for as long as the conversation lasts.
TEST_F(AllocationLaws, DuoKeepsAWindowInHeadsThatStream) {
  const HeadGates gates = {1, 0, 0, 1, 0.5, 0.6, 0, 0, 1, 1};
  for (const char* scorer : {"full", "streaming", "h2o", "keydiff"}) {
    SCOPED_TRACE(scorer);
    const PolicySpec spec = {.scorer = scorer,
                             .budget = 300,
                             .allocation = Allocation::kDuo,
                             .allocation_parameters = {{"sinks", 2}, {"recent", 30}}};
    const ValidSpec policy = Valid(spec, gates);
    const auto session = *engine_->OpenSession({.policy = policy, .block_size_max = kBlock});
    HashRandom random(9);
    Steps(*session, random, 300);
    ExpectLanesKeepToTheirBudgets(*session, 0);
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      EXPECT_EQ(policy.rule(lane).budget, gates[lane] > 0.5 ? 300 : 32) << lane;
    }
    EXPECT_EQ(session->CanAppend(1).ok(), std::string(scorer) != "full");
    if (session->CanAppend(1).ok()) Steps(*session, random, 50);
    EXPECT_EQ(session->pages(), *engine_->PagesFor({.policy = policy, .block_size_max = kBlock}));
  }
}

// To an allocation, between two, and back, on a warm cache.
TEST_F(AllocationLaws, SwapsLoseNoTokenAndNoPage) {
  HashRandom random(4);
  std::vector<std::string> scorers = ScoredPolicies();
  scorers.emplace_back("streaming");
  auto session = OpenTestSession(*engine_, {.scorer = "streaming", .budget = 64}, kBlock);
  Steps(*session, random, 90);
  std::set<Allocation> seen;
  for (int i = 0; i < 120; ++i) {
    const std::string& scorer = scorers[random.Uniform(0, static_cast<int32_t>(scorers.size()) - 1)];
    PolicySpec spec = {.scorer = scorer, .budget = random.Uniform(44, 90)};
    spec.recent = 8;
    spec.sinks = 0;
    spec.schedule = Schedule::kEveryStep;
    const int32_t kind = random.Uniform(0, 3);
    if (scorer != "streaming" && kind > 1) {
      spec.allocation = Allocation::kPyramid;
      spec.allocation_parameters = {{"beta", random.Uniform(1, 30)}};
    }
    if (kind == 1) {
      spec.allocation = Allocation::kDuo;
      spec.allocation_parameters = {{"sinks", 1}, {"recent", 40}};
    }
    SCOPED_TRACE(scorer + ", step " + std::to_string(i));
    seen.insert(spec.allocation);
    const std::vector<std::vector<int32_t>> before = Live(*session);
    const ValidSpec next = Valid(spec, {1, 0, 0, 1, 1, 0, 0, 0, 1, 0.7});
    const auto tried = engine_->TryPolicy(*session, next, 0);
    ASSERT_THAT(tried, IsOk());
    ASSERT_EQ(Live(*session), before);
    const auto swap = engine_->SetPolicy(*session, next);
    ASSERT_THAT(swap, IsOk());
    EXPECT_EQ(swap->slots_evicted, tried->slots_evicted);
    EXPECT_EQ(swap->loss.mass, tried->loss.mass);
    EXPECT_EQ(swap->pages_after, session->pages());
    EXPECT_EQ(session->pages(), engine_->memory().pages_reserved);
    EXPECT_EQ(session->pages(), *engine_->PagesFor({.policy = next, .block_size_max = kBlock}));
    const std::vector<std::vector<int32_t>> after = Live(*session);
    int64_t left = 0;
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      EXPECT_THAT(after[lane], testing::IsSubsetOf(before[lane]));
      EXPECT_EQ(after[lane].size(), std::min<size_t>(before[lane].size(), next.rule(lane).budget));
      left += static_cast<int64_t>(before[lane].size() - after[lane].size());
    }
    EXPECT_EQ(swap->slots_evicted, left);
    Steps(*session, random, random.Uniform(1, 90));
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      const auto length = static_cast<int32_t>(LiveTokens(*engine_, *session, lane / kHeads, lane % kHeads).size());
      EXPECT_LE(length, next.rule(lane).budget);
    }
  }
  EXPECT_EQ(seen.size(), 3);
  session.reset();
  EXPECT_EQ(engine_->memory().pages_reserved, 0);
}

// A lane that grew or shrank, or lies elsewhere, computes the same.
TEST_F(AllocationLaws, WhatASwapReservesDoesNotShow) {
  const PolicySpec uniform = {.scorer = "keydiff", .budget = 200, .recent = 8};
  PolicySpec pyramid = uniform;
  pyramid.allocation = Allocation::kPyramid;
  pyramid.allocation_parameters = {{"beta", 4}};  // the last layer still has room for all
  const std::vector<int32_t> tokens = RandomTokens(3, 36, engine_->config().vocab);
  const auto stays = OpenTestSession(*engine_, uniform, kBlock);
  const auto moves = OpenTestSession(*engine_, uniform, kBlock);
  Feed(*engine_, *stays, std::span(tokens).first(18), kBlock);
  Feed(*engine_, *moves, std::span(tokens).first(18), kBlock);
  ASSERT_THAT(engine_->SetPolicy(*moves, Valid(pyramid)), IsOk());
  EXPECT_EQ(LargestDifference(Feed(*engine_, *stays, std::span(tokens).last(18), 6),
                              Feed(*engine_, *moves, std::span(tokens).last(18), 6)),
            0);
}

TEST_F(AllocationLaws, KeepIsEveryLanesShare) {
  const auto session = OpenTestSession(
      *engine_, {.scorer = "knorm", .budget = 64, .sinks = 4, .recent = 10, .allocation = Allocation::kPyramid},
      kBlock);
  HashRandom random(5);
  Steps(*session, random, 200);
  const std::vector<std::vector<int32_t>> before = Live(*session);
  for (const char* scorer : {"keydiff", ""}) {
    const auto report = engine_->Evict(*session, {.keep = 40, .scorer = scorer});
    ASSERT_THAT(report, IsOk());
    const std::vector<std::vector<int32_t>> after = Live(*session);
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      EXPECT_EQ(after[lane].size(), std::min<size_t>(before[lane].size(), 40));
    }
  }
  Steps(*session, random, 100);
  ExpectLanesKeepToTheirBudgets(*session, 0);
}

}  // namespace
}  // namespace ebb
