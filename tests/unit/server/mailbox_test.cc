#include "server/mailbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kNow = absl::ZeroDuration();

TEST(Mailbox, KeepsOrderAndGivesAllAtOnce) {
  Mailbox<int> mailbox(8);
  mailbox.Offer(1);
  mailbox.Post(2);
  mailbox.Offer(3);
  std::vector<int> items;
  EXPECT_TRUE(mailbox.Take(items, kNow));
  EXPECT_THAT(items, ElementsAre(1, 2, 3));
  EXPECT_TRUE(mailbox.Take(items, kNow));
  EXPECT_THAT(items, IsEmpty());
}

TEST(Mailbox, RefusesRequestsWhenFullButTakesNews) {
  Mailbox<std::unique_ptr<int>> mailbox(1);
  EXPECT_TRUE(mailbox.Offer(std::make_unique<int>(1)));
  auto refused = std::make_unique<int>(2);
  EXPECT_FALSE(mailbox.Offer(std::move(refused)));
  EXPECT_NE(refused, nullptr) << "a refused item stays with its owner";
  mailbox.Post(std::make_unique<int>(3));
  std::vector<std::unique_ptr<int>> items;
  mailbox.Take(items, kNow);
  EXPECT_EQ(items.size(), 2U);
}

TEST(Mailbox, GivesWhatTakesLongOneAtATimeAndAfterTheRest) {
  Mailbox<int> mailbox(3);
  mailbox.Offer(1, Effort::kLong);
  mailbox.Offer(2, Effort::kLong);
  EXPECT_TRUE(mailbox.Offer(4, Effort::kLong));
  EXPECT_FALSE(mailbox.Offer(6, Effort::kLong));
  EXPECT_TRUE(mailbox.Offer(3)) << "a crowd of what takes long closes the door to nothing else";
  std::vector<int> items;
  EXPECT_TRUE(mailbox.Take(items, kNow));
  EXPECT_THAT(items, ElementsAre(3, 1));
  EXPECT_TRUE(mailbox.Offer(5));
  EXPECT_TRUE(mailbox.Take(items, kNow));
  EXPECT_THAT(items, ElementsAre(5, 2));
  mailbox.Close();
  EXPECT_TRUE(mailbox.Take(items, absl::InfiniteDuration()));
  EXPECT_THAT(items, ElementsAre(4));
  EXPECT_FALSE(mailbox.Take(items, absl::InfiniteDuration()));
}

TEST(Mailbox, KeepsWhatTakesLongFromAReaderThatHasSuchWorkInHand) {
  constexpr bool kTakesLong = false;
  Mailbox<int> mailbox(3);
  mailbox.Offer(1, Effort::kLong);
  mailbox.Offer(2);
  std::vector<int> items;
  EXPECT_TRUE(mailbox.Take(items, kNow, kTakesLong));
  EXPECT_THAT(items, ElementsAre(2));
  mailbox.Close();
  EXPECT_TRUE(mailbox.Take(items, kNow, kTakesLong)) << "it is not empty";
  EXPECT_TRUE(mailbox.Take(items, kNow));
  EXPECT_THAT(items, ElementsAre(1));
  EXPECT_FALSE(mailbox.Take(items, kNow));
}

TEST(Mailbox, GivesWhatIsInBeforeItSaysClosed) {
  Mailbox<int> mailbox(8);
  mailbox.Offer(1);
  mailbox.Close();
  EXPECT_FALSE(mailbox.Offer(2));
  std::vector<int> items;
  EXPECT_TRUE(mailbox.Take(items, absl::InfiniteDuration()));
  EXPECT_THAT(items, ElementsAre(1));
  EXPECT_FALSE(mailbox.Take(items, absl::InfiniteDuration()));
}

TEST(Mailbox, LosesNothingAmongManyWriters) {
  constexpr int kWriters = 4, kItems = 1000;
  Mailbox<int> mailbox(1 << 20);
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&] {
      for (int i = 0; i < kItems; ++i) mailbox.Post(i);
    });
  }
  std::vector<int> items;
  size_t taken = 0;
  while (taken < kWriters * kItems && mailbox.Take(items, absl::InfiniteDuration())) taken += items.size();
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(taken, static_cast<size_t>(kWriters * kItems));
}

}  // namespace
}  // namespace ebb
