// The calls of a dispatcher: planned, their rows prepared and committed, ended.

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/dispatcher.h"
#include "server/held_output.h"

namespace ebb {
namespace {

constexpr int64_t kResendTokens = 256;         // committed tokens sent again in one row
constexpr int64_t kLogMax = int64_t{1} << 30;  // tokens of a log: indices stay far below 2^31

absl::Status LengthLimit(const OpenSession& session, int64_t limit, int64_t length, int64_t more) {
  return Refuse(absl::StatusCode::kResourceExhausted,
                absl::StrFormat("the session may hold %d tokens: %d are in, %d more do not fit", limit, length, more),
                {.reason = "LENGTH_LIMIT",
                 .quota = "sessions/" + session.request.id,
                 .metadata = {{"limit", absl::StrFormat("%d", limit)}, {"length", absl::StrFormat("%d", length)}}});
}

// `told` is the log's length as far as the client may have been told of it before the server was cut off.
absl::Status CheckResume(const CallRequest& request, int64_t length, int64_t told) {
  if (!request.resume_from) return absl::OkStatus();
  if (*request.resume_from < 0 || *request.resume_from > std::max(length, told)) {
    return RefuseField("OUT_OF_RANGE", "resume_from",
                       absl::StrFormat("%d is not in [0, %d], the length of the session's log", *request.resume_from,
                                       std::max(length, told)));
  }
  if (request.stopping.logprobs && *request.resume_from < length) {
    return RefuseField("LOGPROBS_NOT_KEPT", "stopping.logprobs",
                       absl::StrFormat("log-probabilities of the %d tokens from %d on are not kept; leave it out",
                                       length - *request.resume_from, *request.resume_from));
  }
  return absl::OkStatus();
}

}  // namespace

void Dispatcher::Start(CallId id, CallRequest request, CallOutput& output) {
  Call call = {.id = id, .request = std::move(request), .output = &output, .arrived = clock_.Now()};
  call.arrived = std::min(call.arrived, call.request.came);
  const bool is_over = absl::IsCancelled(verdict_) || absl::IsDeadlineExceeded(verdict_);  // while it waited
  absl::Status status = is_over ? verdict_ : PlanCall(call);
  if (awaits()) {
    call.request.came = call.arrived;
    const absl::Time deadline = call.request.deadline;
    // It counts while it waits; the account stays as long as it does.
    const auto answers = 1 + static_cast<int64_t>(call.request.branches.size());
    TenantAccount& account = tenants_.Of(call.request.tenant, clock_.Now());
    account.Count(Quota::kCalls, answers);
    Message again = [id, answers, &account, planned = std::move(call.request),
                     &output](Dispatcher& dispatcher) mutable {
      account.Count(Quota::kCalls, -answers);
      dispatcher.Start(id, std::move(planned), output);
    };
    return Park(std::move(again), id, deadline);
  }
  HeldOutput* held = nullptr;
  if (options_.journal != nullptr) {
    call.output = held = new HeldOutput(id, output, *options_.journal, batch_of_journal_.tellings);  // until its End
  }
  if (!status.ok()) {
    if (IsLate(call, status)) metrics_.tenant(call.request.tenant).late.Add();
    if (call.session != nullptr && call.session->throw_away) Close(*call.session);
    call.output->End({.status = std::move(status)}, false);
    return;
  }
  OpenSession& session = *call.session;
  if (held != nullptr && session.journaled) held->SetSession(session.id);
  session.writer = call.request.method;
  sessions_.Touch(session, clock_.Now());
  session.tenant_metrics->queue_depth.Add(1);
  // A draft is one block.
  const auto rows_of_prompt = static_cast<int32_t>(call.request.draft ? call.request.draft->proposal.tokens.size()
                                                                      : call.request.prompt.size());
  const RequestArrived arrival = {.id = id,
                                  .session = session.id,
                                  .prompt_tokens = rows_of_prompt,
                                  .block_size = call.request.block_size,
                                  .decode_tokens = call.decode_rows,
                                  .closes = session.throw_away,
                                  .deadline = call.request.deadline};
  call.prepaid = rows_of_prompt;  // at once, so that the next call sees it
  session.account->TakeTokens(call.prepaid, clock_.Now());
  session.account->Count(Quota::kCalls, 1);
  BeginAnswer(call, std::ssize(session.cache->log()) + std::ssize(call.request.prompt));
  calls_.emplace(id, std::move(call));
  Deliver(arrival);
}

// Checks the call against its session and says how many rows it needs. Changes nothing but to open a throw-away
// session, which call.session then names.
absl::Status Dispatcher::PlanCall(Call& call) {
  CallRequest& request = call.request;
  const TenantAccount& account = tenants_.Of(request.tenant, clock_.Now());
  const auto calls = static_cast<int64_t>(calls_.size());
  const bool can_wait = account.limits().tier == Tier::kLow;
  if (calls >= options_.live.queue_max &&
      (can_wait || calls >= QueuePlaces(options_.live.queue_max, account.used(Quota::kCalls)))) {
    return Refuse(absl::StatusCode::kUnavailable,
                  absl::StrFormat("%d calls wait or run, which is all the server takes", calls),
                  {.reason = "QUEUE_FULL", .retry = absl::Milliseconds(200)});
  }
  if (!request.is_admitted) {
    // Before it waits for a session that is swapped: nobody is to wait for that.
    if (scheduler_.load().draining) return Verdict({.id = call.id, .reason = RefuseReason::kDraining});
    EBB_TRY(account.Check(Quota::kCalls, 1 + static_cast<int64_t>(request.branches.size())));
    EBB_TRY(account.CheckTokens(clock_.Now()));  // it may have waited for its session
  }
  OpenSession* session = nullptr;
  if (request.open) {
    EBB_ASSIGN(session, Open(*request.open, true));
    call.session = session;
  } else {
    EBB_ASSIGN(session, FindHere(request.tenant, request.session));
  }
  EBB_TRY(CheckStart(call, *session));
  if (request.block_size == 0) request.block_size = session->request.block_size;
  EBB_CHECK(request.block_size <= session->request.block_size);
  if (request.edit) return PlanEdit(call, *session);
  if (request.draft) EBB_TRY(CheckDraftFits(*request.draft, *session));

  const ValidSpec& policy = session->cache->policy();
  const auto length = static_cast<int64_t>(session->cache->log().size());
  const auto prompt =
      static_cast<int64_t>(request.draft ? request.draft->proposal.tokens.size() : request.prompt.size());
  if (length + prompt > kLogMax) return LengthLimit(*session, kLogMax, length, prompt);
  int64_t room = kLogMax - length - prompt;  // for generated tokens
  const int64_t live = session->cache->cache_length();
  const int64_t fits = session->cache->room();
  if (prompt > fits) return LengthLimit(*session, live + fits, live, prompt);
  if (policy.bounded || !policy.evicts) room = std::min(room, fits - prompt);
  if (!request.prompt.empty() && !session->prompt_ended) {
    EBB_TRY(FixBudget(policy, static_cast<int32_t>(length + prompt)).status());
  }

  if (request.decodes || request.draft) {
    if (length + static_cast<int64_t>(request.prompt.size()) == 0) {
      return Refuse(absl::StatusCode::kFailedPrecondition,
                    absl::StrFormat("session sessions/%s is empty: there is nothing to go on from; prefill it first",
                                    session->request.id),
                    {.reason = "EMPTY_SESSION"});
    }
  }
  if (request.draft) {
    call.decode_rows = request.decodes ? 1 : 0;
  } else if (request.decodes) {
    EBB_TRY(CheckResume(request, length, session->answer ? session->answer->until : 0));
    call.next = request.resume_from.value_or(length + prompt);
    const int64_t lost = std::max<int64_t>(call.next - length - prompt, 0);
    if (lost > 0) call.lost = session->answer->sampling;
    const int64_t again = std::clamp<int64_t>(length + prompt - call.next, 0, request.stopping.max_tokens);
    const int64_t wanted = request.stopping.max_tokens - again + lost;
    const int64_t fresh = std::min(wanted, room);
    if (fresh < wanted) call.finish_by_count = FinishReason::kLengthLimit;
    call.sent_max = static_cast<int32_t>(again + fresh - lost);
    call.decode_rows = static_cast<int32_t>((again + kResendTokens - 1) / kResendTokens + fresh);
    call.text = AnswerText(request.stopping.stop);
    call.draft_length = DraftLength(request.speculation.tokens_max);
  }
  call.session = session;
  return absl::OkStatus();
}

void Dispatcher::Cancel(CallId id) {
  for (Parked& parked : parked_) {
    if (parked.call != id) continue;
    parked.ready = true;
    parked.verdict = Refuse(absl::StatusCode::kCancelled, "the caller cancelled", {.reason = "CALL_CANCELLED"});
  }
  Deliver(Cancelled{.id = id});
}

void Dispatcher::ReaderReady(CallId id) {
  if (options_.journal != nullptr) {  // what the reader was full of may be being said: hear that first
    options_.journal->Flush();
    HearJournal();
  }
  if (const auto call = calls_.find(id); call != calls_.end()) Unblock(call->second);
  Deliver(ebb::ReaderReady{.id = id});
}

void Dispatcher::Unblock(Call& call) {
  if (call.blocked_since == absl::InfiniteFuture()) return;
  call.blocked += clock_.Now() - std::exchange(call.blocked_since, absl::InfiniteFuture());
}

bool Dispatcher::PrepareBlock(Call& call, int32_t tokens, BatchRow& row) {
  if (call.request.edit) return PrepareEdit(call, tokens, row);
  tokens = BeginPrompt(call, tokens);
  call.failure = row.session->CanAppend(tokens);
  if (!call.failure.ok()) return false;
  const auto prompt = std::span<const int32_t>(call.request.prompt);
  row.tokens = prompt.subspan(call.prompt_done, tokens);
  row.prompt_ends = call.prompt_done + tokens == static_cast<int32_t>(prompt.size()) && !call.session->prompt_ended;
  const bool is_scored = call.request.score_at && call.prompt_done + tokens >= *call.request.score_at;
  if (is_scored) row.want = Want::kAll;
  const bool is_drawn_from = call.request.decodes && call.prompt_done + tokens == static_cast<int32_t>(prompt.size());
  row.enough = is_drawn_from ? NeedsBehind(call, row) : gpu::DrawNeeds{.largest = 1};
  return true;
}

// False when there is nothing to run: tokens that are in the log were sent again.
bool Dispatcher::PrepareToken(Call& call, BatchRow& row) {
  const std::span<const int32_t> log = row.session->log();
  if (call.next < static_cast<int64_t>(log.size())) {
    Resend(call);
    return false;
  }
  if (!row.session->CanAppend(1).ok()) {
    call.finish = FinishReason::kLengthLimit;
    return false;
  }
  if (call.settled) {
    call.drawn = *call.settled;
  } else {
    const SamplingOptions& sampling = IsLost(call) ? call.lost : call.request.sampling;
    call.failure = OrGpuFault(*call.session, draws_.Add(sampling, call.session->logits, *row.session,
                                                        call.request.stopping.logprobs, call.drawn));
    if (!call.failure.ok()) return false;
  }
  row.tokens = {&call.drawn.token, 1};
  row.enough = NeedsBehind(call, row);
  return true;
}

// Whether the next token is one that the client was told of before the server was cut off.
bool Dispatcher::IsLost(const Call& call) { return std::ssize(call.session->cache->log()) < call.next; }

// What who draws the token behind the row's needs to know of its logits.
gpu::DrawNeeds Dispatcher::NeedsBehind(const Call& call, const BatchRow& row) const {
  if (call.request.stopping.logprobs) return {};
  const int64_t index = std::ssize(row.session->log()) + std::ssize(row.tokens);
  return NeedsOf(call.request.sampling, engine_.config().vocab, index);
}

void Dispatcher::CommitRow(Call& call, const BatchRow& row) {
  OpenSession& session = *call.session;
  if (!row.fault.ok()) {
    session.account->TakeTokens(-static_cast<int64_t>(row.tokens.size()), clock_.Now());  // which did not run
    if (call.finish == FinishReason::kNone) call.failure = row.fault;
    return;
  }
  Raise(call);
  if (row.draft) return call.request.draft ? CommitDraft(call, row) : CommitOwnDraft(call, row);
  call.evicted += row.evicted;
  const bool is_block = IsBlock(call, row);
  CommitCache(session, row,
              row.prompt_ends ? EvictionCause::kPromptEnd
              : is_block      ? EvictionCause::kPrefill
                              : EvictionCause::kDecode);
  if (call.request.edit) return CommitEdit(call, row);
  if (is_block) return CommitBlock(call, row);
  call.untold_evicted += row.evicted;
}

// All that the call does to the session is its next generation.
void Dispatcher::Raise(Call& call) {
  if (!std::exchange(call.raised, true)) ++call.session->generation;
}

// What a step did to the session's cache.
void Dispatcher::CommitCache(OpenSession& session, const BatchRow& row, EvictionCause cause) {
  session.policy_tokens->Add(static_cast<double>(row.tokens.size()));
  CountEviction(session, row.evicted, row.evicted_slots, row.census);
  if (row.evicted > 0) {
    TellRow(session, row, cause);
    ++session.evicting_steps;
    if (row.measure) CountLoss(session, row.loss);
  }
  if (row.nan_scores > 0) session.policy_metrics->nan_scores.Add(static_cast<double>(row.nan_scores));
  CountSlots(session, session.cache->live_slots());
  if (!session.past_context && session.cache->position_max() >= engine_.config().context) {
    session.past_context = true;
    metrics_.worker().past_context_sessions.Add();
  }
}

void Dispatcher::CommitBlock(Call& call, const BatchRow& row) {
  OpenSession& session = *call.session;
  const auto tokens = static_cast<int32_t>(row.tokens.size());
  Record(session, JournalRecord::Block{{row.tokens.begin(), row.tokens.end()}, row.prompt_ends});
  if (call.request.score_at) Score(call, row);
  call.prompt_done += tokens;
  session.prompt_tokens += tokens;
  totals_.prompt_tokens += tokens;
  session.tenant_metrics->prompt_tokens.Add(tokens);
  call.prompt_end = clock_.Now();
  if (row.prompt_ends) {
    call.failure = row.status;
    session.prompt_ended = row.status.ok();
  }
  Report(call, call.output->OnBlock({.tokens_done = call.prompt_done,
                                     .tokens_total = static_cast<int32_t>(call.request.prompt.size()),
                                     .cache_length = session.cache->cache_length(),
                                     .evicted = row.evicted,
                                     .elapsed = call.prompt_end - call.first_step}));
  const bool done = call.prompt_done == static_cast<int32_t>(call.request.prompt.size());
  if (!done) KeepPrefix(call);
  if (done && call.failure.ok()) call.failure = StartBranches(call);
}

// The logits after token i score token i + 1. REQUIRES: called before the block counts as done.
void Dispatcher::Score(Call& call, const BatchRow& row) {
  const std::span<const int32_t> prompt = call.request.prompt;
  const auto vocab = static_cast<size_t>(engine_.config().vocab);
  std::vector<TokenLogprob> scores;
  for (size_t i = 0; row.want == Want::kAll && i < row.tokens.size(); ++i) {
    const size_t scored = static_cast<size_t>(call.prompt_done) + i + 1;
    if (scored < static_cast<size_t>(*call.request.score_at) || scored >= prompt.size()) continue;
    const double logprob = LogProbability(row.logits.subspan(i * vocab, vocab), prompt[scored]);
    scores.push_back({.token = prompt[scored], .logprob = static_cast<float>(logprob)});
  }
  call.output->OnScores(scores);
}

// The token is the answer's next whatever the step makes of it, so the client has it before the step: a fault that
// keeps the row from running takes the session with it, or the journal has it run again.
void Dispatcher::SayToken(Call& call, const BatchRow& row) {
  OpenSession& session = *call.session;
  Raise(call);
  Record(session, JournalRecord::Token{row.tokens.front()});
  ++session.completion_tokens;
  ++totals_.completion_tokens;
  session.tenant_metrics->completion_tokens.Add();
  const auto length = static_cast<int64_t>(session.cache->log().size()) + 1;
  if (length == call.next) BeginAnswer(call, length);  // what was lost is there again
  if (length <= call.next) return;                     // and the client has it
  ++call.generated;
  Send(call, row.tokens);
}

void Dispatcher::Resend(Call& call) {
  const std::span<const int32_t> log = call.session->cache->log();
  const int64_t left = call.request.stopping.max_tokens - call.sent;
  const int64_t tokens = std::min({kResendTokens, left, static_cast<int64_t>(log.size()) - call.next});
  Send(call, log.subspan(static_cast<size_t>(call.next), static_cast<size_t>(tokens)));
}

// Tokens sent again go the way of new ones: where the answer would have ended, it ends.
void Dispatcher::Send(Call& call, std::span<const int32_t> tokens) {
  TokensDone done = Take(call, tokens);
  done.drawn = call.request.stopping.logprobs ? &call.drawn : nullptr;
  done.evicted = std::exchange(call.untold_evicted, 0);
  done.cache_length = call.session->cache->cache_length();
  Report(call, call.output->OnTokens(done));
}

// The first of `tokens`, up to the one that ends the answer, become part of it.
TokensDone Dispatcher::Take(Call& call, std::span<const int32_t> tokens) {
  const Tokenizer& tokenizer = engine_.tokenizer();
  const StoppingOptions& stopping = call.request.stopping;
  if (call.sent == 0) {
    const std::span<const int32_t> before = call.session->cache->log().first(static_cast<size_t>(call.next));
    for (const int32_t token : before.last(std::min<size_t>(before.size(), kLogTail))) {
      call.text.Follow(tokenizer.Piece(token));
    }
    call.first_token = clock_.Now();
  }
  TokensDone done;
  size_t taken = 0;
  while (taken < tokens.size() && call.finish == FinishReason::kNone) {
    const int32_t token = tokens[taken++];
    done.text += call.text.Add(tokenizer.Piece(token));
    ++call.sent;
    if (tokenizer.IsStop(token) && !stopping.ignore_eos) {
      call.finish = FinishReason::kEndOfSequence;
    } else if (call.text.stopped() || std::ranges::find(stopping.stop_tokens, token) != stopping.stop_tokens.end()) {
      call.finish = FinishReason::kStop;
    } else if (call.sent == call.sent_max) {
      call.finish = call.finish_by_count;
    }
  }
  done.tokens = tokens.first(taken);
  call.next += static_cast<int64_t>(taken);
  call.last_token = clock_.Now();
  return done;
}

bool Dispatcher::IsOver(const Call& call) const { return call.finish != FinishReason::kNone || !call.failure.ok(); }

void Dispatcher::Report(Call& call, Reader reader) {
  if (reader == Reader::kReady) return;
  call.blocked_since = std::min(call.blocked_since, clock_.Now());
  Deliver(ReaderBlocked{.id = call.id});
}

void Dispatcher::EndCall(CallId id, EndCause cause) {
  auto node = calls_.extract(id);
  EBB_CHECK(!node.empty());
  Call& call = node.mapped();
  OpenSession& session = *call.session;
  FinishRenewal(session);
  if (call.first_step == absl::InfiniteFuture()) session.tenant_metrics->queue_depth.Add(-1);
  session.account->Count(Quota::kCalls, -1);
  session.account->TakeTokens(-call.prepaid, clock_.Now());  // what did not run
  session.writer.clear();
  if (session.cache->edit_left() > 0) AbandonEdit(call);
  // What was lost of an answer and is not there yet may still be resumed.
  const bool has_lost = call.request.resume_from && static_cast<int64_t>(session.cache->log().size()) < call.next;
  if (!has_lost && std::exchange(session.answer, {})) Record(session, JournalRecord::AnswerEnds{});
  sessions_.Touch(session, clock_.Now());

  CallEnd end = Summary(call);
  end.status = EndStatus(call, cause);
  CountCall(call, end);
  const bool discard = cause == EndCause::kSlowReader;
  // It may have been closed after its last step, when the call was done already.
  if (!session.closed) {
    if (session.throw_away) {
      Close(session);
    } else {
      sessions_.Publish(session);
    }
  }
  const bool has_more = !end.text.empty() || end.evicted > 0;
  if (!end.status.ok() && has_more && !discard) {
    call.output->OnTokens({.text = end.text, .evicted = end.evicted, .cache_length = end.usage.cache_length});
  }
  call.output->End(end, discard);
}

absl::Status Dispatcher::EndStatus(const Call& call, EndCause cause) const {
  if (!call.failure.ok()) return call.failure;
  switch (cause) {
    case EndCause::kDone:
      return absl::OkStatus();
    case EndCause::kCancelled:
      return Refuse(absl::StatusCode::kCancelled, "the caller cancelled", {.reason = "CALL_CANCELLED"});
    case EndCause::kDeadline:
      return Refuse(absl::StatusCode::kDeadlineExceeded, "the call's deadline passed; what was done is in the session",
                    {.reason = "DEADLINE_PASSED"});
    case EndCause::kSlowReader:
      return Refuse(absl::StatusCode::kResourceExhausted,
                    absl::StrFormat("the reader took nothing for %s; go on with resume_from",
                                    absl::FormatDuration(options_.live.reader_patience)),
                    {.reason = "SLOW_READER", .quota = "stream"});
    case EndCause::kSessionClosed:
      return Refuse(absl::StatusCode::kCancelled, "the session was deleted", {.reason = "SESSION_DELETED"});
    case EndCause::kDraining:
      return Refuse(absl::StatusCode::kUnavailable, "the server is draining; what was done is in the session",
                    {.reason = "DRAINING", .retry = kRetryElsewhere});
  }
  return absl::OkStatus();
}

CallEnd Dispatcher::Summary(Call& call) const {
  const Session& cache = *call.session->cache;
  CallEnd end = {.evicted = call.untold_evicted,
                 .usage = {.prompt_tokens = call.request.edit ? 0 : call.prompt_done,
                           .completion_tokens = call.generated,
                           .evicted = call.evicted,
                           .cache_length = cache.cache_length(),
                           .session_tokens = std::max(std::ssize(cache.log()), call.sent > 0 ? call.next : 0),
                           .past_trained_context = cache.position_max() >= engine_.config().context,
                           .drafted_tokens = call.drafted,
                           .accepted_tokens = call.accepted,
                           .reused_tokens = call.reused},
                 .generation = call.session->generation};
  if (call.request.decodes) {
    end.finish = call.finish == FinishReason::kNone ? call.finish_by_count : call.finish;
    const bool text_ends = end.finish == FinishReason::kEndOfSequence || end.finish == FinishReason::kStop;
    end.text = text_ends ? call.text.Finish() : call.text.Release();
  }
  if (call.first_step != absl::InfiniteFuture()) {
    end.timings.queue = call.first_step - call.arrived;
    if (call.prompt_done > 0) end.timings.prefill = call.prompt_end - call.first_step;
  }
  if (call.first_token != absl::InfiniteFuture()) {
    end.timings.first_token = call.first_token - call.arrived;
    end.timings.decode = call.last_token - call.first_token;
  }
  return end;
}

}  // namespace ebb
