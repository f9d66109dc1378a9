// What a dispatcher's sessions do, written down and done again.

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>
#include <variant>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/dispatcher.h"
#include "server/overloaded.h"

namespace ebb {
namespace {

constexpr double kRenewalShare = 0.05;  // of a step, which a piece of a copy may take before the next

// A refusal of what has once been done: the record, or what it is run on, is not what it was.
absl::Status CannotHaveBeen(const absl::Status& refused) {
  const bool of_room = absl::IsUnavailable(refused);
  return refused.ok() || of_room ? refused : JournalDamaged(std::string(refused.message()));
}

}  // namespace

void Dispatcher::Hold(absl::AnyInvocable<void(const absl::Status&)> tell) {
  const SessionId about = std::exchange(asked_of_, 0);
  const bool is_read = std::exchange(only_read_, false);
  if (options_.journal == nullptr) return tell(absl::OkStatus());
  batch_of_journal_.tellings.push_back({.about = about, .is_read = is_read, .tell = std::move(tell)});
}

// The question at hand is answered with what the session is: not, where that is no longer this server's to say.
void Dispatcher::AnswerFrom(const OpenSession& session) {
  asked_of_ = session.journaled ? session.id : 0;
  only_read_ = true;
}

void Dispatcher::Commit() {
  if (batch_of_journal_.empty()) return;
  options_.journal->Commit(std::exchange(batch_of_journal_, {}));
}

void Dispatcher::FlushJournal() {
  Commit();
  if (options_.journal != nullptr) options_.journal->Flush();
}

void Dispatcher::HearJournal() {
  if (options_.journal == nullptr) return;
  const JournalNews news = options_.journal->TakeNews();
  for (const JournalNews::Failed& failed : news.failed) {
    if (!sessions_.has(failed.session)) continue;
    OpenSession& session = sessions_.at(failed.session);
    session.journal = failed.status;
    for (auto& [_, call] : calls_) {
      if (call.session == &session) call.failure = failed.status;
    }
    if (failed.fate != Fate::kReadOnly && !session.closed) Close(session);
  }
  for (const CallId id : news.blocked) {
    const auto call = calls_.find(id);
    if (call != calls_.end()) Report(call->second, Reader::kFull);
  }
}

// From here on what the session does is written down, behind a snapshot of it as it is. Refused, it is closed.
absl::Status Dispatcher::BeginJournal(OpenSession& session) {
  if (options_.journal == nullptr || session.throw_away) return absl::OkStatus();
  auto copy = Copy(session);
  if (!copy.ok()) {
    Close(session);
    return copy.status();
  }
  session.journaled = true;
  asked_of_ = session.id;
  batch_of_journal_.deeds.emplace_back(JournalBatch::Open{.session = session.id,
                                                          .name = {session.request.tenant, session.request.id},
                                                          .snapshot = SnapshotOf(*std::move(copy))});
  return absl::OkStatus();
}

MakeSnapshot Dispatcher::SnapshotOf(SaveOutcome copy) const {
  return [seal = options_.journal->seal(), copy = std::move(copy)]() mutable { return seal(std::move(copy)); };
}

void Dispatcher::Record(OpenSession& session, JournalRecord::What what) {
  if (!session.journaled || session.closed || !session.journal.ok()) return;
  const JournalRecord record = {.generation = session.generation, .what = std::move(what)};
  session.since_snapshot += record.tokens();
  batch_of_journal_.deeds.emplace_back(JournalBatch::Append{
      .session = session.id, .record = EncodeRecord(record, engine_.config()), .is_input = record.is_input()});
}

// The same for what the question at hand did, so that its answer waits for it.
void Dispatcher::RecordAnswer(OpenSession& session, JournalRecord::What what) {
  asked_of_ = session.journaled ? session.id : 0;
  only_read_ = false;
  Record(session, std::move(what));
}

// How the call's tokens are drawn, once all that was lost of the answer before it is there again, in the `length`
// tokens that the log has with what is being run: where it is cut off and its last tokens are lost, they can be drawn
// anew.
void Dispatcher::BeginAnswer(Call& call, int64_t length) {
  OpenSession& session = *call.session;
  if (!session.journaled || length < call.next) return;
  session.answer.reset();
  if (!call.request.decodes || call.request.draft) return;
  session.answer = AnswerPlan{.sampling = call.request.sampling, .until = call.next + call.request.stopping.max_tokens};
  Record(session, JournalRecord::AnswerBegins{*session.answer});
}

// After a step, a snapshot of one session begins, where its journal has become long. Until it is whole the session is
// held: it misses a step or a few, and the others wait for no more than a piece between two of theirs.
void Dispatcher::BeginRenewal() {
  if (renewing_) return;
  const auto due = std::ranges::find_if(batch_sessions_, [this](const OpenSession* session) {
    return session->journaled && session->journal.ok() && !session->closed && session->work.empty() &&
           session->since_snapshot >= options_.live.snapshot_every && session->cache->CheckSettled().ok();
  });
  if (due == batch_sessions_.end()) return;
  try {
    auto work = engine_.BeginSave(*(*due)->cache);
    if (!work.ok()) return;  // another time
    renewing_ = Renewing{.session = (*due)->id, .work = *std::move(work)};
  } catch (const std::bad_alloc&) {
    return;  // likewise
  }
  Deliver(SessionHeld{.session = renewing_->session, .held = true});
}

void Dispatcher::WorkOnRenewal() {
  if (!renewing_) return;
  const absl::Time end = clock_.Now() + std::min(kRenewalShare, options_.work_share) * step_took_;
  try {
    do {
      const absl::StatusOr<bool> more = renewing_->work->Advance(engine_.threads());
      EBB_CHECK(more.ok());  // copies refuse nothing
      if (!*more) return EndRenewal();
    } while (clock_.Now() < end);
  } catch (const std::bad_alloc&) {
    DropRenewal();
  }
}

// Who needs the session now, takes what is left of it in one go.
void Dispatcher::FinishRenewal(const OpenSession& session) {
  if (!renewing_ || renewing_->session != session.id) return;
  try {
    while (*renewing_->work->Advance(engine_.threads())) {
    }
    EndRenewal();
  } catch (const std::bad_alloc&) {
    DropRenewal();
  }
}

// The snapshot takes the place of the session's journal.
void Dispatcher::EndRenewal() {
  OpenSession& session = sessions_.at(renewing_->session);
  if (session.journal.ok()) {
    absl::StatusOr<SaveOutcome> copy = Outline(session);
    if (!copy.ok()) return DropRenewal();
    copy->snapshot = renewing_->work->Take();
    session.since_snapshot = 0;
    batch_of_journal_.deeds.emplace_back(
        JournalBatch::Renew{.session = session.id, .snapshot = SnapshotOf(*std::move(copy))});
    if (session.answer) Record(session, JournalRecord::AnswerBegins{*session.answer});
  }
  DropRenewal();
}

void Dispatcher::DropRenewal() {
  if (!renewing_) return;
  const SessionId session = std::exchange(renewing_, {})->session;
  Deliver(SessionHeld{.session = session, .held = false});
}

absl::Status Dispatcher::Replay(OpenSession& session, const JournalRecord& record) {
  const Overloaded replay = {
      [&](const JournalRecord::Block& block) {
        session.prompt_tokens += static_cast<int64_t>(block.tokens.size());
        return ReplayRow(session, block.tokens, block.prompt_ends, false);
      },
      [&](const JournalRecord::Token& token) {
        ++session.completion_tokens;
        return ReplayRow(session, {&token.token, 1}, false, false);
      },
      [&](const JournalRecord::Draft& draft) -> absl::Status {
        EBB_TRY(ReplayRow(session, draft.tokens, false, true));
        return draft.accepted ? ReplayAccept(session, *draft.accepted) : absl::OkStatus();
      },
      [&](const JournalRecord::Accept& accept) { return ReplayAccept(session, accept.count); },
      [&](const JournalRecord::Edit& edit) { return ReplayEdit(session, edit); },
      [&](const JournalRecord::Evict& evict) { return engine_.Evict(*session.cache, evict.request).status(); },
      [&](const JournalRecord::Policy& policy) -> absl::Status {
        EBB_ASSIGN(const PolicySwap swap, engine_.SetPolicy(*session.cache, policy.policy));
        CountUnderPolicy(session);
        Deliver(SessionResized{.session = session.id, .pages = swap.pages_after});
        return absl::OkStatus();
      },
      [&](const JournalRecord::AnswerBegins& begins) {
        session.answer = begins.plan;
        return absl::OkStatus();
      },
      [&](const JournalRecord::AnswerEnds& /*ends*/) {
        session.answer.reset();
        return absl::OkStatus();
      },
  };
  EBB_TRY(CannotHaveBeen(std::visit(replay, record.what)));
  session.generation = record.generation;
  session.since_snapshot += record.tokens();
  return absl::OkStatus();
}

absl::Status Dispatcher::ReplayRow(OpenSession& session, std::span<const int32_t> tokens, bool prompt_ends,
                                   bool draft) {
  if (tokens.empty()) return JournalDamaged("a block without tokens");
  EBB_TRY(session.cache->CanAppend(static_cast<int32_t>(tokens.size())));
  BatchRow row = {.session = session.cache.get(),
                  .tokens = tokens,
                  .want = draft ? Want::kAll : Want::kLast,
                  .enough = {.largest = 1},  // until a token is drawn, nobody looks
                  .draft = draft,
                  .prompt_ends = prompt_ends};
  EBB_TRY(engine_.OwnPages(row));
  engine_.Run({&row, 1});
  EBB_TRY(row.fault);
  if (draft) {
    session.draft_logits.assign(row.logits.begin(), row.logits.end());
    return absl::OkStatus();
  }
  if (prompt_ends) session.prompt_ended = row.status.ok();
  CommitCache(session, row, EvictionCause::kDecode);
  TakeLogits(session, row);
  return absl::OkStatus();
}

absl::Status Dispatcher::ReplayAccept(OpenSession& session, int32_t count) {
  if (count < 0 || count > session.cache->draft_tokens() || session.cache->draft_tokens() == 0) {
    return JournalDamaged(absl::StrFormat("%d tokens of a draft of %d", count, session.cache->draft_tokens()));
  }
  const std::vector<float> logits = std::exchange(session.draft_logits, {});
  Keep(session, count, logits);
  return absl::OkStatus();
}

absl::Status Dispatcher::ReplayEdit(OpenSession& session, const JournalRecord::Edit& edit) {
  EBB_ASSIGN(const EditPlan plan, engine_.PlanEdit(*session.cache, edit.edit));
  const std::vector<int32_t> work = plan.WorkTokens();
  const int64_t ran = std::accumulate(edit.blocks.begin(), edit.blocks.end(), int64_t{0});
  const auto fits = [&](int32_t block) { return block > 0 && block <= session.request.block_size; };
  if (ran == 0 || ran > static_cast<int64_t>(work.size()) || !std::ranges::all_of(edit.blocks, fits)) {
    return JournalDamaged(absl::StrFormat("%d tokens of an edit that takes %d", ran, work.size()));
  }
  EBB_TRY(engine_.OwnAllPages(*session.cache));
  engine_.BeginEdit(*session.cache, plan);
  std::span<const int32_t> left = work;
  for (const int32_t block : edit.blocks) {
    BatchRow row = {
        .session = session.cache.get(), .tokens = left.first(static_cast<size_t>(block)), .want = Want::kLast};
    engine_.Run({&row, 1});
    EBB_TRY(row.fault);
    left = left.subspan(static_cast<size_t>(block));
    CommitCache(session, row, EvictionCause::kPrefill);
    TakeLogits(session, row);
  }
  if (!left.empty()) engine_.AbandonEdit(*session.cache);
  return absl::OkStatus();
}

}  // namespace ebb
