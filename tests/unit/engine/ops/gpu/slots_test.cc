// Who is placed where and who leaves, against a plain search and policies/select.h.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "policies/hash_random.h"
#include "policies/select.h"
#include "tests/support/attend_case.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/engine/ops/gpu/each_target.h"

namespace ebb::gpu {
namespace {

// Lanes of one session: random tokens in random slots.
struct Lanes {
  int32_t lanes = 0, capacity = 0, live = 0;
  std::vector<int32_t> token = {}, position = {}, scratch = {}, placed = {};
  std::vector<float> score = {};

  std::vector<int32_t> All() const {
    std::vector<int32_t> all = token;
    all.insert(all.end(), position.begin(), position.end());
    all.insert(all.end(), placed.begin(), placed.end());
    return all;
  }
};

float RandomScore(HashRandom& random) {
  constexpr float kOdd[] = {
      std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(), 0.0F, -0.0F,
      std::numeric_limits<float>::infinity(),  -std::numeric_limits<float>::infinity()};
  if (random.Uniform(0, 9) == 0) return kOdd[random.Uniform(0, 5)];
  return static_cast<float>(random.Uniform(-6, 6)) / 3;  // many are equal
}

// Tokens are numbers below `log` in random slots; `gaps`: any of them, else the first and the last have no gaps.
Lanes RandomLanes(HashRandom& random, int32_t slots_max, bool compacted) {
  Lanes l;
  l.lanes = random.Uniform(1, 3);
  l.capacity = random.Uniform(2, slots_max);
  l.live = random.Uniform(1, l.capacity);
  const int32_t log = l.live + random.Uniform(0, 50);
  l.token.assign(l.lanes * l.capacity, -1);
  l.position = l.token;
  l.scratch.assign(l.lanes * l.capacity, 12345);
  l.score.resize(l.lanes * l.capacity);
  for (int32_t lane = 0; lane < l.lanes; ++lane) {
    std::vector<int32_t> tokens = RandomOrder(random, log);
    tokens.resize(l.live);
    std::ranges::sort(tokens);
    const std::vector<int32_t> slots = RandomOrder(random, l.capacity);
    for (int32_t i = 0; i < l.live; ++i) {
      const int32_t at = lane * l.capacity + slots[i];
      l.token[at] = tokens[i];
      l.position[at] = compacted ? i : tokens[i];
    }
    for (int32_t slot = 0; slot < l.capacity; ++slot) l.score[lane * l.capacity + slot] = RandomScore(random);
  }
  return l;
}

// Lanes on a device.
struct LanesThere {
  LanesThere(const Table& table, const Lanes& l)
      : mirror(table),
        view({.token = mirror.In(l.token),
              .position = mirror.In(l.position),
              .score = mirror.In(l.score),
              .placed = mirror.In(l.placed),
              .scratch = mirror.In(l.scratch),
              .capacity = l.capacity,
              .live = l.live,
              .slots = l.capacity}) {}

  CacheArgs Cache(int32_t lanes) {
    return {.sessions = mirror.In(std::vector{view}), .session_count = 1, .lanes = lanes, .slots_max = view.slots};
  }
  void Back(Lanes& l) const {
    mirror.Out(view.token, l.token);
    mirror.Out(view.position, l.position);
    mirror.Out(view.score, l.score);
    mirror.Out(view.placed, l.placed);
  }

