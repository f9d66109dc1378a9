#include "server/snapshot_store.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "policies/status.h"
#include "tests/support/temporary_folder.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

std::string ReasonOf(const absl::Status& status) { return GetRefusal(status).reason; }

class SnapshotStoreTest : public testing::Test {
 protected:
  std::unique_ptr<SnapshotStore> Open(int32_t snapshots_max = 100) const {
    auto store = SnapshotStore::Open(dir_, snapshots_max);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  static std::vector<std::string> Ids(const SnapshotStore& store, const std::string& tenant,
                                      const std::string& after = "", size_t count = 100) {
    const auto entries = store.List(Shelf::kSnapshots, tenant, after, count);
    EXPECT_TRUE(entries.ok()) << entries.status();
    std::vector<std::string> ids;
    for (const SnapshotStore::Entry& entry : *entries) ids.push_back(entry.id);
    return ids;
  }

  TemporaryFolder folder_;
  const std::string dir_ = folder_.path() + "/store";  // which Open makes
};

TEST_F(SnapshotStoreTest, KeepsWhatItIsGivenAcrossRestartsForItsOwnerAlone) {
  {
    const auto store = Open();
    const auto entry = store->Write(Shelf::kSnapshots, "acme", "one", "first");
    ASSERT_TRUE(entry.ok());
    EXPECT_EQ(entry->bytes, 5);
    ASSERT_TRUE(store->Write(Shelf::kSnapshots, "acme", "two", std::string(1 << 20, 'x')).ok());
  }
  const auto store = Open();
  EXPECT_EQ(store->Read(Shelf::kSnapshots, "acme", "one")->bytes, "first");
  EXPECT_EQ(store->Read(Shelf::kSnapshots, "acme", "two")->bytes.size(), size_t{1} << 20);
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(dir_)) {
    const auto others = fs::perms::group_all | fs::perms::others_all;
    EXPECT_EQ(entry.status().permissions() & others, fs::perms::none) << entry.path();
  }
}

TEST_F(SnapshotStoreTest, TenantsDoNotSeeEachOther) {
  const auto store = Open();
  ASSERT_TRUE(store->Write(Shelf::kSnapshots, "acme", "one", "first").ok());
  EXPECT_EQ(ReasonOf(store->Read(Shelf::kSnapshots, "other", "one").status()), "UNKNOWN_SNAPSHOT");
  EXPECT_EQ(ReasonOf(store->Delete(Shelf::kSnapshots, "other", "one")), "UNKNOWN_SNAPSHOT");
  EXPECT_THAT(Ids(*store, "other"), ElementsAre());
  EXPECT_THAT(Ids(*store, "acme"), ElementsAre("one"));
}

TEST_F(SnapshotStoreTest, ListsByNameInPagesAndForgetsWhatIsDeleted) {
  const auto store = Open();
  for (const char* id : {"b", "a.b", "a", "a-b", "c"})
    ASSERT_TRUE(store->Write(Shelf::kSnapshots, "acme", id, id).ok());
  EXPECT_THAT(Ids(*store, "acme"), ElementsAre("a", "a-b", "a.b", "b", "c"));
  EXPECT_THAT(Ids(*store, "acme", "a-b", 2), ElementsAre("a.b", "b"));
  ASSERT_TRUE(store->Delete(Shelf::kSnapshots, "acme", "a.b").ok());
  EXPECT_THAT(Ids(*store, "acme"), ElementsAre("a", "a-b", "b", "c"));
  EXPECT_EQ(ReasonOf(store->Delete(Shelf::kSnapshots, "acme", "a.b")), "UNKNOWN_SNAPSHOT");
}

TEST_F(SnapshotStoreTest, ATenantKeepsSoManyAndMayReplaceThem) {
  const auto store = Open(2);
  ASSERT_TRUE(store->Write(Shelf::kSnapshots, "acme", "one", "1").ok());
  ASSERT_TRUE(store->Write(Shelf::kSnapshots, "acme", "two", "2").ok());
  const absl::Status status = store->Write(Shelf::kSnapshots, "acme", "three", "3").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), "TENANT_SNAPSHOTS");
  EXPECT_TRUE(store->Write(Shelf::kSnapshots, "acme", "two", "another").ok());
  EXPECT_EQ(store->Read(Shelf::kSnapshots, "acme", "two")->bytes, "another");
  EXPECT_TRUE(store->Write(Shelf::kSnapshots, "other", "three", "3").ok());
  ASSERT_TRUE(store->Delete(Shelf::kSnapshots, "acme", "one").ok());
  EXPECT_TRUE(store->Write(Shelf::kSnapshots, "acme", "three", "3").ok());
}

// A server that ended in the midst of writing leaves the old snapshot, and a file beside it that goes at the next
// start.
TEST_F(SnapshotStoreTest, WhatWasLeftHalfWrittenIsRemovedAndTheOldOneStays) {
  ASSERT_TRUE(Open()->Write(Shelf::kSnapshots, "acme", "one", "whole").ok());
  const fs::path beside = fs::path(dir_) / "snapshots/acme/.one.new";
  std::ofstream(beside) << "ha";
  const auto store = Open();
  EXPECT_FALSE(fs::exists(beside));
  EXPECT_EQ(store->Read(Shelf::kSnapshots, "acme", "one")->bytes, "whole");
}

TEST_F(SnapshotStoreTest, AFullDiskIsSaidAndTheOldOneStays) {
  const auto store = Open();
  ASSERT_TRUE(store->Write(Shelf::kSnapshots, "acme", "one", "whole").ok());
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {.rlim_cur = 1 << 16, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status status = store->Write(Shelf::kSnapshots, "acme", "one", std::string(1 << 20, 'x')).status();
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(status), "STORE_FULL");
  EXPECT_TRUE(GetRefusal(status).retry.has_value());
  EXPECT_EQ(store->Read(Shelf::kSnapshots, "acme", "one")->bytes, "whole");
  EXPECT_THAT(Ids(*store, "acme"), ElementsAre("one"));
  EXPECT_FALSE(fs::exists(fs::path(dir_) / "snapshots/acme/.one.new")) << "what was written of it takes no room";
}

TEST_F(SnapshotStoreTest, AFolderThatCannotBeUsedIsSaid) {
  const auto store = Open();
  std::ofstream(fs::path(dir_) / "snapshots/acme") << "no folder";
  EXPECT_EQ(ReasonOf(store->Write(Shelf::kSnapshots, "acme", "one", "1").status()), "STORE_FAILED");
  EXPECT_EQ(ReasonOf(SnapshotStore::Open(folder_.path() + "/no/such", 1).status()), "STORE_UNUSABLE");
}

TEST_F(SnapshotStoreTest, OneServerUsesAFolderAtATime) {
  auto store = Open();
  EXPECT_EQ(ReasonOf(SnapshotStore::Open(dir_, 1).status()), "STORE_LOCKED");
  store.reset();
  EXPECT_NE(Open(), nullptr);
}

}  // namespace
}  // namespace ebb
