#include "server/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "policies/status.h"
#include "server/log.h"

namespace ebb {
namespace {

constexpr size_t kSlice = size_t{1} << 20;  // bytes of a snapshot between two commits
constexpr size_t kOpenMax = 256;            // files; more are closed, and opened again when they are written to
constexpr size_t kGrowingMax = 4;           // snapshots in memory, where the disk is slower than sessions grow

// What callers are told: of one that never began they may try again, of one that did nothing is to be had any more.
absl::Status JournalFailed(const SessionName& name, const absl::Status& why, bool began) {
  const std::map<std::string, std::string> metadata = {{"session", "sessions/" + name.second},
                                                       {"cause", GetRefusal(why).reason}};
  const std::string cause(why.message());
  if (!began) {
    return Refuse(absl::StatusCode::kUnavailable,
                  absl::StrFormat("the journal of sessions/%s cannot be begun: %s", name.second, cause),
                  {.reason = "JOURNAL_FAILED", .retry = absl::Seconds(5), .metadata = metadata});
  }
  return Refuse(
      absl::StatusCode::kFailedPrecondition,
      absl::StrFormat("the journal of sessions/%s cannot be written, so it takes no more: %s", name.second, cause),
      {.reason = "JOURNAL_FAILED", .metadata = metadata});
}

absl::StatusOr<std::string> BytesOf(MakeSnapshot& snapshot) {
  try {
    return snapshot();
  } catch (const std::bad_alloc&) {
    return Refuse(absl::StatusCode::kUnavailable, "no memory for a snapshot of it", {.reason = "NO_MEMORY"});
  }
}

}  // namespace

Journal::Journal(std::unique_ptr<SessionFiles> files, Sync sync, Seal make, const JournalMetrics& metrics)
    : files_(std::move(files)), sync_(sync), seal_(make), metrics_(metrics), thread_([this] { Loop(); }) {}

Journal::~Journal() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Journal::Commit(JournalBatch batch) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_.size() < kBatchesMax; });
    waiting_.push_back(std::move(batch));
  }
  changed_.notify_all();
}

void Journal::Flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty() && !busy_; });
}

JournalNews Journal::TakeNews() {
  const std::lock_guard lock(mutex_);
  return std::exchange(news_, {});
}

void Journal::ReaderIsFull(CallId call) {
  const std::lock_guard lock(mutex_);
  news_.blocked.push_back(call);
}

void Journal::Reserve(const SessionName& name) {
  const std::lock_guard lock(mutex_);
  reserved_.insert(name);
}

void Journal::Loop() {
  std::vector<JournalBatch> batches;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      busy_ = false;
      if (waiting_.empty()) changed_.notify_all();  // for Flush
      changed_.wait(lock, [this] { return closed_ || !waiting_.empty() || !growing_.empty(); });
      if (closed_ && waiting_.empty()) break;
      batches.swap(waiting_);
      busy_ = !batches.empty();
    }
    changed_.notify_all();  // for Commit
    if (!batches.empty()) CommitAll(batches);
    batches.clear();
    if (!growing_.empty()) Grow();
  }
}

void Journal::CommitAll(std::vector<JournalBatch>& batches) {
  const absl::Time start = absl::Now();
  bool any = false;
  for (JournalBatch& batch : batches) {
    any = any || !batch.deeds.empty();
    for (JournalBatch::Deed& deed : batch.deeds) {
      std::visit([this](auto& what) { Do(what); }, deed);
    }
  }
  while (!unwritten_.empty()) Write(*unwritten_.begin());
  if (any) metrics_.commit_seconds.Observe(absl::Now() - start);
  for (JournalBatch& batch : batches) {
    for (JournalBatch::Telling& telling : batch.tellings) {
      const auto failed = failed_.find(telling.about);
      telling.tell(failed == failed_.end() ? absl::OkStatus() : failed->second);
    }
  }
}

