// A session between bytes and life: all that decides what it yields, checked, and in the form in which it goes on.
//
// Of the engine's part a snapshot holds, in this order: the model and how it is computed, the policy in force, the log
// and the numbers beside it, every slot map with the scorer's states, and every lane's tiles of K and V. Random numbers
// have no state (policies/hash_random.h), and drafts by prompt lookup are made of the log; a draft that waits for its
// verdict, or an edit that runs, is no part of a session, and one that has either is not written.

#ifndef EBB_ENGINE_SNAPSHOT_SESSION_IMAGE_H_
#define EBB_ENGINE_SNAPSHOT_SESSION_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/session_cache.h"
#include "engine/session_on_engine.h"
#include "engine/session_shape.h"
#include "engine/snapshot/snapshot_file.h"

namespace ebb {

// What an engine says about the images it takes. `arithmetic` is what decides bits beside the model: instruction set
// and accuracy.
struct ImageLimits {
  EngineLimits engine = {};
  int64_t pages_total = 0;
  std::string arithmetic = {};
};

struct SessionImage {
  ValidSpec policy = {};
  CacheShape shape = {};
  int32_t block_size_max = 0;
  int32_t length_limit = 0;
  SessionState state = {};
  SessionCache::Maps maps = {};
  std::vector<std::span<const std::byte>> tiles = {};  // of each lane, in layer-major order: views of the snapshot

  int64_t pages() const { return shape.pages(); }
};

// The image of a session: WriteAllButLanes, then WriteLane of every lane, ascending. Copies. REQUIRES: CheckSettled.
void WriteAllButLanes(const SessionOnEngine& session, const ImageLimits& limits, SnapshotWriter& to);
void WriteLane(const SessionOnEngine& session, int32_t lane, SnapshotWriter& to);

// The image of a snapshot's records, those of other kinds apart. FAILED_PRECONDITION SNAPSHOT_FOREIGN when it was made
// with another model, arithmetic or step size, naming both; SNAPSHOT_DAMAGED; INVALID_ARGUMENT SESSION_TOO_LARGE when
// it needs more pages than there are in all; those of ReadPolicy. Allocates what a session of that shape takes, and
// what the records hold. Any thread.
absl::StatusOr<SessionImage> ReadSession(std::span<const SnapshotRecord> records, const ImageLimits& limits);

}  // namespace ebb

#endif  // EBB_ENGINE_SNAPSHOT_SESSION_IMAGE_H_
