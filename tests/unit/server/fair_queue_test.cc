#include "server/fair_queue.h"

#include <gmock/gmock.h>

#include <algorithm>
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
    FairQueue::Options options;
    std::map<TenantId, int32_t> weights;
    std::vector<FairQueue::Entry> entries;
    std::vector<uint64_t> taken;
  };
  const std::vector<Case> cases = {
      // Situation: one tenant; entries pushed out of order of age.
      // Verdict: the older first, a tie by id.
      {"age", {}, {}, {{.id = 1, .age = 9}, {.id = 3, .age = 4}, {.id = 2, .age = 4}}, {2, 3, 1}},
      // Situation: one tenant; a level of priority is worth 10; a younger entry is 9, then 10, then 11 younger.
      // Verdict: it overtakes what is less than 10 older; at 10 the id decides; at 11 it waits.
      {"9 younger", {.priority_places = 10}, {}, {{.id = 1, .age = 0}, {.id = 2, .priority = 1, .age = 9}}, {2, 1}},
      {"10 younger", {.priority_places = 10}, {}, {{.id = 1, .age = 0}, {.id = 2, .priority = 1, .age = 10}}, {1, 2}},
      {"11 younger", {.priority_places = 10}, {}, {{.id = 1, .age = 0}, {.id = 2, .priority = 1, .age = 11}}, {1, 2}},
      // Situation: two tenants of equal weight, one of them with high priority and great age.
      // Verdict: neither helps against another tenant; they alternate from the one that came first.
      {"alternate",
       {.priority_places = 10},
       {},
       {{.id = 1, .tenant = 7, .age = 50},
        {.id = 2, .tenant = 8, .priority = 9, .age = 0},
        {.id = 3, .tenant = 7, .age = 51},
        {.id = 4, .tenant = 8, .priority = 9, .age = 1}},
       {1, 2, 3, 4}},
      // Situation: weights 3 and 1, unit costs, quantum 1.
      // Verdict: three turns against one, and the rest when the other is empty.
      {"weights",
       {},
       {{7, 3}},
       {{.id = 1, .tenant = 7},
        {.id = 2, .tenant = 7},
        {.id = 3, .tenant = 7},
        {.id = 4, .tenant = 7},
        {.id = 5, .tenant = 8},
        {.id = 6, .tenant = 8},
        {.id = 7, .tenant = 8}},
       {1, 2, 3, 5, 4, 6, 7}},
      // Situation: quantum 2; one tenant's entries cost 4, the other's 1.
      // Verdict: the dear one saves for two visits while the cheap one takes two a visit.
      {"saves up",
       {.quantum = 2},
       {},
       {{.id = 1, .tenant = 7, .cost = 4},
        {.id = 2, .tenant = 7, .cost = 4},
        {.id = 3, .tenant = 8},
        {.id = 4, .tenant = 8},
        {.id = 5, .tenant = 8},
        {.id = 6, .tenant = 8},
        {.id = 7, .tenant = 8}},
       {3, 4, 1, 5, 6, 7, 2}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    FairQueue queue(c.options);
    for (const auto& [tenant, weight] : c.weights) queue.SetWeight(tenant, weight);
    for (const FairQueue::Entry& entry : c.entries) queue.Push(entry);
    EXPECT_THAT(TakeAll(queue), ElementsAreArray(c.taken));
    EXPECT_TRUE(queue.empty());
  }
}

TEST(FairQueue, KeepsTheTurnOfAnEntryThatDoesNotFit) {
  FairQueue queue({.quantum = 8});
  queue.Push({.id = 1, .tenant = 7, .cost = 8});
  queue.Push({.id = 2, .tenant = 8, .cost = 1});
  EXPECT_FALSE(queue.Take(7)) << "entry 2 would fit, but it is not its turn";
  EXPECT_EQ(queue.Take(8)->id, 1U);
  EXPECT_EQ(queue.Take(1)->id, 2U);
}

TEST(FairQueue, RefusingAnEntryDoesNotEnrichItsTenant) {
  FairQueue queue({.quantum = 4});
  for (uint64_t id = 1; id <= 3; ++id) queue.Push({.id = id, .tenant = 7, .age = static_cast<int64_t>(id), .cost = 4});
  queue.Push({.id = 9, .tenant = 8, .cost = 4});
  for (int step = 0; step < 10; ++step) EXPECT_FALSE(queue.Take(3));
  EXPECT_EQ(queue.Take(4)->id, 1U);
  EXPECT_EQ(queue.Take(4)->id, 9U) << "one quantum per visit, however often the visit was interrupted";
}

