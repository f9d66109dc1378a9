// Edits of a dispatcher's calls. To the scheduler an edit is a prompt: the tokens that it has to run, in blocks.

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/dispatcher.h"

namespace ebb {

absl::Status Dispatcher::PlanEdit(Call& call, OpenSession& session) {
  const EditJob& job = *call.request.edit;
  absl::StatusOr<EditPlan> plan = engine_.PlanEdit(*session.cache, job.edit);
  if (!plan.ok()) return OrGpuFault(session, plan.status());
  call.edit = *std::move(plan);
  if (job.require_exact && call.edit.exactness != EditExactness::kExact) {
    const bool stale = call.edit.exactness == EditExactness::kStale;
    const char* const holds = stale ? "STALE: some tokens would keep keys and values of another text"
                                    : "EVICTED: tokens of the edited log are not in the cache, or would leave it";
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("require_exact: the edit would be %s; use RECOMPUTE_TAIL, or restore", holds),
                  {.reason = "EDIT_NOT_EXACT", .field = "require_exact"});
  }
  call.request.prompt = call.edit.WorkTokens();
  call.session = &session;
  return absl::OkStatus();
}

// A plan holds as long as nobody else touches log and cache.
absl::Status Dispatcher::CheckNotEdited(const OpenSession& session) const {
  const bool edited = std::ranges::any_of(calls_, [&](const auto& entry) {
    return entry.second.session == &session && entry.second.request.edit.has_value();
  });
  if (!edited) return absl::OkStatus();
  return Refuse(absl::StatusCode::kAborted,
                absl::StrFormat("session sessions/%s is busy: an edit goes on", session.request.id),
                {.reason = "SESSION_BUSY", .retry = absl::Milliseconds(100), .metadata = {{"held_by", "Edit"}}});
}

bool Dispatcher::PrepareEdit(Call& call, int32_t tokens, BatchRow& row) {
  if (call.prompt_done == 0) {
    if (!OwnAllPages(call)) return false;
    shadows_.End(call.session->id);  // what it read is no longer the log; another may begin
    drafter_.End(call.session->id);  // likewise
    engine_.BeginEdit(*row.session, call.edit);
  }
  row.tokens = std::span<const int32_t>(call.request.prompt).subspan(call.prompt_done, tokens);
  return true;
}

void Dispatcher::CommitEdit(Call& call, const BatchRow& row) {
  const TenantMetrics& metrics = *call.session->tenant_metrics;
  call.prompt_done += static_cast<int32_t>(row.tokens.size());
  call.edited.push_back(static_cast<int32_t>(row.tokens.size()));
  call.prompt_end = clock_.Now();
  metrics.edit_recomputed.Add(static_cast<double>(row.tokens.size()));
  if (call.prompt_done < static_cast<int32_t>(call.request.prompt.size())) return;
  NotePlacement(*call.session);
  Record(*call.session, JournalRecord::Edit{call.request.edit->edit, call.edited});
  metrics.edit_reused.Add(call.edit.reused);
  call.output->OnEdit({.plan = call.edit, .elapsed = call.prompt_end - call.first_step});
}

// Its call ended in its midst: log and cache end behind the last token that ran, whose logits the session has.
void Dispatcher::AbandonEdit(Call& call) {
  OpenSession& session = *call.session;
  shadows_.End(session.id);  // it may have read on
  engine_.AbandonEdit(*session.cache);
  Record(session, JournalRecord::Edit{call.request.edit->edit, call.edited});
  CountSlots(session, session.cache->live_slots());
  NotePlacement(session);
}

}  // namespace ebb
