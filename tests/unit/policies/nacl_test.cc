#include "policies/nacl.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "policies/hash_random.h"
#include "policies/select.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsSupersetOf;

// The tokens that stay of a lane with these sums, by slot; token t is in slot t.
std::vector<int32_t> Kept(const NaclOptions& options, const std::vector<float>& probed, LaneView lane) {
  std::vector<int32_t> token(probed.size());
  std::iota(token.begin(), token.end(), 0);
  lane.token = token;
  lane.by_age = token;
  lane.live = lane.tokens = static_cast<int32_t>(token.size());
  lane.probed = probed;
  std::vector<float> keep(token.size());
  MakeNacl(options)->Score(lane, {}, keep);
  SelectScratch scratch;
  std::vector<int32_t> victims;
  EXPECT_THAT(SelectVictims(lane, keep, lane.live - lane.budget, scratch, victims), IsOk());
  std::vector<int32_t> kept;
  std::ranges::set_difference(token, victims, std::back_inserter(kept));
  return kept;
}

TEST(Nacl, AsksForQueriesAndStatesItsBytes) {
  const auto nacl = MakeNacl({});
  EXPECT_TRUE(nacl->needs().queries);
  EXPECT_TRUE(nacl->needs().probes);
  EXPECT_FALSE(nacl->needs().attention());
  EXPECT_EQ(nacl->needs().state_floats, 0);
  EXPECT_EQ(4 * nacl->lane_floats({.query_heads = 1, .head_dim = 128}), 4 * 64 * 129);
}

TEST(Nacl, ItsProxiesAreTheNewestQueriesAndAtLeastOne) {
  const auto nacl = MakeNacl({.proxy_ratio = 0.1, .rows_max = 3});
  std::vector<float> state(static_cast<size_t>(nacl->lane_floats({.query_heads = 2, .head_dim = 1})));
  std::vector<int32_t> token;
  std::vector<int32_t> tokens;
  std::vector<float> queries;
  const auto probes = [&](int32_t head) {
    tokens.clear();
    queries.clear();
    nacl->AppendProbes({.tokens = static_cast<int32_t>(token.size()), .query_heads = 2}, head, {.lane = state}, tokens,
                       queries);
  };
  probes(0);
  EXPECT_THAT(tokens, IsEmpty());
  const auto observe = [&](int32_t count) {
    std::vector<float> q;
    std::vector<int32_t> slots;
    for (int32_t i = 0; i < count; ++i) {
      slots.push_back(static_cast<int32_t>(token.size()));
      token.push_back(slots.back());
      q.insert(q.end(), {static_cast<float>(slots.back()), -static_cast<float>(slots.back())});
    }
    nacl->Observe({.token = token, .query_heads = 2}, {.queries = count, .slots = slots, .q = q.data(), .q_stride = 2},
                  {.lane = state});
  };
  observe(5);
  probes(0);
  EXPECT_THAT(tokens, ElementsAre(4));
  observe(1);
  observe(5);  // eleven tokens: a tenth of them is two
  probes(1);
  EXPECT_THAT(tokens, ElementsAre(9, 10));
  EXPECT_THAT(queries, ElementsAre(-9, -10));
  observe(29);  // forty: four, but three are kept
  probes(0);
  EXPECT_THAT(tokens, ElementsAre(37, 38, 39));
}

// Of a room of 19 beside protection, 12 go to the largest sums; 7 are drawn.
TEST(Nacl, SharesTheRoomBetweenTheBestAndADraw) {
  std::vector<float> probed(100, 0.125F);
  for (int32_t token = 40; token < 60; ++token) probed[token] = 0.5F + 0.01F * static_cast<float>(token);
  std::set<std::vector<int32_t>> draws;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<int32_t> kept = Kept({.seed = seed}, probed, {.sinks = 2, .recent = 3, .budget = 24});
    EXPECT_EQ(kept.size(), 24U);
    EXPECT_THAT(kept, IsSupersetOf({0, 1, 97, 98, 99}));
    EXPECT_THAT(kept, IsSupersetOf({48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59}));
    draws.insert(kept);
  }
  EXPECT_EQ(draws.size(), 20U);
}

