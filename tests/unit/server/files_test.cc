#include "server/files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

OpenFile OpenFolder(const std::string& path) { return OpenFile(open(path.c_str(), O_RDONLY | O_DIRECTORY)); }

TEST(ReplaceFileTest, TellsOfEachPieceBeforeTheNext) {
  const TemporaryFolder folder;
  const size_t piece = size_t{8} << 20;
  std::string bytes(11 * piece + 5, 'x');  // more than may be on its way to the disk
  bytes.back() = 'y';
  for (const bool sync : {false, true}) {
    SCOPED_TRACE(sync);
    std::vector<size_t> there;
    const auto wrote = [&] { there.push_back(fs::file_size(folder.path() + "/" + NameBeside("a"))); };
    ASSERT_TRUE(ReplaceFile(OpenFolder(folder.path()), "a", bytes, sync, wrote).ok());
    ASSERT_EQ(there.size(), 12U);
    for (size_t i = 0; i < 11; ++i) EXPECT_EQ(there[i], (i + 1) * piece);
    EXPECT_EQ(there.back(), bytes.size());
    EXPECT_EQ(*ReadFile(OpenFolder(folder.path()), "a"), bytes);
    std::vector<std::string> names;
    EXPECT_EQ(ListNames(OpenFolder(folder.path()), names), 0);
    EXPECT_THAT(names, ElementsAre(".", "..", "a"));
  }
}

TEST(StoreFailedTest, KnowsWhatIsAboutOneName) {
  EXPECT_TRUE(IsOfOneName(StoreFailed("opening", "a", EEXIST)));
  EXPECT_TRUE(IsOfOneName(StoreFailed("opening", "a", ENOENT)));
  EXPECT_FALSE(IsOfOneName(StoreFailed("opening", "a", EIO)));
  EXPECT_FALSE(IsOfOneName(StoreFailed("opening", "a", ENOSPC)));
  EXPECT_FALSE(IsOfOneName(absl::OkStatus()));
}

}  // namespace
}  // namespace ebb
