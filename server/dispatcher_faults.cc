// What a dispatcher does when the device that computes its sessions fails. Those whose caches were newer there are
// lost: they are closed, and come back under their names where they have a journal; all others go on, on the host. Of a
// device that merely lacks memory for a step it tells.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/dispatcher.h"
#include "server/log.h"

namespace ebb {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(500);
constexpr absl::Duration kTellEvery = absl::Minutes(1);

}  // namespace

// A device fails once, and takes with it then and there whom it takes: after that there is nothing to look for.
void Dispatcher::LookForFault() {
  if (device_failed_) return;
  const std::optional<DeviceUse> use = engine_.device_use();
  if (use) TellOfShortage(*use);
  device_failed_ = use && use->failed;
  if (!device_failed_) return;
  if (metrics_.device() != nullptr) metrics_.device()->Set(*use);
  shadows_.EndLost();
  std::vector<SessionId> lost;
  int64_t journaled = 0;
  for (const auto& [id, session] : sessions_.all()) {
    if (session->cache == nullptr || !session->cache->is_lost()) continue;
    lost.push_back(id);
    journaled += session->journaled ? 1 : 0;
  }
  LogError("gpu_fault", {{"device", use->name}, {"sessions_lost", std::ssize(lost)}, {"journaled", journaled}},
           "the GPU failed; the host's threads compute from here on");
  metrics_.worker().gpu_sessions_lost.Add(static_cast<double>(lost.size()));
  for (const SessionId id : lost) {
    if (sessions_.has(id)) Lose(sessions_.at(id));
  }
  for (const auto& [_, session] : sessions_.all()) {
    if (session->cache != nullptr) NotePlacement(*session);
  }
}

// It may be so at every step.
void Dispatcher::TellOfShortage(const DeviceUse& use) {
  const ShortSteps steps = use.short_steps - told_of_shortage_.steps;
  const absl::Time now = clock_.Now();
  if (steps.all() == 0 || now - told_of_shortage_.at < kTellEvery) return;
  told_of_shortage_ = {.at = now, .steps = use.short_steps};
  LogWarn("gpu_short",
          {{"device", use.name},
           {"halved", steps.halved},
           {"parted", steps.parted},
           {"unpinned", steps.unpinned},
           {"unrecorded", steps.unrecorded},
           {"cpu", steps.unfit},
           {"error", use.shortage}},
          steps.all() == steps.unpinned
              ? "the host has no memory that it can pin for steps, which are slower so: free some of it"
              : "the GPU has too little memory for steps of this size: lower model.gpu_arena or "
                "scheduling.step_tokens_max");
}

void Dispatcher::Lose(OpenSession& session) {
  session.lost = GpuFault(session);
  for (auto& [_, call] : calls_) {
    // An answer that its last token ended is whole, and so is what was said of it.
    if (call.session == &session && call.finish == FinishReason::kNone) call.failure = session.lost;
  }
  if (!session.closed) Close(session);
}

// All that was ever told of it is in its journal, or will be when what waits is written, and nothing more comes.
void Dispatcher::LeaveToJournal(const OpenSession& session) {
  batch_of_journal_.deeds.emplace_back(JournalBatch::Leave{.session = session.id});
  sessions_.Lose(session);
  batch_of_journal_.tellings.push_back(
      {.about = session.id,
       .is_read = true,
       .tell = [this, name = SessionName(session.request.tenant, session.request.id)](const absl::Status& is_there) {
         if (is_there.ok() && options_.recover != nullptr) return options_.recover(name);
         // Whoever looks for it from here on finds it in the store that servers share, or nowhere.
         post_([name](Dispatcher& dispatcher) { dispatcher.GiveUp(name); });
       }});
}

absl::Status Dispatcher::GpuFault(const OpenSession& session) const {
  const char* const then = session.journaled ? "it comes back from its journal: try again, and go on with resume_from"
                           : session.throw_away ? "try again"
                                                : "it has no journal, and is gone: begin it again";
  return Refuse(absl::StatusCode::kUnavailable,
                absl::StrFormat("the GPU failed, and with it went the cache of session sessions/%s; %s",
                                session.request.id, then),
                {.reason = "GPU_FAULT", .retry = kRetry, .metadata = {{"session", "sessions/" + session.request.id}}});
}

absl::Status Dispatcher::OrGpuFault(const OpenSession& session, const absl::Status& status) const {
  return !status.ok() && GetRefusal(status).reason == "GPU_FAULT" ? GpuFault(session) : status;
}

}  // namespace ebb
