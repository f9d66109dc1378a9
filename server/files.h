// Files of the store: opened, read whole, replaced whole. Names are relative to a folder that is open, so that no path
// is put together from what a client said.

#ifndef EBB_SERVER_FILES_H_
#define EBB_SERVER_FILES_H_

#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/snapshot/snapshot_file.h"

namespace ebb {

// A file descriptor that is closed with its owner.
class OpenFile {
 public:
  explicit OpenFile(int fd = -1) : fd_(fd) {}
  OpenFile(OpenFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OpenFile& operator=(OpenFile&& other) noexcept;
  ~OpenFile();

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }  // who takes it closes it

 private:
  int fd_;
};

inline constexpr mode_t kFolderMode = 0700;
inline constexpr mode_t kFileMode = 0600;

// UNAVAILABLE STORE_FULL or STORE_FAILED with RetryInfo: what the system says (`error`) to `what` of `name`. Without
// the folder: callers have no business with it, the log does.
absl::Status StoreFailed(const char* what, const std::string& name, int error);
// Whether that is about one name, of which there is no file or already one: it says nothing of the disk.
bool IsOfOneName(const absl::Status& status);
// UNAVAILABLE STORE_UNUSABLE of the key store.dir, for who starts the server: what the system says (`error`) to `what`
// of `folder`, which is named as it was given.
absl::Status StoreUnusable(const std::string& folder, const char* what, int error);
// The same of what went wrong in `folder`.
absl::Status StoreUnusable(const std::string& folder, const absl::Status& why);

// Opens the folder `name` in `parent`, for its owner alone; made, and `parent` synced, where it is missing.
absl::StatusOr<OpenFile> MakeFolder(const OpenFile& parent, const std::string& name);
// The same without making it: not ok() where it cannot be opened, with errno, ENOENT where it is missing.
OpenFile FindFolder(const OpenFile& parent, const std::string& name);
// Names of a folder's entries, ascending; all of them, or the error in the place of 0.
int ListNames(const OpenFile& folder, std::vector<std::string>& names);

// The error, or 0.
int WriteAll(int fd, std::string_view bytes);

// What ReplaceFile writes before the new file takes the old one's place; left behind by a process that was killed.
std::string NameBeside(const std::string& name);
bool IsBeside(const std::string& name);

// Puts a file with these bytes in the place of `name`: whoever pulls the plug, the old one or the new one is there,
// whole, and with `sync` on disk when it returns. Without, that holds for who kills the process. `wrote` is told after
// each piece, none of which takes a disk long.
absl::Status ReplaceFile(
    const OpenFile& folder, const std::string& name, std::string_view bytes, bool sync,
    absl::FunctionRef<void()> wrote = [] {});
// NOT_FOUND without a reason where there is none. `came` is told, while the system reads ahead, of all that is there so
// far, which moves no more.
absl::StatusOr<std::string> ReadFile(
    const OpenFile& folder, const std::string& name,
    absl::FunctionRef<void(std::string_view)> came = [](std::string_view) {});
// The same of a snapshot, whose checksums are computed meanwhile.
absl::StatusOr<SnapshotBytes> ReadSnapshotFile(const OpenFile& folder, const std::string& name);

}  // namespace ebb

#endif  // EBB_SERVER_FILES_H_
