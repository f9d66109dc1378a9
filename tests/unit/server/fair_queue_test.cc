#include "server/fair_queue.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "policies/hash_random.h"

namespace ebb {
namespace {

using testing::ElementsAreArray;

constexpr int32_t kAnyCost = INT32_MAX;

std::vector<uint64_t> TakeAll(FairQueue& queue) {
  std::vector<uint64_t> ids;
  while (const auto entry = queue.Take(kAnyCost)) ids.push_back(entry->id);
  return ids;
}

TEST(FairQueue, FollowsItsOrder) {
  struct Case {
    std::string name;
    int32_t priority_places;
    std::map<TenantId, int32_t> weights;
    std::vector<FairQueue::Entry> entries;
    std::vector<uint64_t> taken;
  };
  const std::vector<Case> cases = {
      // Situation: one tenant; entries pushed out of order of age.
      // Verdict: the older first, a tie by id.
      {"age", 0, {}, {{.id = 1, .age = 9}, {.id = 3, .age = 4}, {.id = 2, .age = 4}}, {2, 3, 1}},
      // Situation: one tenant; a level of priority is worth 10; a younger entry is 9, then 10, then 11 younger.
      // Verdict: it overtakes what is less than 10 older; at 10 the id decides; at 11 it waits.
      {"9 younger", 10, {}, {{.id = 1, .age = 0}, {.id = 2, .priority = 1, .age = 9}}, {2, 1}},
      {"10 younger", 10, {}, {{.id = 1, .age = 0}, {.id = 2, .priority = 1, .age = 10}}, {1, 2}},
      {"11 younger", 10, {}, {{.id = 1, .age = 0}, {.id = 2, .priority = 1, .age = 11}}, {1, 2}},
      // Situation: two tenants of equal weight, one of them with high priority and great age.
      // Verdict: neither helps against another tenant; they alternate from the one that came first.
      {"alternate",
       10,
       {},
       {{.id = 1, .tenant = 7, .age = 50},
        {.id = 2, .tenant = 8, .priority = 9, .age = 0},
        {.id = 3, .tenant = 7, .age = 51},
        {.id = 4, .tenant = 8, .priority = 9, .age = 1}},
       {1, 2, 3, 4}},
      // Situation: weights 3 and 1, unit costs.
      // Verdict: three turns against one, spread evenly, and the rest when the other is empty.
      {"weights",
       0,
       {{7, 3}},
       {{.id = 1, .tenant = 7},
        {.id = 2, .tenant = 7},
        {.id = 3, .tenant = 7},
        {.id = 4, .tenant = 7},
        {.id = 5, .tenant = 8},
        {.id = 6, .tenant = 8},
        {.id = 7, .tenant = 8}},
       {1, 5, 2, 3, 6, 4, 7}},
      // Situation: one tenant's entries cost 4, the other's 1.
      // Verdict: four cheap ones for a dear one.
      {"costs",
       0,
       {},
       {{.id = 1, .tenant = 7, .cost = 4},
        {.id = 2, .tenant = 7, .cost = 4},
        {.id = 3, .tenant = 8},
        {.id = 4, .tenant = 8},
        {.id = 5, .tenant = 8},
        {.id = 6, .tenant = 8},
        {.id = 7, .tenant = 8}},
       {1, 3, 4, 5, 6, 2, 7}},
      // Situation: the entries of one cost 1 and are charged 4, those of the other cost 4.
      // Verdict: they alternate.
      {"charges",
       0,
       {},
       {{.id = 1, .tenant = 7, .charge_min = 4},
        {.id = 2, .tenant = 7, .charge_min = 4},
        {.id = 3, .tenant = 8, .cost = 4},
        {.id = 4, .tenant = 8, .cost = 4, .charge_min = 2}},
       {1, 3, 2, 4}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    FairQueue queue(c.priority_places);
    for (const auto& [tenant, weight] : c.weights) queue.SetWeight(tenant, weight);
    for (const FairQueue::Entry& entry : c.entries) queue.Push(entry);
    EXPECT_THAT(TakeAll(queue), ElementsAreArray(c.taken));
    EXPECT_TRUE(queue.empty());
  }
}

TEST(FairQueue, KeepsTheTurnOfAnEntryThatDoesNotFit) {
  FairQueue queue(0);
  queue.Push({.id = 1, .tenant = 7, .cost = 8});
  queue.Push({.id = 2, .tenant = 8, .cost = 1});
  for (int step = 0; step < 10; ++step) EXPECT_FALSE(queue.Take(7)) << "entry 2 would fit, but it is not its turn";
  EXPECT_EQ(queue.Take(8)->id, 1U);
  EXPECT_EQ(queue.Take(1)->id, 2U);
}

// Nobody who left while others waited has more of the time that it was away than who has just come.
TEST(FairQueue, SavesNothingUpForATenantThatIsAway) {
  FairQueue queue(0);
  queue.Push({.id = 1, .tenant = 7});
  for (uint64_t id = 10; id < 40; ++id) queue.Push({.id = id, .tenant = 8, .age = static_cast<int64_t>(id)});
  EXPECT_EQ(queue.Take(kAnyCost)->id, 1U);
  for (uint64_t id = 10; id < 30; ++id) EXPECT_EQ(queue.Take(kAnyCost)->id, id);
  for (uint64_t id = 2; id < 5; ++id) queue.Push({.id = id, .tenant = 7, .age = static_cast<int64_t>(id)});
  std::vector<uint64_t> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(queue.Take(kAnyCost)->id);
  EXPECT_THAT(ids, testing::ElementsAre(2, 30, 3, 31, 4, 32)) << "in turns, though it took nothing for so long";
}

TEST(FairQueue, ErasesAnEntryAndMovesOn) {
  FairQueue queue(0);
  queue.Push({.id = 1, .tenant = 7});
  queue.Push({.id = 2, .tenant = 8});
  queue.Push({.id = 3, .tenant = 8, .age = 1});
  EXPECT_TRUE(queue.Erase(1));
  EXPECT_FALSE(queue.Erase(1));
  EXPECT_FALSE(queue.Contains(1));
  EXPECT_EQ(queue.size(), 2U);
  EXPECT_THAT(TakeAll(queue), ElementsAreArray({2, 3}));
}

// The bound of the header, at every moment of a saturated run: |S_i / w_i - S_j / w_j| <= c / w_i + c / w_j.
TEST(FairQueueProperty, SharesStayWithinTheStatedLag) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t cost_max = random.Uniform(1, 100);
    const int32_t tenants = random.Uniform(2, 5);
    FairQueue queue(random.Uniform(0, 20));
    std::vector<int32_t> weight(tenants);
    std::vector<double> share(tenants, 0.0);
    uint64_t id = 0;
    const auto push = [&](TenantId tenant) {
      queue.Push({.id = id,
                  .tenant = tenant,
                  .priority = random.Uniform(0, kPriorityMax),
                  .age = static_cast<int64_t>(id),
                  .cost = random.Uniform(1, cost_max)});
      ++id;
    };
    for (int32_t tenant = 0; tenant < tenants; ++tenant) {
      weight[tenant] = random.Uniform(1, seed % 2 == 0 ? 9 : kWeightMax);
      queue.SetWeight(tenant, weight[tenant]);
      push(tenant);
      push(tenant);
    }
    for (int turn = 0; turn < 500; ++turn) {
      const auto entry = queue.Take(random.Uniform(1, cost_max));
      if (!entry) continue;
      share[entry->tenant] += static_cast<double>(entry->cost) / weight[entry->tenant];
      push(entry->tenant);  // so that its queue never runs empty
      for (int32_t i = 0; i < tenants; ++i) {
        for (int32_t j = 0; j < i; ++j) {
          const double cost = cost_max;
          // The last term is what whole numbers of 1 / 27720 allow.
          const double lag_max = cost / weight[i] + cost / weight[j] + 1.0 / 27720;
          ASSERT_LE(std::abs(share[i] - share[j]), lag_max + 1e-9) << i << " against " << j << " at turn " << turn;
        }
      }
    }
  }
}

// The bound on what each other tenant takes before a tenant's next turn, or its first one since it came: in random
// traffic in which tenants come, run dry, have entries erased and get other weights.
TEST(FairQueueProperty, EachNeighbourTakesNoMoreThanItIsDue) {
  int dry = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    constexpr TenantId kTenants = 4;
    const int32_t charge_max = random.Uniform(1, 100);
    const int32_t weight_max = seed % 2 == 0 ? 9 : kWeightMax;
    FairQueue queue(0);
    std::array<int32_t, kTenants> lightest = {}, heaviest = {};
    std::array<std::array<int64_t, kTenants>, kTenants> taken = {};  // by the second, while the first waits
    std::array<std::vector<uint64_t>, kTenants> waiting = {};
    const auto weigh = [&](TenantId tenant) {
      const int32_t weight = random.Uniform(1, weight_max);
      queue.SetWeight(tenant, weight);
      lightest[tenant] = lightest[tenant] == 0 ? weight : std::min(lightest[tenant], weight);
      heaviest[tenant] = std::max(heaviest[tenant], weight);
    };
    for (TenantId tenant = 0; tenant < kTenants; ++tenant) weigh(tenant);
    int turns = 0;
    for (uint64_t id = 0; id < 3000; ++id) {
      const auto tenant = static_cast<TenantId>(random.Uniform(0, kTenants - 1));
      const int dice = random.Uniform(0, 99);
      if (dice < 45) {
        if (waiting[tenant].empty()) taken[tenant] = {};
        waiting[tenant].push_back(id);
        queue.Push({.id = id,
                    .tenant = tenant,
                    .age = static_cast<int64_t>(id),
                    .cost = random.Uniform(1, charge_max),
                    .charge_min = random.Uniform(0, charge_max)});
      } else if (dice < 48 && !waiting[tenant].empty()) {
        EXPECT_TRUE(queue.Erase(waiting[tenant].front()));
        waiting[tenant].erase(waiting[tenant].begin());
      } else if (dice < 50) {
        weigh(tenant);
      } else if (const auto entry =
                     queue.Take(random.Uniform(0, 3) == 0 ? random.Uniform(1, charge_max) : charge_max)) {
        ++turns;
        dry += queue.empty() ? 1 : 0;
        const TenantId who = entry->tenant;
        ASSERT_EQ(waiting[who].front(), entry->id);
        waiting[who].erase(waiting[who].begin());
        taken[who] = {};
        for (TenantId other = 0; other < kTenants; ++other) {
          if (other == who || waiting[other].empty()) continue;
          taken[other][who] += std::max(entry->cost, entry->charge_min);
          const double due = static_cast<double>(charge_max) * heaviest[who] / lightest[other] + charge_max;
          ASSERT_LE(static_cast<double>(taken[other][who]), due + 1) << who << " before " << other;
        }
      }
    }
    EXPECT_GT(turns, 500);
  }
  EXPECT_GT(dry, 1000) << "it hardly ever ran empty";
}

