// A session as the bytes that the store keeps, and back: the engine's records and the server's own.

#ifndef EBB_SERVER_SAVED_SESSION_H_
#define EBB_SERVER_SAVED_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/snapshot/session_image.h"
#include "server/dispatcher.h"
#include "server/worker.h"

namespace ebb {

// Whole and sealed. Any thread.
std::string SnapshotOf(SaveOutcome outcome);

// Of the snapshot the bytes are kept. Errors of ReadSnapshot and ReadSession; SNAPSHOT_DAMAGED. Any thread.
absl::StatusOr<std::unique_ptr<LoadedSession>> LoadSession(const ImageLimits& limits, int32_t vocab,
                                                           SnapshotBytes snapshot);
inline absl::StatusOr<std::unique_ptr<LoadedSession>> LoadSession(const Worker& worker, SnapshotBytes snapshot) {
  return LoadSession(worker.image_limits(), worker.tokenizer().size(), std::move(snapshot));
}

}  // namespace ebb

#endif  // EBB_SERVER_SAVED_SESSION_H_
