#include "server/watchers.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {

Watchers::~Watchers() { EBB_CHECK(watchers_.empty()); }

absl::Status Watchers::CheckRoom(const std::string& tenant) const {
  const auto found = limits_.find(tenant);
  const int32_t own_max = found == limits_.end() ? TenantLimits().watchers_max : found->second.watchers_max;
  const auto own =
      std::ranges::count_if(watchers_, [&](const auto& one) { return one.second.request.tenant == tenant; });
  if (own_max > 0 && own >= own_max) {
    return Refuse(absl::StatusCode::kResourceExhausted,
                  absl::StrFormat("tenant %s runs %d WatchEvictions calls, which is all it may", tenant, own),
                  {.reason = "TENANT_WATCHERS", .quota = "tenants/" + tenant});
  }
  if (watchers_.size() >= static_cast<size_t>(watchers_max_)) {
    return Refuse(absl::StatusCode::kUnavailable,
                  absl::StrFormat("%d WatchEvictions calls run, which is all the server takes", watchers_.size()),
                  {.reason = "WATCHERS_FULL", .retry = absl::Seconds(1)});
  }
  return absl::OkStatus();
}

void Watchers::Add(CallId id, const WatchRequest& request, SessionId session, EvictionWatcher& watcher) {
  EBB_CHECK(request.every >= 1);
  const TenantMetrics& metrics = metrics_.tenant(request.tenant);
  const bool is_new =
      watchers_.emplace(id, Watcher{.request = request, .session = session, .output = &watcher, .metrics = &metrics})
          .second;
  EBB_CHECK(is_new);
  metrics.watchers.Add(1);
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
    (told ? watcher.metrics->watch_events : watcher.metrics->watch_events_lost).Add();
  }
}

void Watchers::End(CallId id, const absl::Status& status) {
  const auto node = watchers_.extract(id);
  if (node.empty()) return;
  node.mapped().metrics->watchers.Add(-1);
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
