// Sessions over a restart: the next server begins with them, under their names and at their generations, as if it had
// been the same.
//
// Planned: a server that has drained leaves them in its store. What was brought back is no longer there: a server that
// is killed later loses what its sessions did since, and must not bring back what they were before that. Where sessions
// are journaled, nothing has to be planned, and their files are what they go on with.

#ifndef EBB_SERVER_KEPT_SESSIONS_H_
#define EBB_SERVER_KEPT_SESSIONS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/journal.h"
#include "server/metrics.h"
#include "server/snapshot_store.h"
#include "server/store.h"
#include "server/worker.h"

namespace ebb {

struct KeptSessions {
  int32_t kept = 0;    // or brought back
  int32_t failed = 0;  // each of them is in the log, with the reason
};

// Writes every session. A draft that waits for its verdict is forgotten. REQUIRES: the worker has drained, and nobody
// calls it any more. Waits.
KeptSessions KeepSessions(Worker& worker, Store& store, const StoreMetrics& metrics);

// Those that BringBackSessions would open; all of them. UNAVAILABLE STORE_FAILED.
absl::StatusOr<std::vector<SessionName>> NamesKept(const SnapshotStore& files);

// Opens every session that is there, and removes it from the store. One that cannot be opened, or not removed, stays
// there, and the others come back. UNAVAILABLE STORE_UNUSABLE where it is not known which are there. REQUIRES: nobody
// calls the worker yet. Waits.
absl::StatusOr<KeptSessions> BringBackSessions(Worker& worker, Store& store, const StoreMetrics& metrics);

// Opens every session that is journaled, and goes on with its journal. One that can never be opened here (DATA_LOSS,
// another model, too large, no pages where no session is ever swapped) is set aside; one that cannot be now stays as it
// is, and its name is taken. Errors of SessionFiles::Names.
// REQUIRES: nobody calls the worker yet. Waits.
absl::StatusOr<KeptSessions> BringBackJournals(Worker& worker, const SessionFiles& files, Journal& journal,
                                               const JournalMetrics& metrics, bool swaps);

// One of them. False for what was never whole, or is gone: nothing comes back. Waits.
absl::StatusOr<bool> BringBackJournal(Worker& worker, const SessionFiles& files, const JournalMetrics& metrics,
                                      const SessionName& name);

// Whether one that was refused so can never be opened here. With swapping, pages may be there next time.
bool IsHopeless(const absl::Status& status, bool swaps);

// `bring_back` once more where a GPU failed meanwhile (GPU_FAULT): from then on the host computes it.
absl::Status BringBackDespiteGpuFault(absl::FunctionRef<absl::Status()> bring_back);

// Opens one that was journaled, and goes on with its journal. Refusals name the part of it that they are about. Waits.
absl::Status GoOn(Worker& worker, const SessionName& name, SessionPieces pieces);

}  // namespace ebb

#endif  // EBB_SERVER_KEPT_SESSIONS_H_
