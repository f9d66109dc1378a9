#include "server/folder_store.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/log.h"

namespace ebb {
namespace {

constexpr size_t kSlice = kJournalSlice;  // bytes of a snapshot between two commits
constexpr size_t kOpenMax = 256;          // files; more are closed, and opened again when they are written to
constexpr size_t kGrowingMax = 4;         // snapshots in memory, where the disk is slower than sessions grow

// Of a session that does not begin, with how much room is missing on the volume where that is why: a quota or a limit
// has only the system's words. The folder goes by the key of the configuration: callers know no paths of the server.
absl::Status WithRoom(const absl::Status& status, size_t needed, const OpenFile& folder) {
  struct statvfs volume = {};
  if (GetRefusal(status).reason != "STORE_FULL" || fstatvfs(folder.get(), &volume) != 0) return status;
  const uint64_t free = uint64_t{volume.f_bavail} * volume.f_frsize;
  std::string room;
  if (free < needed) {
    room = absl::StrFormat("%d bytes in store.dir, where %d are free", needed, free);
  } else if (volume.f_files > 0 && volume.f_favail < kFilesToBegin) {
    room = absl::StrFormat("%d files in store.dir, where there is room for %d", kFilesToBegin, volume.f_favail);
  } else {
    return status;
  }
  return Refuse(status.code(), absl::StrFormat("%s; it begins with %s", std::string(status.message()), room),
                GetRefusal(status));
}

}  // namespace

absl::Status FolderStore::Begin(SessionId session, const SessionName& name, std::string_view snapshot) {
  File& file = sessions_[session];
  file.name = name;
  health_.Answered();  // sealing a large snapshot takes a while, too
  const absl::Status status = BeginFiles(file, snapshot);
  health_.Wrote(status);
  if (status.ok()) return status;
  Forget(session);  // what is there under its name is not its own, and not for its Remove
  return WithRoom(status, snapshot.size(), files_.root());
}

absl::Status FolderStore::BeginFiles(File& file, std::string_view snapshot) {
  EBB_TRY(RemoveLeft(file.name));
  EBB_TRY(OpenJournal(file, true));
  const uint32_t number = file.place.first;
  const std::string name = SessionFiles::SnapshotName(file.name, number);
  const absl::Status written =
      ReplaceFile(files_.FolderOf(file.name), name, snapshot, sync_ != Sync::kNone, [this] { health_.Answered(); });
  if (!written.ok()) {
    RemoveFiles(file.name, number, number).IgnoreError();
    return written;
  }
  metrics_.snapshot_bytes.Add(static_cast<double>(snapshot.size()));
  return absl::OkStatus();
}

absl::Status FolderStore::RemoveFiles(const SessionName& name, uint32_t first, uint32_t last) {
  const absl::Status status = files_.Remove(name, first, last, sync_ != Sync::kNone);
  if (!status.ok()) left_[name] = {first, last};
  return status;
}

absl::Status FolderStore::RemoveLeft(const SessionName& name) {
  const auto left = left_.find(name);
  if (left == left_.end()) return absl::OkStatus();
  EBB_TRY(files_.Remove(name, left->second.first, left->second.second, sync_ != Sync::kNone));
  left_.erase(left);
  return absl::OkStatus();
}

absl::Status FolderStore::Continue(SessionId session, const SessionName& name, const JournalPlace& place) {
  File& file = sessions_[session];
  file.name = name;
  file.place = place;
  file.unwritten_end = place.end;
  return absl::OkStatus();  // opened when it is written to: until then nothing can fail
}

// The file of place.last, at place.end. What lies behind that was never acknowledged.
absl::Status FolderStore::OpenJournal(File& file, bool is_new) {
  if (open_files_ >= kOpenMax) {
    for (auto& [_, other] : sessions_) other.file = OpenFile();
    open_files_ = 0;
  }
  EBB_ASSIGN(const OpenFile folder, files_.MakeFolderOf(file.name));
  const std::string name = SessionFiles::JournalName(file.name, file.place.last);
  const int flags = O_WRONLY | O_NOFOLLOW | O_CLOEXEC | (is_new ? O_CREAT | O_EXCL : 0);
  file.file = OpenFile(openat(folder.get(), name.c_str(), flags, kFileMode));
  if (!file.file.ok()) return StoreFailed("opening", name, errno);
  ++open_files_;
  if (is_new) {
    if (sync_ == Sync::kNone || fsync(folder.get()) == 0) return absl::OkStatus();
    const int error = errno;
    RemoveFiles(file.name, file.place.last, file.place.last).IgnoreError();
    return StoreFailed("syncing the folder of", name, error);
  }
  const auto end = static_cast<off_t>(file.place.end.bytes);
  if (ftruncate(file.file.get(), end) != 0 || lseek(file.file.get(), end, SEEK_SET) != end) {
    return StoreFailed("cutting", name, errno);
  }
  return absl::OkStatus();
}

void FolderStore::Append(SessionId session, std::string_view record, bool is_input) {
  File& file = sessions_.at(session);
  if (file.unwritten_end.bytes == 0) BeginJournal(file.unwritten_end, file.unwritten);
  AddJournalRecord(record, file.unwritten_end, file.unwritten);
  file.sync = file.sync || is_input;
  unwritten_.insert(session);
}

std::vector<SessionStore::Failure> FolderStore::Write() {
  std::vector<Failure> failures;
  while (!unwritten_.empty()) {
    const SessionId session = *unwritten_.begin();
    if (absl::Status status = Write(session); !status.ok()) {
      failures.push_back(GiveUp(session, std::move(status)));
    }
  }
  return failures;
}

absl::Status FolderStore::Write(SessionId session) {
  if (unwritten_.erase(session) == 0) return absl::OkStatus();
  File& file = sessions_.at(session);
  const absl::Status status = WriteTo(file);
  health_.Wrote(status);
  EBB_TRY(status);
  metrics_.record_bytes.Add(static_cast<double>(file.unwritten.size()));
  file.place.end = file.unwritten_end;
  file.unwritten.clear();
  file.sync = false;
  return absl::OkStatus();
}

absl::Status FolderStore::WriteTo(File& file) {
  if (!file.file.ok()) EBB_TRY(OpenJournal(file, false));
  int error = WriteAll(file.file.get(), file.unwritten);
  // After a sync that failed the system may have dropped what it could not write: nothing more is said to be there.
  if (error == 0 && sync_ == Sync::kInputs && file.sync && fdatasync(file.file.get()) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  // What was not acknowledged goes, so that the room for it does not stay taken; where it stays, it is cut, and known
  // as such.
  if (ftruncate(file.file.get(), static_cast<off_t>(file.place.end.bytes)) != 0) {
    LogWarn("journal", {{"session", HashForLog(file.name.second)}}, "what could not be written stays behind its end");
  }
  return StoreFailed("writing", SessionFiles::JournalName(file.name, file.place.last), error);
}

std::vector<SessionStore::Failure> FolderStore::Renew(SessionId session, MakeSnapshot& snapshot) {
  absl::Status status = RenewFile(session, snapshot);
  if (status.ok()) return {};
  health_.Wrote(status);
  std::vector<Failure> failures;
  failures.push_back(GiveUp(session, std::move(status)));
  return failures;
}

// Its files stay, for Remove.
SessionStore::Failure FolderStore::GiveUp(SessionId session, absl::Status why) {
  File& file = sessions_.at(session);
  unwritten_.erase(session);
  if (file.file.ok()) --open_files_;
  file.file = OpenFile();
  file.unwritten = {};
  return {.session = session, .why = std::move(why)};
}

absl::Status FolderStore::RenewFile(SessionId session, MakeSnapshot& snapshot) {
  File& file = sessions_.at(session);
  if (growing_.size() >= kGrowingMax || !RemoveLeft(file.name).ok()) return absl::OkStatus();  // another time
  file.sync = true;  // what comes into the next file must not be there without this
  unwritten_.insert(session);
  EBB_TRY(Write(session));
  File next = {.name = file.name, .place = {.first = file.place.first, .last = file.place.last + 1}};
  const absl::Status begun = OpenJournal(next, true);
  const OpenFile& unneeded = begun.ok() ? file.file : next.file;
  if (unneeded.ok()) --open_files_;
  if (!begun.ok()) {
    health_.Wrote(begun);
    LogInfo("journal", {{"session", HashForLog(file.name.second)}, {"reason", std::string(begun.message())}},
            "its journal grows on: another cannot be begun");
    return absl::OkStatus();
  }
  file.place = next.place;
  file.file = std::move(next.file);
  file.unwritten_end = {};
  growing_.push_back(
      {.session = session, .name = file.name, .number = file.place.last, .snapshot = std::move(snapshot)});
  return absl::OkStatus();
}

absl::Status FolderStore::Remove(SessionId session) {
  const File& file = sessions_.at(session);
  const absl::Status status = RemoveFiles(file.name, file.place.first, file.place.last);
  Forget(session);
  return status;
}

void FolderStore::Forget(SessionId session) {
  unwritten_.erase(session);
  const auto found = sessions_.find(session);
  if (found->second.file.ok()) --open_files_;
  sessions_.erase(found);
}

void FolderStore::WriteSlice() {
  Growing& growing = growing_.front();
  const OpenFile folder = files_.FolderOf(growing.name);
  const std::string beside = NameBeside(SessionFiles::SnapshotName(growing.name, growing.number));
  const auto found = sessions_.find(growing.session);
  absl::Status status = absl::CancelledError("the session is gone");
  if (found != sessions_.end()) {
    const bool is_made = !growing.bytes.empty();
    status = is_made ? WriteSliceOf(growing, folder, beside) : Make(growing);
    if (is_made) health_.Wrote(status);
    if (status.ok() && growing.written < growing.bytes.size()) return;
    if (status.ok()) {
      status = Settle(found->second, growing, folder, beside);
      health_.Wrote(status);
    }
  }
  if (!status.ok()) {
    unlinkat(folder.get(), beside.c_str(), 0);
    LogInfo("journal", {{"session", HashForLog(growing.name.second)}, {"reason", std::string(status.message())}},
            "a snapshot that was to take its place is given up");
  }
  growing_.pop_front();
}

std::vector<SessionStore::Failure> FolderStore::Tend() {
  health_.Look();
  for (auto left = left_.begin(); left != left_.end();) {
    const SessionName name = (left++)->first;
    RemoveLeft(name).IgnoreError();
  }
  return {};
}

// Its checksums take as long as many slices, so that this is one of its own.
absl::Status FolderStore::Make(Growing& growing) {
  try {
    growing.bytes = growing.snapshot();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory for it");
  }
  return absl::OkStatus();
}

absl::Status FolderStore::WriteSliceOf(Growing& growing, const OpenFile& folder, const std::string& beside) const {
  if (!growing.file.ok()) {
    growing.file = OpenFile(
        openat(folder.get(), beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, kFileMode));
    if (!growing.file.ok()) return StoreFailed("making", beside, errno);
  }
  const std::string_view slice = std::string_view(growing.bytes).substr(growing.written, kSlice);
  int error = WriteAll(growing.file.get(), slice);
  if (error == 0 && sync_ != Sync::kNone && fdatasync(growing.file.get()) != 0) error = errno;
  if (error != 0) return StoreFailed("writing", beside, error);
  growing.written += slice.size();
  return absl::OkStatus();
}

// It is whole: what is older goes.
absl::Status FolderStore::Settle(File& file, const Growing& growing, const OpenFile& folder,
                                 const std::string& beside) {
  const std::string name = SessionFiles::SnapshotName(file.name, growing.number);
  if (renameat(folder.get(), beside.c_str(), folder.get(), name.c_str()) != 0)
    return StoreFailed("renaming", name, errno);
  if (sync_ != Sync::kNone && fsync(folder.get()) != 0) return StoreFailed("syncing the folder of", name, errno);
  metrics_.snapshot_bytes.Add(static_cast<double>(growing.bytes.size()));
  EBB_TRY(files_.Remove(file.name, file.place.first, growing.number - 1, false));
  file.place.first = growing.number;
  return absl::OkStatus();
}

}  // namespace ebb
