#include "server/journal.h"

#include <algorithm>
#include <new>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "policies/status.h"
#include "server/log.h"

namespace ebb {
namespace {

// What callers are told: of one that never began they may try again, of one that did nothing is to be had any more.
absl::Status JournalFailed(const SessionName& name, const absl::Status& why, Fate fate) {
  if (fate == Fate::kGone || absl::IsAlreadyExists(why)) return why;
  const std::map<std::string, std::string> metadata = {{"session", "sessions/" + name.second},
                                                       {"cause", GetRefusal(why).reason}};
  const std::string cause(why.message());
  if (fate == Fate::kNeverBegan) {
    return Refuse(absl::StatusCode::kUnavailable,
                  absl::StrFormat("the journal of sessions/%s cannot be begun: %s", name.second, cause),
                  {.reason = "JOURNAL_FAILED", .retry = absl::Seconds(5), .metadata = metadata});
  }
  return Refuse(
      absl::StatusCode::kFailedPrecondition,
      absl::StrFormat("the journal of sessions/%s cannot be written, so it takes no more: %s", name.second, cause),
      {.reason = "JOURNAL_FAILED", .metadata = metadata});
}

}  // namespace

Journal::Journal(std::unique_ptr<SessionStore> store, Seal make, const JournalMetrics& metrics)
    : store_(std::move(store)), seal_(make), metrics_(metrics), thread_([this] { Loop(); }) {}

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
      const auto ready = [this] { return closed_ || !waiting_.empty() || store_->has_slices(); };
      // An hour at most, since a far-off wait overflows the library's clock; waking for nothing is harmless.
      changed_.wait_for(lock, absl::ToChronoNanoseconds(std::min(store_->tend_in(), absl::Hours(1))), ready);
      if (closed_ && waiting_.empty()) break;
      batches.swap(waiting_);
      busy_ = !batches.empty();
    }
    changed_.notify_all();  // for Commit
    CommitAll(batches);
    batches.clear();
    if (store_->has_slices()) store_->WriteSlice();
  }
}

void Journal::CommitAll(std::vector<JournalBatch>& batches) {
  Heed(store_->Tend());
  const absl::Time start = absl::Now();
  bool any = false;
  for (JournalBatch& batch : batches) {
    any = any || !batch.deeds.empty();
    for (JournalBatch::Deed& deed : batch.deeds) {
      std::visit([this](auto& what) { Do(what); }, deed);
    }
  }
  Heed(store_->Write());
  if (any) metrics_.commit_seconds.Observe(absl::Now() - start);
  for (JournalBatch& batch : batches) {
    for (JournalBatch::Telling& telling : batch.tellings) Tell(telling);
  }
  for (const SessionId session : closed_sessions_) failed_.erase(session);
  closed_sessions_.clear();
}

void Journal::Tell(JournalBatch::Telling& telling) {
  const auto failed = failed_.find(telling.about);
  const bool holds = failed == failed_.end() || (telling.is_read && failed->second.fate == Fate::kReadOnly);
  telling.tell(holds ? absl::OkStatus() : failed->second.status);
}

void Journal::Do(JournalBatch::Open& open) {
  sessions_[open.session] = open.name;
  const absl::Status status = Begin(open);
  if (!status.ok()) Fail(open.session, Fate::kNeverBegan, status);
}

absl::Status Journal::Begin(JournalBatch::Open& open) {
  {
    const std::lock_guard lock(mutex_);
    if (reserved_.contains(open.name)) {
      return Refuse(absl::StatusCode::kUnavailable, "its name has files that could not be brought back",
                    {.reason = "STORE_FAILED"});
    }
  }
  std::string bytes;
  try {
    bytes = open.snapshot();
  } catch (const std::bad_alloc&) {
    return Refuse(absl::StatusCode::kUnavailable, "no memory for a snapshot of it", {.reason = "NO_MEMORY"});
  }
  return store_->Begin(open.session, open.name, bytes);
}

void Journal::Do(JournalBatch::Continue& go_on) {
  sessions_[go_on.session] = go_on.name;
  const absl::Status status = store_->Continue(go_on.session, go_on.name, go_on.place);
  if (!status.ok()) Fail(go_on.session, Fate::kReadOnly, status);
}

void Journal::Do(JournalBatch::Append& append) {
  if (Writes(append.session)) store_->Append(append.session, append.record, append.is_input);
}

void Journal::Do(JournalBatch::Renew& renew) {
  if (Writes(renew.session)) Heed(store_->Renew(renew.session, renew.snapshot));
}

void Journal::Do(JournalBatch::Remove& remove) {
  if (!sessions_.contains(remove.session)) {  // it never began, or is gone
    closed_sessions_.push_back(remove.session);
    return;
  }
  const absl::Status status = store_->Remove(remove.session);
  sessions_.erase(remove.session);
  if (status.ok()) {
    failed_.erase(remove.session);
  } else {
    failed_[remove.session] = {.status = status};
  }
}

void Journal::Do(JournalBatch::Leave& leave) {
  closed_sessions_.push_back(leave.session);
  if (!sessions_.contains(leave.session)) return;
  Heed(store_->Write());
  if (!sessions_.contains(leave.session)) return;  // nor is it this server's any more
  store_->Forget(leave.session);
  sessions_.erase(leave.session);
}

void Journal::Heed(const std::vector<SessionStore::Failure>& failures) {
  for (const SessionStore::Failure& failure : failures) {
    const bool is_known = failure.fate == Fate::kReadOnly && failed_.contains(failure.session);
    if (!is_known) Fail(failure.session, failure.fate, failure.why);
  }
}

void Journal::Fail(SessionId session, Fate fate, const absl::Status& why) {
  const SessionName name = sessions_.at(session);
  const absl::Status status = JournalFailed(name, why, fate);
  LogError("journal_failed",
           {{"tenant", name.first},
            {"session", HashForLog(name.second)},
            {"reason", GetRefusal(why).reason},
            {"error", ErrorForLog(why, name.second)}},
           fate == Fate::kNeverBegan ? "the session does not begin"
           : fate == Fate::kReadOnly ? "the session takes no more writes"
                                     : "the session is no longer here");
  if (fate != Fate::kGone) metrics_.failures.Add();
  failed_[session] = {.fate = fate, .status = status};
  if (fate == Fate::kGone) store_->Forget(session);
  if (fate != Fate::kReadOnly) sessions_.erase(session);
  const std::lock_guard lock(mutex_);
  news_.failed.push_back({.session = session, .fate = fate, .status = status});
}

}  // namespace ebb
