// That the emulation is a device: every thread runs, threads meet where they should, and a kernel that is wrong shows.

#include "engine/ops/gpu/emulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

namespace ebb::gpu::emulation {
namespace {

constexpr int32_t kThreads = 128;
constexpr int32_t kShared = 64;  // bytes that each launch asks for

template <typename Thread>
void RunKernel(Grid grid, int32_t warp, const Thread& kernel) {
  Run({.grid = grid, .threads = kThreads, .warp = warp, .shared = kShared, .thread = [&kernel] { kernel(); }});
}

TEST(Emulation, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<int> runs(2 * 3 * 4 * kThreads);
  RunKernel({2, 3, 4}, 32, [&] { ++runs[((at.block[2] * 3 + at.block[1]) * 2 + at.block[0]) * kThreads + at.thread]; });
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
}

TEST(Emulation, ABarrierLetsNobodyPassBeforeAllHaveCome) {
  for (const Order order : {Order::kAscending, Order::kDescending}) {
    SetOrder(order);
    int come = 0;
    std::vector<int> seen(kThreads);
    RunKernel({}, 64, [&] {
      ++come;
      Barrier(1);
      seen[at.thread] = come;
    });
    EXPECT_EQ(seen, std::vector<int>(kThreads, kThreads));
  }
  SetOrder(Order::kAscending);
}

TEST(Emulation, AnExchangeIsWithTheThreadOfTheWarpThatDiffersByTheMask) {
  for (const int32_t mask : {1, 2, 4, 8, 16}) {
    std::vector<int32_t> received(kThreads);
    RunKernel({}, 32, [&] {
      for (int32_t round = 0; round < 3; ++round) {
        const int32_t sent = 1000 * round + at.thread;
        Exchange(&sent, &received[at.thread], sizeof(sent), mask, 1);
        ASSERT_EQ(received[at.thread], 1000 * round + (at.thread ^ mask));
      }
    });
  }
}

TEST(Emulation, WhatIsPublishedIsTheTeamsUntilItMeetsAgain) {
  for (const int32_t warp : {32, 64}) {
    for (const Order order : {Order::kAscending, Order::kDescending}) {
      SetOrder(order);
      RunKernel({}, warp, [&] {
        for (uint32_t round = 0; round < 4; ++round) {
          const uint32_t words[2] = {round, 1000 * round + static_cast<uint32_t>(at.thread)};
          const int32_t published = Publish(words, sizeof(words), 1);
          for (int32_t lane = 0; lane < 32; ++lane) {
            ASSERT_EQ(Published(published, lane)[0], round);
            ASSERT_EQ(Published(published, lane)[1], 1000 * round + static_cast<uint32_t>(at.thread / 32 * 32 + lane));
          }
        }
      });
    }
  }
  SetOrder(Order::kAscending);
}

TEST(Emulation, ACopyIsMadeWhenItsGroupIsWaitedForAndNoSooner) {
  alignas(16) const int32_t from[3][4] = {{1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}};
  RunKernel({}, 32, [&] {
    alignas(16) int32_t to[3][4] = {};
    for (int32_t group = 0; group < 3; ++group) {
      CopyLater(to[group], from[group]);
      CloseCopies();
    }
    EXPECT_EQ(to[0][3], 0);
    CopiesArrived(2);
    EXPECT_EQ(to[0][3], 1);
    EXPECT_EQ(to[1][3], 0);
    CopiesArrived(1);
    EXPECT_EQ(to[1][3], 2);
    EXPECT_EQ(to[2][3], 0);
    CopiesArrived(0);
    EXPECT_EQ(to[2][3], 3);
    CopyLater(to[0], from[1]);  // of a group that nobody closed
    CopiesArrived(1);
    EXPECT_EQ(to[0][3], 1);
    CopiesArrived(0);
    EXPECT_EQ(to[0][3], 2);
  });
}

TEST(Emulation, ACopyIsMadeAtOnceInTheOppositeOrder) {
  SetOrder(Order::kDescending);
  alignas(16) const int32_t from[4] = {1, 1, 1, 1};
  RunKernel({}, 32, [&] {
    alignas(16) int32_t to[4] = {};
    CopyLater(to, from);
    EXPECT_EQ(to[3], 1);
    CopiesArrived(0);
  });
  SetOrder(Order::kAscending);
}

TEST(Emulation, SharedMemoryThatALaunchAsksForIsItsBlocksAndHoldsNothing) {
  RunKernel({2}, 32, [&] {
    auto* const shared = static_cast<uint32_t*>(LaunchShared());
    if (at.thread < 16) {
      EXPECT_EQ(shared[at.thread], 0xFFFFFFFFU);
      shared[at.thread] = static_cast<uint32_t>(at.thread);
    }
    Barrier(1);
    EXPECT_EQ(shared[15], 15U);
  });
}

// Without its second barrier a thread may write before its neighbour has read: seen when threads take turns backwards.
TEST(Emulation, AForgottenBarrierGivesAnotherResultBackwards) {
  const auto run = [](Order order) {
    SetOrder(order);
    std::vector<int32_t> shared(kThreads);
    std::iota(shared.begin(), shared.end(), 0);
    RunKernel({}, 32, [&] {
      const int32_t before = at.thread > 0 ? shared[at.thread - 1] : 0;
      shared[at.thread] += before;
    });
    SetOrder(Order::kAscending);
    return shared;
  };
  EXPECT_NE(run(Order::kAscending), run(Order::kDescending));
}

// Launched, then run again: what a kernel reads before it waits for the one before it differs, and what it reads behind
// that does not.
class EarlyKernels {
 public:
  explicit EarlyKernels(Order order) { SetOrder(order); }
  ~EarlyKernels() { SetOrder(Order::kAscending); }
  EarlyKernels(const EarlyKernels&) = delete;
  EarlyKernels& operator=(const EarlyKernels&) = delete;

