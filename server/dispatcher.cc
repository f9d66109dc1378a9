#include "server/dispatcher.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/overloaded.h"

namespace ebb {
namespace {

TenantChanged ChangeOf(const TenantAccount& account) {
  return {.tenant = account.id(), .weight = account.limits().weight, .tier = account.limits().tier};
}

constexpr CallId kSessionArrival = 0;                          // calls count from 1
constexpr absl::Duration kOnItsWay = absl::Milliseconds(100);  // a call, to here, at most where machines are busy

}  // namespace

Dispatcher::Dispatcher(Engine& engine, const DispatcherOptions& options, Metrics& metrics)
    : engine_(engine),
      options_(options),
      metrics_(metrics),
      clock_(options.clock),
      scheduler_({.pages_total = engine.memory().pages_total,
                  .step_tokens_max = engine.step_tokens_max(),
                  .step_rows_max = options.step_rows_max,
                  .queue_max = options.live.queue_max,
                  .reader_patience = options.live.reader_patience}),
      pace_(options.live.inter_token_target),
      tenants_(std::make_shared<const TenantTable>(options.tenants), options.clock.Now(), metrics, options.tenant_uses),
      sessions_(options.live.sessions_max, options.session_names, options.model),
      watchers_(options.live.watchers_max),
      shadows_(engine, options.live.shadow, metrics),
      drafter_(options.draft_engine, options.draft_policy, metrics.worker().drafts),
      draws_(engine) {
  metrics_.worker().requests_limit.Set(options.live.queue_max);
  CountLoad();
}

Dispatcher::~Dispatcher() {
  EBB_CHECK(calls_.empty());
  EBB_CHECK(parked_.empty());
  if (has_work()) {
    EndWork(Refuse(absl::StatusCode::kUnavailable, "the server is going away",
                   {.reason = "DRAINING", .retry = kRetryElsewhere}));
  }
  if (options_.swap.folder != nullptr) options_.swap.folder->Stop();
  FlushJournal();
}

absl::StatusOr<SessionView> Dispatcher::Look(const std::string& tenant, const std::string& id) const {
  return sessions_.Look(tenant, id);
}

absl::StatusOr<OpenSession*> Dispatcher::Open(const SessionRequest& request, bool throw_away) {
  EBB_TRY(sessions_.CheckRoom(request));
  const SessionOptions options = {.policy = request.policy, .block_size_max = request.block_size};
  EBB_ASSIGN(const int64_t pages, engine_.PagesFor(options));
  EBB_TRY(CheckQuotas(request.tenant, pages));
  EBB_ASSIGN(const SessionId id, LetIn(request, pages));
  absl::StatusOr<std::unique_ptr<Session>> cache;
  try {
    cache = engine_.OpenSession(options);
  } catch (const std::bad_alloc&) {
    cache = NoMemoryForSession();
  }
  if (!cache.ok()) {
    Deliver(SessionClosed{.session = id});
    return cache.status();
  }
  if (absl::Status claimed = sessions_.Claim(request); !claimed.ok()) {
    Deliver(SessionClosed{.session = id});
    return claimed;
  }
  OpenSession session = Begun(id, request);
  session.throw_away = throw_away;
  session.cache = *std::move(cache);
  return &Add(std::move(session));
}

absl::Status Dispatcher::CheckQuotas(const std::string& tenant, int64_t pages) {
  const TenantAccount& account = tenants_.Of(tenant, clock_.Now());
  EBB_TRY(account.Check(Quota::kSessions, 1));
  return account.Check(Quota::kCacheBytes, pages * engine_.memory().page_bytes);
}

void Dispatcher::SetTenants(std::shared_ptr<const TenantTable> tenants) {
  tenants_.SetTable(std::move(tenants), clock_.Now(),
                    [this](const TenantAccount& account) { Deliver(ChangeOf(account)); });
}

void Dispatcher::SetLive(const LiveOptions& live) {
  options_.live = live;
  pace_.SetTarget(live.inter_token_target);
  shadows_.SetOptions(live.shadow);
  sessions_.SetMax(live.sessions_max);
  watchers_.SetMax(live.watchers_max);
  metrics_.worker().requests_limit.Set(live.queue_max);
  Deliver(LimitsChanged{.queue_max = live.queue_max, .reader_patience = live.reader_patience});
}

absl::StatusOr<SessionId> Dispatcher::LetIn(const SessionRequest& request, int64_t pages) {
  const int64_t free = FreePages();
  if (pages <= free && pages + AwaitedPages() > free) {  // they are for those who wait
    AwaitPages(request.tenant, pages, 0);
    return NotEnoughPages(pages, scheduler_.RetryForPages());
  }
  const TenantAccount& account = tenants_.Of(request.tenant, clock_.Now());
  Deliver(ChangeOf(account));
  const SessionId id = ++sessions_made_;
  rejected_.reset();
  Deliver(SessionArrived{.id = kSessionArrival, .session = id, .tenant = account.id(), .pages = pages});
  if (!rejected_) {
    shadows_.MakeRoom(pages);
    return id;
  }
  if (rejected_->reason == RefuseReason::kDraining) return Verdict(*rejected_);
  const absl::Status refused = NotEnoughPages(pages, rejected_->retry_after);
  if (rejected_->reason == RefuseReason::kTooLarge) {
    return RefuseField("SESSION_TOO_LARGE", "policy.trigger.budget",
                       absl::StrFormat("%s; use a smaller budget", std::string(refused.message())));
  }
  AwaitPages(request.tenant, pages, 0);
  return refused;
}

OpenSession Dispatcher::Begun(SessionId id, const SessionRequest& request) {
  const absl::Time now = clock_.Now();
  TenantAccount& account = tenants_.Of(request.tenant, now);
  return {.id = id,
          .request = request,
          .account = &account,
          .created = now,
          .last_used = now,
          .tenant_metrics = &account.metrics(),
          .policy_metrics = &metrics_.policy(request.policy.scorer_name),
          .policy_tokens = &metrics_.policy_tokens(request.policy.scorer_name, account.metrics())};
}

// From now on it is found, and counted.
OpenSession& Dispatcher::Add(OpenSession session) {
  OpenSession& added = sessions_.Add(std::move(session));
  added.account->Count(Quota::kSessions, 1);
  added.tenant_metrics->sessions.Add(1);
  CountPages(added, added.cache->pages());
  CountSlots(added, added.cache->live_slots());
  NotePlacement(added);
  CountLoad();
  if (added.request.assignment) BeginTrial(added);
  return added;
}

// The session can no longer be found; its pages are free when Release comes, at the latest after the step in flight.
void Dispatcher::Close(OpenSession& session) {
  if (renewing_ && renewing_->session == session.id) DropRenewal();
  if (!session.work.empty()) EndWork(WhyClosed(session));
  ForgetSwap(session);
  EndTrial(session);
  session.closed = true;
  if (session.lost.ok() || !session.journaled) {
    sessions_.Hide(session);
    if (session.journaled) batch_of_journal_.deeds.emplace_back(JournalBatch::Remove{.session = session.id});
  } else {
    LeaveToJournal(session);
  }
  Deliver(SessionClosed{.session = session.id});
}

absl::StatusOr<SessionInfo> Dispatcher::Create(const SessionRequest& request) {
  if (!request.request_id.empty()) {
    const OpenSession* made = sessions_.FindRequest(request.tenant, request.request_id);
    if (made != nullptr) return Info(*made);
  }
  EBB_ASSIGN(OpenSession * session, Open(request, false));
  EBB_TRY(BeginJournal(*session));
  return Info(*session);
}

absl::StatusOr<SessionInfo> Dispatcher::Get(const std::string& tenant, const std::string& id) {
  EBB_ASSIGN(const OpenSession* session, sessions_.Find(tenant, id));
  AnswerFrom(*session);
  return Info(*session);
}

std::vector<SessionInfo> Dispatcher::List(const std::string& tenant, const std::string& after, size_t count) const {
  std::vector<SessionInfo> list;
  for (const OpenSession* session : sessions_.List(tenant, after, count)) list.push_back(Info(*session));
  return list;
}

absl::StatusOr<int64_t> Dispatcher::Delete(const std::string& tenant, const std::string& id,
                                           std::optional<uint64_t> expected) {
  EBB_ASSIGN(OpenSession * session, sessions_.Find(tenant, id));
  EBB_TRY(CheckGeneration(*session, expected));
  const int64_t own = session->cache == nullptr ? 0 : session->cache->pages() - session->cache->shared_pages();
  const int64_t bytes = own * engine_.memory().page_bytes;
  const SessionId journaled = session->journaled ? session->id : 0;
  Close(*session);  // which may answer others
  asked_of_ = journaled;
  return bytes;
}

absl::StatusOr<AcceptOutcome> Dispatcher::Accept(const std::string& tenant, const std::string& id,
                                                 std::optional<uint64_t> expected, uint32_t count) {
  EBB_ASSIGN(OpenSession * session, FindHere(tenant, id));
  EBB_TRY(CheckIdle(*session));
  EBB_TRY(CheckGeneration(*session, expected));
  EBB_TRY(CheckJournal(*session));
  const Session& cache = *session->cache;
  if (cache.draft_tokens() == 0) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("session sessions/%s has no draft that waits; Verify one in MANUAL mode first", id),
                  {.reason = "NO_DRAFT"});
  }
  if (count > static_cast<uint32_t>(cache.draft_tokens())) {
    return RefuseField("OUT_OF_RANGE", "count", absl::StrFormat("%d is not in [0, %d]", count, cache.draft_tokens()));
  }
  const std::vector<float> logits = std::exchange(session->draft_logits, {});
  const auto kept = static_cast<int32_t>(count);
  const BatchRow row = Keep(*session, kept, logits);
  session->tenant_metrics->client_drafts.accepted.Add(kept);
  ++session->generation;
  RecordAnswer(*session, JournalRecord::Accept{kept});
  sessions_.Touch(*session, clock_.Now());
  sessions_.Publish(*session);
  CountLoad();
  return AcceptOutcome{.usage = {.completion_tokens = kept,
                                 .evicted = row.evicted,
                                 .cache_length = cache.cache_length(),
                                 .session_tokens = static_cast<int64_t>(cache.log().size()),
                                 .past_trained_context = cache.position_max() >= engine_.config().context,
                                 .accepted_tokens = kept},
                       .generation = session->generation};
}