  Mirror mirror;
  SessionView view;
};

TEST(GpuPlace, TokensTakeTheLowestFreeSlotsInOrder) {
  HashRandom random(1);
  for (int i = 0; i < Cases(40); ++i) {
    const bool compacted = i % 2 == 0;
    Lanes before = RandomLanes(random, i % 3 == 0 ? 6 : 400, compacted);
    if (before.live == before.capacity) continue;
    const int32_t count = random.Uniform(1, before.capacity - before.live);
    const int32_t block_max = count + 1;
    before.placed.assign(before.lanes * block_max, -7);
    constexpr int32_t kFirstToken = 5000;
    Lanes expected = before;
    for (int32_t lane = 0; lane < before.lanes; ++lane) {
      int32_t slot = -1;
      for (int32_t t = 0; t < count; ++t) {
        do ++slot;
        while (before.token[lane * before.capacity + slot] >= 0);
        expected.token[lane * before.capacity + slot] = kFirstToken + t;
        expected.position[lane * before.capacity + slot] = compacted ? before.live + t : kFirstToken + t;
        expected.placed[lane * block_max + t] = slot;
      }
    }
    const std::vector<int32_t> after = OnEachTarget([&](const Table& table) {
      Lanes l = before;
      LanesThere there(table, l);
      there.view.block_max = block_max;
      there.view.first_token = kFirstToken;
      there.view.tokens = count;
      there.view.compacted = compacted ? 1 : 0;
      table.place({.cache = there.Cache(l.lanes)}, there.mirror.stream());
      there.Back(l);
      for (size_t at = 0; at < l.token.size(); ++at) {
        if (l.token[at] < kFirstToken) continue;
        EXPECT_EQ(l.score[at], 0);
      }
      return l.All();
    });
    EXPECT_EQ(after, expected.All()) << i;
  }
}

// Sessions beside the one that is looked at, of which nothing is asked: so many that a block has several lanes.
constexpr int kMany = 800;

// Wherever somebody left it, and whatever else `placed` says.
TEST(GpuPlace, OneTokenTakesTheOneFreeSlot) {
  HashRandom random(5);
  constexpr int32_t kLanes = 5;
  for (int i = 0; i < Cases(24); ++i) {
    const int32_t capacity = random.Uniform(2, i % 3 == 0 ? 6 : 1500);
    Lanes before = {.lanes = kLanes, .capacity = capacity, .live = capacity - 1};
    before.token.assign(int64_t{kLanes} * capacity, 3);
    before.position = before.token;
    before.scratch = before.token;
    before.score.assign(before.token.size(), 0);
    Lanes expected = before;
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      const int32_t free = lane == 0 ? capacity - 1 : random.Uniform(0, capacity - 1);
      const int32_t hints[] = {free, random.Uniform(0, capacity - 1), -7, capacity + 1, capacity - 1};
      before.placed.push_back(hints[random.Uniform(0, 4)]);
      before.token[lane * capacity + free] = before.position[lane * capacity + free] = -1;
      expected.token[lane * capacity + free] = 9000;
      expected.position[lane * capacity + free] = 9000;
      expected.placed.push_back(free);
    }
    const std::vector<int32_t> after = OnEachTarget([&](const Table& table) {
      Lanes l = before;
      LanesThere there(table, l);
      there.view.block_max = there.view.tokens = 1;
      there.view.first_token = 9000;
      CacheArgs cache = there.Cache(kLanes);
      std::vector<SessionView> sessions(i % 2 == 0 ? 0 : kMany);
      sessions.push_back(there.view);
      cache.sessions = there.mirror.In(sessions);
      cache.session_count = static_cast<int32_t>(sessions.size());
      table.place({.cache = cache}, there.mirror.stream());
      there.Back(l);
      return l.All();
    });
    EXPECT_EQ(after, expected.All()) << i;
  }
}

// The victims of policies/select.h, freed; with compacted positions, what is left closes up.
void EvictOnTheHost(Lanes& l, ScoreRule rule, int32_t sinks, int32_t recent, int32_t drop, bool compacted) {
  for (int32_t lane = 0; lane < l.lanes; ++lane) {
    const std::span token(l.token.data() + lane * l.capacity, l.capacity);
    const std::span position(l.position.data() + lane * l.capacity, l.capacity);
    std::vector<float> keep(l.score.begin() + lane * l.capacity, l.score.begin() + (lane + 1) * l.capacity);
    if (rule == ScoreRule::kAge) keep.assign(keep.size(), 0);
    if (rule == ScoreRule::kShortKeys) {
      for (float& k : keep) k = -k;
    }
    SelectScratch scratch;
    std::vector<int32_t> victims;
    ASSERT_THAT(
        SelectVictims({.token = token, .live = l.live, .sinks = sinks, .recent = recent}, keep, drop, scratch, victims),
        IsOk());
    for (const int32_t slot : victims) token[slot] = position[slot] = -1;
    if (!compacted) continue;
    std::vector<int32_t> kept;
    for (const int32_t t : token) {
      if (t >= 0) kept.push_back(t);
    }
    std::ranges::sort(kept);
    for (int32_t slot = 0; slot < l.capacity; ++slot) {
      if (token[slot] >= 0) position[slot] = std::ranges::lower_bound(kept, token[slot]) - kept.begin();
    }
  }
}

struct EvictCase {
  Lanes lanes = {};
  ScoreRule rule = ScoreRule::kSum;
  int32_t sinks = 0, recent = 0, drop = 0;
  bool compacted = false, tells = false;
  int32_t log = 1;        // how many tokens there were, of which the step brought the last
  int32_t slots_max = 0;  // of the launch, which decides how many threads a lane gets; 0: the lanes'
  int others = 1;         // sessions of which nobody leaves
};

// Who leaves on each target leaves on the host.
void ExpectTheHostsVictims(const EvictCase& c) {
  const Lanes& before = c.lanes;
  Lanes expected = before;
  EvictOnTheHost(expected, c.rule, c.sinks, c.recent, c.drop, c.compacted);
  const bool tells = c.tells && c.drop > 0;
  const std::vector<int32_t> after = OnEachTarget([&](const Table& table) {
    Lanes l = before;
    LanesThere there(table, l);
    there.view.live = l.live - 1;  // one came in this step
    there.view.tokens = 1;
    there.view.first_token = c.log - 1;
    there.view.rule = c.rule;
    there.view.sinks = c.sinks;
    there.view.recent = c.recent;
    there.view.drop = c.drop;
    there.view.compacted = c.compacted ? 1 : 0;
    if (tells) there.view.left = there.mirror.In(std::vector<int32_t>(l.lanes * c.drop, -7));
    CacheArgs cache = there.Cache(l.lanes);
    std::vector<SessionView> sessions(c.others);
    sessions.push_back(there.view);
    cache.sessions = there.mirror.In(sessions);
    cache.session_count = static_cast<int32_t>(sessions.size());
    if (c.slots_max > 0) cache.slots_max = c.slots_max;
    table.evict({.cache = cache}, there.mirror.stream());
    there.Back(l);
    std::vector<int32_t> all = l.All();
    if (!tells) return all;
    std::vector<int32_t> left(l.lanes * c.drop);
    there.mirror.Out(there.view.left, left);
    all.insert(all.end(), left.begin(), left.end());
    return all;
  });
  std::vector<int32_t> expected_all = expected.All();
  for (size_t at = 0; at < expected.token.size() && tells; ++at) {
    if (expected.token[at] != before.token[at]) expected_all.push_back(before.token[at]);
  }
  EXPECT_TRUE(after == expected_all) << before.live << " live of " << before.capacity << ", " << c.sinks << " sinks, "
                                     << c.recent << " recent, " << c.drop << " leave";
}

// As where some other session's lanes are long.
constexpr int32_t kLong = 10000;

TEST(GpuEvict, TheSameLeaveAsOnTheHost) {
  HashRandom random(2);
  int several = 0;
  for (int i = 0; i < Cases(48); ++i) {
    EvictCase c;
    c.compacted = i % 2 == 0;
    c.lanes = RandomLanes(random, i % 3 == 0 ? 8 : 400, c.compacted);
    c.rule = static_cast<ScoreRule>(random.Uniform(0, 4));
    c.sinks = random.Uniform(0, c.lanes.live - 1);
    c.recent = random.Uniform(0, c.lanes.live - 1 - c.sinks);
    if (i % 5 == 0) c.sinks = c.recent = 0;
    const int32_t candidates = c.lanes.live - c.sinks - c.recent;
    c.drop = random.Uniform(0, 1) == 0 ? 1 : random.Uniform(0, candidates);
    c.tells = i % 4 < 2;
    c.slots_max = i % 8 < 4 ? 0 : kLong;
    c.others = i % 3 == 2 ? kMany : 1;
    several += c.drop > 1 ? 1 : 0;
    SCOPED_TRACE("case " + std::to_string(i));
    ExpectTheHostsVictims(c);
  }
  EXPECT_GT(several, Cases(48) / 8);
}

// Tokens of one session's lanes in random slots, of which the first and the last have no gaps.
Lanes LanesOf(HashRandom& random, int32_t capacity, int32_t live, int32_t sinks, int32_t recent, int32_t log,
              bool compacted, bool differ) {
  Lanes l = {.lanes = 1, .capacity = capacity, .live = live};
  std::vector<int32_t> middle = RandomOrder(random, log - sinks - recent);
  middle.resize(live - sinks - recent);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < sinks; ++i) tokens.push_back(i);
  for (const int32_t index : middle) tokens.push_back(sinks + index);
  for (int32_t i = log - recent; i < log; ++i) tokens.push_back(i);
  std::ranges::sort(tokens);
  l.token.assign(capacity, -1);
  l.position = l.token;
  l.scratch.assign(capacity, 12345);
  const std::vector<int32_t> slots = RandomOrder(random, capacity);
  for (int32_t i = 0; i < live; ++i) {
    l.token[slots[i]] = tokens[i];
    l.position[slots[i]] = compacted ? i : tokens[i];
  }
  for (int32_t slot = 0; slot < capacity; ++slot)
    l.score.push_back(differ ? 2 * random.UniformFloat() - 1 : RandomScore(random));
  return l;
}

