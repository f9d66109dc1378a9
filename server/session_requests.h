// What is asked of sessions beside calls that run the model, and what is answered.

#ifndef EBB_SERVER_SESSION_REQUESTS_H_
#define EBB_SERVER_SESSION_REQUESTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "engine/cache_work.h"
#include "engine/engine.h"
#include "engine/placement.h"
#include "engine/sampler.h"
#include "engine/snapshot/session_image.h"
#include "policies/spec.h"
#include "server/call.h"
#include "server/journal.h"
#include "server/journal_record.h"
#include "server/scheduler.h"
#include "server/sessions.h"

namespace ebb {

// A session as GetSession shows it.
struct SessionInfo {
  SessionRequest request = {};
  ValidSpec policy = {};  // in force: a budget_ratio may be fixed by now
  bool busy = false;
  bool swapped = false;
  uint64_t generation = 0;
  int64_t tokens = 0;
  int32_t cache_length = 0;
  int32_t cache_capacity = 0;
  int64_t reserved_bytes = 0;
  int64_t shared_bytes = 0;  // of these, in pages that other sessions have, too
  int64_t used_bytes = 0;
  int64_t live_slots = 0;  // of all lanes
  int64_t evicted = 0;
  int32_t draft_tokens = 0;  // that wait
  Placement placement = {.worker = ""};
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  absl::Time created = {};
  absl::Time last_used = {};
};

struct EvictOutcome {
  EvictReport report = {};
  int64_t bytes = 0;
  uint64_t generation = 0;
};

// How well a session did its task: one of the two.
struct TaskOutcome {
  std::optional<double> score = {};  // 0 .. 1
  bool thumb_up = false;
  std::string request_id = {};  // empty: none
};

struct AcceptOutcome {
  CallUsage usage = {};
  uint64_t generation = 0;
};

// A policy to put in force.
struct PolicyRequest {
  ValidSpec policy = {};
  bool own_kv_type = false;     // the session's, in the place of policy.kv_type
  bool own_rope_cache = false;  // likewise
  bool dry_run = false;
};

// A branch of a session.
struct ForkRequest {
  std::string tenant = {};
  std::string session = {};  // id of the one that is forked
  std::optional<uint64_t> expected_generation = {};
  uint64_t made_for = 0;  // SessionView::id that `sampling` was made from
  std::string id = {};    // of the branch
  std::optional<PolicyRequest> policy = {};
  SamplingOptions sampling = {};
  std::optional<absl::Duration> ttl = {};  // else the session's
  std::string request_id = {};
  bool reserve_copies = false;
};

struct PolicyOutcome {
  std::string session = {};  // its id
  PolicySwap swap = {};
  ValidSpec policy = {};  // in force after the call
  uint64_t generation = 0;
};

// What the server knows of a session beside its cache, on its way to the store and back. Of the request count sampling
// and ttl.
struct SavedSession {
  SessionRequest request = {};
  std::vector<float> logits = {};  // of the log's last token; empty while the log is
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t evicting_steps = 0;
  bool past_context = false;
  // What a session has that goes on under its own name, and one that begins from it has not.
  struct Past {
    uint64_t generation = 1;
    absl::Time created = {};
  };
  std::optional<Past> past = {};
};

// What a session is brought back from.
struct SessionPast {
  SavedSession saved = {};
  SessionImage image = {};
  std::vector<JournalRecord> records = {};   // what it did since then
  std::optional<JournalPlace> journal = {};  // where those are, and what it does goes on; empty: nowhere
};

// What bytes hold; `past.image` looks into them.
struct LoadedSession {
  std::string bytes = {};
  SessionPast past = {};
};

struct SaveOutcome {
  SavedSession session = {};
  SnapshotWriter snapshot = {};  // the engine's records
  uint64_t generation = 0;
  int64_t tokens = 0;
};

struct CacheDescription {
  int32_t capacity = 0;
  int64_t session_tokens = 0;
  uint64_t generation = 0;
  std::vector<LaneReport> lanes = {};
};

// What the server has done and holds.
struct WorkTotals {
  EngineMemory memory = {};
  SchedulerLoad load = {};
  int64_t used_bytes = 0;
  int64_t steps = 0;
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t evicted_tokens = 0;
};

}  // namespace ebb

#endif  // EBB_SERVER_SESSION_REQUESTS_H_