std::vector<TenantView> Dispatcher::Tenants(const std::string& after, size_t count) const {
  return tenants_.List(after, count, clock_.Now());
}

WorkTotals Dispatcher::Totals() const {
  WorkTotals totals = totals_;
  totals.memory = engine_.memory();
  totals.load = scheduler_.load();
  return totals;
}

void Dispatcher::Drain(absl::Time until) {
  Deliver(Draining{.until = until});
  for (Parked& parked : parked_) {
    if (parked.ready) continue;
    parked.ready = true;
    parked.verdict = Verdict({.reason = RefuseReason::kDraining});
  }
}

void Dispatcher::Settle() {
  LookForFault();  // which a question may have met
  for (const SessionId id : sessions_.Expired(clock_.Now())) {
    OpenSession& session = sessions_.at(id);
    session.tenant_metrics->expired.Add();
    Close(session);
  }
  if (ran_) {
    Deliver(*std::exchange(ran_, {}));
  } else if (scheduler_.next_wake() <= clock_.Now()) {
    Deliver(Tick{});
  }
}

absl::Duration Dispatcher::idle_time() const {
  if (has_step() || ran_ || renewing_ || has_work() || stirred_ || has_swap_work() || has_ready())
    return absl::ZeroDuration();
  absl::Time wake = std::min(scheduler_.next_wake(), sessions_.next_expiry());
  for (const Parked& parked : parked_) wake = std::min(wake, parked.deadline);
  return wake == absl::InfiniteFuture() ? absl::InfiniteDuration()
                                        : std::max(wake - clock_.Now(), absl::ZeroDuration());
}