// The other bound: at most priority_places * (levels above its own) entries that were pushed later go first.
TEST(FairQueueProperty, NobodyIsOvertakenForEver) {
  constexpr int32_t kPlaces = 5;
  for (int32_t priority = 0; priority <= kPriorityMax; ++priority) {
    FairQueue queue(kPlaces);
    queue.Push({.id = 0, .priority = priority, .age = 0});
    int32_t overtaken = 0;
    for (uint64_t id = 1; queue.Contains(0); ++id) {
      queue.Push({.id = id, .priority = kPriorityMax, .age = static_cast<int64_t>(id)});
      if (queue.Take(kAnyCost)->id != 0) ++overtaken;
      ASSERT_LE(overtaken, kPlaces * (kPriorityMax - priority)) << "priority " << priority;
    }
  }
}

// However much others ask for, in entries however small: who asks for one thing at a time has the next turn if others
// had their share of what it took last, and else the one after they have.
TEST(FairQueue, WhoAsksLittleDoesNotWaitForWhoAsksMuch) {
  FairQueue queue(0);
  for (uint64_t id = 100; id < 400; ++id) {
    queue.Push({.id = id, .tenant = static_cast<TenantId>(1 + id % 3), .age = static_cast<int64_t>(id), .cost = 5});
  }
  for (uint64_t id = 0; id < 20; ++id) {
    for (int i = 0; i < 4; ++i) EXPECT_GE(queue.Take(kAnyCost)->id, 100U);
    queue.Push({.id = id, .tenant = 9, .cost = 5});
    EXPECT_EQ(queue.Take(kAnyCost)->id, id) << "it asks for less than its share, so each time as if it came";
  }
  queue.Push({.id = 50, .tenant = 9, .cost = 500});
  for (int i = 0; i < 3; ++i)
    EXPECT_GE(queue.Take(kAnyCost)->id, 100U) << "one of each neighbour, for what it just had";
  EXPECT_EQ(queue.Take(kAnyCost)->id, 50U);
}

