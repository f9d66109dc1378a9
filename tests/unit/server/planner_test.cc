#include "server/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;

TEST(Planner, WorksOnTasksInOrderAndFinishesThemBeforeItGoes) {
  std::vector<int> done;
  {
    Planner planner;
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(planner.Offer([&done, i] { done.push_back(i); }));
    }
  }
  EXPECT_THAT(done, ElementsAre(0, 1, 2));
}

TEST(Planner, RefusesWhatItCannotHoldAndGoesOnAfterwards) {
  std::atomic<int> done = 0;
  int taken = 1;
  {
    absl::Notification started, go;
    Planner planner;
    ASSERT_TRUE(planner.Offer([&] {
      started.Notify();
      go.WaitForNotification();
      ++done;
    }));
    started.WaitForNotification();
    Planner::Task task = [&] { ++done; };
    while (planner.Offer(std::move(task))) {
      ++taken;
      ASSERT_LT(taken, 100) << "a queue without an end";
      task = [&] { ++done; };
    }
    ASSERT_TRUE(task != nullptr) << "what is refused stays with the caller";
    EXPECT_GT(taken, 1);
    go.Notify();
  }
  EXPECT_EQ(done, taken);
  EXPECT_THAT(Planner::QueueFull(), IsRefusal(absl::StatusCode::kUnavailable, "QUEUE_FULL", ""));
  EXPECT_TRUE(GetRefusal(Planner::QueueFull()).retry.has_value());
}

}  // namespace
}  // namespace ebb