void Journal::Do(JournalBatch::Open& open) {
  sessions_[open.session].name = open.name;
  const absl::Status status = Begin(open);
  if (status.ok()) return;
  Fail(open.session, status, false);
  sessions_.erase(open.session);  // what is there under its name is not its own, and not for its Remove
}

absl::Status Journal::Begin(JournalBatch::Open& open) {
  {
    const std::lock_guard lock(mutex_);
    if (reserved_.contains(open.name)) {
      return Refuse(absl::StatusCode::kUnavailable, "its name has files that could not be brought back",
                    {.reason = "STORE_FAILED"});
    }
  }
  File& file = sessions_.at(open.session);
  EBB_ASSIGN(const std::string bytes, BytesOf(open.snapshot));
  EBB_TRY(OpenJournal(file, true));
  const uint32_t number = file.place.first;
  const std::string name = SessionFiles::SnapshotName(open.name, number);
  const absl::Status written = ReplaceFile(files_->FolderOf(open.name), name, bytes, sync_ != Sync::kNone);
  if (!written.ok()) {
    EBB_TRY(files_->Remove(open.name, number, number, false));
    return written;
  }
  metrics_.snapshot_bytes.Add(static_cast<double>(bytes.size()));
  return absl::OkStatus();
}

void Journal::Do(JournalBatch::Continue& go_on) {
  File& file = sessions_[go_on.session];
  file.name = go_on.name;
  file.place = go_on.place;
  const absl::Status status = OpenJournal(file, false);
  if (!status.ok()) Fail(go_on.session, status);
}

// The file of place.last, at place.end. What lies behind that was never acknowledged.
absl::Status Journal::OpenJournal(File& file, bool is_new) {
  if (open_files_ >= kOpenMax) {
    for (auto& [_, other] : sessions_) other.file = OpenFile();
    open_files_ = 0;
  }
  EBB_ASSIGN(const OpenFile folder, files_->MakeFolderOf(file.name));
  const std::string name = SessionFiles::JournalName(file.name, file.place.last);
  const int flags = O_WRONLY | O_NOFOLLOW | O_CLOEXEC | (is_new ? O_CREAT | O_EXCL : 0);
  file.file = OpenFile(openat(folder.get(), name.c_str(), flags, kFileMode));
  if (!file.file.ok()) return StoreFailed("opening", name, errno);
  ++open_files_;
  const auto end = static_cast<off_t>(file.place.end.bytes);
  if (ftruncate(file.file.get(), end) != 0 || lseek(file.file.get(), end, SEEK_SET) != end) {
    return StoreFailed("cutting", name, errno);
  }
  file.unwritten_end = file.place.end;
  if (is_new && sync_ != Sync::kNone && fsync(folder.get()) != 0) {
    const int error = errno;
    unlinkat(folder.get(), name.c_str(), 0);
    return StoreFailed("syncing the folder of", name, error);
  }
  return absl::OkStatus();
}

void Journal::Do(JournalBatch::Append& append) {
  const auto found = sessions_.find(append.session);
  if (found == sessions_.end() || failed_.contains(append.session)) return;
  File& file = found->second;
  if (file.unwritten_end.bytes == 0) BeginJournal(file.unwritten_end, file.unwritten);
  AddJournalRecord(append.record, file.unwritten_end, file.unwritten);
  file.sync = file.sync || append.is_input;
  unwritten_.insert(append.session);
}

void Journal::Do(JournalBatch::Renew& renew) {
  const auto found = sessions_.find(renew.session);
  if (found == sessions_.end() || failed_.contains(renew.session)) return;
  if (growing_.size() >= kGrowingMax) return;  // another time
  File& file = found->second;
  file.sync = true;  // what comes into the next file must not be there without this
  unwritten_.insert(renew.session);
  Write(renew.session);
  if (failed_.contains(renew.session)) return;
  ++file.place.last;
  file.place.end = {};
  if (file.file.ok()) --open_files_;
  file.file = OpenFile();
  if (const absl::Status status = OpenJournal(file, true); !status.ok()) return Fail(renew.session, status);
  auto bytes = BytesOf(renew.snapshot);
  if (!bytes.ok()) return;  // another time
  growing_.push_back(
      {.session = renew.session, .name = file.name, .number = file.place.last, .bytes = *std::move(bytes)});
}