// Carrying out an effect may deliver the next event; its effects then wait for their turn.
void Dispatcher::Deliver(const Event& event) {
  decided_.clear();
  scheduler_.On(event, clock_.Now(), decided_);
  const SchedulerLoad load = scheduler_.load();  // after every event, so that it falls to zero when the last call ends
  metrics_.worker().requests_running.Set(static_cast<double>(load.requests - load.requests_waiting));
  effects_.insert(effects_.end(), decided_.begin(), decided_.end());
  if (carrying_out_) return;
  carrying_out_ = true;
  const Overloaded carry_out = {
      [](const Admit&) {},
      [this](const Reject& rejected) {
        if (rejected.id == kSessionArrival) {
          rejected_ = rejected;
        } else {
          calls_.at(rejected.id).failure = Verdict(rejected);
          EndCall(rejected.id, EndCause::kDone);
        }
      },
      [this](const ebb::RunStep& step) { planned_.assign(step.rows.begin(), step.rows.end()); },
      [this](const End& end) { EndCall(end.id, end.cause); },
      [this](const Release& release) {
        if (!sessions_.has(release.session)) return;  // admitted, but there was no memory for it
        OpenSession& session = sessions_.at(release.session);
        if (session.cache != nullptr) CountSlots(session, 0);
        EndWatchesOf(session);
        shadows_.End(session.id);
        drafter_.End(session.id);
        session.tenant_metrics->sessions.Add(-1);
        session.account->Count(Quota::kSessions, -1);
        if (session.is_branch) session.account->Count(Quota::kForks, -1);
        session.swapped.reset();
        CountPages(session, 0);
        sessions_.Remove(release.session);
        CountLoad();
      },
  };
  while (carried_out_ < effects_.size()) {
    const Effect effect = effects_[carried_out_++];
    std::visit(carry_out, effect);
  }
  effects_.clear();
  carried_out_ = 0;
  carrying_out_ = false;
}

