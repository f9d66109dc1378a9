// Sessions over a planned restart: a server that has drained leaves them in its store, and the next one begins with
// them, under their names and at their generations, as if it had been the same.
//
// What was brought back is no longer in the store: a server that is killed later loses what its sessions did since, and
// must not bring back what they were before that.

#ifndef EBB_SERVER_KEPT_SESSIONS_H_
#define EBB_SERVER_KEPT_SESSIONS_H_

#include <cstdint>

#include "server/metrics.h"
#include "server/snapshot_store.h"
#include "server/store.h"
#include "server/worker.h"

namespace ebb {

struct KeptSessions {
  int32_t kept = 0;
  int32_t failed = 0;  // each of them is in the log, with the reason
};

// Writes every session. A draft that waits for its verdict is forgotten. REQUIRES: the worker has drained, and nobody
// calls it any more. Waits.
KeptSessions KeepSessions(Worker& worker, Store& store, const StoreMetrics& metrics);

// Opens every session that is there, and removes it from the store. One that cannot be opened stays there, and the
// others come back. REQUIRES: nobody calls the worker yet. Waits.
KeptSessions BringBackSessions(Worker& worker, Store& store, const StoreMetrics& metrics);

}  // namespace ebb

#endif  // EBB_SERVER_KEPT_SESSIONS_H_
