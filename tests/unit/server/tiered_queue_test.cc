#include "server/tiered_queue.h"

#include <gmock/gmock.h>

#include <array>
#include <vector>

#include "policies/hash_random.h"

namespace ebb {
namespace {

using testing::ElementsAre;

constexpr int32_t kSomeCost = INT32_MAX;
constexpr TenantId kUrgent = 1, kUsual = 2, kPatient = 3;

TieredQueue Queue(int32_t floor) {
  TieredQueue queue(0, floor);
  queue.SetTier(kUrgent, Tier::kHigh);
  queue.SetTier(kPatient, Tier::kLow);
  return queue;
}

std::vector<uint64_t> TakeAll(TieredQueue& queue) {
  std::vector<uint64_t> ids;
  while (const auto entry = queue.Take(kSomeCost)) ids.push_back(entry->id);
  return ids;
}

TEST(TieredQueue, TheHighestFirstWhoeverCameFirst) {
  TieredQueue queue = Queue(100);
  queue.Push({.id = 1, .tenant = kPatient});
  queue.Push({.id = 2, .tenant = kUsual});
  queue.Push({.id = 3, .tenant = kUrgent, .age = 9});
  queue.Push({.id = 4, .tenant = kUrgent, .age = 8});
  EXPECT_EQ(queue.size(), 4U);
  EXPECT_THAT(TakeAll(queue), ElementsAre(4, 3, 2, 1));
  EXPECT_TRUE(queue.empty());
}

TEST(TieredQueue, ALowerOneHasItsFloor) {
  TieredQueue queue = Queue(3);
  for (uint64_t id = 1; id <= 8; ++id) queue.Push({.id = id, .tenant = kUrgent});
  queue.Push({.id = 11, .tenant = kPatient});
  queue.Push({.id = 12, .tenant = kPatient});
  // Three of the higher, then one of the lower, and again.
  EXPECT_THAT(TakeAll(queue), ElementsAre(1, 2, 3, 11, 4, 5, 6, 12, 7, 8));
}

TEST(TieredQueue, WhatCostsMuchWaitsLongerForTheNext) {
  TieredQueue queue = Queue(2);
  for (uint64_t id = 1; id <= 12; ++id) queue.Push({.id = id, .tenant = kUrgent});
  queue.Push({.id = 21, .tenant = kUsual, .cost = 3});
  queue.Push({.id = 22, .tenant = kUsual, .cost = 3});
  // Two tokens, three of its own, then the six that those are worth and the two of the floor.
  EXPECT_THAT(TakeAll(queue), ElementsAre(1, 2, 21, 3, 4, 5, 6, 7, 8, 22, 9, 10, 11, 12));
}

TEST(TieredQueue, WhatIsLeftIsNotHeldAgainstIt) {
  TieredQueue queue = Queue(2);
  for (uint64_t id = 1; id <= 50; ++id) queue.Push({.id = id, .tenant = kPatient, .cost = 100});
  for (uint64_t id = 1; id <= 50; ++id) EXPECT_EQ(queue.Take(kSomeCost)->id, id);
  queue.Push({.id = 60, .tenant = kPatient});
  for (uint64_t id = 61; id <= 64; ++id) queue.Push({.id = id, .tenant = kUrgent});
  EXPECT_THAT(TakeAll(queue), ElementsAre(61, 62, 60, 63, 64));
}

TEST(TieredQueue, WhatIsTooLargeNowKeepsItsTurn) {
  TieredQueue queue = Queue(4);
  queue.Push({.id = 1, .tenant = kUrgent, .cost = 9});
  queue.Push({.id = 2, .tenant = kPatient, .cost = 1});
  EXPECT_EQ(queue.Take(8), std::nullopt);
  EXPECT_EQ(queue.size(), 2U);
  EXPECT_EQ(queue.Take(9)->id, 1U);
}

TEST(TieredQueue, AnotherTierCountsFromTheNextPush) {
  TieredQueue queue = Queue(100);
  queue.Push({.id = 1, .tenant = kPatient});
  queue.SetTier(kPatient, Tier::kHigh);
  queue.Push({.id = 2, .tenant = kPatient});
  queue.Push({.id = 3, .tenant = kUsual});
  EXPECT_TRUE(queue.Contains(1));
  EXPECT_THAT(TakeAll(queue), ElementsAre(2, 3, 1));
  queue.Push({.id = 4, .tenant = kPatient});
  EXPECT_TRUE(queue.Erase(4));
  EXPECT_FALSE(queue.Erase(4));
}

// A tenant's place within a tier is where its last turn there moved it, also after it was in another one meanwhile.
TEST(TieredQueue, ATierThatIsLeftAndComeBackToKnowsWhatWasTaken) {
  TieredQueue queue = Queue(100);
  for (uint64_t id = 11; id <= 13; ++id) queue.Push({.id = id, .tenant = kUsual, .age = static_cast<int64_t>(id)});
  constexpr TenantId kRests = 4;
  queue.Push({.id = 1, .tenant = kRests, .cost = 3});
  EXPECT_EQ(queue.Take(kSomeCost)->id, 11U);
  EXPECT_EQ(queue.Take(kSomeCost)->id, 1U);  // now it rests, three tokens ahead

  queue.SetTier(kRests, Tier::kHigh);
  queue.Push({.id = 2, .tenant = kRests});
  EXPECT_EQ(queue.Take(kSomeCost)->id, 2U) << "nothing of the other tier counts in this one";

  queue.SetTier(kRests, Tier::kNormal);
  queue.Push({.id = 3, .tenant = kRests});
  EXPECT_THAT(TakeAll(queue), ElementsAre(12, 13, 3)) << "and it gained nothing by going there and back";
}

// The bounds of tiered_queue.h, over random traffic in which the highest tier never runs empty.
TEST(TieredQueue, NobodyWaitsLongerThanItsBound) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t floor = random.Uniform(1, 20), cost_max = random.Uniform(1, 64);
    TieredQueue queue = Queue(floor);
    uint64_t ids = 0;
    std::array<int64_t, kTiers> waiting = {}, passed = {}, taken = {};
    const auto push = [&](TenantId tenant) {
      queue.Push(
          {.id = ++ids, .tenant = tenant, .age = static_cast<int64_t>(ids), .cost = random.Uniform(1, cost_max)});
      ++waiting[tenant - 1];
    };
    for (int i = 0; i < 4000; ++i) {
      while (waiting[0] < 3) push(kUrgent);
      if (waiting[1] == 0 && random.Uniform(0, 3) == 0) push(kUsual);
      if (waiting[2] == 0) push(kPatient);
      const auto entry = queue.Take(kSomeCost);
      ASSERT_TRUE(entry);
      const size_t tier = entry->tenant - 1;
      --waiting[tier];
      taken[tier] += entry->cost;
      passed[tier] = 0;
      for (size_t lower = tier + 1; lower < kTiers; ++lower) {
        if (waiting[lower] > 0) passed[lower] += entry->cost;
        ASSERT_LE(passed[lower], int64_t{floor} * (1 + cost_max) + cost_max);
      }
    }
    EXPECT_GT(taken[2], 0);
    // The lowest always waits: it has its floor of what the others take, within the last entry or two.
    EXPECT_LE(floor * (taken[2] - cost_max), taken[0] + taken[1]);
    EXPECT_GE(floor * (taken[2] + cost_max) + floor + cost_max, taken[0] + taken[1]);
  }
}

}  // namespace
}  // namespace ebb
