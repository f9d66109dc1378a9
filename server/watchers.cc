#include "server/watchers.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {

Watchers::~Watchers() { EBB_CHECK(watchers_.empty()); }

absl::Status Watchers::CheckRoom(const TenantAccount& account) const {
  EBB_TRY(account.Check(Quota::kWatchers, 1));
  if (watchers_.size() >= static_cast<size_t>(watchers_max_)) {
    return Refuse(absl::StatusCode::kUnavailable,
                  absl::StrFormat("%d WatchEvictions calls run, which is all the server takes", watchers_.size()),
                  {.reason = "WATCHERS_FULL", .retry = absl::Seconds(1)});
  }
  return absl::OkStatus();
}

void Watchers::Add(CallId id, const WatchRequest& request, SessionId session, TenantAccount& account,
                   EvictionWatcher& watcher) {
  EBB_CHECK(request.every >= 1);
  const bool is_new =
      watchers_.emplace(id, Watcher{.request = request, .session = session, .output = &watcher, .account = &account})
          .second;
  EBB_CHECK(is_new);
  account.Count(Quota::kWatchers, 1);
  account.metrics().watchers.Add(1);
  watcher.Begin();
}

bool Watchers::WantVictims(const OpenSession& session) const {
  return std::ranges::any_of(watchers_, [&](const auto& one) {
    const Watcher& watcher = one.second;
    return watcher.request.list_victims && watcher.Watches(session) && watcher.TakesStep(session);
  });
}

void Watchers::Tell(const OpenSession& session, const EvictionEvent& event) {
  const bool is_step = event.cause != EvictionCause::kEvict && event.cause != EvictionCause::kSetPolicy;
  for (const auto& [_, watcher] : watchers_) {
    if (!watcher.Watches(session) || (is_step && !watcher.TakesStep(session))) continue;
    const bool told = watcher.output->OnEviction(event, watcher.request.list_victims);
    const TenantMetrics& metrics = watcher.account->metrics();
    (told ? metrics.watch_events : metrics.watch_events_lost).Add();
  }
}

void Watchers::End(CallId id, const absl::Status& status) {
  const auto node = watchers_.extract(id);
  if (node.empty()) return;
  node.mapped().account->Count(Quota::kWatchers, -1);
  node.mapped().account->metrics().watchers.Add(-1);
  node.mapped().output->End(status);
}

void Watchers::EndOf(SessionId session, const absl::Status& status) {
  std::vector<CallId> over;
  for (const auto& [id, watcher] : watchers_) {
    if (watcher.session == session) over.push_back(id);
  }
  for (const CallId id : over) End(id, status);
}

void Watchers::EndAll(const absl::Status& status) {
  while (!watchers_.empty()) End(watchers_.begin()->first, status);
}

}  // namespace ebb
