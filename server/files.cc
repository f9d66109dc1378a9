#include "server/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "absl/strings/cord.h"
#include "absl/strings/str_format.h"
#include "engine/large_pages.h"
#include "policies/status.h"
#include "server/log.h"

namespace ebb {
namespace {

constexpr std::string_view kNewEnding = ".new";
constexpr absl::Duration kRetry = absl::Seconds(5);
constexpr size_t kReadPiece = size_t{1} << 20;   // which stays in a core's cache until it has been looked at
constexpr size_t kWritePiece = size_t{8} << 20;  // on its way to the disk while the next is copied
constexpr size_t kWriteAhead = 8 * kWritePiece;  // the most that is on its way
constexpr char kOneName[] = "ebb/one_name";      // payload of a status
constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

// Of a file that is to be synced when it is whole: the disk works meanwhile, not only then, and is never so far behind
// that the sync takes long.
int SendPiece(int fd, size_t at, size_t bytes) {
  // Advice only: what fails is found later.
  sync_file_range(fd, static_cast<off_t>(at), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
  if (at < kWriteAhead) return 0;
  constexpr unsigned kWait = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  if (sync_file_range(fd, static_cast<off_t>(at - kWriteAhead), kWritePiece, kWait) == 0) return 0;
  // The system says once what the disk could not write: the sync would not find it again. Some kinds of files know no
  // ranges, which is no failure.
  const bool unknown = errno == EINVAL || errno == ENOSYS || errno == ESPIPE;
  return unknown ? 0 : errno;
}

int WritePieces(int fd, std::string_view bytes, bool sync, absl::FunctionRef<void()> wrote) {
  for (size_t at = 0; at < bytes.size(); at += kWritePiece) {
    const std::string_view piece = bytes.substr(at, kWritePiece);
    int error = WriteAll(fd, piece);
    if (error == 0 && sync) error = SendPiece(fd, at, piece.size());
    if (error != 0) return error;
    wrote();
  }
  return 0;
}

}  // namespace

OpenFile& OpenFile::operator=(OpenFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

OpenFile::~OpenFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status StoreFailed(const char* what, const std::string& name, int error) {
  LogWarn("store", {{"name", HashForLog(name)}, {"error", std::strerror(error)}}, what);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return Refuse(absl::StatusCode::kUnavailable,
                  absl::StrFormat("the store has no room: %s %s: %s", what, name, std::strerror(error)),
                  {.reason = "STORE_FULL", .retry = kRetry});
  }
  absl::Status status = Refuse(absl::StatusCode::kUnavailable,
                               absl::StrFormat("the store failed: %s %s: %s", what, name, std::strerror(error)),
                               {.reason = "STORE_FAILED", .retry = kRetry});
  if (error == EEXIST || error == ENOENT) status.SetPayload(kOneName, absl::Cord());
  return status;
}

bool IsOfOneName(const absl::Status& status) { return status.GetPayload(kOneName).has_value(); }

absl::Status StoreUnusable(const std::string& folder, const absl::Status& why) {
  return Refuse(absl::StatusCode::kUnavailable,
                absl::StrFormat("store.dir: %s: %s", folder, std::string(why.message())),
                {.reason = "STORE_UNUSABLE", .field = "store.dir"});
}

absl::Status StoreUnusable(const std::string& folder, const char* what, int error) {
  return StoreUnusable(folder, absl::UnavailableError(absl::StrFormat("%s: %s", what, std::strerror(error))));
}

// Of a folder, in which many names lie.
static absl::Status FolderFailed(const char* what, const std::string& name, int error) {
  absl::Status status = StoreFailed(what, name, error);
  status.ErasePayload(kOneName);
  return status;
}

absl::StatusOr<OpenFile> MakeFolder(const OpenFile& parent, const std::string& name) {
  if (mkdirat(parent.get(), name.c_str(), kFolderMode) == 0) {
    if (fsync(parent.get()) != 0) {
      const int error = errno;
      unlinkat(parent.get(), name.c_str(), AT_REMOVEDIR);  // else it is found next time, and taken for synced
      return FolderFailed("syncing the folder of", name, error);
    }
  } else if (errno != EEXIST) {
    return FolderFailed("making a folder for", name, errno);
  }
  OpenFile folder = FindFolder(parent, name);
  if (!folder.ok()) return FolderFailed("opening the folder of", name, errno);
  return folder;
}

OpenFile FindFolder(const OpenFile& parent, const std::string& name) {
  return OpenFile(openat(parent.get(), name.c_str(), kFolderFlags));
}

int ListNames(const OpenFile& folder, std::vector<std::string>& names) {
  names.clear();
  OpenFile again(openat(folder.get(), ".", kFolderFlags));
  DIR* const entries = again.ok() ? fdopendir(again.get()) : nullptr;
  if (entries == nullptr) return errno;
  again.Release();
  errno = 0;  // by which its end is told from a failure
  while (const dirent* entry = readdir(entries)) {
    names.emplace_back(entry->d_name);
    errno = 0;
  }
  const int error = errno;
  closedir(entries);
  std::ranges::sort(names);
  return error;
}

int WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

std::string NameBeside(const std::string& name) { return absl::StrFormat(".%s%s", name, kNewEnding); }
bool IsBeside(const std::string& name) { return name.starts_with('.') && name.ends_with(kNewEnding); }

absl::Status ReplaceFile(const OpenFile& folder, const std::string& name, std::string_view bytes, bool sync,
                         absl::FunctionRef<void()> wrote) {
  const std::string beside = NameBeside(name);
  int error = 0;
  {
    const OpenFile file(
        openat(folder.get(), beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, kFileMode));
    if (!file.ok()) return StoreFailed("making", name, errno);
    error = WritePieces(file.get(), bytes, sync, wrote);
    // After a sync that failed the system may have dropped what it could not write: the file is given up.
    if (error == 0 && sync && fsync(file.get()) != 0) error = errno;
  }
  if (error == 0 && renameat(folder.get(), beside.c_str(), folder.get(), name.c_str()) != 0) error = errno;
  if (error != 0) {
    unlinkat(folder.get(), beside.c_str(), 0);
    return StoreFailed("writing", name, error);
  }
  if (sync && fsync(folder.get()) != 0) return StoreFailed("syncing the folder of", name, errno);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const OpenFile& folder, const std::string& name,
                                     absl::FunctionRef<void(std::string_view)> came) {
  const OpenFile file(openat(folder.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file.ok()) return errno == ENOENT ? absl::NotFoundError(name) : StoreFailed("opening", name, errno);
  struct stat about = {};
  if (fstat(file.get(), &about) != 0) return StoreFailed("measuring", name, errno);
  if (!S_ISREG(about.st_mode)) return StoreFailed("reading", name, EISDIR);
  posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);  // advice only
  const auto size = static_cast<size_t>(about.st_size);
  std::string bytes;
  ReserveLarge(bytes, size);
  while (bytes.size() < size) {
    const size_t done = bytes.size();
    bytes.resize(std::min(size, done + kReadPiece));
    const ssize_t got = read(file.get(), bytes.data() + done, bytes.size() - done);
    const int error = errno;
    bytes.resize(done + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && error == EINTR) continue;
    if (got < 0) return StoreFailed("reading", name, error);
    if (got == 0) break;
    came(bytes);
  }
  return bytes;
}

absl::StatusOr<SnapshotBytes> ReadSnapshotFile(const OpenFile& folder, const std::string& name) {
  SnapshotBytes snapshot;
  EBB_ASSIGN(snapshot.bytes, ReadFile(folder, name, [&](std::string_view so_far) {
               snapshot.check.More(std::as_bytes(std::span(so_far)));
             }));
  return snapshot;
}

}  // namespace ebb
