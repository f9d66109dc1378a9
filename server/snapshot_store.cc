#include "server/snapshot_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/quota.h"
#include "server/resource_name.h"

namespace ebb {
namespace {

constexpr std::string_view kEnding = ".snapshot";

absl::Status UnknownSnapshot(const std::string& id) {
  return Refuse(absl::StatusCode::kNotFound, absl::StrFormat("there is no snapshot snapshots/%s", id),
                {.reason = "UNKNOWN_SNAPSHOT", .metadata = {{"snapshot", "snapshots/" + id}}});
}

// Without the tenant's folder it has no snapshot; of one that cannot be opened now that is not known.
absl::Status NoFolder(const std::string& tenant, const std::string& id, int error) {
  return error == ENOENT ? UnknownSnapshot(id) : StoreFailed("opening the folder of", tenant, error);
}

std::string FileOf(const std::string& id) {
  EBB_CHECK(IsResourceName(id));
  return absl::StrFormat("%s%s", id, kEnding);
}

absl::StatusOr<std::vector<std::string>> IdsIn(const OpenFile& folder, const std::string& tenant) {
  std::vector<std::string> names;
  if (const int error = ListNames(folder, names); error != 0)
    return StoreFailed("listing the folder of", tenant, error);
  std::vector<std::string> ids;
  for (const std::string& name : names) {
    if (!name.ends_with(kEnding)) continue;
    const std::string id = name.substr(0, name.size() - kEnding.size());
    if (IsResourceName(id)) ids.push_back(id);
  }
  std::ranges::sort(ids);  // the ending may have come before a longer id's next letter
  return ids;
}

absl::StatusOr<SnapshotStore::Entry> Stat(const OpenFile& folder, const std::string& id) {
  struct stat file = {};
  if (fstatat(folder.get(), FileOf(id).c_str(), &file, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno == ENOENT ? UnknownSnapshot(id) : StoreFailed("finding", id, errno);
  }
  return SnapshotStore::Entry{.id = id, .bytes = file.st_size, .saved = absl::TimeFromTimespec(file.st_mtim)};
}

// Of those of `ids` that are not `but`.
absl::StatusOr<int64_t> BytesOf(const OpenFile& folder, const std::vector<std::string>& ids,
                                const std::string& but = "") {
  int64_t bytes = 0;
  for (const std::string& id : ids) {
    if (id == but) continue;
    EBB_ASSIGN(const SnapshotStore::Entry entry, Stat(folder, id));
    bytes += entry.bytes;
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SnapshotStore>> SnapshotStore::Open(const std::string& dir, int32_t snapshots_max) {
  if (mkdir(dir.c_str(), kFolderMode) != 0 && errno != EEXIST) return StoreUnusable(dir, "making it", errno);
  const OpenFile root(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root.ok()) return StoreUnusable(dir, "opening it", errno);
  OpenFile lock(openat(root.get(), "LOCK", O_RDWR | O_CREAT | O_CLOEXEC, kFileMode));
  if (!lock.ok()) return StoreUnusable(dir, "opening LOCK", errno);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return Refuse(absl::StatusCode::kUnavailable, absl::StrFormat("store.dir: another server uses %s", dir),
                  {.reason = "STORE_LOCKED", .field = "store.dir"});
  }
  std::vector<OpenFile> shelves;
  for (const char* shelf : {"snapshots", "sessions"}) {
    if (mkdirat(root.get(), shelf, kFolderMode) != 0 && errno != EEXIST)
      return StoreUnusable(dir, "making a folder", errno);
    shelves.emplace_back(openat(root.get(), shelf, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!shelves.back().ok()) return StoreUnusable(dir, "opening a folder", errno);
    // What a server that was killed made in it, and had not yet synced, is found from here on, and taken for synced.
    if (fsync(shelves.back().get()) != 0) return StoreUnusable(dir, "syncing a folder", errno);
  }
  if (fsync(root.get()) != 0) return StoreUnusable(dir, "syncing it", errno);
  auto store = std::unique_ptr<SnapshotStore>(
      new SnapshotStore(std::move(lock), std::move(shelves[0]), std::move(shelves[1]), snapshots_max));
  for (const Shelf shelf : {Shelf::kSnapshots, Shelf::kSessions}) {
    if (const absl::Status tidied = store->RemoveLeftovers(shelf); !tidied.ok()) return StoreUnusable(dir, tidied);
  }
  return store;
}

absl::StatusOr<std::vector<std::string>> SnapshotStore::Tenants(Shelf shelf) const {
  std::vector<std::string> tenants;
  if (const int error = ListNames(folder(shelf), tenants); error != 0) {
    return StoreFailed("listing the folder of", "tenants", error);
  }
  std::erase_if(tenants, [](const std::string& name) { return !IsResourceName(name); });
  return tenants;
}

void SnapshotStore::Watch(Kept kept) {
  kept_ = std::move(kept);
  const auto tenants = Tenants(Shelf::kSnapshots);
  if (!tenants.ok()) return;
  for (const std::string& tenant : *tenants) {
    const OpenFile of_tenant = FindFolder(snapshots_, tenant);
    if (of_tenant.ok()) TellKept(tenant, of_tenant);
  }
}

void SnapshotStore::TellKept(const std::string& tenant, const OpenFile& of_tenant) const {
  if (kept_ == nullptr) return;
  const auto ids = IdsIn(of_tenant, tenant);
  const auto bytes = ids.ok() ? BytesOf(of_tenant, *ids) : ids.status();
  if (bytes.ok()) kept_(tenant, *bytes);
}

absl::Status SnapshotStore::RemoveLeftovers(Shelf shelf) {
  EBB_ASSIGN(const std::vector<std::string> tenants, Tenants(shelf));
  for (const std::string& tenant : tenants) {
    const OpenFile of_tenant = FindFolder(folder(shelf), tenant);
    if (!of_tenant.ok()) continue;
    std::vector<std::string> names;
    ListNames(of_tenant, names);  // what is not seen now is tidied another time
    for (const std::string& name : names) {
      if (IsBeside(name) && unlinkat(of_tenant.get(), name.c_str(), 0) != 0)
        return StoreFailed("removing", name, errno);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<SnapshotStore::Entry> SnapshotStore::Write(Shelf shelf, const std::string& tenant, const std::string& id,
                                                          std::string_view bytes, int64_t bytes_max) {
  EBB_CHECK(IsResourceName(tenant));
  EBB_ASSIGN(const OpenFile of_tenant, MakeFolder(folder(shelf), tenant));
  EBB_ASSIGN(const std::vector<std::string> ids, IdsIn(of_tenant, tenant));
  const bool limited = shelf == Shelf::kSnapshots && ids.size() >= static_cast<size_t>(snapshots_max_);
  if (limited && !std::ranges::binary_search(ids, id)) {
    return Refuse(absl::StatusCode::kResourceExhausted,
                  absl::StrFormat("tenant %s keeps %d snapshots, which is all it may", tenant, ids.size()),
                  {.reason = "TENANT_SNAPSHOTS", .quota = "tenants/" + tenant});
  }
  if (shelf == Shelf::kSnapshots && bytes_max > 0) {
    EBB_ASSIGN(const int64_t others, BytesOf(of_tenant, ids, id));  // what has the name goes
    const QuotaUse use = {.used = others, .wanted = static_cast<int64_t>(bytes.size()), .limit = bytes_max};
    if (!use.fits()) return OverQuota(Quota::kSnapshotBytes, tenant, use);
  }
  const absl::Status written = ReplaceFile(of_tenant, FileOf(id), bytes, true);
  if (shelf == Shelf::kSnapshots) TellKept(tenant, of_tenant);  // one that could not be synced may be there
  EBB_TRY(written);
  return Stat(of_tenant, id);
}

absl::StatusOr<SnapshotBytes> SnapshotStore::Read(Shelf shelf, const std::string& tenant, const std::string& id) const {
  EBB_CHECK(IsResourceName(tenant));
  const OpenFile of_tenant = FindFolder(folder(shelf), tenant);
  if (!of_tenant.ok()) return NoFolder(tenant, id, errno);
  auto snapshot = ReadSnapshotFile(of_tenant, FileOf(id));
  return absl::IsNotFound(snapshot.status()) ? UnknownSnapshot(id) : std::move(snapshot);
}

absl::StatusOr<std::vector<SnapshotStore::Entry>> SnapshotStore::List(Shelf shelf, const std::string& tenant,
                                                                      const std::string& after, size_t count) const {
  EBB_CHECK(IsResourceName(tenant));
  std::vector<Entry> list;
  const OpenFile of_tenant = FindFolder(folder(shelf), tenant);
  if (!of_tenant.ok() && errno == ENOENT) return list;
  if (!of_tenant.ok()) return StoreFailed("opening the folder of", tenant, errno);
  EBB_ASSIGN(const std::vector<std::string> ids, IdsIn(of_tenant, tenant));
  for (auto id = std::ranges::upper_bound(ids, after); id != ids.end() && list.size() < count; ++id) {
    EBB_ASSIGN(Entry entry, Stat(of_tenant, *id));
    list.push_back(std::move(entry));
  }
  return list;
}

absl::Status SnapshotStore::Delete(Shelf shelf, const std::string& tenant, const std::string& id) {
  EBB_CHECK(IsResourceName(tenant));
  const OpenFile of_tenant = FindFolder(folder(shelf), tenant);
  if (!of_tenant.ok()) return NoFolder(tenant, id, errno);
  const bool is_gone = unlinkat(of_tenant.get(), FileOf(id).c_str(), 0) != 0;
  if (is_gone && errno != ENOENT) return StoreFailed("deleting", id, errno);
  if (shelf == Shelf::kSnapshots) TellKept(tenant, of_tenant);
  // Before it is said that there is none, too: a call before this one may have been told that just this failed.
  if (fsync(of_tenant.get()) != 0) return StoreFailed("syncing the folder of", tenant, errno);
  return is_gone ? UnknownSnapshot(id) : absl::OkStatus();
}

}  // namespace ebb
