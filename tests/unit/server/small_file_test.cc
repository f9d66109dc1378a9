#include "server/small_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "server/finished_within.h"
#include "tests/support/eventually.h"
#include "tests/support/hung_file.h"
#include "tests/support/temporary_folder.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kShort = absl::Milliseconds(20);  // to wait in vain

class SmallFile : public testing::Test {
 protected:
  std::string Written(const std::string& text) const {
    std::ofstream(path_) << text;
    return path_;
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/file";
};

TEST_F(SmallFile, IsReadWholeOrByOneMore) {
  EXPECT_EQ(*ReadSmallFile(Written("12345"), 5), "12345");
  EXPECT_EQ(*ReadSmallFile(Written("1234567"), 5), "123456");
  EXPECT_EQ(*ReadSmallFile(Written(""), 5), "");
}

TEST_F(SmallFile, IsAFile) {
  const auto why = [](const std::string& path) { return std::string(ReadSmallFile(path, 5).status().message()); };
  EXPECT_EQ(why(path_), "No such file or directory");
  EXPECT_EQ(why(folder_.path()), "it is no regular file");
  EXPECT_EQ(why("/dev/zero"), "it is no regular file");
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(why(path_), "it is no regular file") << "nobody writes to it, and nobody waits for that";
}

TEST_F(SmallFile, ThatDoesNotAnswerIsWaitedForOnce) {
  HungFile hung(Written("12345"));
  if (!hung.hangs()) GTEST_SKIP() << HungFile::kSkipped;
  EXPECT_THAT(std::string(ReadSmallFile(path_, 5, kShort).status().message()),
              HasSubstr("nothing has come of it for 20ms"));
  EXPECT_FALSE(ReadSmallFile(path_, 5, absl::InfiniteDuration()).ok()) << "at once";
  hung.Answer();
  EXPECT_TRUE(Eventually([&] { return ReadSmallFile(path_, 5).value_or("") == "12345"; }));
}

TEST(FinishedWithin, LeavesToItselfWhatTakesTooLong) {
  const auto gate = std::make_shared<absl::Notification>();
  const auto ends = [gate] { gate->WaitForNotification(); };
  EXPECT_TRUE(FinishedWithin("a", absl::InfiniteDuration(), [] {}));
  EXPECT_FALSE(FinishedWithin("a", kShort, ends));
  bool ran = false;
  EXPECT_FALSE(FinishedWithin("a", absl::InfiniteDuration(), [&] { ran = true; })) << "there is one of that name";
  EXPECT_FALSE(ran);
  EXPECT_TRUE(FinishedWithin("b", absl::InfiniteDuration(), [&] { ran = true; })) << "others are done";
  EXPECT_TRUE(ran);
  gate->Notify();
  EXPECT_TRUE(Eventually([] { return FinishedWithin("a", absl::InfiniteDuration(), [] {}); }));
}

}  // namespace
}  // namespace ebb
