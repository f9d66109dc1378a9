#include "server/folder_health.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/files.h"

namespace ebb {
namespace {

absl::Status Unwritable(const std::string& folder, absl::string_view why) {
  return absl::UnavailableError(absl::StrFormat("journals cannot be written: %s: %s", folder, why));
}

}  // namespace

absl::Status CheckRoom(const struct statvfs& volume) {
  const uint64_t free = uint64_t{volume.f_bavail} * volume.f_frsize;
  if (free < uint64_t{kJournalSlice}) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("the volume has %d bytes free, of %d that are needed", free, kJournalSlice));
  }
  // Some file systems make files as they go, and say that they have none at all.
  if (volume.f_files > 0 && volume.f_favail < kFilesToBegin) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("the volume has room for %d files, of %d that are needed", volume.f_favail, kFilesToBegin));
  }
  return absl::OkStatus();
}

absl::Status FolderHealth::Check() const {
  const std::lock_guard lock(mutex_);
  if (!seen_.ok()) return Unwritable(folder_, seen_.message());
  if (!written_.ok()) return Unwritable(folder_, written_.message());
  const absl::Duration silence = clock_.Now() - heard_;
  if (silence <= silence_max_) return absl::OkStatus();
  return Unwritable(folder_, absl::StrFormat("the disk has not answered for %s",
                                             absl::FormatDuration(absl::Trunc(silence, absl::Seconds(1)))));
}

std::optional<FolderSpace> FolderHealth::space() const {
  const std::lock_guard lock(mutex_);
  return space_;
}

void FolderHealth::Answered() {
  const std::lock_guard lock(mutex_);
  heard_ = clock_.Now();
}

void FolderHealth::Wrote(const absl::Status& outcome) {
  if (outcome.ok()) return Heard(outcome);
  if (IsOfOneName(outcome)) return Answered();
  Heard(absl::UnavailableError(
      absl::StrFormat("the last write failed, %s: the log has the system's words", GetRefusal(outcome).reason)));
}

void FolderHealth::Heard(const absl::Status& written) {
  const std::lock_guard lock(mutex_);
  heard_ = clock_.Now();
  written_ = written;
}

void FolderHealth::Look() {
  if (look_in() > absl::ZeroDuration()) return;
  std::optional<FolderSpace> space;
  const absl::Status seen = LookAt(space);
  bool tries = false;
  {
    const std::lock_guard lock(mutex_);
    heard_ = clock_.Now();
    seen_ = seen;
    space_ = space;
    tries = seen.ok() && !written_.ok();
  }
  if (tries) Heard(TryToWrite());
  next_look_ = clock_.Now() + kLookEvery;
}

absl::Duration FolderHealth::look_in() const { return std::max(absl::ZeroDuration(), next_look_ - clock_.Now()); }

absl::Status FolderHealth::LookAt(std::optional<FolderSpace>& space) const {
  struct statvfs volume = {};
  if (access(folder_.c_str(), W_OK | X_OK) != 0 || statvfs(folder_.c_str(), &volume) != 0) {
    return absl::UnavailableError(std::strerror(errno));
  }
  space = {.available = static_cast<int64_t>(volume.f_bavail * volume.f_frsize),
           .capacity = static_cast<int64_t>(volume.f_blocks * volume.f_frsize)};
  return CheckRoom(volume);
}

// A slice, to a file that nobody sees and that is gone with the process, all the way to the disk: quotas and failing
// disks show in no other way.
absl::Status FolderHealth::TryToWrite() const {
  const std::string path = absl::StrFormat("%s/%s", folder_, NameBeside("health"));
  const OpenFile file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, kFileMode));
  if (!file.ok() || unlink(path.c_str()) != 0) return absl::UnavailableError(std::strerror(errno));
  int error = WriteAll(file.get(), std::string(kJournalSlice, '\0'));
  if (error == 0 && fdatasync(file.get()) != 0) error = errno;
  return error == 0 ? absl::OkStatus() : absl::UnavailableError(std::strerror(error));
}

}  // namespace ebb
