#include "policies/trigger.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "policies/hash_random.h"

namespace ebb {
namespace {

constexpr int32_t kBudgetMax = std::numeric_limits<int32_t>::max();

// The paper's setting: 4 sinks and 2044 recent tokens.
constexpr Trigger kWorked = {.budget = 2048, .overflow = 32, .slack = 16, .max_drop = 32};

TEST(TokensToDrop, FollowsTheEquation) {
  struct Case {
    std::string name;
    Trigger trigger;
    int32_t length;
    int32_t left;
  };
  const std::vector<Case> cases = {
      {"the worked example: 2090 becomes 2058", kWorked, 2090, 2058},
      {"and then 2080 becomes 2048", kWorked, 2080, 2048},
      {"one below the overflow stays", kWorked, 2079, 2079},
      {"the slack caps what is left", kWorked, 2200, 2064},
      {"with max_drop 8 and slack 16 it goes down by 16", {2048, 32, 16, 8}, 2080, 2064},
      {"without slack by all 32", {2048, 32, 0, 8}, 2080, 2048},
      {"with slack 31 and max_drop 1 by one at a time", {2048, 32, 31, 1}, 2080, 2079},
      {"by default every token above the budget leaves", {.budget = 8}, 9, 8},
      {"a lane at its budget stays", {.budget = 8}, 8, 8},
      {"a lane below its budget stays", {.budget = 8}, 3, 3},
      {"an empty lane stays", {.budget = 8}, 0, 0},
      {"a block above the budget leaves at once", {.budget = 8}, 136, 8},
      {"without max_drop slack has no effect", {.budget = 8, .overflow = 4, .slack = 3}, 12, 8},
      {"max_drop without slack has no effect", {.budget = 8, .overflow = 4, .max_drop = 1}, 12, 8},
      {"max_drop limits the drop while slack allows", {.budget = 8, .overflow = 4, .slack = 4, .max_drop = 1}, 12, 11},
      {"pruning stops at the budget", {.budget = 8, .overflow = 4, .slack = 4, .max_drop = 9}, 12, 8},
      {"with max_drop 1 one token leaves at a time", {.budget = 8, .slack = 9, .max_drop = 1}, 9, 8},
      {"the largest numbers do not overflow", {kBudgetMax, kBudgetMax, kBudgetMax, kBudgetMax}, kBudgetMax, kBudgetMax},
      {"the largest length does not overflow", {1, kBudgetMax - 1, kBudgetMax, 1}, kBudgetMax, kBudgetMax - 1},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(TokensToDrop(c.trigger, c.length), c.length - c.left);
  }
}

TEST(Capacity, AddsWhatTheTriggerMayLeaveAndTheBlock) {
  struct Case {
    std::string name;
    Trigger trigger;
    int32_t block;
    int64_t slots;
  };
  const std::vector<Case> cases = {
      {"one spare slot in decode", {.budget = 8}, 1, 9},
      {"a whole block in prefill", {.budget = 8}, 128, 136},
      {"the overflow gathers before the block", kWorked, 1, 2048 + 31 + 1},
      {"slack counts where it exceeds the overflow", {.budget = 8, .overflow = 2, .slack = 5, .max_drop = 1}, 4, 17},
      {"slack without max_drop costs nothing", {.budget = 8, .overflow = 2, .slack = 5}, 4, 13},
      {"the largest numbers do not overflow",
       {kBudgetMax, kBudgetMax, kBudgetMax, kBudgetMax},
       kBudgetMax,
       int64_t{3} * kBudgetMax},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(Capacity(c.trigger, c.block), c.slots);
  }
}

// Every trigger of a small grid, one token per step.
std::vector<Trigger> Grid() {
  std::vector<Trigger> grid;
  for (const int32_t overflow : {1, 2, 3, 8, 31, 32}) {
    for (const int32_t slack : {0, 1, 2, 7, 16, 31, 40}) {
      for (const int32_t max_drop : {0, 1, 2, 8, 16, 32, 50}) {
        grid.push_back({.budget = 64, .overflow = overflow, .slack = slack, .max_drop = max_drop});
      }
    }
  }
  return grid;
}

testing::Message Describe(const Trigger& t) {
  return testing::Message() << "overflow " << t.overflow << ", slack " << t.slack << ", max_drop " << t.max_drop;
}

// LAZY-2: in decode the lane drops D tokens every D steps, between C + R and C + R - D.
TEST(TokensToDrop, SettlesIntoTheSteadyStateOfTheFormula) {
  for (const Trigger& trigger : Grid()) {
    SCOPED_TRACE(Describe(trigger));
    const int32_t overflow = trigger.overflow;
    const int32_t dropped =
        trigger.max_drop == 0 ? overflow : std::max(std::min(trigger.max_drop, overflow), overflow - trigger.slack);
    int32_t length = 0;
    int32_t steps_since = 0;
    int32_t prunings = 0;
    for (int step = 0; step < 1000; ++step) {
      ++length;
      ++steps_since;
      const int32_t drop = TokensToDrop(trigger, length);
      if (drop == 0) continue;
      EXPECT_EQ(length, trigger.budget + overflow);
      EXPECT_EQ(drop, dropped);
      if (prunings > 0) {
        EXPECT_EQ(steps_since, dropped);
      }
      length -= drop;
      steps_since = 0;
      ++prunings;
    }
    EXPECT_GT(prunings, 10);
  }
}

TEST(TokensToDrop, NeverLeavesLessThanTheBudgetNorMoreThanOverflowAndSlackAllow) {
  for (const Trigger& trigger : Grid()) {
    SCOPED_TRACE(Describe(trigger));
    for (int32_t length = 0; length < 300; ++length) {
      const int32_t left = length - TokensToDrop(trigger, length);
      EXPECT_LE(left, length);
      EXPECT_GE(left, std::min(length, trigger.budget));
      EXPECT_LE(left, Capacity(trigger, 0));
      if (left < length) {
        EXPECT_LE(left, trigger.budget + (trigger.max_drop > 0 ? trigger.slack : 0));
      }
    }
  }
}

// Walks every length that any sequence of single tokens, drafts and whole blocks can lead to.
TEST(Capacity, IsNeverExceededAndReservesNothingInVain) {
  constexpr int32_t kBlock = 48;
  for (const Trigger& trigger : Grid()) {
    SCOPED_TRACE(Describe(trigger));
    const int64_t capacity = Capacity(trigger, kBlock);
    std::vector<bool> seen(static_cast<size_t>(capacity) + 1, false);
    std::vector<int32_t> open = {0};
    int32_t peak = 0;
    while (!open.empty()) {  // ends: each length is opened once
      const int32_t length = open.back();
      open.pop_back();
      for (const int32_t tokens : {1, 5, kBlock}) {
        const int32_t grown = length + tokens;
        ASSERT_LE(grown, capacity);
        peak = std::max(peak, grown);
        const int32_t left = grown - TokensToDrop(trigger, grown);
        if (!seen[left]) open.push_back(left);
        seen[left] = true;
      }
    }
    // Where one pruning removes a whole block, slack may stay out of reach.
    if (trigger.max_drop < kBlock) {
      EXPECT_EQ(peak, capacity);
    }
  }
}

// The same in the order in which a conversation might come: long prompts, then decode, then the next turn.
TEST(Capacity, HoldsOverRandomConversations) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const Trigger trigger = {.budget = random.Uniform(1, 500),
                             .overflow = random.Uniform(1, 64),
                             .slack = random.Uniform(0, 64),
                             .max_drop = random.Uniform(0, 64)};
    const int32_t block_max = random.Uniform(1, 128);
    int32_t length = 0;
    for (int step = 0; step < 2000; ++step) {
      const int32_t block = random.Uniform(0, 9) == 0 ? random.Uniform(1, block_max) : 1;
      length += block;
      ASSERT_LE(length, Capacity(trigger, block));
      length -= TokensToDrop(trigger, length);
    }
  }
}

}  // namespace
}  // namespace ebb