TEST(FairQueue, ForgetsTheDeficitOfATenantThatLeft) {
  FairQueue queue({.quantum = 10});
  queue.Push({.id = 1, .tenant = 7, .cost = 1});
  EXPECT_EQ(queue.Take(kAnyCost)->id, 1U);  // leaves with 9 unspent
  queue.Push({.id = 2, .tenant = 8, .cost = 10});
  queue.Push({.id = 3, .tenant = 7, .age = 0, .cost = 10});
  queue.Push({.id = 4, .tenant = 7, .age = 1, .cost = 9});
  queue.Push({.id = 5, .tenant = 8, .age = 1, .cost = 10});
  EXPECT_THAT(TakeAll(queue), ElementsAreArray({2, 3, 5, 4}));
}

TEST(FairQueue, ErasesAnEntryAndMovesOn) {
  FairQueue queue({});
  queue.Push({.id = 1, .tenant = 7});
  queue.Push({.id = 2, .tenant = 8});
  queue.Push({.id = 3, .tenant = 8, .age = 1});
  EXPECT_TRUE(queue.Erase(1));
  EXPECT_FALSE(queue.Erase(1));
  EXPECT_FALSE(queue.Contains(1));
  EXPECT_EQ(queue.size(), 2U);
  EXPECT_THAT(TakeAll(queue), ElementsAreArray({2, 3}));
}

// The bound of the header, at every moment of a saturated run: |S_i / w_i - S_j / w_j| <= quantum + c / min(w_i, w_j).
TEST(FairQueueProperty, SharesStayWithinTheStatedLag) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t quantum = random.Uniform(1, 40);
    const int32_t cost_max = random.Uniform(1, 100);
    const int32_t tenants = random.Uniform(2, 5);
    FairQueue queue({.quantum = quantum, .priority_places = random.Uniform(0, 20)});
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
      weight[tenant] = random.Uniform(1, 9);
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
          const double lag_max = quantum + static_cast<double>(cost_max) / std::min(weight[i], weight[j]);
          ASSERT_LE(std::abs(share[i] - share[j]), lag_max + 1e-9) << i << " against " << j << " at turn " << turn;
        }
      }
    }
  }
}

// The other bound: at most priority_places * (levels above its own) entries that were pushed later go first.
TEST(FairQueueProperty, NobodyIsOvertakenForEver) {
  constexpr int32_t kPlaces = 5;
  for (int32_t priority = 0; priority <= kPriorityMax; ++priority) {
    FairQueue queue({.priority_places = kPlaces});
    queue.Push({.id = 0, .priority = priority, .age = 0});
    int32_t overtaken = 0;
    for (uint64_t id = 1; queue.Contains(0); ++id) {
      queue.Push({.id = id, .priority = kPriorityMax, .age = static_cast<int64_t>(id)});
      if (queue.Take(kAnyCost)->id != 0) ++overtaken;
      ASSERT_LE(overtaken, kPlaces * (kPriorityMax - priority)) << "priority " << priority;
    }
  }
}

// A tenant that comes goes before the rest of the visit that is on; one that comes back within the round does not.
TEST(FairQueue, NewcomersFirstAreServedOnceBeforeTheOthersRound) {
  FairQueue queue({.newcomers_first = true});
  queue.SetWeight(1, 3);
  for (uint64_t id = 10; id < 19; ++id) queue.Push({.id = id, .tenant = 1, .age = static_cast<int64_t>(id)});
  EXPECT_EQ(queue.Take(kAnyCost)->id, 10U);
  queue.Push({.id = 20, .tenant = 2});
  EXPECT_EQ(queue.Take(kAnyCost)->id, 20U) << "before the two that its neighbour may still take";
  queue.Push({.id = 21, .tenant = 2});
  EXPECT_EQ(queue.Take(kAnyCost)->id, 11U) << "it was served in this round";
  EXPECT_EQ(queue.Take(kAnyCost)->id, 12U);
  EXPECT_EQ(queue.Take(kAnyCost)->id, 21U);
  EXPECT_EQ(queue.Take(kAnyCost)->id, 13U);
  EXPECT_EQ(queue.Take(kAnyCost)->id, 14U);
  EXPECT_EQ(queue.Take(kAnyCost)->id, 15U);
  EXPECT_EQ(queue.Take(kAnyCost)->id, 16U) << "its place in the ring came and went";
  queue.Push({.id = 22, .tenant = 2});
  EXPECT_EQ(queue.Take(kAnyCost)->id, 22U) << "so it is new again";
  EXPECT_EQ(TakeAll(queue), (std::vector<uint64_t>{17, 18}));
  EXPECT_TRUE(queue.empty());
  queue.Push({.id = 23, .tenant = 2});
  EXPECT_TRUE(queue.Erase(23));
  EXPECT_FALSE(queue.Take(kAnyCost));
}

}  // namespace
}  // namespace ebb
