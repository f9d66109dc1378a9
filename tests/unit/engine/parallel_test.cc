#include "engine/parallel.h"

#include <atomic>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace ebb {
namespace {

TEST(Parallel, RunsEveryItemExactlyOnce) {
  for (const int32_t threads : {1, 2, 3, 8}) {
    Parallel parallel(threads);
    EXPECT_EQ(parallel.threads(), threads);
    for (const int64_t items : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<int> runs(static_cast<size_t>(items));  // plain memory: each item writes its own
      parallel.For(items, [&](int64_t item, int32_t thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, threads);
        ++runs[static_cast<size_t>(item)];
      });
      EXPECT_EQ(runs, std::vector<int>(static_cast<size_t>(items), 1)) << threads << " threads";
    }
  }
}

TEST(Parallel, NamesEachThreadsScratchOnce) {
  Parallel parallel(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<int> shared = 0;
  for (int round = 0; round < 200; ++round) {
    parallel.For(50, [&](int64_t /*item*/, int32_t thread) {
      if (inside[static_cast<size_t>(thread)].fetch_add(1) != 0) ++shared;
      inside[static_cast<size_t>(thread)].fetch_sub(1);
    });
  }
  EXPECT_EQ(shared, 0) << "two calls had the same scratch at the same time";
}

// Back to back, so that threads are caught at every stage between working, looking and sleeping; what one call wrote
// the next one reads on other threads.
TEST(Parallel, SeesWhatTheCallBeforeWrote) {
  Parallel parallel(3);
  std::vector<int64_t> values(40);
  std::vector<int64_t> next(40);
  for (int round = 0; round < 20000; ++round) {
    const int64_t items = 1 + round % 40;
    parallel.For(items, [&](int64_t item, int32_t /*thread*/) {
      next[static_cast<size_t>(item)] = values[static_cast<size_t>((item + 1) % items)] + 1;
    });
    std::swap(values, next);
    next = values;
  }
  // The same by one thread.
  std::vector<int64_t> expected(40);
  for (int round = 0; round < 20000; ++round) {
    const size_t items = 1 + static_cast<size_t>(round) % 40;
    std::vector<int64_t> after = expected;
    for (size_t item = 0; item < items; ++item) after[item] = expected[(item + 1) % items] + 1;
    expected = after;
  }
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(values[i], expected[i]) << i;
}

// Whichever item is held, by whichever thread, the others get done: they are claimed from whoever has not begun them.
TEST(Parallel, OthersDoWhatAHeldThreadHasNotBegun) {
  constexpr int64_t kItems = 12;
  for (const int32_t threads : {2, 3, 5}) {
    Parallel parallel(threads);
    for (int64_t held = 0; held < kItems; ++held) {
      std::atomic<int64_t> left = kItems - 1;
      parallel.For(kItems, [&](int64_t item, int32_t /*thread*/) {
        if (item != held) {
          --left;
        } else {
          while (left > 0) {  // ends: every other item does
          }
        }
      });
      EXPECT_EQ(left, 0) << held << " of " << threads << " threads";
    }
  }
}

// Long enough for threads to lose patience; what is expected does not depend on it.
void Idle() {
  std::atomic<int> turns = 0;
  while (++turns < 200000) {
  }
}

TEST(Parallel, WakesWhoSleepsBetweenCallsAndACallerThatSleepsInOne) {
  Parallel parallel(4);
  for (int round = 0; round < 20; ++round) {
    Idle();
    std::atomic<int> here = 0;
    std::atomic<int> runs = 0;
    parallel.For(4, [&](int64_t /*item*/, int32_t thread) {
      ++here;
      while (here < 4) {  // ends: each thread comes with an item of its own
      }
      if (thread == 1) Idle();
      ++runs;
    });
    EXPECT_EQ(runs, 4);
  }
}

TEST(Parallel, EndsWhetherOrNotItWorked) {
  for (int round = 0; round < 100; ++round) {
    Parallel parallel(4);
    if (round % 2 == 0) {
      std::atomic<int> runs = 0;
      parallel.For(5, [&](int64_t /*item*/, int32_t /*thread*/) { ++runs; });
      EXPECT_EQ(runs, 5);
    }
  }
}

}  // namespace
}  // namespace ebb
