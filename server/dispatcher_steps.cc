// The steps of a dispatcher: rows put together, begun, run.

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/dispatcher.h"

namespace ebb {

void Dispatcher::RunStep() {
  running_.swap(planned_);
  planned_.clear();
  const absl::Time start = clock_.Now();
  batch_.clear();
  batch_calls_.clear();
  batch_sessions_.clear();
  wishes_.clear();
  wishing_rows_.clear();
  spare_tokens_ = engine_.step_tokens_max();
  for (const ebb::RunStep::Row& planned : running_) spare_tokens_ -= planned.tokens;
  for (const ebb::RunStep::Row& planned : running_) {
    Call& call = calls_.at(planned.id);
    if (!call.session->lost.ok()) continue;  // since the step was planned
    if (call.first_step == absl::InfiniteFuture()) {
      call.first_step = start;
      call.session->tenant_metrics->queue_depth.Add(-1);
      call.session->tenant_metrics->queue_wait.Observe(start - call.arrived);
    }
    BatchRow row = {.session = call.session->cache.get(),
                    .want = Want::kLast,
                    .measure = IsMeasured(*call.session),
                    .list_victims = watchers_.WantVictims(*call.session)};
    const bool is_block = planned.phase == StepPhase::kPrefill;
    const bool prepared = !is_block            ? PrepareToken(call, row)
                          : call.request.draft ? PrepareDraft(call, row)
                                               : PrepareBlock(call, planned.tokens, row);
    if (!prepared) continue;
    batch_.push_back(std::move(row));
    batch_calls_.push_back(&call);
  }
  draws_.Run();
  DraftOnRows();
  OwnPagesOfRows();
  const RowTokens ran = BeginRows(running_.size(), start);
  Commit();  // what was said is written while the step runs
  if (scheduler_.load().requests_waiting > 0) {
    shadows_.StayOut();
  } else {
    shadows_.Ride(batch_sessions_, options_.step_rows_max, batch_);
  }
  const absl::Time run = clock_.Now();
  if (!batch_.empty()) engine_.Run(batch_);
  const absl::Time end = clock_.Now();
  shadows_.Compare(batch_);
  TakeLogitsOfRows();
  for (size_t i = 0; i < batch_calls_.size(); ++i) CommitRow(*batch_calls_[i], batch_[i]);
  LookForFault();
  if (ran.prompt == 0 && ran.decode > 0) {  // with judging drafts and keeping what was right
    draft_cost_.StepTook(ran.decode, absl::ToDoubleSeconds(clock_.Now() - run));
  }
  const EngineMemory memory = engine_.memory();
  if (memory.pages_reserved != counted_.pages_reserved || memory.pages_copied != counted_.pages_copied ||
      memory.pages_kept != counted_.pages_kept) {
    CountLoad();
  }
  BeginRenewal();
  if (!batch_.empty()) CountStep(ran.prompt, ran.decode, end - start);
  // The scheduler plans a row of an answer as one token, whatever is drafted on it, and whether it runs.
  if (!batch_.empty()) pace_.Took(ran.prompt + ran.answers, end - start);
  const int32_t pace = pace_.tokens();
  metrics_.worker().step_tokens_paced.Set(std::min(pace, engine_.step_tokens_max()));

  ran_ = StepDone{.shortened = std::exchange(shortened_, {}), .pace = pace};
  for (const ebb::RunStep::Row& row : running_) {
    const auto call = calls_.find(row.id);
    if (call != calls_.end() && IsOver(call->second)) ran_->finished.push_back(row.id);
  }
}

// Charges for the rows, of a step of `in_flight`, and says what is drawn. The last token of an answer whose session
// goes with it need not run, as nobody asks what follows, and its call need not wait for the others' rows.
Dispatcher::RowTokens Dispatcher::BeginRows(size_t in_flight, absl::Time now) {
  RowTokens run;
  size_t kept = 0;
  for (size_t i = 0; i < batch_.size(); ++i) {
    Call& call = *batch_calls_[i];
    const bool is_block = IsBlock(call, batch_[i]);
    const auto tokens = static_cast<int32_t>(batch_[i].tokens.size());
    Charge(call, tokens, is_block ? StepPhase::kPrefill : StepPhase::kDecode, now);
    if (!is_block && !batch_[i].draft) SayToken(call, batch_[i]);
    run.answers += is_block ? 0 : 1;
    if (call.session->throw_away && IsOver(call)) {
      if (in_flight > 1) {  // the last ends with its step
        Deliver(RowDone{.id = call.id});
        --in_flight;
      }
      continue;
    }
    (is_block ? run.prompt : run.decode) += tokens;
    if (kept < i) batch_[kept] = std::move(batch_[i]);
    batch_calls_[kept] = &call;
    batch_sessions_[kept++] = call.session;
  }
  batch_.resize(kept);
  batch_calls_.resize(kept);
  batch_sessions_.resize(kept);
  return run;
}

// Side by side, as each row has some hundred kilobytes. A draft's wait for its verdict.
void Dispatcher::TakeLogitsOfRows() {
  engine_.host_threads().For(std::ssize(batch_calls_), [this](int64_t row, int32_t /*thread*/) {
    const auto i = static_cast<size_t>(row);
    if (batch_[i].fault.ok() && !batch_[i].draft) TakeLogits(*batch_calls_[i]->session, batch_[i]);
  });
}

// Of a prompt, or a caller's draft, which is one; else it is a token of an answer, with what the server drafts behind
// it.
bool Dispatcher::IsBlock(const Call& call, const BatchRow& row) {
  return call.prompt_done < static_cast<int32_t>(call.request.prompt.size()) || (row.draft && call.request.draft);
}

// What runs or is said is what a tenant pays for: blocks in advance, when their call was let in.
void Dispatcher::Charge(Call& call, int32_t tokens, StepPhase phase, absl::Time now) {
  const int32_t paid = phase == StepPhase::kPrefill ? std::min(tokens, call.prepaid) : 0;
  call.prepaid -= paid;
  call.session->account->TakeTokens(tokens - paid, now);
}

// Whether the session's next step that evicts is measured.
bool Dispatcher::IsMeasured(const OpenSession& session) const {
  const int32_t every = options_.live.measure_every;
  return every > 0 && session.evicting_steps % every == 0;
}

}  // namespace ebb