// What one had while nobody else waited is not held against it: it is as new as any other.
TEST(FairQueue, ForgetsWhatWasTakenOnceNobodyWaits) {
  FairQueue queue(0);
  queue.Push({.id = 1, .tenant = 7, .cost = 1000});
  EXPECT_EQ(queue.Take(kAnyCost)->id, 1U);
  queue.Push({.id = 2, .tenant = 7, .age = 0});
  queue.Push({.id = 3, .tenant = 7, .age = 1});
  queue.Push({.id = 4, .tenant = 8, .age = 0});
  queue.Push({.id = 5, .tenant = 8, .age = 1});
  EXPECT_THAT(TakeAll(queue), testing::ElementsAre(2, 4, 3, 5));
}

// Of two that come at once the first goes first, and both before those who wait.
TEST(FairQueue, WhoComesGoesBeforeWhoHadATurnAlready) {
  FairQueue queue(0);
  for (const TenantId tenant : {1U, 2U}) {
    for (uint64_t id = 0; id < 3; ++id) {
      queue.Push({.id = 10 * tenant + id, .tenant = tenant, .age = static_cast<int64_t>(id)});
    }
  }
  EXPECT_EQ(queue.Take(kAnyCost)->id, 10U);
  EXPECT_EQ(queue.Take(kAnyCost)->id, 20U);
  EXPECT_EQ(queue.Take(kAnyCost)->id, 11U);
  queue.Push({.id = 30, .tenant = 3});
  queue.Push({.id = 40, .tenant = 4});
  EXPECT_THAT(TakeAll(queue), testing::ElementsAre(30, 40, 21, 12, 22));
  queue.Push({.id = 31, .tenant = 3});
  EXPECT_TRUE(queue.Erase(31));
  EXPECT_FALSE(queue.Take(kAnyCost));
}

}  // namespace
}  // namespace ebb
