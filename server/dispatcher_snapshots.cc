// Sessions on their way to the store and back.

#include <algorithm>
#include <new>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/dispatcher.h"

namespace ebb {

absl::StatusOr<SaveOutcome> Dispatcher::Copy(OpenSession& session) {
  try {
    EBB_ASSIGN(SaveOutcome outcome, Outline(session));
    EBB_TRY(engine_.Save(*session.cache, outcome.snapshot));
    return outcome;
  } catch (const std::bad_alloc&) {
    return NoMemoryForCopy();
  }
}

// All of a copy but the engine's records.
absl::StatusOr<SaveOutcome> Dispatcher::Outline(OpenSession& session) {
  EBB_ASSIGN(const std::span<const float> logits, session.logits.Whole(engine_, *session.cache));
  return SaveOutcome{
      .session = {.request = session.request,
                  .logits = {logits.begin(), logits.end()},
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

// A session that comes from its past: nobody else knows of it before FinishRestore.
class Dispatcher::Restoring final : public Undertaking, public CacheWork {
 public:
  Restoring(Dispatcher& dispatcher, std::unique_ptr<LoadedSession> loaded, OpenSession session,
            std::unique_ptr<ReopenWork> reopening)
      : Undertaking(nullptr),
        dispatcher_(dispatcher),
        loaded_(std::move(loaded)),
        session_(std::move(session)),
        reopening_(std::move(reopening)) {}

  void SetAsker(Asker<SessionInfo> asker) { asker_ = std::move(asker); }

  bool IsGone() override { return asker_.is_gone(); }
  CacheWork* work() override { return this; }
  absl::Status Begin() override { return absl::OkStatus(); }  // it has

  absl::StatusOr<bool> Advance(int32_t lanes) override {
    const std::vector<JournalRecord>& records = loaded_->past.records;
    if (reopening_ == nullptr) {
      EBB_TRY(dispatcher_.Replay(session_, records[replayed_++]));
      return replayed_ < records.size();
    }
    try {
      EBB_ASSIGN(const bool more, reopening_->Advance(lanes));
      if (more) return true;
      session_.cache = reopening_->Take();
    } catch (const std::bad_alloc&) {
      return NoMemoryForSession();
    }
    reopening_.reset();
    return !records.empty();
  }

  void Answer(const absl::Status& status) override {
    absl::StatusOr<SessionInfo> info =
        status.ok() ? dispatcher_.FinishRestore(session_, loaded_->past) : absl::StatusOr<SessionInfo>(status);
    const bool is_given = session_.cache == nullptr && reopening_ == nullptr;
    if (!is_given) {
      reopening_.reset();
      if (session_.cache != nullptr) dispatcher_.CountSlots(session_, 0);
      dispatcher_.CountPages(session_, 0);
      session_.cache.reset();
      dispatcher_.Deliver(SessionClosed{.session = session_.id});
      dispatcher_.CountLoad();
    }
    dispatcher_.Hold([answer = std::move(asker_.answer), info = std::move(info)](const absl::Status& written) mutable {
      answer(written.ok() ? std::move(info) : absl::StatusOr<SessionInfo>(written));
    });
  }

 private:
  Dispatcher& dispatcher_;
  const std::unique_ptr<LoadedSession> loaded_;
  Asker<SessionInfo> asker_ = {};
  OpenSession session_;
  std::unique_ptr<ReopenWork> reopening_;  // null once the cache is there
  size_t replayed_ = 0;                    // records
};

void Dispatcher::Restore(std::unique_ptr<LoadedSession> loaded, Asker<SessionInfo> asker) {
  EBB_CHECK(!has_work());
  SavedSession& saved = loaded->past.saved;
  SessionRequest& request = saved.request;
  const OpenSession* made =
      request.request_id.empty() ? nullptr : sessions_.FindRequest(request.tenant, request.request_id);
  absl::StatusOr<SessionInfo> answer = absl::UnknownError("");
  if (made != nullptr && !saved.past) {
    answer = Info(*made);
  } else {
    if (made != nullptr) request.request_id.clear();  // two servers were asked for it, and both sessions are there
    absl::StatusOr<std::unique_ptr<Restoring>> work = BeginRestore(loaded);
    if (awaits()) {
      return Park([loaded = std::move(loaded), asker = std::move(asker)](Dispatcher& dispatcher) mutable {
        dispatcher.Restore(std::move(loaded), std::move(asker));
      });
    }
    if (work.ok()) {
      (*work)->SetAsker(std::move(asker));
      undertaking_ = *std::move(work);
      return;
    }
    answer = work.status();
  }
  Hold([tell = std::move(asker.answer), answer = std::move(answer)](const absl::Status& written) mutable {
    tell(written.ok() ? std::move(answer) : absl::StatusOr<SessionInfo>(written));
  });
}

// Takes `loaded` when it succeeds.
absl::StatusOr<std::unique_ptr<Dispatcher::Restoring>> Dispatcher::BeginRestore(
    std::unique_ptr<LoadedSession>& loaded) {
  SessionPast& past = loaded->past;
  SavedSession& saved = past.saved;
  SessionRequest& request = saved.request;
  const size_t logits = past.image.state.log.empty() ? 0 : static_cast<size_t>(engine_.config().vocab);
  if (saved.logits.size() != logits) {
    return SnapshotDamaged(absl::StrFormat("%d logits, and %d are expected", saved.logits.size(), logits));
  }
  request.policy = past.image.policy;
  request.block_size = past.image.block_size_max;
  const int64_t own = past.image.pages();
  EBB_TRY(CheckRestore(past, own));
  const int64_t pages = PagesToReplay(past);
  if (AwaitPages(request.tenant, pages, 0)) return NotEnoughPages(pages, std::nullopt);
  EBB_ASSIGN(const SessionId id, LetIn(request, own));
  absl::StatusOr<std::unique_ptr<ReopenWork>> reopening;
  try {
    reopening = engine_.BeginReopen(past.image);
  } catch (const std::bad_alloc&) {
    reopening = NoMemoryForSession();
  }
  if (!reopening.ok()) {
    Deliver(SessionClosed{.session = id});
    return reopening.status();
  }
  OpenSession session = Begun(id, request);
  CountPages(session, own);  // now, so that the account, in which nothing else of it counts yet, is not forgotten
  session.logits = LastLogits(std::move(saved.logits));
  session.prompt_ended = past.image.state.prompt_ended;
  session.prompt_tokens = saved.prompt_tokens;
  session.completion_tokens = saved.completion_tokens;
  session.evicting_steps = saved.evicting_steps;
  session.past_context = saved.past_context;
  if (saved.past) {
    session.generation = saved.past->generation;
    session.created = saved.past->created;
  }
  return std::make_unique<Restoring>(*this, std::move(loaded), std::move(session), *std::move(reopening));
}

absl::Status Dispatcher::CheckRestore(const SessionPast& past, int64_t pages) {
  const SessionRequest& request = past.saved.request;
  EBB_TRY(past.journal ? sessions_.CheckReturn(request) : sessions_.CheckRoom(request));
  // Who goes on under its own name was let in before.
  return past.saved.past ? absl::OkStatus() : CheckQuotas(request.tenant, pages);
}

// A change of policy that is done again must find its pages: what was done cannot be refused.
int64_t Dispatcher::PagesToReplay(const SessionPast& past) const {
  int64_t pages = past.image.pages();
  for (const JournalRecord& record : past.records) {
    const auto* const change = std::get_if<JournalRecord::Policy>(&record.what);
    if (change == nullptr) continue;
    const auto needed = engine_.PagesFor({.policy = change->policy, .block_size_max = past.saved.request.block_size});
    if (needed.ok()) pages = std::max(pages, *needed);
  }
  return pages;
}

// Others may have come meanwhile, under its name, or as the answer to the same request.
absl::StatusOr<SessionInfo> Dispatcher::FinishRestore(OpenSession& session, const SessionPast& past) {
  const SessionRequest& request = session.request;
  const OpenSession* made =
      request.request_id.empty() ? nullptr : sessions_.FindRequest(request.tenant, request.request_id);
  if (made != nullptr && !past.saved.past) return Info(*made);
  if (made != nullptr) session.request.request_id.clear();
  EBB_TRY(CheckRestore(past, session.cache->pages() - session.counted_pages));  // those count already
  if (session.cache->is_lost()) return GpuFault(session);
  EBB_TRY(sessions_.Claim(request));
  session.last_used = clock_.Now();
  OpenSession& added = Add(std::move(session));
  if (past.journal) {
    added.journaled = true;
    asked_of_ = added.id;
    batch_of_journal_.deeds.emplace_back(JournalBatch::Continue{
        .session = added.id, .name = {added.request.tenant, added.request.id}, .place = *past.journal});
  } else {
    EBB_TRY(BeginJournal(added));
  }
  return Info(added);
}

}  // namespace ebb