void Journal::Do(JournalBatch::Remove& remove) {
  const auto found = sessions_.find(remove.session);
  if (found == sessions_.end()) {  // it never began
    failed_.erase(remove.session);
    return;
  }
  const File& file = found->second;
  const absl::Status status = files_->Remove(file.name, file.place.first, file.place.last, sync_ != Sync::kNone);
  if (file.file.ok()) --open_files_;
  unwritten_.erase(remove.session);
  sessions_.erase(found);
  if (status.ok()) {
    failed_.erase(remove.session);
  } else {
    failed_[remove.session] = status;
  }
}

void Journal::Write(SessionId session) {
  if (unwritten_.erase(session) == 0) return;
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || failed_.contains(session)) return;
  File& file = found->second;
  if (const absl::Status status = WriteTo(file); !status.ok()) return Fail(session, status);
  metrics_.record_bytes.Add(static_cast<double>(file.unwritten.size()));
  file.place.end = file.unwritten_end;
  file.unwritten.clear();
  file.sync = false;
}

absl::Status Journal::WriteTo(File& file) {
  if (!file.file.ok()) {
    const JournalEnd unwritten_end = file.unwritten_end;
    EBB_TRY(OpenJournal(file, false));
    file.unwritten_end = unwritten_end;
  }
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

void Journal::Fail(SessionId session, const absl::Status& why, bool began) {
  File& file = sessions_.at(session);
  const absl::Status status = JournalFailed(file.name, why, began);
  LogError(
      "journal_failed",
      {{"tenant", file.name.first}, {"session", HashForLog(file.name.second)}, {"error", std::string(why.message())}},
      began ? "the session takes no more writes" : "the session does not begin");
  metrics_.failures.Add();
  failed_[session] = status;
  unwritten_.erase(session);
  if (file.file.ok()) --open_files_;
  file.file = OpenFile();
  file.unwritten = {};
  const std::lock_guard lock(mutex_);
  news_.failed.push_back({.session = session, .status = status, .began = began});
}

// One slice of the oldest. A snapshot that cannot be written is given up: the journals before it are still there.
void Journal::Grow() {
  Growing& growing = growing_.front();
  const OpenFile folder = files_->FolderOf(growing.name);
  const std::string beside = NameBeside(SessionFiles::SnapshotName(growing.name, growing.number));
  const auto found = sessions_.find(growing.session);
  absl::Status status = absl::CancelledError("the session is gone");
  if (found != sessions_.end()) {
    status = WriteSlice(growing, folder, beside);
    if (status.ok() && growing.written < growing.bytes.size()) return;
    if (status.ok()) status = Settle(found->second, growing, folder, beside);
  }
  if (!status.ok()) {
    unlinkat(folder.get(), beside.c_str(), 0);
    LogInfo("journal", {{"session", HashForLog(growing.name.second)}, {"reason", std::string(status.message())}},
            "a snapshot that was to take its place is given up");
  }
  growing_.pop_front();
}

absl::Status Journal::WriteSlice(Growing& growing, const OpenFile& folder, const std::string& beside) const {
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
absl::Status Journal::Settle(File& file, const Growing& growing, const OpenFile& folder, const std::string& beside) {
  const std::string name = SessionFiles::SnapshotName(file.name, growing.number);
  if (renameat(folder.get(), beside.c_str(), folder.get(), name.c_str()) != 0)
    return StoreFailed("renaming", name, errno);
  if (sync_ != Sync::kNone && fsync(folder.get()) != 0) return StoreFailed("syncing the folder of", name, errno);
  metrics_.snapshot_bytes.Add(static_cast<double>(growing.bytes.size()));
  EBB_TRY(files_->Remove(file.name, file.place.first, growing.number - 1, false));
  file.place.first = growing.number;
  return absl::OkStatus();
}

}  // namespace ebb