absl::Status Dispatcher::Verdict(const Reject& rejected) const {
  if (rejected.reason == RefuseReason::kDraining) {
    return Refuse(absl::StatusCode::kUnavailable, "the server is draining: it takes nothing new",
                  {.reason = "DRAINING", .retry = kRetryElsewhere});
  }
  return Refuse(absl::StatusCode::kUnavailable, "too many calls wait for their first step",
                {.reason = "QUEUE_FULL", .retry = rejected.retry_after});
}

SessionInfo Dispatcher::Info(const OpenSession& session) const {
  if (session.swapped != nullptr) {
    const SwappedSession& swapped = *session.swapped;
    return {.request = session.request,
            .policy = swapped.policy,
            .swapped = true,
            .generation = session.generation,
            .tokens = swapped.tokens,
            .cache_length = swapped.cache_length,
            .cache_capacity = swapped.cache_capacity,
            .used_bytes = swapped.live_slots * SlotBytes(swapped.policy),
            .live_slots = swapped.live_slots,
            .evicted = swapped.evicted,
            .prompt_tokens = session.prompt_tokens,
            .completion_tokens = session.completion_tokens,
            .created = session.created,
            .last_used = session.last_used};
  }
  const Session& cache = *session.cache;
  return {.request = session.request,
          .policy = cache.policy(),
          .busy = !session.writer.empty(),
          .generation = session.generation,
          .tokens = static_cast<int64_t>(cache.log().size()),
          .cache_length = cache.cache_length(),
          .cache_capacity = cache.capacity(),
          .reserved_bytes = cache.pages() * engine_.memory().page_bytes,
          .shared_bytes = cache.shared_pages() * engine_.memory().page_bytes,
          .used_bytes = cache.live_slots() * SlotBytes(cache.policy()),
          .live_slots = cache.live_slots(),
          .evicted = cache.evicted(),
          .draft_tokens = cache.draft_tokens(),
          .placement = session.placement,
          .prompt_tokens = session.prompt_tokens,
          .completion_tokens = session.completion_tokens,
          .created = session.created,
          .last_used = session.last_used};
}

ValidSpec Dispatcher::PolicyFor(const OpenSession& session, const PolicyRequest& request) {
  ValidSpec policy = request.policy;
  if (request.own_kv_type) policy.kv_type = session.cache->policy().kv_type;
  if (request.own_rope_cache) policy.rope_cache = session.cache->policy().rope_cache;
  return policy;
}

int64_t Dispatcher::SlotBytes(const ValidSpec& policy) const {
  return KvFormat{.type = policy.kv_type, .rope_cache = policy.rope_cache, .head_dim = engine_.config().head_dim}
      .slot_bytes();
}

void Dispatcher::CountSlots(OpenSession& session, int64_t slots) {
  const int64_t more = slots - std::exchange(session.counted_slots, slots);
  const int64_t bytes = more * SlotBytes(session.cache->policy());
  totals_.used_bytes += bytes;
  metrics_.worker().slots.used.Add(static_cast<double>(more));
  metrics_.worker().bytes.used.Add(static_cast<double>(bytes));
}

void Dispatcher::CountPages(OpenSession& session, int64_t pages) {
  NoteMemory(session);
  const int64_t more = pages - std::exchange(session.counted_pages, pages);
  metrics_.worker().pages.owned.Add(static_cast<double>(more));
  // A session that is swapped comes back without asking for its quota again.
  const int64_t kept = session.swapped != nullptr ? session.swapped->pages : pages;
  const int64_t charged = kept - std::exchange(session.charged_pages, kept);
  session.account->Count(Quota::kCacheBytes, charged * engine_.memory().page_bytes);
}

