// What a dispatcher tells its watchers.

#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/dispatcher.h"

namespace ebb {
namespace {

absl::Status WatchDrained() {
  return Refuse(absl::StatusCode::kUnavailable, "the server is draining: nothing more will be evicted here",
                {.reason = "DRAINING", .retry = kRetryElsewhere});
}

}  // namespace

absl::StatusOr<SessionId> Dispatcher::Watched(const WatchRequest& request) {
  if (scheduler_.load().draining) return WatchDrained();
  EBB_TRY(watchers_.CheckRoom(tenants_.Of(request.tenant, clock_.Now())));
  if (request.session.empty()) return Watchers::kEverySession;
  EBB_ASSIGN(const OpenSession* session, sessions_.Find(request.tenant, request.session));
  return session->id;
}

void Dispatcher::Watch(CallId id, const WatchRequest& request, EvictionWatcher& watcher) {
  const absl::StatusOr<SessionId> session = Watched(request);
  if (!session.ok()) {  // its End may ask a store that servers share: not on this thread, where there is one
    return Hold([&watcher, refused = session.status()](const absl::Status& /*written*/) { watcher.End(refused); });
  }
  watchers_.Add(id, request, *session, tenants_.Of(request.tenant, clock_.Now()), watcher);
}

void Dispatcher::Unwatch(CallId id) {
  watchers_.End(id, Refuse(absl::StatusCode::kCancelled, "the caller cancelled", {.reason = "CALL_CANCELLED"}));
}

void Dispatcher::EndWatches() { watchers_.EndAll(WatchDrained()); }

void Dispatcher::EndWatchesOf(const OpenSession& session) { watchers_.EndOf(session.id, WhyClosed(session)); }

void Dispatcher::TellRow(const OpenSession& session, const BatchRow& row, EvictionCause cause) {
  Tell(session, {.cause = cause,
                 .length_before = row.length,
                 .evicted = row.evicted,
                 .evicted_slots = row.evicted_slots,
                 .loss = row.measure ? &row.loss : nullptr,
                 .victims = row.victims});
}

void Dispatcher::Tell(const OpenSession& session, EvictionEvent event) {
  if (watchers_.empty() || event.evicted_slots == 0) return;
  event.time = clock_.Now();
  event.session = session.request.id;
  event.policy = session.cache->policy().scorer_name;
  event.session_tokens = static_cast<int64_t>(session.cache->log().size());
  event.length_after = session.cache->cache_length();
  event.generation = session.generation;
  watchers_.Tell(session, event);
}

}  // namespace ebb