TEST(GpuEvict, TheProtectedStayWhereTheyAreTheFirstAndLastOfTheLog) {
  HashRandom random(3);
  for (int i = 0; i < Cases(24); ++i) {
    EvictCase c;
    c.compacted = i % 2 == 0;
    const int32_t capacity = 4 * random.Uniform(5, 400) + (i % 6 == 0 ? 1 : 0);
    const int32_t live = random.Uniform(12, capacity);
    c.log = live + random.Uniform(0, 1000);
    c.sinks = random.Uniform(0, 4);
    c.recent = i % 4 == 1 ? 0 : random.Uniform(0, 6);
    c.lanes = LanesOf(random, capacity, live, c.sinks, c.recent, c.log, c.compacted, i % 2 == 0);
    c.drop = i % 3 == 0 ? 1 : random.Uniform(1, live - c.sinks - c.recent);
    c.slots_max = i % 8 < 4 ? 0 : kLong;
    SCOPED_TRACE("case " + std::to_string(i));
    ExpectTheHostsVictims(c);
  }
}

// The rank of the highest score shares its first digit with the mark of who stays.
TEST(GpuEvict, TheProtectedStayWhereAllOthersLeaveWhateverTheirScores) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  HashRandom random(6);
  for (const ScoreRule rule : {ScoreRule::kSum, ScoreRule::kShortKeys}) {
    for (const int32_t capacity : {48, 700, 9000}) {
      EvictCase c = {.rule = rule, .sinks = 4, .recent = 6, .tells = true};
      const int32_t live = capacity - 5;
      c.log = live + 100;
      c.lanes = LanesOf(random, capacity, live, c.sinks, c.recent, c.log, c.compacted, true);
      c.lanes.score.assign(c.lanes.score.size(), rule == ScoreRule::kShortKeys ? -kInfinity : kInfinity);
      c.drop = live - c.sinks - c.recent;
      SCOPED_TRACE(capacity);
      ExpectTheHostsVictims(c);
    }
  }
}

