// Drafts of a dispatcher's calls: run, judged, kept.

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/dispatcher.h"

namespace ebb {

absl::Status Dispatcher::CheckDraftFits(const DraftRequest& draft, const OpenSession& session) {
  const auto tokens = static_cast<int32_t>(draft.proposal.tokens.size());
  if (tokens > session.request.block_size) {
    return RefuseField(
        "DRAFT_TOO_LONG", "draft_tokens",
        absl::StrFormat("%d tokens; the session's block_size leaves room for %d", tokens, session.request.block_size));
  }
  return absl::OkStatus();
}

bool Dispatcher::PrepareDraft(Call& call, BatchRow& row) {
  row.tokens = call.request.draft->proposal.tokens;
  row.want = Want::kAll;
  row.draft = true;
  call.failure = row.session->CanAppend(static_cast<int32_t>(row.tokens.size()));
  // Its first token is judged by what the session has.
  if (call.failure.ok()) call.failure = call.session->logits.Whole(engine_, *row.session).status();
  return call.failure.ok();
}

// The draft model's come when all rows of the step are known.
void Dispatcher::DraftOnRows() {
  for (size_t i = 0; i < batch_.size(); ++i) {
    const Call& call = *batch_calls_[i];
    const bool wishes = call.request.speculation.source != DraftSource::kNone;
    if (wishes && !IsBlock(call, batch_[i]) && !IsLost(call)) DraftOn(i);
  }
  DraftByModel();
}

// Puts a draft behind the row's token, as far as the step, the answer, the session and its policy have room for it:
// tokens behind one that evicts would see what decoding would no longer let them see.
void Dispatcher::DraftOn(size_t index) {
  Call& call = *batch_calls_[index];
  BatchRow& row = batch_[index];
  const Session& cache = *row.session;
  if (cache.on_device()) return;  // the cache would come home for every draft, and go back for the next token
  const int32_t room = std::min({call.session->request.block_size, cache.room(), cache.steps_to_eviction(),
                                 call.request.stopping.max_tokens - call.sent}) -
                       1;
  if (room < 1 || spare_tokens_ < 1) return;
  const int32_t most = std::min({call.draft_length.Next(), room, spare_tokens_});
  if (most == 0) return;
  if (call.request.speculation.source == DraftSource::kModel) {
    spare_tokens_ -= most;
    wishes_.push_back({.session = call.session->id, .log = cache.log(), .token = call.drawn.token, .most = most});
    wishing_rows_.push_back(index);
    return;
  }
  const std::span<const int32_t> log = cache.log().last(std::min<size_t>(cache.log().size(), kLookBackTokens - 1));
  call.drafting.assign(log.begin(), log.end());
  call.drafting.push_back(call.drawn.token);
  std::vector<int32_t> draft;
  LookUp(call.drafting, most, draft);
  if (draft.empty()) return;
  spare_tokens_ -= static_cast<int32_t>(draft.size());
  PutDraft(call, draft, row);
}

void Dispatcher::DraftByModel() {
  if (wishes_.empty()) return;
  const absl::Time start = clock_.Now();
  const ModelDrafter::Round round = drafter_.Draft(wishes_);
  const absl::Duration took = clock_.Now() - start;
  if (round.read > 0) metrics_.worker().drafts.seconds.Observe(took);
  // Catching up is paid once, and says nothing of what the next draft costs.
  if (round.drafted > 0 && round.read <= round.drafted) {
    draft_cost_.DraftTook(round.drafted, absl::ToDoubleSeconds(took));
  }
  for (size_t i = 0; i < wishes_.size(); ++i) {
    if (!wishes_[i].draft.empty())
      PutDraft(*batch_calls_[wishing_rows_[i]], wishes_[i].draft, batch_[wishing_rows_[i]]);
  }
}

void Dispatcher::PutDraft(Call& call, std::span<const int32_t> draft, BatchRow& row) {
  call.drafting.assign(1, call.drawn.token);
  call.drafting.insert(call.drafting.end(), draft.begin(), draft.end());
  row.tokens = call.drafting;
  row.draft = true;
  row.want = Want::kAll;
}

// The token in flight and those of its draft that the sampler draws, too: what decoding would have yielded, so that the
// token behind them is drawn from their logits in the next step, and need not be remembered.
void Dispatcher::CommitOwnDraft(Call& call, const BatchRow& row) {
  OpenSession& session = *call.session;
  const auto vocab = static_cast<size_t>(engine_.config().vocab);
  const std::span<const int32_t> log = session.cache->log();
  std::vector<int32_t> so_far(log.begin(), log.end());
  so_far.push_back(call.drawn.token);
  const auto drafted = static_cast<int32_t>(row.tokens.size()) - 1;
  const DraftProposal draft = {.tokens = {row.tokens.begin() + 1, row.tokens.end()}};
  const DraftVerdict verdict =
      Judge(draft, call.request.sampling, row.logits.first(vocab), row.logits.subspan(vocab), so_far, draws_.sampler());
  if (call.request.speculation.source == DraftSource::kModel) {
    const auto sessions = static_cast<int32_t>(batch_calls_.size());
    call.draft_length.Settle(drafted, verdict.accepted, draft_cost_.BreakEven(sessions));
  } else {
    call.draft_length.Settle(drafted, verdict.accepted);
  }

  // One by one: each may end the answer, and what lies behind the end is not in the log.
  std::vector<TokensDone> done;
  const bool explained = call.request.stopping.logprobs;
  std::vector<Drawn> drawn = {call.drawn};
  for (int32_t i = 0; i <= verdict.accepted && call.finish == FinishReason::kNone; ++i) {
    if (explained && i > 0) {
      const std::span<const float> before = row.logits.subspan((i - 1) * vocab, vocab);
      drawn.push_back(draws_.sampler().Explained(call.request.sampling, before, row.tokens[i]));
    }
    done.push_back(Take(call, row.tokens.subspan(i, 1)));
  }
  const auto kept = static_cast<int32_t>(done.size());
  Record(session, JournalRecord::Draft{{row.tokens.begin(), row.tokens.end()}, kept});
  const BatchRow steps = Keep(session, kept, row.logits);
  call.evicted += steps.evicted;
  call.generated += kept;
  CountDraft(call, drafted, kept - 1);
  done.back().evicted = steps.evicted + std::exchange(call.untold_evicted, 0);
  for (size_t i = 0; i < done.size(); ++i) {
    done[i].drawn = explained ? &drawn[i] : nullptr;
    done[i].cache_length = session.cache->cache_length();
    Report(call, call.output->OnTokens(done[i]));
  }
}

void Dispatcher::CountDraft(Call& call, int32_t drafted, int32_t accepted) {
  call.drafted += drafted;
  call.accepted += accepted;
  const TenantMetrics& tenant = *call.session->tenant_metrics;
  const DraftMetrics& metrics = call.request.draft                                        ? tenant.client_drafts
                                : call.request.speculation.source == DraftSource::kLookup ? tenant.lookup_drafts
                                                                                          : tenant.model_drafts;
  metrics.drafted.Add(drafted);
  metrics.accepted.Add(accepted);
}

void Dispatcher::CommitDraft(Call& call, const BatchRow& row) {
  OpenSession& session = *call.session;
  const DraftRequest& draft = *call.request.draft;
  const auto vocab = static_cast<size_t>(engine_.config().vocab);
  const auto tokens = static_cast<int32_t>(row.tokens.size());
  const std::span<const float> last = *session.logits.Whole(engine_, *session.cache);  // PrepareDraft has seen to it
  const SamplingOptions scoring = {.temperature = 0, .logprobs = draft.logprobs};
  std::vector<Drawn> scores;
  for (size_t i = 0; i < row.tokens.size(); ++i) {
    const std::span<const float> before = i == 0 ? last : row.logits.subspan((i - 1) * vocab, vocab);
    scores.push_back(draws_.sampler().Explained(scoring, before, row.tokens[i]));
  }
  DraftDone done = {.scores = scores};
  Drawn likeliest;
  if (draft.manual) {
    session.draft_logits.assign(row.logits.begin(), row.logits.end());
    likeliest = draws_.sampler().Draw(scoring, row.logits.last(vocab), {});
    done.likeliest = &likeliest;
    done.pending = tokens;
    Record(session, JournalRecord::Draft{draft.proposal.tokens, std::nullopt});
    CountDraft(call, tokens, 0);
  } else {
    const DraftVerdict verdict =
        Judge(draft.proposal, call.request.sampling, last, row.logits, session.cache->log(), draws_.sampler());
    done.accepted = verdict.accepted;
    Record(session, JournalRecord::Draft{draft.proposal.tokens, verdict.accepted});
    call.evicted += Keep(session, verdict.accepted, row.logits).evicted;
    call.generated += verdict.accepted;
    CountDraft(call, tokens, verdict.accepted);
    call.next = static_cast<int64_t>(session.cache->log().size());
    const bool ended = verdict.accepted == tokens && engine_.tokenizer().IsStop(row.tokens.back());
    if (ended) call.finish = FinishReason::kEndOfSequence;
    call.settled =
        draws_.sampler().Explained(call.request.sampling, *session.logits.Whole(engine_, *session.cache), verdict.next);
  }
  call.output->OnDraft(done);
}

void Dispatcher::TakeLogits(OpenSession& session, const BatchRow& row) const {
  if (!row.facts.empty()) return session.logits.TakeFacts(row.facts);
  session.logits.TakeWhole(row.logits.last(static_cast<size_t>(engine_.config().vocab)));
}

// `logits` [draft tokens, vocab] of the draft that waits.
BatchRow Dispatcher::Keep(OpenSession& session, int32_t count, std::span<const float> logits) {
  BatchRow row = {
      .session = session.cache.get(), .measure = IsMeasured(session), .list_victims = watchers_.WantVictims(session)};
  engine_.Accept(row, count);
  CountPages(session, session.cache->pages());
  CommitCache(session, row, EvictionCause::kDecode);
  session.policy_tokens->Add(count);
  if (count > 0) {
    const auto vocab = static_cast<size_t>(engine_.config().vocab);
    session.logits.TakeWhole(logits.subspan((count - 1) * vocab, vocab));
  }
  session.completion_tokens += count;
  totals_.completion_tokens += count;
  session.tenant_metrics->completion_tokens.Add(count);
  return row;
}

}  // namespace ebb
