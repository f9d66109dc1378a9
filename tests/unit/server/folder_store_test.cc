// What the store in a folder says of the disk to whoever asks whether it takes what is written.

#include "server/folder_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "policies/status.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_folder.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class FolderStoreTest : public testing::Test {
 protected:
  absl::Status BeginOne(SessionId session, const std::string& id, const std::string& snapshot = "snapshot") {
    return store_.Begin(session, {"default", id}, snapshot);
  }

  static constexpr absl::Duration kSilence = absl::Seconds(2);

  const TemporaryFolder folder_;
  const std::unique_ptr<SessionFiles> files_ = *SessionFiles::Open(folder_.path());
  const std::string journals_ = folder_.path() + "/journals";
  Metrics metrics_ = Metrics({});
  FolderHealth health_{journals_, kSilence};
  FolderStore store_{*files_, Sync::kNone, health_, metrics_.journal()};
};

TEST_F(FolderStoreTest, AJournalThatSomebodyTookAwayOrPutThereIsNoFailureOfTheDisk) {
  constexpr SessionId kMany = 300;  // more than are open at once, so that the first are opened again
  for (SessionId session = 1; session <= kMany; ++session) {
    ASSERT_TRUE(BeginOne(session, "s" + std::to_string(session)).ok());
  }
  std::filesystem::remove(journals_ + "/default/s1.1.journal");
  store_.Append(1, "record", true);
  const auto failures = store_.Write();
  ASSERT_THAT(failures, SizeIs(1));
  EXPECT_THAT(std::string(failures[0].why.message()), HasSubstr("No such file"));
  EXPECT_TRUE(health_.Check().ok()) << health_.Check();
  std::ofstream(journals_ + "/default/taken.1.journal") << "somebody else's";
  EXPECT_THAT(std::string(BeginOne(kMany + 1, "taken").message()), HasSubstr("File exists"));
  EXPECT_TRUE(health_.Check().ok()) << health_.Check();
}

// A pipe takes what is read from it, and no more.
TEST_F(FolderStoreTest, ADiskThatIsSlowWithALargeSnapshotAnswersUntilItStops) {
  ASSERT_TRUE(BeginOne(1, "a").ok());
  const std::string pipe = journals_ + "/default/.b.1.snapshot.new";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread journal([&] { EXPECT_TRUE(BeginOne(2, "b", std::string(size_t{96} << 20, 'x')).ok()); });
  std::ifstream reader(pipe, std::ios::binary);
  std::string some(size_t{8} << 20, '\0');
  const absl::Time begun = absl::Now();
  for (int i = 0; i < 10; ++i) {
    reader.read(some.data(), static_cast<std::streamsize>(some.size()));
    absl::SleepFor(kSilence / 8);
    EXPECT_TRUE(health_.Check().ok()) << health_.Check();
  }
  EXPECT_GT(absl::Now() - begun, kSilence);
  EXPECT_TRUE(Eventually([&] { return !health_.Check().ok(); }));
  EXPECT_THAT(std::string(health_.Check().message()), HasSubstr("the disk has not answered for "));
  while (reader.read(some.data(), static_cast<std::streamsize>(some.size()))) continue;
  journal.join();
  EXPECT_TRUE(health_.Check().ok()) << health_.Check();
}

}  // namespace
}  // namespace ebb
