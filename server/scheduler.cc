#include "server/scheduler.h"

#include <algorithm>

#include "policies/check.h"

namespace ebb {

Scheduler::Scheduler(const SchedulerLimits& limits)
    : limits_(limits),
      blocks_(limits.priority_places, limits.tier_floor),
      decodes_(limits.priority_places, limits.tier_floor) {
  EBB_CHECK(limits.pages_total >= 0);
  EBB_CHECK(limits.step_tokens_max >= 1);
  EBB_CHECK(limits.step_rows_max >= 1);
  EBB_CHECK(limits.block_turn_steps >= 2);
  EBB_CHECK(limits.queue_max >= 0);
  EBB_CHECK(limits.retry_min <= limits.retry_max);
}

void Scheduler::On(const Event& event, absl::Time now, std::vector<Effect>& effects) {
  EBB_CHECK(now >= now_);
  now_ = now;
  Expire(effects);  // first, so that what is over holds no place in the queue
  std::visit([&](const auto& e) { Handle(e, effects); }, event);
  Expire(effects);  // a request may arrive past its deadline
  if (in_flight_.empty()) StartStep(effects);
}

absl::Time Scheduler::next_wake() const {
  const absl::Time first = wakes_.empty() ? absl::InfiniteFuture() : wakes_.begin()->first;
  return requests_.empty() ? first : std::min(first, drain_until_);
}

SchedulerLoad Scheduler::load() const {
  return {.pages_total = limits_.pages_total,
          .pages_reserved = pages_reserved_,
          .sessions = static_cast<int64_t>(sessions_.size()),
          .requests = static_cast<int64_t>(requests_.size()),
          .requests_waiting = waiting_,
          .requests_blocked = blocked_,
          .step_in_flight = !in_flight_.empty(),
          .draining = draining_};
}

void Scheduler::Handle(const SessionArrived& event, Effects& effects) {
  EBB_CHECK(event.pages >= event.shared);
  EBB_CHECK(!sessions_.contains(event.session));
  const auto refuse = [&](RefuseReason reason) {
    effects.emplace_back(Reject{.id = event.id, .reason = reason, .retry_after = RetryAfter(reason)});
  };
  if (draining_) return refuse(RefuseReason::kDraining);
  if (event.pages > limits_.pages_total) return refuse(RefuseReason::kTooLarge);
  if (event.pages - event.shared > limits_.pages_total - pages_reserved_) return refuse(RefuseReason::kNoPages);
  pages_reserved_ += event.pages - event.shared;
  pages_shared_ += event.shared;
  sessions_.emplace(event.session, Session{.tenant = event.tenant, .pages = event.pages});
  effects.emplace_back(Admit{.id = event.id});
}

void Scheduler::Handle(const PagesCounted& event, Effects& /*effects*/) {
  EBB_CHECK(event.pages >= 0);
  EBB_CHECK(event.pages <= limits_.pages_total);
  pages_shared_ += pages_reserved_ - event.pages;
  pages_reserved_ = event.pages;
}

void Scheduler::Handle(const SessionResized& event, Effects& /*effects*/) {
  EBB_CHECK(event.pages >= 0);
  Session& session = sessions_.at(event.session);
  pages_reserved_ += event.pages - session.pages;
  session.pages = event.pages;
  EBB_CHECK(pages_reserved_ <= limits_.pages_total);
}

void Scheduler::Handle(const SessionHeld& event, Effects& /*effects*/) {
  Session& session = sessions_.at(event.session);
  EBB_CHECK(!session.closed);
  EBB_CHECK(session.held != event.held);
  session.held = event.held;
  if (!session.request) return;
  const Request& request = requests_.at(*session.request);
  if (request.in_flight || request.blocked()) return;
  if (!event.held) return Enqueue(*session.request, request);
  Dequeue(*session.request, request);
}

void Scheduler::Handle(const SessionClosed& event, Effects& effects) {
  const auto session = sessions_.find(event.session);
  EBB_CHECK(session != sessions_.end());
  EBB_CHECK(!session->second.closed);
  session->second.closed = true;
  if (session->second.request) {
    Stop(*session->second.request, EndCause::kSessionClosed, effects);  // its end releases the session
  } else {
    ReleaseNow(event.session, effects);
  }
}

void Scheduler::Handle(const RequestArrived& event, Effects& effects) {
  EBB_CHECK(event.block_size >= 1);
  EBB_CHECK(std::min(event.block_size, event.prompt_tokens) <= limits_.step_tokens_max);
  EBB_CHECK(event.prompt_tokens >= 0);
  EBB_CHECK(event.decode_tokens >= 0);
  const auto session = sessions_.find(event.session);
  EBB_CHECK(session != sessions_.end());
  EBB_CHECK(!session->second.closed);
  EBB_CHECK(!session->second.request);  // a second writer is refused before it gets here
  const auto refuse = [&](RefuseReason reason) {
    effects.emplace_back(Reject{.id = event.id, .reason = reason, .retry_after = RetryAfter(reason)});
  };
  if (draining_) return refuse(RefuseReason::kDraining);
  if (!HasPlace(session->second.tenant)) return refuse(RefuseReason::kQueueFull);

  const auto [request, is_new] = requests_.emplace(event.id, Request{.session = event.session,
                                                                     .priority = event.priority,
                                                                     .arrival = arrivals_++,
                                                                     .prompt_left = event.prompt_tokens,
                                                                     .block_size = event.block_size,
                                                                     .decode_left = event.decode_tokens,
                                                                     .closes = event.closes,
                                                                     .deadline = event.deadline});
  EBB_CHECK(is_new);
  session->second.request = event.id;
  ++waiting_;
  effects.emplace_back(Admit{.id = event.id});
  if (request->second.done()) return EndNow(event.id, EndCause::kDone, effects);
  SetWake(event.id, request->second);
  Enqueue(event.id, request->second);
}

void Scheduler::Handle(const Cancelled& event, Effects& effects) {
  if (requests_.contains(event.id)) Stop(event.id, EndCause::kCancelled, effects);
}

void Scheduler::Handle(const ReaderBlocked& event, Effects& /*effects*/) {
  const auto found = requests_.find(event.id);
  if (found == requests_.end() || found->second.blocked()) return;
  found->second.blocked_since = now_;
  ++blocked_;
  Dequeue(event.id, found->second);
  SetWake(event.id, found->second);
}

void Scheduler::Handle(const ReaderReady& event, Effects& /*effects*/) {
  const auto found = requests_.find(event.id);
  if (found == requests_.end() || !found->second.blocked()) return;
  found->second.blocked_since = absl::InfiniteFuture();
  --blocked_;
  SetWake(event.id, found->second);
  if (!found->second.in_flight) Enqueue(event.id, found->second);
}

void Scheduler::Handle(const RowDone& event, Effects& effects) {
  EBB_CHECK(in_flight_.size() > 1);
  const auto erased = std::erase_if(in_flight_, [&](const RunStep::Row& row) { return row.id == event.id; });
  EBB_CHECK(erased == 1);
  requests_.at(event.id).in_flight = false;
  EndNow(event.id, EndCause::kDone, effects);
}

void Scheduler::Handle(const StepDone& event, Effects& effects) {
  EBB_CHECK(!in_flight_.empty());
  const absl::Duration took = now_ - step_start_;
  step_mean_ = step_mean_ == absl::ZeroDuration() ? took : step_mean_ + (took - step_mean_) / 8;
  pace_ = event.pace;

  for (const StepDone::Shortened& shorter : event.shortened) {
    Request& request = requests_.at(shorter.id);
    EBB_CHECK(request.in_flight);
    EBB_CHECK(shorter.prompt_left <= request.prompt_left);
    request.prompt_left = shorter.prompt_left;
  }
  for (const RequestId id : event.finished) {
    const auto found = requests_.find(id);
    EBB_CHECK(found != requests_.end());
    EBB_CHECK(found->second.in_flight);
    found->second.prompt_left = 0;
    found->second.decode_left = 0;
  }
  for (const RunStep::Row& row : in_flight_) {
    Request& request = requests_.at(row.id);
    request.in_flight = false;
    if (request.done()) {
      EndNow(row.id, EndCause::kDone, effects);
    } else if (request.ending) {
      EndNow(row.id, *request.ending, effects);
    } else if (!request.blocked()) {
      Enqueue(row.id, request);
    }
  }
  in_flight_.clear();
}

void Scheduler::Handle(const Draining& event, Effects& effects) {
  draining_ = true;
  drain_until_ = std::min(drain_until_, event.until);
  std::vector<RequestId> waiting;
  for (const auto& [id, request] : requests_) {
    if (!request.started) waiting.push_back(id);
  }
  for (const RequestId id : waiting) Stop(id, EndCause::kDraining, effects);
}

void Scheduler::Handle(const TenantChanged& event, Effects& /*effects*/) {
  for (TieredQueue* const queue : {&blocks_, &decodes_}) {
    queue->SetWeight(event.tenant, event.weight);
    queue->SetTier(event.tenant, event.tier);
  }
}

void Scheduler::Handle(const LimitsChanged& event, Effects& /*effects*/) {
  EBB_CHECK(event.queue_max >= 0);
  limits_.queue_max = event.queue_max;
  limits_.reader_patience = event.reader_patience;
  for (auto& [id, request] : requests_) {
    if (request.blocked()) SetWake(id, request);
  }
}

void Scheduler::Handle(const Tick& /*event*/, Effects& /*effects*/) {}  // On expires what is due

void Scheduler::Enqueue(RequestId id, const Request& request) {
  if (sessions_.at(request.session).held) return;
  const TenantId tenant = sessions_.at(request.session).tenant;
  if (request.prompt_left > 0) {
    blocks_.Push({.id = id,
                  .tenant = tenant,
                  .priority = request.priority,
                  .age = request.arrival,
                  .cost = request.next_block(),
                  .charge_min = limits_.step_tokens_max / limits_.step_rows_max});
  } else {
    decodes_.Push({.id = id, .tenant = tenant, .priority = request.priority, .age = turns_++, .cost = 1});
    awaited_ += request.is_awaited() ? 1 : 0;
  }
}

void Scheduler::Dequeue(RequestId id, const Request& request) {
  blocks_.Erase(id);
  if (decodes_.Erase(id)) awaited_ -= request.is_awaited() ? 1 : 0;
}

// In the queue. Its last quarter is kept from those who can wait.
bool Scheduler::HasPlace(TenantId tenant) const {
  if (blocks_.tier(tenant) == Tier::kLow) return waiting_ < limits_.queue_max - limits_.queue_max / 4;
  if (waiting_ < limits_.queue_max) return true;
  const int64_t own = std::ranges::count_if(requests_, [&](const auto& entry) {
    return !entry.second.started && sessions_.at(entry.second.session).tenant == tenant;
  });
  return waiting_ < QueuePlaces(limits_.queue_max, own);
}

void Scheduler::SetWake(RequestId id, Request& request) {
  wakes_.erase({request.wake, id});
  // A request that is ending waits for its step, not for the clock.
  request.wake = request.ending ? absl::InfiniteFuture()
                                : std::min(request.deadline, request.blocked_since + limits_.reader_patience);
  if (request.wake != absl::InfiniteFuture()) wakes_.emplace(request.wake, id);
}

void Scheduler::Stop(RequestId id, EndCause cause, Effects& effects) {
  Request& request = requests_.at(id);
  if (!request.in_flight) return EndNow(id, cause, effects);
  if (request.ending) return;  // the first cause stays
  request.ending = cause;
  SetWake(id, request);
}

void Scheduler::EndNow(RequestId id, EndCause cause, Effects& effects) {
  const auto request = requests_.find(id);
  const SessionId session_id = request->second.session;
  wakes_.erase({request->second.wake, id});
  Dequeue(id, request->second);
  if (!request->second.started) --waiting_;
  if (request->second.blocked()) --blocked_;
  requests_.erase(request);
  effects.emplace_back(End{.id = id, .cause = cause});

  Session& session = sessions_.at(session_id);
  session.request.reset();
  if (session.closed) ReleaseNow(session_id, effects);
}

void Scheduler::ReleaseNow(SessionId id, Effects& effects) {
  const auto session = sessions_.find(id);
  pages_reserved_ -= session->second.pages;
  sessions_.erase(session);
  effects.emplace_back(Release{.session = id});
}

void Scheduler::Expire(Effects& effects) {
  while (!wakes_.empty() && wakes_.begin()->first <= now_) {
    const RequestId id = wakes_.begin()->second;
    const bool is_late = requests_.at(id).deadline <= now_;
    Stop(id, is_late ? EndCause::kDeadline : EndCause::kSlowReader, effects);
  }
  if (now_ < drain_until_) return;
  drain_until_ = absl::InfiniteFuture();  // once: nothing is admitted any more
  std::vector<RequestId> left;
  for (const auto& [id, request] : requests_) left.push_back(id);
  for (const RequestId id : left) Stop(id, EndCause::kDraining, effects);
}

// Tenants with a waiting block that have fewer decodes than their share of the rows. Only of the tier whose turn it is:
// what a lower one is left does not grow by this.
void Scheduler::FindCramped() {
  cramped_.clear();
  Tier tier = Tier::kHigh;
  while (tier != Tier::kLow && blocks_.of(tier).empty() && decodes_.of(tier).empty()) {
    tier = static_cast<Tier>(static_cast<size_t>(tier) + 1);
  }
  const FairQueue& blocks = blocks_.of(tier);
  const FairQueue& decodes = decodes_.of(tier);
  int64_t weights = 0;
  decodes.ForEachTenant([&](TenantId tenant) { weights += decodes.weight(tenant); });
  blocks.ForEachTenant([&](TenantId tenant) { weights += decodes.size_of(tenant) > 0 ? 0 : blocks.weight(tenant); });
  blocks.ForEachTenant([&](TenantId tenant) {
    const int64_t share = int64_t{limits_.step_rows_max} * blocks.weight(tenant);  // times `weights`
    if (static_cast<int64_t>(decodes.size_of(tenant)) * weights < share) cramped_.push_back(tenant);
  });
}

void Scheduler::StartStep(Effects& effects) {
  int32_t tokens_left = limits_.step_tokens_max;
  int32_t rows_left = limits_.step_rows_max;
  // The tenant whose entry it was; nothing if none was taken.
  const auto take = [&](TieredQueue& queue, StepPhase phase, int32_t tokens_kept = 0) -> std::optional<TenantId> {
    if (rows_left == 0) return std::nullopt;
    const auto entry = queue.Take(tokens_left - tokens_kept);
    if (!entry) return std::nullopt;
    tokens_left -= entry->cost;
    --rows_left;
    in_flight_.push_back({.id = entry->id, .phase = phase, .tokens = entry->cost});
    return entry->tenant;
  };

  const bool block_waits = !blocks_.empty();
  const bool block_first = block_waits && steps_without_block_ + 1 >= limits_.block_turn_steps;
  const bool is_paced = awaited_ > 0 && pace_ < limits_.step_tokens_max;
  const bool is_crowded = block_waits && !decodes_.empty() &&
                          (is_paced || decodes_.size() + blocks_.size() > static_cast<size_t>(rows_left));
  cramped_.clear();
  if (is_crowded) FindCramped();
  std::optional<TenantId> ran = block_first ? take(blocks_, StepPhase::kPrefill) : std::nullopt;
  bool block_runs = ran.has_value();
  for (int32_t room = limits_.step_rows_max / 4; room > 0; --room) {
    if (ran) std::erase(cramped_, *ran);
    if (cramped_.empty()) break;
    const int32_t decodes = std::min(static_cast<int32_t>(decodes_.size()), rows_left - 1);
    ran = take(blocks_, StepPhase::kPrefill, decodes);
    if (!ran) break;
    block_runs = true;
  }
  while (take(decodes_, StepPhase::kDecode)) continue;
  if (!block_runs) block_runs = take(blocks_, StepPhase::kPrefill).has_value();
  const int32_t kept = is_paced ? limits_.step_tokens_max - pace_ : 0;
  while (take(blocks_, StepPhase::kPrefill, kept)) continue;
  steps_without_block_ = block_waits && !block_runs ? steps_without_block_ + 1 : 0;

  if (in_flight_.empty()) return;
  for (const RunStep::Row& row : in_flight_) {
    Request& request = requests_.at(row.id);
    if (!request.started) --waiting_;
    request.started = true;
    request.in_flight = true;
    if (row.phase == StepPhase::kDecode) awaited_ -= request.is_awaited() ? 1 : 0;
    (row.phase == StepPhase::kPrefill ? request.prompt_left : request.decode_left) -= row.tokens;
  }
  step_start_ = now_;
  effects.emplace_back(RunStep{.rows = in_flight_});
}

std::optional<absl::Duration> Scheduler::RetryAfter(RefuseReason reason) const {
  if (reason == RefuseReason::kTooLarge) return std::nullopt;
  // A full queue moves when the prompts before it have run; pages come back when the shortest request is over, at the
  // earliest; a draining server does not come back, but another one may take its place.
  int64_t prompt_left = 0;
  int64_t steps_min = INT64_MAX;
  for (const auto& [id, request] : requests_) {
    prompt_left += request.prompt_left;
    steps_min = std::min<int64_t>(steps_min, request.steps_left());
  }
  absl::Duration wait = limits_.retry_max;
  if (reason == RefuseReason::kQueueFull) wait = step_mean_ * (prompt_left / limits_.step_tokens_max + 1);
  if (reason == RefuseReason::kNoPages && !requests_.empty()) wait = step_mean_ * steps_min;
  if (reason == RefuseReason::kDraining) wait = kRetryElsewhere;
  return std::clamp(wait, limits_.retry_min, limits_.retry_max);
}

void Scheduler::CheckInvariants() const {
  int64_t pages = 0;
  for (const auto& [id, session] : sessions_) {
    pages += session.pages;
    EBB_CHECK(!session.request || requests_.at(*session.request).session == id);
    EBB_CHECK(!session.closed || session.request);  // else it would be gone
  }
  EBB_CHECK(pages - pages_shared_ == pages_reserved_);
  EBB_CHECK(pages_reserved_ <= limits_.pages_total);

  int64_t tokens = 0;
  for (const RunStep::Row& row : in_flight_) {
    tokens += row.tokens;
    EBB_CHECK(requests_.at(row.id).in_flight);
  }
  EBB_CHECK(tokens <= limits_.step_tokens_max);
  EBB_CHECK(in_flight_.size() <= static_cast<size_t>(limits_.step_rows_max));

  int64_t waiting = 0;
  int64_t blocked = 0;
  size_t rows = 0;
  size_t queued = 0;
  int64_t awaited = 0;
  size_t wakes = 0;
  for (const auto& [id, request] : requests_) {
    const bool runnable = !request.in_flight && !request.blocked() && !sessions_.at(request.session).held;
    EBB_CHECK(sessions_.at(request.session).request == id);
    EBB_CHECK(blocks_.Contains(id) == (runnable && request.prompt_left > 0));
    EBB_CHECK(decodes_.Contains(id) == (runnable && request.prompt_left == 0));
    EBB_CHECK(request.in_flight || !request.done());
    EBB_CHECK(request.in_flight || !request.ending);
    EBB_CHECK(request.started || !request.in_flight);
    EBB_CHECK(wakes_.contains({request.wake, id}) == (request.wake != absl::InfiniteFuture()));
    EBB_CHECK(request.wake > now_);
    waiting += request.started ? 0 : 1;
    blocked += request.blocked() ? 1 : 0;
    rows += request.in_flight ? 1 : 0;
    queued += runnable ? 1 : 0;
    awaited += runnable && request.prompt_left == 0 && request.is_awaited() ? 1 : 0;
    wakes += request.wake != absl::InfiniteFuture() ? 1 : 0;
  }
  EBB_CHECK(rows == in_flight_.size());
  EBB_CHECK(wakes == wakes_.size());
  EBB_CHECK(awaited == awaited_);
  EBB_CHECK(waiting == waiting_);
  EBB_CHECK(blocked == blocked_);
  EBB_CHECK(queued == blocks_.size() + decodes_.size());
  EBB_CHECK(!in_flight_.empty() || queued == 0);  // work conserving
}

}  // namespace ebb