// From here on, what the session does.
void Dispatcher::CountUnderPolicy(OpenSession& session) {
  const std::string_view scorer = session.cache->policy().scorer_name;
  session.policy_metrics = &metrics_.policy(scorer);
  session.policy_tokens = &metrics_.policy_tokens(scorer, *session.tenant_metrics);
}

// Kept, since to find out may take a look at each slot. Whoever comes to be the host's though there is a device counts.
void Dispatcher::NotePlacement(OpenSession& session) {
  const WhyHost before = session.placement.why;
  session.placement = engine_.PlacementOf(*session.cache);
  const WhyHost why = session.placement.why;
  if (metrics_.device() != nullptr && why != before) metrics_.device()->CountOnHost(why);
}

void Dispatcher::CountSwap(OpenSession& session, const PolicySwap& swap) {
  EndTrial(session);  // what it shows from here on is another policy's
  CountUnderPolicy(session);
  session.policy_metrics->changes[static_cast<size_t>(swap.state)]->Add();
  CountLeft(session, {.cause = EvictionCause::kSetPolicy,
                      .length_before = swap.length_before,
                      .evicted = MostLost(swap.victims),
                      .evicted_slots = swap.slots_evicted,
                      .loss = &swap.loss,
                      .victims = swap.victims});
}

void Dispatcher::CountLeft(const OpenSession& session, const EvictionEvent& event) {
  EvictionCensus census;
  const auto length = static_cast<int64_t>(session.cache->log().size());
  for (const LaneVictims& lane : event.victims) {
    census.AddSlots(lane.layer, engine_.config().layers, std::ssize(lane.tokens));
    for (const int32_t token : lane.tokens) census.AddAge(length - token, 1);
  }
  CountEviction(session, event.evicted, event.evicted_slots, census);
  if (event.evicted_slots > 0) CountLoss(session, *event.loss);
  Tell(session, event);
}

void Dispatcher::CountEviction(const OpenSession& session, int32_t tokens, int64_t slots,
                               const EvictionCensus& census) {
  if (slots == 0) return;
  const PolicyMetrics& policy = *session.policy_metrics;
  policy.evictions.Add();
  policy.evicted_tokens.Add(tokens);
  policy.evicted_slots.Add(static_cast<double>(slots));
  policy.choosing_seconds.Add(census.seconds);
  policy.ages.ObserveAll(census.ages, static_cast<double>(census.age_sum));
  for (size_t i = 0; i < census.slots.size(); ++i) {
    metrics_.worker().evicted_slots[i]->Add(static_cast<double>(census.slots[i]));
  }
  totals_.evicted_tokens += tokens;
}

void Dispatcher::CountLoss(const OpenSession& session, const Loss& loss) {
  session.policy_metrics->mass.Observe(loss.mass);
  session.policy_metrics->error.Observe(loss.error);
  if (session.trial == nullptr) return;
  session.trial->fresh.Add(TrialMetric::kAttentionMassLost, loss.mass);
  session.trial->fresh.Add(TrialMetric::kOutputError, loss.error);
}

void Dispatcher::CountLoad() {
  stirred_ = stirred_ || !parked_.empty();
  const EngineMemory memory = engine_.memory();
  const EngineMemory before = std::exchange(counted_, memory);
  // What sessions share is reserved once, and only the page pool knows how much that is.
  const int64_t held = memory.pages_reserved - shadows_.pages();
  if (held != scheduler_.load().pages_reserved) Deliver(PagesCounted{.pages = held});
  const auto page_bytes = static_cast<double>(memory.page_bytes);
  const SchedulerLoad load = scheduler_.load();
  const auto reserved = static_cast<double>(load.pages_reserved);
  const auto free = static_cast<double>(load.pages_total - load.pages_reserved);
  const int64_t whole_slots = memory.page_bytes / SlotBytes({});  // of a page, in the default format
  const auto page_slots = static_cast<double>(whole_slots);
  const WorkerMetrics& worker = metrics_.worker();
  worker.bytes.reserved.Set(reserved * page_bytes);
  worker.bytes.free.Set(free * page_bytes);
  worker.slots.reserved.Set(reserved * page_slots);
  worker.slots.free.Set(free * page_slots);
  worker.pages.free.Set(static_cast<double>(memory.pages_total - memory.pages_reserved));
  worker.pages.owned.Add(static_cast<double>(before.pages_spared - memory.pages_spared));
  worker.pages.shared.Set(static_cast<double>(memory.pages_shared));
  worker.pages.kept.Set(static_cast<double>(memory.pages_kept));
  worker.page_copies.Add(static_cast<double>(memory.pages_copied - before.pages_copied));
}

