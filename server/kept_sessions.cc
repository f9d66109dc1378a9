#include "server/kept_sessions.h"

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policies/status.h"
#include "server/log.h"
#include "server/saved_session.h"

namespace ebb {
namespace {

// After all work on caches that goes on, whose sessions refuse to be saved meanwhile.
template <typename Answer>
absl::StatusOr<Answer> AskAndWait(Worker& worker, absl::AnyInvocable<absl::StatusOr<Answer>(Dispatcher&)> question) {
  std::promise<absl::StatusOr<Answer>> result;
  worker.Ask<Answer>(
      std::move(question), [&](absl::StatusOr<Answer> answer) { result.set_value(std::move(answer)); }, Effort::kLong);
  return result.get_future().get();
}

void OnStoreAndWait(Store& store, absl::AnyInvocable<void(SnapshotStore&)> job) {
  std::promise<void> done;
  Store::Job run = [&](SnapshotStore& files) {
    job(files);
    done.set_value();
  };
  if (store.Offer(std::move(run))) done.get_future().wait();
}

void Count(const char* event, const SessionName& name, const absl::Status& status, KeptSessions& sum) {
  ++(status.ok() ? sum.kept : sum.failed);
  if (status.ok()) return;
  LogError(event,
           {{"tenant", name.first},
            {"session", HashForLog(name.second)},
            {"reason", GetRefusal(status).reason},
            {"error", ErrorForLog(status, name.second)}},
           "a session is lost to the next server");
}

absl::Status Drop(Worker& worker, const SessionName& name) {
  return AskAndWait<int64_t>(
             worker,
             [&name](Dispatcher& dispatcher) { return dispatcher.Delete(name.first, name.second, std::nullopt); })
      .status();
}

absl::Status Keep(Worker& worker, SnapshotStore& files, const StoreMetrics& metrics, const SessionName& name) {
  const absl::Time start = worker.Now();
  const auto settled = AskAndWait<bool>(worker, [&name](Dispatcher& dispatcher) -> absl::StatusOr<bool> {
    EBB_ASSIGN(const SessionInfo info, dispatcher.Get(name.first, name.second));
    if (info.draft_tokens == 0) return false;
    EBB_TRY(dispatcher.Accept(name.first, name.second, std::nullopt, 0).status());
    return true;
  });
  EBB_TRY(settled.status());
  std::promise<absl::StatusOr<SaveOutcome>> copied;
  worker.Undertake<SaveOutcome>(
      [&name](Dispatcher& dispatcher, Asker<SaveOutcome> asker) {
        dispatcher.Save(name.first, name.second, std::nullopt, std::move(asker));
      },
      {.answer = [&](absl::StatusOr<SaveOutcome> outcome) { copied.set_value(std::move(outcome)); }});
  absl::StatusOr<SaveOutcome> saved = copied.get_future().get();
  if (!saved.ok()) return saved.status();
  EBB_ASSIGN(const SnapshotStore::Entry entry,
             files.Write(Shelf::kSessions, name.first, name.second, SnapshotOf(*std::move(saved))));
  metrics.saved_bytes.Add(static_cast<double>(entry.bytes));
  metrics.save_seconds.Observe(worker.Now() - start);
  return Drop(worker, name);  // nobody calls it any more, and those that are swapped want its pages
}

absl::Status Reopen(Worker& worker, const SessionName& name, std::unique_ptr<LoadedSession> loaded) {
  loaded->past.saved.request.tenant = name.first;
  loaded->past.saved.request.id = name.second;
  std::promise<absl::Status> opened;
  worker.Undertake<SessionInfo>(
      [loaded = std::move(loaded)](Dispatcher& dispatcher, Asker<SessionInfo> asker) mutable {
        dispatcher.Restore(std::move(loaded), std::move(asker));
      },
      {.answer = [&](const absl::StatusOr<SessionInfo>& info) { opened.set_value(info.status()); }});
  return opened.get_future().get();
}

absl::Status BringBack(Worker& worker, SnapshotStore& files, const StoreMetrics& metrics, const SessionName& name) {
  const absl::Time start = worker.Now();
  EBB_ASSIGN(SnapshotBytes snapshot, files.Read(Shelf::kSessions, name.first, name.second));
  metrics.restored_bytes.Add(static_cast<double>(snapshot.bytes.size()));
  EBB_ASSIGN(std::unique_ptr<LoadedSession> loaded, LoadSession(worker, std::move(snapshot)));
  EBB_TRY(Reopen(worker, name, std::move(loaded)));
  const absl::Status removed = files.Delete(Shelf::kSessions, name.first, name.second);
  // Where it stays it would come back as it once was, were this server killed. It may be gone, and that not synced.
  if (!removed.ok() && files.Read(Shelf::kSessions, name.first, name.second).ok()) {
    EBB_TRY(Drop(worker, name));
    return removed;
  }
  metrics.restore_seconds.Observe(worker.Now() - start);
  return absl::OkStatus();
}

absl::StatusOr<bool> GoOnFrom(Worker& worker, const SessionFiles& files, const SessionName& name) {
  EBB_ASSIGN(std::optional<SessionPieces> pieces, files.Read(name));
  if (!pieces) {
    EBB_TRY(files.RemoveAll(name));
    return false;
  }
  EBB_TRY(GoOn(worker, name, *std::move(pieces)));
  return true;
}

}  // namespace

bool IsHopeless(const absl::Status& status, bool swaps) {
  const std::string reason = GetRefusal(status).reason;
  return absl::IsDataLoss(status) || reason == "SNAPSHOT_FOREIGN" || reason == "SNAPSHOT_VERSION" ||
         reason == "SESSION_TOO_LARGE" || (reason == "NO_PAGES" && !swaps);
}

absl::StatusOr<bool> BringBackJournal(Worker& worker, const SessionFiles& files, const JournalMetrics& metrics,
                                      const SessionName& name) {
  const absl::Time start = worker.Now();
  bool is_back = false;
  EBB_TRY(BringBackDespiteGpuFault([&]() -> absl::Status {
    EBB_ASSIGN(is_back, GoOnFrom(worker, files, name));
    return absl::OkStatus();
  }));
  if (!is_back) return false;
  metrics.recovery_seconds.Observe(worker.Now() - start);
  metrics.brought_back.Add();
  return true;
}

absl::Status BringBackDespiteGpuFault(absl::FunctionRef<absl::Status()> bring_back) {
  absl::Status status = bring_back();
  if (GetRefusal(status).reason == "GPU_FAULT") status = bring_back();
  return status;
}

absl::Status GoOn(Worker& worker, const SessionName& name, SessionPieces pieces) {
  auto read = LoadSession(worker, {.bytes = std::move(pieces.snapshot)});
  if (!read.ok()) {
    return SessionFiles::AtFile(name, SessionFiles::SnapshotName(name, pieces.place.first), read.status());
  }
  std::unique_ptr<LoadedSession> loaded = *std::move(read);
  for (const std::string& bytes : pieces.records) {
    auto record = DecodeRecord(bytes, worker.model());
    if (!record.ok()) {
      return SessionFiles::AtFile(name, SessionFiles::JournalName(name, pieces.place.last), record.status());
    }
    loaded->past.records.push_back(*std::move(record));
  }
  loaded->past.journal = pieces.place;
  return Reopen(worker, name, std::move(loaded));
}

KeptSessions KeepSessions(Worker& worker, Store& store, const StoreMetrics& metrics) {
  KeptSessions sum;
  const auto names = AskAndWait<std::vector<SessionName>>(
      worker, [](Dispatcher& dispatcher) -> absl::StatusOr<std::vector<SessionName>> { return dispatcher.Names(); });
  OnStoreAndWait(store, [&](SnapshotStore& files) {
    for (const SessionName& name : *names) Count("not_kept", name, Keep(worker, files, metrics, name), sum);
  });
  return sum;
}

absl::StatusOr<std::vector<SessionName>> NamesKept(const SnapshotStore& files) {
  std::vector<SessionName> names;
  EBB_ASSIGN(const std::vector<std::string> tenants, files.Tenants(Shelf::kSessions));
  for (const std::string& tenant : tenants) {
    EBB_ASSIGN(const auto entries, files.List(Shelf::kSessions, tenant, "", SIZE_MAX));
    for (const SnapshotStore::Entry& entry : entries) names.emplace_back(tenant, entry.id);
  }
  return names;
}

absl::StatusOr<KeptSessions> BringBackSessions(Worker& worker, Store& store, const StoreMetrics& metrics) {
  KeptSessions sum;
  absl::Status listed;
  OnStoreAndWait(store, [&](SnapshotStore& files) {
    const auto names = NamesKept(files);
    listed = names.status();
    if (!listed.ok()) return;
    for (const SessionName& name : *names) {
      Count("not_brought_back", name, BringBack(worker, files, metrics, name), sum);
    }
  });
  if (!listed.ok()) return StoreUnusable("sessions", listed);
  return sum;
}

absl::StatusOr<KeptSessions> BringBackJournals(Worker& worker, const SessionFiles& files, Journal& journal,
                                               const JournalMetrics& metrics, bool swaps) {
  KeptSessions sum;
  EBB_ASSIGN(const std::vector<SessionName> names, files.Names());
  for (const SessionName& name : names) {
    const absl::StatusOr<bool> back = BringBackJournal(worker, files, metrics, name);
    if (back.ok() && !*back) continue;
    Count("not_brought_back", name, back.status(), sum);
    if (back.ok()) continue;
    if (IsHopeless(back.status(), swaps) && files.SetAside(name).ok()) {
      metrics.set_aside.Add();
    } else {
      metrics.left.Add();
      journal.Reserve(name);
    }
  }
  return sum;
}

}  // namespace ebb
