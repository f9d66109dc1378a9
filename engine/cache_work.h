// What changes a session's cache, or looks through it, and may take longer than a step: done in pieces, between which
// the engine runs steps of other sessions.
//
//   EBB_ASSIGN(auto change, engine->BeginSetPolicy(*session, policy));
//   for (bool more = true; more;) {
//     EBB_ASSIGN(more, change->Advance(lanes));   // and steps of others
//   }
//   EBB_ASSIGN(PolicySwap swap, change->Commit());
//
// Until Commit the session stands as it did, also between two pieces: work that is dropped has changed nothing. From
// the first Begin to then the session neither runs nor changes by other means; it may be looked at. The answer is that
// of the call that does all at once, whatever the pieces are. Used by the engine's thread alone, and gone before the
// session is.

#ifndef EBB_ENGINE_CACHE_WORK_H_
#define EBB_ENGINE_CACHE_WORK_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/snapshot/snapshot_file.h"

namespace ebb {

class CacheWork {
 public:
  virtual ~CacheWork() = default;

  // One piece: passes over `lanes` >= 1 lanes of the cache at most (all those of a slot map, where they share one), on
  // every host thread, or once over all with the newest query. False when nothing is left. An error is a refusal, as
  // the call that does all at once states it, and ends the work.
  virtual absl::StatusOr<bool> Advance(int32_t lanes) = 0;
};

// Of Engine::SetPolicy and TryPolicy.
class PolicyWork : public CacheWork {
 public:
  // REQUIRES of both: nothing is left. UNAVAILABLE NO_PAGES, and nothing has changed: it may be asked again when pages
  // are free.
  virtual absl::StatusOr<PolicySwap> Commit() = 0;  // once that it succeeds
  virtual absl::StatusOr<PolicySwap> Try(int64_t spare) = 0;
};

// Of Engine::Evict.
class EvictWork : public CacheWork {
 public:
  // REQUIRES of both: nothing is left.
  virtual const EvictReport& report() const = 0;
  virtual void Commit() = 0;  // once; not of a dry run
};

// Of Engine::Describe.
class DescribeWork : public CacheWork {
 public:
  // REQUIRES: nothing is left.
  virtual std::vector<LaneReport> Take() = 0;  // once
};

// Of Engine::Save.
class SaveWork : public CacheWork {
 public:
  // REQUIRES: nothing is left.
  virtual SnapshotWriter Take() = 0;  // once
};

// Of Engine::Reopen. Work that is dropped gives its pages back.
class ReopenWork : public CacheWork {
 public:
  // REQUIRES: nothing is left.
  virtual std::unique_ptr<Session> Take() = 0;  // once
};

}  // namespace ebb

#endif  // EBB_ENGINE_CACHE_WORK_H_