void Dispatcher::CountStep(int32_t prompt_tokens, int32_t decode_tokens, absl::Duration took) {
  for (size_t i = 0; i < batch_calls_.size(); ++i) {
    const double share = static_cast<double>(batch_[i].tokens.size()) / (prompt_tokens + decode_tokens);
    batch_calls_[i]->session->tenant_metrics->step_seconds.Add(share * absl::ToDoubleSeconds(took));
  }
  const WorkerMetrics& worker = metrics_.worker();
  ++totals_.steps;
  step_took_ = took;
  Histogram& seconds = decode_tokens == 0   ? worker.prefill_seconds
                       : prompt_tokens == 0 ? worker.decode_seconds
                                            : worker.mixed_seconds;
  seconds.Observe(took);
  worker.step_tokens.Observe(prompt_tokens + decode_tokens);
  worker.step_rows.Observe(static_cast<double>(batch_calls_.size()));
  if (metrics_.device() != nullptr) metrics_.device()->Set(*engine_.device_use());
}

// Whether its deadline is over, though nothing came of it in time that was long enough. gRPC rounds what is left of a
// client's deadline up, by a hundredth at most, and counts it from when the call came, so that a client gives up
// before.
bool Dispatcher::IsLate(const Call& call, const absl::Status& status) const {
  if (!absl::IsDeadlineExceeded(status) && !absl::IsCancelled(status)) return false;
  if ((call.request.decodes ? call.first_token : call.first_step) != absl::InfiniteFuture()) return false;
  const absl::Duration waited = clock_.Now() - call.arrived;
  return waited > options_.live.ttft_target && waited + kOnItsWay >= 0.98 * (call.request.deadline - call.arrived);
}

void Dispatcher::CountCall(Call& call, const CallEnd& end) {
  const CallTimings& timings = end.timings;
  Unblock(call);
  const PhaseMetrics& phases = metrics_.worker().phases;
  phases.queue.Add(absl::ToDoubleSeconds(timings.queue));
  phases.prefill.Add(absl::ToDoubleSeconds(timings.prefill));
  phases.decode.Add(absl::ToDoubleSeconds(timings.decode));
  phases.blocked.Add(absl::ToDoubleSeconds(call.blocked));
  call.session->policy_metrics->cache_tokens.Observe(call.session->cache->cache_length());
  if (end.status.ok() && timings.first_token && *timings.first_token <= options_.live.ttft_target &&
      timings.decode <= options_.live.inter_token_target * (call.generated - 1)) {
    call.session->tenant_metrics->in_time.Add();
  }
  if (IsLate(call, end.status)) call.session->tenant_metrics->late.Add();
  if (call.session->trial != nullptr) {
    const ArmMetrics& arm = *call.session->trial->metrics;
    (end.status.ok() ? arm.ok : absl::IsCancelled(end.status) ? arm.cancelled : arm.failed).Add();
  }
  if (!call.request.resume_from) NoteCall(*call.session, timings, call.generated);
  TellTrial(*call.session);
}

absl::Status Dispatcher::CheckStart(const Call& call, const OpenSession& session) const {
  // A plan of an edit holds as long as nobody else touches log and cache.
  EBB_TRY(call.request.edit ? CheckIdle(session) : CheckNoWriter(session));
  EBB_TRY(CheckGeneration(session, call.request.expected_generation));
  EBB_TRY(CheckJournal(session));
  EBB_TRY(session.cache->CheckSettled());
  const CallRequest& request = call.request;
  const bool is_another = request.made_for && *request.made_for != session.id;
  const bool has_changed = request.generation_of_prompt && *request.generation_of_prompt != session.generation;
  if (is_another || has_changed) {
    return Refuse(absl::StatusCode::kAborted,
                  absl::StrFormat("session sessions/%s changed while the call was read: another call %s",
                                  session.request.id, is_another ? "opened it anew" : "wrote to it"),
                  {.reason = "SESSION_BUSY", .retry = absl::Milliseconds(100), .metadata = {{"held_by", "another"}}});
  }
  return absl::OkStatus();
}

}  // namespace ebb