  void Launch(std::function<void()> thread, bool begins_early = true) {
    Enqueue(&stream_, Kernel{.grid = {kBlocks},
                             .threads = kThreads,
                             .warp = 32,
                             .shared = kThreads * 4,
                             .begins_early = begins_early,
                             .thread = std::move(thread)});
  }
  // What the kernels that `launch` launches leave in `left`, of zeros: one after another, and again.
  std::pair<std::vector<int32_t>, std::vector<int32_t>> Twice(const std::function<void()>& launch) {
    left.assign(kNumbers, 0);
    launch();
    const std::vector<int32_t> launched = std::exchange(left, std::vector<int32_t>(kNumbers));
    Record(launch);
    RunAgain();
    return {launched, left};
  }
  void Record(const std::function<void()>& launch) {
    stream_.records = true;
    launch();
    stream_.records = false;
  }
  void RunAgain() const { Run(stream_.recorded); }
  static size_t Own() { return static_cast<size_t>(at.block[0] * kThreads + at.thread); }

  static constexpr int32_t kBlocks = 3;
  static constexpr size_t kNumbers = kBlocks * kThreads;
  std::vector<int32_t> left = {};

 private:
  Stream stream_ = {};
};
constexpr Order kOrders[] = {Order::kAscending, Order::kDescending};

TEST(Emulation, WhatIsReadBeforeTheWaitIsFromBeforeTheKernelBefore) {
  for (const Order order : kOrders) {
    EarlyKernels kernels(order);
    std::vector<int32_t> written(EarlyKernels::kNumbers);
    const auto [launched, again] = kernels.Twice([&] {
      kernels.Launch([&] { written[EarlyKernels::Own()] = 0; }, false);
      kernels.Launch([&] { written[EarlyKernels::Own()] = 7; }, false);
      kernels.Launch([&] {
        const int32_t too_early = written[EarlyKernels::Own()];
        WaitForEarlier(1);
        kernels.left[EarlyKernels::Own()] = too_early;
      });
    });
    EXPECT_EQ(launched, std::vector<int32_t>(EarlyKernels::kNumbers, 7));
    std::vector<int32_t> expected = launched;
    const size_t first = order == Order::kAscending ? 0 : EarlyKernels::kNumbers - kThreads;
    std::fill_n(expected.begin() + static_cast<int64_t>(first), kThreads, 0);  // of the block that begins ahead
    EXPECT_EQ(again, expected);
  }
}

TEST(Emulation, ACopyBeforeTheWaitIsMadeBeforeTheKernelBefore) {
  for (const Order order : kOrders) {
    EarlyKernels kernels(order);
    alignas(16) std::array<int32_t, 4> written = {};
    const auto [launched, again] = kernels.Twice([&] {
      kernels.Launch([&] { written.fill(0); }, false);
      kernels.Launch([&] { written.fill(7); }, false);
      kernels.Launch([&] {
        alignas(16) std::array<int32_t, 4> to = {};
        CopyLater(to.data(), written.data());
        WaitForEarlier(1);
        CopiesArrived(0);
        kernels.left[EarlyKernels::Own()] = to[0];
      });
    });
    EXPECT_EQ(launched, std::vector<int32_t>(EarlyKernels::kNumbers, 7));
    EXPECT_NE(again, launched);
  }
}

// Two blocks wait at a time, each with what it keeps in shared memory: of the kernel that runs, and of the one behind.
TEST(Emulation, KernelsThatReadBehindTheirWaitGiveWhatTheyGaveWhenLaunched) {
  for (const Order order : kOrders) {
    EarlyKernels kernels(order);
    std::vector<int32_t> from(EarlyKernels::kNumbers);
    const auto add = [&](const std::vector<int32_t>& x, std::vector<int32_t>& y, int32_t weight) {
      kernels.Launch([&x, &y, weight] {
        auto* const shared = static_cast<int32_t*>(LaunchShared());
        shared[at.thread] = weight + at.thread;
        Barrier(1);
        const int32_t neighbours = shared[(at.thread + 1) % kThreads];
        WaitForEarlier(2);
        LetLaterBegin();
        y[EarlyKernels::Own()] =
            3 * x[EarlyKernels::kNumbers - 1 - EarlyKernels::Own()] + neighbours + shared[at.thread];
      });
    };
    const auto [launched, again] = kernels.Twice([&] {
      kernels.Launch([&] { from[EarlyKernels::Own()] = static_cast<int32_t>(EarlyKernels::Own()); }, false);
      for (const int32_t weight : {1, 10, 100}) {
        add(from, kernels.left, weight);
        add(kernels.left, from, 2 * weight);
      }
      add(from, kernels.left, 1000);
    });
    EXPECT_EQ(again, launched);
    EXPECT_EQ(std::ranges::count(launched, 0), 0);
  }
}

TEST(EmulationDeathTest, AnEarlyKernelThatNeverWaitsEndsTheProgram) {
  EarlyKernels kernels(Order::kAscending);
  EXPECT_DEATH(kernels.Launch([] {}), "waits for the kernel before it in none of its blocks");
}

TEST(EmulationDeathTest, AnEarlyKernelThatLetsOthersBeginBeforeItWaitedEndsTheProgram) {
  EarlyKernels kernels(Order::kAscending);
  kernels.Record([&] {
    kernels.Launch([] {}, false);
    kernels.Launch([] {
      LetLaterBegin();
      WaitForEarlier(1);
    });
  });
  EXPECT_DEATH(kernels.RunAgain(), "lets later kernels begin before it has waited");
}

TEST(EmulationDeathTest, ThreadsThatWaitAtDifferentLinesEndTheProgram) {
  EXPECT_DEATH(RunKernel({}, 32, [] { Barrier(at.thread < 64 ? 7 : 8); }), "wait for each other at lines 7 and 8");
}

TEST(EmulationDeathTest, ThreadsThatWaitForOnesThatEndedEndTheProgram) {
  const auto leave_early = [] {
    if (at.thread != 5) Barrier(9);
  };
  EXPECT_DEATH(RunKernel({}, 32, leave_early), "waits at line 9 for threads that never come");
  const auto diverge = [] {
    int32_t value = 0;
    if (at.thread % 2 == 0) Exchange(&value, &value, sizeof(value), 1, 11);
  };
  EXPECT_DEATH(RunKernel({}, 32, diverge), "waits at line 11 for threads that never come");
}

}  // namespace
}  // namespace ebb::gpu::emulation
