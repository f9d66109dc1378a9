// Who watches what leaves the caches, and what each of them is told.
//
// The worker's thread alone. A watcher is offered every event that it asked for, once, and takes it or loses it:
// nothing here waits, and nothing is kept for a watcher that is slow.

#ifndef EBB_SERVER_WATCHERS_H_
#define EBB_SERVER_WATCHERS_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/engine.h"
#include "server/call.h"
#include "server/sessions.h"
#include "server/tenants.h"

namespace ebb {

struct WatchRequest {
  std::string tenant = {};
  std::string session = {};  // id; empty: every session of the tenant
  int32_t every = 1;  // of a session's steps that evict, one in so many, the first since it was opened among them
  bool list_victims = false;
};

// A step that appended a token or a block (one that ended the first prompt), or a call.
enum class EvictionCause { kDecode, kPrefill, kPromptEnd, kEvict, kSetPolicy };

// What left one session's cache at one moment.
struct EvictionEvent {
  absl::Time time = {};
  std::string_view session = {};  // its id
  std::string_view policy = {};   // scorer
  EvictionCause cause = EvictionCause::kDecode;
  int64_t session_tokens = 0;
  int32_t length_before = 0, length_after = 0;  // of the longest lane
  int32_t evicted = 0;                          // tokens that left the lane that lost most
  int64_t evicted_slots = 0;                    // all lanes
  const Loss* loss = nullptr;                   // null: not measured
  uint64_t generation = 0;
  std::span<const LaneVictims> victims = {};  // may be there for a watcher that did not ask
};

// Where a watcher's events go. Called by the worker's thread; must not wait. Nothing is called after End, which may
// destroy it.
class EvictionWatcher {
 public:
  virtual ~EvictionWatcher() = default;
  // The watch is in force: every later event is offered.
  virtual void Begin() = 0;
  // False: there was no room, and the event is lost to this watcher. `with_victims`: it asked for them.
  virtual bool OnEviction(const EvictionEvent& event, bool with_victims) = 0;
  virtual void End(const absl::Status& status) = 0;  // never OK: a watch does not end by itself
};

class Watchers {
 public:
  // At most `watchers_max` of all tenants together.
  explicit Watchers(int32_t watchers_max) : watchers_max_(watchers_max) {}
  void SetMax(int32_t watchers_max) { watchers_max_ = watchers_max; }  // those beyond it stay
  ~Watchers();                                                         // REQUIRES: none is left

  // OK, or RESOURCE_EXHAUSTED TENANT_WATCHERS, or UNAVAILABLE WATCHERS_FULL with RetryInfo.
  absl::Status CheckRoom(const TenantAccount& account) const;
  // REQUIRES: CheckRoom. `session`: that of request.session; kEverySession where it names none.
  static constexpr SessionId kEverySession = 0;
  void Add(CallId id, const WatchRequest& request, SessionId session, TenantAccount& account, EvictionWatcher& watcher);

  // Whether somebody wants to know who leaves in the session's next step that evicts.
  bool WantVictims(const OpenSession& session) const;
  // REQUIRES: called before the step counts among session.evicting_steps.
  void Tell(const OpenSession& session, const EvictionEvent& event);
  bool empty() const { return watchers_.empty(); }

  // Ends one that may be over, those of one session, or all.
  void End(CallId id, const absl::Status& status);
  void EndOf(SessionId session, const absl::Status& status);
  void EndAll(const absl::Status& status);

 private:
  struct Watcher {
    WatchRequest request = {};
    SessionId session = kEverySession;
    EvictionWatcher* output = nullptr;
    TenantAccount* account = nullptr;

    bool Watches(const OpenSession& of) const {
      return session == kEverySession ? request.tenant == of.request.tenant : session == of.id;
    }
    bool TakesStep(const OpenSession& of) const { return of.evicting_steps % request.every == 0; }
  };

  int32_t watchers_max_;
  std::map<CallId, Watcher> watchers_;
};

}  // namespace ebb

#endif  // EBB_SERVER_WATCHERS_H_
