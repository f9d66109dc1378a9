#include "server/snapshot_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/log.h"
#include "server/resource_name.h"

namespace ebb {
namespace {

constexpr mode_t kFolderMode = 0700;
constexpr mode_t kFileMode = 0600;
constexpr std::string_view kEnding = ".snapshot";
constexpr std::string_view kNewEnding = ".new";
constexpr absl::Duration kRetry = absl::Seconds(5);

// What the system says to `what`, without the folder: callers have no business with it, the log does.
absl::Status Failed(const char* what, const std::string& name, int error) {
  LogWarn("store", {{"name", HashForLog(name)}, {"error", std::strerror(error)}}, what);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return Refuse(absl::StatusCode::kUnavailable,
                  absl::StrFormat("the store has no room: %s %s: %s", what, name, std::strerror(error)),
                  {.reason = "STORE_FULL", .retry = kRetry});
  }
  return Refuse(absl::StatusCode::kUnavailable,
                absl::StrFormat("the store failed: %s %s: %s", what, name, std::strerror(error)),
                {.reason = "STORE_FAILED", .retry = kRetry});
}

absl::Status Unusable(const std::string& dir, const char* what, int error) {
  return Refuse(absl::StatusCode::kUnavailable,
                absl::StrFormat("store.dir: %s: %s: %s", dir, what, std::strerror(error)),
                {.reason = "STORE_UNUSABLE", .field = "store.dir"});
}

absl::Status UnknownSnapshot(const std::string& id) {
  return Refuse(absl::StatusCode::kNotFound, absl::StrFormat("there is no snapshot snapshots/%s", id),
                {.reason = "UNKNOWN_SNAPSHOT", .metadata = {{"snapshot", "snapshots/" + id}}});
}

std::string FileOf(const std::string& id) {
  EBB_CHECK(IsResourceName(id));
  return absl::StrFormat("%s%s", id, kEnding);
}

// The error, or 0.
int WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

// Names of a folder's entries. `folder` stays open.
std::vector<std::string> NamesIn(int folder) {
  std::vector<std::string> names;
  DIR* const entries = fdopendir(openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (entries == nullptr) return names;
  while (const dirent* entry = readdir(entries)) names.emplace_back(entry->d_name);
  closedir(entries);
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> IdsIn(int folder) {
  std::vector<std::string> ids;
  for (const std::string& name : NamesIn(folder)) {
    if (!name.ends_with(kEnding)) continue;
    const std::string id = name.substr(0, name.size() - kEnding.size());
    if (IsResourceName(id)) ids.push_back(id);
  }
  std::ranges::sort(ids);  // the ending may have come before a longer id's next letter
  return ids;
}

absl::StatusOr<SnapshotStore::Entry> Stat(int folder, const std::string& id) {
  struct stat file = {};
  if (fstatat(folder, FileOf(id).c_str(), &file, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno == ENOENT ? UnknownSnapshot(id) : Failed("finding", id, errno);
  }
  return SnapshotStore::Entry{.id = id, .bytes = file.st_size, .saved = absl::TimeFromTimespec(file.st_mtim)};
}

}  // namespace

OpenFile& OpenFile::operator=(OpenFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

OpenFile::~OpenFile() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<std::unique_ptr<SnapshotStore>> SnapshotStore::Open(const std::string& dir, int32_t snapshots_max) {
  if (mkdir(dir.c_str(), kFolderMode) != 0 && errno != EEXIST) return Unusable(dir, "making it", errno);
  const OpenFile root(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root.ok()) return Unusable(dir, "opening it", errno);
  OpenFile lock(openat(root.get(), "LOCK", O_RDWR | O_CREAT | O_CLOEXEC, kFileMode));
  if (!lock.ok()) return Unusable(dir, "opening LOCK", errno);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return Refuse(absl::StatusCode::kUnavailable, absl::StrFormat("store.dir: another server uses %s", dir),
                  {.reason = "STORE_LOCKED", .field = "store.dir"});
  }
  std::vector<OpenFile> shelves;
  for (const char* shelf : {"snapshots", "sessions"}) {
    if (mkdirat(root.get(), shelf, kFolderMode) != 0 && errno != EEXIST) return Unusable(dir, "making a folder", errno);
    shelves.emplace_back(openat(root.get(), shelf, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!shelves.back().ok()) return Unusable(dir, "opening a folder", errno);
  }
  if (fsync(root.get()) != 0) return Unusable(dir, "syncing it", errno);
  auto store = std::unique_ptr<SnapshotStore>(
      new SnapshotStore(std::move(lock), std::move(shelves[0]), std::move(shelves[1]), snapshots_max));
  EBB_TRY(store->RemoveLeftovers(Shelf::kSnapshots));
  EBB_TRY(store->RemoveLeftovers(Shelf::kSessions));
  return store;
}

std::vector<std::string> SnapshotStore::Tenants(Shelf shelf) const {
  std::vector<std::string> tenants = NamesIn(folder(shelf).get());
  std::erase_if(tenants, [](const std::string& name) { return !IsResourceName(name); });
  return tenants;
}

absl::Status SnapshotStore::RemoveLeftovers(Shelf shelf) {
  for (const std::string& tenant : Tenants(shelf)) {
    const OpenFile of_tenant(openat(folder(shelf).get(), tenant.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!of_tenant.ok()) continue;
    for (const std::string& name : NamesIn(of_tenant.get())) {
      const bool left_over = name.starts_with('.') && name.ends_with(kNewEnding);
      if (left_over && unlinkat(of_tenant.get(), name.c_str(), 0) != 0) return Failed("removing", name, errno);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<OpenFile> SnapshotStore::FolderOf(Shelf shelf, const std::string& tenant) {
  EBB_CHECK(IsResourceName(tenant));
  if (mkdirat(folder(shelf).get(), tenant.c_str(), kFolderMode) == 0) {
    if (fsync(folder(shelf).get()) != 0) return Failed("syncing the folder of", tenant, errno);
  } else if (errno != EEXIST) {
    return Failed("making a folder for", tenant, errno);
  }
  OpenFile of_tenant(openat(folder(shelf).get(), tenant.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!of_tenant.ok()) return Failed("opening the folder of", tenant, errno);
  return of_tenant;
}

absl::StatusOr<SnapshotStore::Entry> SnapshotStore::Write(Shelf shelf, const std::string& tenant, const std::string& id,
                                                          std::string_view bytes) {
  EBB_ASSIGN(const OpenFile of_tenant, FolderOf(shelf, tenant));
  const std::vector<std::string> ids = IdsIn(of_tenant.get());
  const bool limited = shelf == Shelf::kSnapshots && ids.size() >= static_cast<size_t>(snapshots_max_);
  if (limited && !std::ranges::binary_search(ids, id)) {
    return Refuse(absl::StatusCode::kResourceExhausted,
                  absl::StrFormat("tenant %s keeps %d snapshots, which is all it may", tenant, ids.size()),
                  {.reason = "TENANT_SNAPSHOTS", .quota = "tenants/" + tenant});
  }
  const std::string beside = absl::StrFormat(".%s%s", id, kNewEnding);
  int error = 0;
  {
    const OpenFile file(
        openat(of_tenant.get(), beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, kFileMode));
    if (!file.ok()) return Failed("making", id, errno);
    error = WriteAll(file.get(), bytes);
    // After a sync that failed the system may have dropped what it could not write: the file is given up.
    if (error == 0 && fsync(file.get()) != 0) error = errno;
  }
  if (error == 0 && renameat(of_tenant.get(), beside.c_str(), of_tenant.get(), FileOf(id).c_str()) != 0) error = errno;
  if (error != 0) {
    unlinkat(of_tenant.get(), beside.c_str(), 0);
    return Failed("writing", id, error);
  }
  if (fsync(of_tenant.get()) != 0) return Failed("syncing the folder of", tenant, errno);
  return Stat(of_tenant.get(), id);
}

absl::StatusOr<std::string> SnapshotStore::Read(Shelf shelf, const std::string& tenant, const std::string& id) const {
  EBB_CHECK(IsResourceName(tenant));
  const std::string path = absl::StrFormat("%s/%s", tenant, FileOf(id));
  const OpenFile file(openat(folder(shelf).get(), path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file.ok()) return errno == ENOENT ? UnknownSnapshot(id) : Failed("opening", id, errno);
  struct stat about = {};
  if (fstat(file.get(), &about) != 0) return Failed("measuring", id, errno);
  if (!S_ISREG(about.st_mode)) return Failed("reading", id, EISDIR);
  std::string bytes(static_cast<size_t>(about.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed("reading", id, errno);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

absl::StatusOr<std::vector<SnapshotStore::Entry>> SnapshotStore::List(Shelf shelf, const std::string& tenant,
                                                                      const std::string& after, size_t count) const {
  EBB_CHECK(IsResourceName(tenant));
  std::vector<Entry> list;
  const OpenFile of_tenant(openat(folder(shelf).get(), tenant.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!of_tenant.ok()) return list;
  const std::vector<std::string> ids = IdsIn(of_tenant.get());
  for (auto id = std::ranges::upper_bound(ids, after); id != ids.end() && list.size() < count; ++id) {
    EBB_ASSIGN(Entry entry, Stat(of_tenant.get(), *id));
    list.push_back(std::move(entry));
  }
  return list;
}

absl::Status SnapshotStore::Delete(Shelf shelf, const std::string& tenant, const std::string& id) {
  EBB_CHECK(IsResourceName(tenant));
  const OpenFile of_tenant(openat(folder(shelf).get(), tenant.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!of_tenant.ok()) return UnknownSnapshot(id);
  if (unlinkat(of_tenant.get(), FileOf(id).c_str(), 0) != 0) {
    return errno == ENOENT ? UnknownSnapshot(id) : Failed("deleting", id, errno);
  }
  if (fsync(of_tenant.get()) != 0) return Failed("syncing the folder of", tenant, errno);
  return absl::OkStatus();
}

}  // namespace ebb
