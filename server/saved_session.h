// A session as the bytes that the store keeps, and back: the engine's records and the server's own.

#ifndef EBB_SERVER_SAVED_SESSION_H_
#define EBB_SERVER_SAVED_SESSION_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/snapshot/session_image.h"
#include "server/dispatcher.h"
#include "server/worker.h"

namespace ebb {

// Whole and sealed. Any thread.
std::string SnapshotOf(SaveOutcome outcome);

// What Dispatcher::Restore takes; its image looks into `bytes`.
struct LoadedSession {
  std::string bytes = {};
  SessionPast past = {};
};

// Errors of ReadSnapshot and ReadSession; SNAPSHOT_DAMAGED. Any thread.
absl::StatusOr<std::unique_ptr<LoadedSession>> LoadSession(const Worker& worker, std::string bytes);

}  // namespace ebb

#endif  // EBB_SERVER_SAVED_SESSION_H_
