// Sessions on their way to the store and back.

#include <algorithm>
#include <new>
#include <utility>
#include <variant>

#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/dispatcher.h"

namespace ebb {

absl::StatusOr<SaveOutcome> Dispatcher::Copy(const OpenSession& session) const {
  try {
    SaveOutcome outcome = Outline(session);
    EBB_TRY(engine_.Save(*session.cache, outcome.snapshot));
    return outcome;
  } catch (const std::bad_alloc&) {
    return NoMemoryForCopy();
  }
}

// All of a copy but the engine's records.
SaveOutcome Dispatcher::Outline(const OpenSession& session) const {
  return {.session = {.request = session.request,
                      .logits = session.logits,
                      .prompt_tokens = session.prompt_tokens,
                      .completion_tokens = session.completion_tokens,
                      .evicting_steps = session.evicting_steps,
                      .past_context = session.past_context,
                      .past = SavedSession::Past{.generation = session.generation, .created = session.created}},
          .generation = session.generation,
          .tokens = static_cast<int64_t>(session.cache->log().size())};
}

std::vector<SessionName> Dispatcher::Names() const {
  std::vector<SessionName> names;
  for (const bool swapped : {false, true}) {
    for (const auto& [id, session] : sessions_.all()) {
      if (session->throw_away || (session->swapped != nullptr) != swapped) continue;
      names.emplace_back(session->request.tenant, session->request.id);
    }
  }
  return names;
}

absl::StatusOr<SessionInfo> Dispatcher::Restore(SessionPast& past) {
  SavedSession& saved = past.saved;
  SessionRequest& request = saved.request;
  const OpenSession* made =
      request.request_id.empty() ? nullptr : sessions_.FindRequest(request.tenant, request.request_id);
  if (made != nullptr && !saved.past) return Info(*made);
  if (made != nullptr) request.request_id.clear();  // two servers were asked for it, and both sessions are there
  const size_t logits = past.image.state.log.empty() ? 0 : static_cast<size_t>(engine_.config().vocab);
  if (saved.logits.size() != logits) {
    return SnapshotDamaged(absl::StrFormat("%d logits, and %d are expected", saved.logits.size(), logits));
  }
  request.policy = past.image.policy;
  request.block_size = past.image.block_size_max;
  const bool prompt_ended = past.image.state.prompt_ended;
  EBB_TRY(sessions_.CheckRoom(request));
  // Who goes on under its own name was let in before.
  if (!saved.past) EBB_TRY(CheckQuotas(request.tenant, past.image.pages()));
  // A change of policy that is done again must find its pages: what was done cannot be refused.
  int64_t pages = past.image.pages();
  for (const JournalRecord& record : past.records) {
    const auto* const change = std::get_if<JournalRecord::Policy>(&record.what);
    if (change == nullptr) continue;
    const auto needed = engine_.PagesFor({.policy = change->policy, .block_size_max = request.block_size});
    if (needed.ok()) pages = std::max(pages, *needed);
  }
  if (AwaitPages(pages, 0)) return NotEnoughPages(pages, std::nullopt);
  EBB_ASSIGN(OpenSession * session,
             TakeIn(request, false, past.image.pages(), [&] { return engine_.Reopen(past.image); }));
  session->logits = std::move(saved.logits);
  session->prompt_ended = prompt_ended;
  session->prompt_tokens = saved.prompt_tokens;
  session->completion_tokens = saved.completion_tokens;
  session->evicting_steps = saved.evicting_steps;
  session->past_context = saved.past_context;
  if (saved.past) {
    session->generation = saved.past->generation;
    session->created = saved.past->created;
  }
  for (const JournalRecord& record : past.records) {
    if (const absl::Status replayed = Replay(*session, record); !replayed.ok()) {
      Close(*session);
      return replayed;
    }
  }
  sessions_.Publish(*session);
  CountPages(*session, session->cache->pages());
  CountSlots(*session, session->cache->live_slots());
  CountLoad();
  if (past.journal) {
    session->journaled = true;
    asked_of_ = session->id;
    batch_of_journal_.deeds.emplace_back(
        JournalBatch::Continue{.session = session->id, .name = {request.tenant, request.id}, .place = *past.journal});
  } else {
    EBB_TRY(BeginJournal(*session));
  }
  return Info(*session);
}

}  // namespace ebb