// Lanes of one and of several rounds of threads, longer than threads keep ranks of, and with more positions than there
// are bits for at once; all of them leave, or one, or one stays, or any number.
TEST(GpuEvict, LongLanesAreAsShortOnes) {
  HashRandom random(4);
  struct Size {
    int32_t capacity, free;
  };
  constexpr Size kSizes[] = {{8196, 5}, {9001, 700}, {20000, 0}, {32768, 0}, {32772, 3}, {66000, 0}};
  int i = 0;
  for (const Size& size : kSizes) {
    if (Cases(8) < 8 && size.capacity > 10000) continue;
    EvictCase c;
    const int32_t live = size.capacity - size.free;
    c.compacted = i % 2 == 1;
    c.sinks = i % 3 == 0 ? 0 : 4;
    c.recent = i % 3 == 1 ? 7 : 0;
    c.log = live + 100;
    c.tells = i % 2 == 0;
    const int32_t candidates = live - c.sinks - c.recent;
    for (const int32_t drop : {1, random.Uniform(2, candidates - 2), candidates / 2, candidates - 1, candidates}) {
      c.lanes = LanesOf(random, size.capacity, live, c.sinks, c.recent, c.log, c.compacted, drop % 2 == 0);
      c.drop = drop;
      ExpectTheHostsVictims(c);
    }
    ++i;
  }
}

}  // namespace
}  // namespace ebb::gpu
