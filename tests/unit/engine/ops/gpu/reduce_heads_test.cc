// What query heads with scores of their own together make of a slot, bit for bit that of policies/rank.h.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "policies/h2o.h"
#include "policies/hash_random.h"
#include "policies/rank.h"
#include "tests/support/attend_case.h"
#include "tests/unit/engine/ops/gpu/each_target.h"

namespace ebb::gpu {
namespace {

struct HeadsCase {
  int32_t lanes = 2, capacity = 0, live = 0, tracks = 3, sinks = 0, recent = 0, best = 0, drop = 1;
  int32_t slots_max = 0;  // of the launch, which decides how many threads a lane gets
  Reduction reduction = Reduction::kMax;
  std::vector<int32_t> token = {};  // [lanes][capacity]
  std::vector<float> score = {};    // [lanes][tracks][capacity]
};

HeadReduction OnDevice(Reduction reduction) {
  return reduction == Reduction::kMax  ? HeadReduction::kLargest
         : reduction == Reduction::kL2 ? HeadReduction::kL2
                                       : HeadReduction::kUnion;
}

float ScoreOfHead(HashRandom& random) {
  constexpr float kOdd[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 0, 1e-25F};
  if (random.Uniform(0, 19) == 0) return kOdd[random.Uniform(0, 3)];
  if (random.Uniform(0, 2) == 0) return static_cast<float>(random.Uniform(0, 4)) / 4;  // many are equal
  return random.UniformFloat();
}

HeadsCase RandomHeads(HashRandom& random, Reduction reduction, int32_t capacity) {
  HeadsCase c;
  c.capacity = c.slots_max = capacity;
  c.live = random.Uniform(3, c.capacity);
  c.tracks = random.Uniform(2, kGroupMax);
  c.reduction = reduction;
  c.sinks = random.Uniform(0, (c.live - 2) / 2);
  c.recent = random.Uniform(0, c.live - 2 - c.sinks);
  const int32_t candidates = c.live - c.sinks - c.recent;
  c.best = random.Uniform(0, candidates + 1);
  c.drop = random.Uniform(1, candidates - 1);
  c.token.assign(c.lanes * c.capacity, -1);
  for (int32_t lane = 0; lane < c.lanes; ++lane) {
    const std::vector<int32_t> order = RandomOrder(random, c.capacity);
    for (int32_t i = 0; i < c.live; ++i) c.token[lane * c.capacity + order[i]] = 2 * i;
  }
  for (int32_t i = 0; i < c.lanes * c.tracks * c.capacity; ++i) c.score.push_back(ScoreOfHead(random));
  return c;
}

// [lanes][capacity]; NaN where free or not a number.
std::vector<float> OnTheDevice(const HeadsCase& c) {
  return OnEachTarget([&](const Table& table) {
    Mirror mirror(table);
    std::vector<float> all(c.score.size(), -7);
    const SessionView view = {.token = mirror.In(c.token),
                              .score = mirror.In(c.score),
                              .keep = mirror.In(all),
                              .scratch = mirror.In(std::vector<int32_t>(c.token.size(), 12345)),
                              .capacity = c.capacity,
                              .live = c.live - 1,
                              .slots = c.capacity,
                              .tokens = 1,
                              .tracks = c.tracks,
                              .reduction = OnDevice(c.reduction),
                              .best = c.best,
                              .sinks = c.sinks,
                              .recent = c.recent,
                              .drop = c.drop};
    table.reduce({.cache = {.sessions = mirror.In(std::vector{view}),
                            .session_count = 1,
                            .lanes = c.lanes,
                            .slots_max = c.slots_max}},
                 mirror.stream());
    mirror.Out(view.keep, all);
    std::vector<float> keep;
    for (size_t at = 0; at < c.token.size(); ++at) {
      const auto lane = static_cast<int32_t>(at) / c.capacity;
      const float is = all[lane * c.tracks * c.capacity + static_cast<int32_t>(at) % c.capacity];
      keep.push_back(c.token[at] < 0 || std::isnan(is) ? std::numeric_limits<float>::quiet_NaN() : is);
    }
    return keep;
  });
}

std::vector<float> OnTheHost(const HeadsCase& c) {
  ValidSpec policy;
  policy.scorer = MakeH2o();  // whose scores are its state
  policy.reduction = c.reduction;
  policy.query_heads = c.tracks;
  std::vector<float> all;
  const auto slots = static_cast<size_t>(c.capacity);
  for (int32_t lane = 0; lane < c.lanes; ++lane) {
    const LaneView view = {.token = std::span(c.token).subspan(lane * slots, slots),
                           .live = c.live,
                           .sinks = c.sinks,
                           .recent = c.recent,
                           .budget = c.sinks + c.recent + c.best * c.tracks};
    std::vector<Track> tracks;
    for (int32_t track = 0; track < c.tracks; ++track) {
      tracks.push_back(
          {.lane = view, .state = {.slot = std::span(c.score).subspan((lane * c.tracks + track) * slots, slots)}});
    }
    RankScratch scratch;
    std::vector<float> keep(slots);
    Rank(policy, tracks, scratch, keep);
    for (size_t slot = 0; slot < slots; ++slot) {
      const bool is_number = view.token[slot] >= 0 && !std::isnan(keep[slot]);
      all.push_back(is_number ? keep[slot] : std::numeric_limits<float>::quiet_NaN());
    }
  }
  return all;
}

void ExpectTheHostsOpinion(const HeadsCase& c) {
  SCOPED_TRACE(std::to_string(c.live) + " of " + std::to_string(c.capacity) + ", " + std::to_string(c.tracks) +
               " heads, " + std::to_string(c.best) + " each");
  const std::vector<float> is = OnTheDevice(c);
  const std::vector<float> expected = OnTheHost(c);
  for (size_t at = 0; at < expected.size(); ++at) {
    ASSERT_TRUE(is[at] == expected[at] || (std::isnan(is[at]) && std::isnan(expected[at])))
        << "slot " << at << ": " << is[at] << ", not " << expected[at];
  }
}

TEST(GpuReduceHeads, AreTheHostsOpinionBitForBit) {
  HashRandom random(61);
  for (int i = 0; i < Cases(48); ++i) {
    constexpr Reduction kReductions[] = {Reduction::kMax, Reduction::kL2, Reduction::kUnion};
    int32_t capacity = random.Uniform(3, i % 4 == 0 ? 8 : 320);
    if (i % 2 == 0) capacity = (capacity + 3) / 4 * 4;  // of whole vectors
    HeadsCase c = RandomHeads(random, kReductions[i % 3], capacity);
    if (i % 5 == 0) c.sinks = c.recent = 0;
    if (i % 8 >= 4) c.slots_max = 5000;
    SCOPED_TRACE("case " + std::to_string(i));
    ExpectTheHostsOpinion(c);
  }
}

// Of which threads keep one round of scores or several, and longer than they keep.
TEST(GpuReduceHeads, UniteLongLanesAsShortOnes) {
  HashRandom random(62);
  for (const int32_t capacity : {3000, 5004, 16388}) {
    if (Cases(8) < 8 && capacity > 4000) continue;
    HeadsCase c = RandomHeads(random, Reduction::kUnion, capacity);
    ExpectTheHostsOpinion(c);
    c.sinks = c.recent = 0;
    c.best = c.live / 50 + 1;
    ExpectTheHostsOpinion(c);
  }
}

}  // namespace
}  // namespace ebb::gpu