TEST(Nacl, OfEqualSumsTheNewerAreTheBest) {
  const std::vector<float> probed = {9, 1, 2, 1, 1, 0, 9};
  EXPECT_THAT(Kept({.proxy_share = 1}, probed, {.sinks = 1, .recent = 1, .budget = 5}), ElementsAre(0, 2, 3, 4, 6));
}

// NACL-1: the same draw for any layout of slots, another for another lane, layer or seed.
TEST(Nacl, ADrawDependsOnSeedLaneAndTokenAlone) {
  constexpr int32_t kTokens = 60;
  const auto scores = [&](uint64_t seed, int32_t layer, int32_t head, uint64_t layout) {
    HashRandom random(layout);
    std::vector<int32_t> token(kTokens);
    std::iota(token.begin(), token.end(), 0);
    for (int32_t i = kTokens; i-- > 1;) std::swap(token[i], token[random.Uniform(0, i)]);
    std::vector<int32_t> by_age(kTokens);
    std::vector<float> probed(kTokens);
    for (int32_t slot = 0; slot < kTokens; ++slot) {
      by_age[token[slot]] = slot;
      probed[slot] = static_cast<float>(token[slot] % 7) / 8;
    }
    std::vector<float> keep(kTokens);
    MakeNacl({.seed = seed})
        ->Score({.token = token,
                 .live = kTokens,
                 .sinks = 1,
                 .recent = 2,
                 .budget = 30,
                 .tokens = kTokens,
                 .layer = layer,
                 .head = head,
                 .probed = probed,
                 .by_age = by_age},
                {}, keep);
    std::map<int32_t, float> by_token;
    for (int32_t slot = 0; slot < kTokens; ++slot) by_token[token[slot]] = keep[slot];
    return by_token;
  };
  const auto one = scores(5, 1, 2, 0);
  EXPECT_EQ(scores(5, 1, 2, 17), one);
  EXPECT_NE(scores(6, 1, 2, 0), one);
  EXPECT_NE(scores(5, 2, 2, 0), one);
  EXPECT_NE(scores(5, 1, 1, 0), one);
}

// NACL-1: over many seeds, inclusion follows sampling without replacement by the softmax of the sums. Two of five are
// drawn; 9 degrees of freedom, where chi^2 > 33.7 has probability 1e-4. The seeds are fixed: it passes or it does not.
TEST(Nacl, PairsAreDrawnAsOftenAsTheSoftmaxSays) {
  const std::vector<float> probed = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F};
  constexpr int32_t kDraws = 20000;
  std::map<std::vector<int32_t>, int32_t> seen;
  for (uint64_t seed = 0; seed < kDraws; ++seed) ++seen[Kept({.proxy_share = 0, .seed = seed}, probed, {.budget = 2})];
  double total = 0;
  for (const float sum : probed) total += std::exp(double{sum});
  double chi = 0;
  for (int32_t a = 0; a < 5; ++a) {
    for (int32_t b = a + 1; b < 5; ++b) {
      const double pa = std::exp(double{probed[a]}) / total;
      const double pb = std::exp(double{probed[b]}) / total;
      const double expected = kDraws * (pa * pb / (1 - pa) + pb * pa / (1 - pb));
      const double off = seen[{a, b}] - expected;
      chi += off * off / expected;
    }
  }
  EXPECT_EQ(seen.size(), 10U);
  EXPECT_LT(chi, 33.7);
}

TEST(Nacl, ASumThatIsNotANumberLeavesFirst) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(Kept({}, {0.1F, nan, 0.1F, 0.1F}, {.budget = 3}), ElementsAre(0, 2, 3));
}

}  // namespace
}  // namespace ebb
