#include "engine/model/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string MakeFile(const std::string& name, const std::string& content) {
  const std::string path = testing::TempDir() + "ebb_mapped_file_test_" + std::to_string(getpid()) + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

TEST(MappedFile, HoldsTheBytesAlsoAfterItWasMovedAndTheFileRemoved) {
  const std::string path = MakeFile("moved", "abc");
  MappedFile first = MappedFile::Open(path).value();
  const std::byte* const address = first.bytes().data();
  MappedFile second = std::move(first);
  std::filesystem::remove(path);
  EXPECT_THAT(second.bytes(), SizeIs(3));
  EXPECT_EQ(second.bytes().data(), address);
  EXPECT_EQ(second.bytes()[2], std::byte{'c'});
  second = MappedFile();
  EXPECT_THAT(second.bytes(), IsEmpty());
}

TEST(MappedFile, MapsAnEmptyFileToNoBytes) {
  const std::string path = MakeFile("empty", "");
  EXPECT_THAT(MappedFile::Open(path).value().bytes(), IsEmpty());
  std::filesystem::remove(path);
}

TEST(MappedFile, SaysWhichFileIsMissingAndWhy) {
  const auto missing = MappedFile::Open("no/such/file.gguf");
  EXPECT_THAT(missing, IsRefusal(absl::StatusCode::kNotFound, "FILE_UNREADABLE", ""));
  EXPECT_EQ(missing.status().message(), "no/such/file.gguf: open failed: No such file or directory");
}

TEST(MappedFile, RefusesWhatIsNoFile) {
  const auto folder = MappedFile::Open(testing::TempDir());
  EXPECT_THAT(folder, IsRefusal(absl::StatusCode::kFailedPrecondition, "FILE_UNREADABLE", ""));
  EXPECT_THAT(std::string(folder.status().message()), HasSubstr("expected a regular file"));
  EXPECT_THAT(MappedFile::Open("/dev/null"), IsRefusal(absl::StatusCode::kFailedPrecondition, "FILE_UNREADABLE", ""));
}

}  // namespace
}  // namespace ebb
