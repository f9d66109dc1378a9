#include "tests/property/scheduler_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

namespace ebb {
namespace {

StepPhase PhaseOf(const World::Request& request) {
  return request.prompt_left > 0 ? StepPhase::kPrefill : StepPhase::kDecode;
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

int32_t World::Request::next_tokens() const { return prompt_left > 0 ? std::min(prompt_left, asked.block_size) : 1; }

void World::On(const Event& event, absl::Time now) {
  now_ = now;
  std::visit([&](const auto& e) { Note(e); }, event);
  CountGaps();
  std::vector<Effect> effects;
  scheduler_.On(event, now, effects);
  for (const Effect& effect : effects) {
    std::visit([&](const auto& e) { Check(e); }, effect);
    if (testing::Test::HasFatalFailure()) return;
  }
  CheckSettled();
}

int64_t World::tokens_run(TenantId tenant, StepPhase phase) const {
  const auto found = tokens_run_.find({tenant, phase});
  return found == tokens_run_.end() ? 0 : found->second;
}

int64_t World::charged(TenantId tenant, StepPhase phase) const {
  const auto found = charged_.find({tenant, phase});
  return found == charged_.end() ? 0 : found->second;
}

// What an event says about the world

void World::Note(const SessionArrived& event) {
  tenants_.insert(event.tenant);
  session_asks_ = event;
}
void World::Note(const PagesCounted& event) {
  ASSERT_EQ(event.pages, Held());
  uncounted_ += Reserved() - event.pages;
}
void World::Note(const SessionResized& event) { Hold(sessions_.at(event.session), event.pages); }
void World::Note(const SessionHeld& event) {
  Session& session = sessions_.at(event.session);
  session.paused = event.held;
  if (!session.request) return;
  Request& request = requests_.at(*session.request);
  request.paused = event.held;
  if (event.held || request.in_flight) return;
  request.ready_step = steps_;  // it queues anew
  request.waited = 0;
  request.overtaken = 0;
}
void World::Note(const SessionClosed& event) { sessions_.at(event.session).closed = true; }
void World::Note(const RequestArrived& event) { request_asks_ = event; }
void World::Note(const Cancelled& event) {
  if (requests_.contains(event.id)) requests_.at(event.id).cancelled = true;
}
void World::Note(const ReaderBlocked& event) {
  const auto found = requests_.find(event.id);
  if (found != requests_.end() && !found->second.blocked()) found->second.blocked_since = now_;
}
void World::Note(const ReaderReady& event) {
  const auto found = requests_.find(event.id);
  if (found == requests_.end() || !found->second.blocked()) return;
  if (IsTooSlow(found->second)) return;  // it comes too late
  found->second.blocked_since = absl::InfiniteFuture();
  if (found->second.in_flight) return;
  found->second.ready_step = steps_;  // it queues anew
  found->second.waited = 0;
  found->second.overtaken = 0;
}
void World::Note(const RowDone& event) {
  requests_.at(event.id).finished = true;
  requests_.at(event.id).in_flight = false;
  std::erase_if(in_flight_, [&](const RunStep::Row& row) { return row.id == event.id; });
}
void World::Note(const StepDone& event) {
  pace_ = event.pace;
  for (const StepDone::Shortened& shorter : event.shortened) requests_.at(shorter.id).prompt_left = shorter.prompt_left;
  for (const RequestId id : event.finished) requests_.at(id).finished = true;
  for (const RunStep::Row& row : in_flight_) {
    requests_.at(row.id).in_flight = false;
    requests_.at(row.id).ready_step = steps_;
  }
  in_flight_.clear();
}
void World::Note(const Draining& event) {
  draining_ = true;
  drain_until_ = std::min(drain_until_, event.until);
}
void World::Note(const LimitsChanged& event) {
  for (auto& [id, request] : requests_) request.too_slow = IsTooSlow(request);
  limits_.queue_max = event.queue_max;
  limits_.reader_patience = event.reader_patience;
}
void World::Note(const TenantChanged& event) {
  const auto [found, is_new] = weights_.emplace(event.tenant, std::pair(1, 1));
  auto& [smallest, largest] = found->second;
  smallest = std::min(smallest, event.weight);
  largest = std::max(largest, event.weight);
  weight_now_[event.tenant] = event.weight;
}
void World::Note(const Tick& /*event*/) {}

// What an effect must satisfy

void World::Check(const Admit& admit) {
  record_.insert(record_.end(), {0, static_cast<int64_t>(admit.id)});
  ASSERT_FALSE(draining_);
  if (session_asks_) {
    ASSERT_EQ(admit.id, session_asks_->id);
    const std::set<int64_t> held = HeldPages();
    ASSERT_LE(session_asks_->shared, static_cast<int64_t>(held.size()));
    ASSERT_LE(Held() + session_asks_->pages - session_asks_->shared, limits_.pages_total) << "over-commit";
    uncounted_ += session_asks_->shared;
    Session& session = sessions_[session_asks_->session];
    session.tenant = session_asks_->tenant;
    session.held = {held.begin(), std::next(held.begin(), session_asks_->shared)};
    Hold(session, session_asks_->pages);
    session_asks_.reset();
    return;
  }
  ASSERT_TRUE(request_asks_) << "an answer that nobody waits for";
  ASSERT_EQ(admit.id, request_asks_->id);
  Session& session = sessions_.at(request_asks_->session);
  ASSERT_LT(Waiting(), HasFew(session.tenant) ? 2 * limits_.queue_max : limits_.queue_max);
  session.request = admit.id;
  requests_[admit.id] = {.asked = *request_asks_,
                         .tenant = session.tenant,
                         .arrival = arrivals_++,
                         .prompt_left = request_asks_->prompt_tokens,
                         .decode_left = request_asks_->decode_tokens,
                         .paused = session.paused,
                         .ready_step = steps_};
  request_asks_.reset();
}

void World::Check(const Reject& refuse) {
  record_.insert(record_.end(), {1, static_cast<int64_t>(refuse.id), static_cast<int64_t>(refuse.reason),
                                 absl::ToInt64Nanoseconds(refuse.retry_after.value_or(-absl::Nanoseconds(1)))});
  ++tally_.refusals.at(static_cast<size_t>(refuse.reason));
  ASSERT_TRUE(session_asks_ || request_asks_) << "an answer that nobody waits for";
  ASSERT_EQ(refuse.id, session_asks_ ? session_asks_->id : request_asks_->id);
  switch (refuse.reason) {
    case RefuseReason::kNoPages:
      ASSERT_TRUE(session_asks_);
      ASSERT_GT(Reserved() + session_asks_->pages - session_asks_->shared, limits_.pages_total);
      ASSERT_LE(session_asks_->pages, limits_.pages_total);
      break;
    case RefuseReason::kTooLarge:
      ASSERT_TRUE(session_asks_);
      ASSERT_GT(session_asks_->pages, limits_.pages_total);
      break;
    case RefuseReason::kQueueFull:
      ASSERT_TRUE(request_asks_);
      ASSERT_GE(Waiting(),
                HasFew(sessions_.at(request_asks_->session).tenant) ? 2 * limits_.queue_max : limits_.queue_max);
      for (const auto& [id, request] : requests_) ASSERT_TRUE(request.started || !MustEnd(request)) << id << " is over";
      break;
    case RefuseReason::kDraining:
      ASSERT_TRUE(draining_);
      break;
  }
  ASSERT_EQ(refuse.retry_after.has_value(), refuse.reason != RefuseReason::kTooLarge);
  if (refuse.retry_after) {
    ASSERT_GE(*refuse.retry_after, limits_.retry_min);
    ASSERT_LE(*refuse.retry_after, limits_.retry_max);
  }
  session_asks_.reset();
  request_asks_.reset();
}

void World::Check(const End& end) {
  record_.insert(record_.end(), {2, static_cast<int64_t>(end.id), static_cast<int64_t>(end.cause)});
  ++tally_.ends.at(static_cast<size_t>(end.cause));
  ASSERT_FALSE(ended_.contains(end.id)) << "request " << end.id << " ends twice";
  ASSERT_TRUE(requests_.contains(end.id));
  const Request& request = requests_.at(end.id);
  ASSERT_FALSE(request.in_flight) << "a row of request " << end.id << " is still in flight";
  const bool over = request.finished || (request.prompt_left == 0 && request.decode_left == 0);
  ASSERT_EQ(end.cause == EndCause::kDone, over) << "request " << end.id;
  switch (end.cause) {
    case EndCause::kDone:
      break;
    case EndCause::kCancelled:
      ASSERT_TRUE(request.cancelled);
      break;
    case EndCause::kDeadline:
      ASSERT_GE(now_, request.asked.deadline);
      break;
    case EndCause::kSlowReader:
      ASSERT_TRUE(IsTooSlow(request));
      break;
    case EndCause::kSessionClosed:
      ASSERT_TRUE(sessions_.at(request.asked.session).closed);
      break;
    case EndCause::kDraining:
      ASSERT_TRUE(draining_ && (!request.started || now_ >= drain_until_));
      break;
  }
  sessions_.at(request.asked.session).request.reset();
  requests_.erase(end.id);
  ended_.insert(end.id);
  CountGaps();
}

void World::Check(const Release& release) {
  record_.insert(record_.end(), {3, static_cast<int64_t>(release.session)});
  ASSERT_TRUE(sessions_.contains(release.session));
  ASSERT_TRUE(sessions_.at(release.session).closed) << "an admitted session lost its pages";
  ASSERT_FALSE(sessions_.at(release.session).request);
  sessions_.erase(release.session);
}

void World::Check(const RunStep& step) {
  record_.insert(record_.end(), {4, static_cast<int64_t>(step.rows.size())});
  ASSERT_TRUE(in_flight_.empty()) << "a second step in flight";
  ASSERT_FALSE(step.rows.empty());
  ASSERT_LE(step.rows.size(), static_cast<size_t>(limits_.step_rows_max));
  CountGaps();
  for (const RunStep::Row& row : step.rows) {
    CheckRow(row);
    if (testing::Test::HasFatalFailure()) return;
  }
  std::vector<RequestId> skipped;
  for (const auto& [id, request] : requests_) {
    if (request.runnable()) skipped.push_back(id);
  }
  CheckComposition(step, skipped);
  CheckOrderInTenant(step, skipped);
  CheckWaiting(step, skipped);
  if (testing::Test::HasFatalFailure()) return;

  for (const RunStep::Row& row : step.rows) {
    Request& request = requests_.at(row.id);
    (row.phase == StepPhase::kPrefill ? request.prompt_left : request.decode_left) -= row.tokens;
    tokens_run_[{request.tenant, row.phase}] += row.tokens;
    const int32_t least = row.phase == StepPhase::kPrefill ? limits_.step_tokens_max / limits_.step_rows_max : 1;
    charged_[{request.tenant, row.phase}] += std::max(row.tokens, least);
  }
  in_flight_.assign(step.rows.begin(), step.rows.end());
  ++steps_;
  ++tally_.steps;
}

void World::CheckRow(const RunStep::Row& row) {
  record_.insert(record_.end(), {static_cast<int64_t>(row.id), static_cast<int64_t>(row.phase), row.tokens});
  ASSERT_TRUE(requests_.contains(row.id)) << "request " << row.id << " is not there";
  Request& request = requests_.at(row.id);
  ASSERT_FALSE(request.in_flight) << "two rows of request " << row.id;
  ASSERT_FALSE(request.blocked()) << "request " << row.id << " has a slow reader";
  ASSERT_FALSE(request.paused) << "the session of request " << row.id << " is held";
  ASSERT_FALSE(MustEnd(request)) << "request " << row.id << " ought to be over";
  ASSERT_EQ(row.phase, PhaseOf(request));
  ASSERT_EQ(row.tokens, request.next_tokens()) << "a block is never split or merged";
  CheckGap(row, request.tenant);
  request.in_flight = true;
  request.started = true;
  request.waited = 0;
  request.overtaken = 0;
}

// Decodes first and all of them, if there is room; one block before them only in its turn, others only for the sake of
// tenants with fewer decodes than their share of the rows, each of which then has one; blocks while they fit, and
// beyond the first, behind decodes, while all is within the pace, where somebody waits for what follows one of these.
void World::CheckComposition(const RunStep& step, const std::vector<RequestId>& skipped) {
  const auto is_decode = [](const RunStep::Row& row) { return row.phase == StepPhase::kDecode; };
  const int64_t decodes = std::ranges::count_if(step.rows, is_decode);
  const int64_t blocks = static_cast<int64_t>(step.rows.size()) - decodes;
  int64_t tokens = 0;
  for (const RunStep::Row& row : step.rows) tokens += row.tokens;
  ASSERT_LE(tokens, limits_.step_tokens_max);
  int64_t blocks_skipped = 0;
  int64_t block_skipped_max = 0;
  std::map<TenantId, int64_t> decodes_of;   // could run
  std::map<TenantId, int64_t> blocks_left;  // did not, of tenants that had none
  for (const RequestId id : skipped) {
    const Request& request = requests_.at(id);
    if (PhaseOf(request) == StepPhase::kDecode) {
      ++decodes_of[request.tenant];
      continue;
    }
    ++blocks_skipped;
    ++blocks_left[request.tenant];
    block_skipped_max = std::max<int64_t>(block_skipped_max, request.next_tokens());
  }
  std::set<TenantId> tenants_running;
  std::set<TenantId> with_block;
  for (const auto& [tenant, count] : blocks_left) with_block.insert(tenant);
  for (const RunStep::Row& row : step.rows) {
    const TenantId tenant = requests_.at(row.id).tenant;
    is_decode(row) ? void(++decodes_of[tenant]) : void(with_block.insert(tenant));
    if (!is_decode(row)) blocks_left.erase(tenant);
  }
  for (const auto& [tenant, count] : decodes_of) tenants_running.insert(tenant);
  tenants_running.insert(with_block.begin(), with_block.end());
  int64_t weights = 0;
  for (const TenantId tenant : tenants_running) weights += weight_now(tenant);
  const auto is_cramped = [&](TenantId tenant) {
    return decodes_of[tenant] * weights < int64_t{limits_.step_rows_max} * weight_now(tenant);
  };
  const int64_t decodes_runnable = decodes + static_cast<int64_t>(skipped.size()) - blocks_skipped;

  const bool block_waits = blocks + blocks_skipped > 0;
  const bool block_due = block_waits && steps_without_block_ + 1 >= limits_.block_turn_steps;
  const auto rest = decodes_runnable > 0 ? std::ranges::find_if(step.rows, is_decode) : step.rows.begin();
  const int64_t leads = std::distance(step.rows.begin(), rest);
  const int64_t due = block_due ? 1 : 0;
  const auto is_awaited = [&](RequestId id) {
    const Request& request = requests_.at(id);
    return PhaseOf(request) == StepPhase::kDecode && (!request.asked.closes || request.decode_left > 1);
  };
  const bool is_paced =
      (std::ranges::any_of(skipped, is_awaited) || std::ranges::any_of(step.rows, is_awaited, &RunStep::Row::id)) &&
      pace_ < limits_.step_tokens_max;
  const bool is_crowded =
      is_paced || (decodes_runnable > 0 && decodes_runnable + blocks + blocks_skipped > limits_.step_rows_max);
  const int64_t elbow_room = limits_.step_rows_max / 4;
  ASSERT_LE(leads, due + (is_crowded ? elbow_room : 0)) << "blocks before the decodes";
  if (leads > due) {
    ASSERT_TRUE(std::ranges::any_of(with_block, is_cramped)) << "for nobody's sake";
  }
  ASSERT_TRUE(std::is_partitioned(rest, step.rows.end(), is_decode)) << "a decode behind a block";
  int64_t lead_tokens = 0;
  for (auto row = step.rows.begin(); row != rest; ++row) lead_tokens += row->tokens;
  ASSERT_EQ(decodes,
            std::min({decodes_runnable, limits_.step_rows_max - leads, limits_.step_tokens_max - lead_tokens}));
  const int64_t room_beside =
      limits_.step_tokens_max - lead_tokens - std::min(decodes_runnable, limits_.step_rows_max - leads - 1);
  if (is_crowded && leads < elbow_room && room_beside >= block_skipped_max) {
    for (const auto& [tenant, count] : blocks_left) ASSERT_FALSE(is_cramped(tenant)) << "tenant " << tenant;
  }

  steps_without_block_ = block_waits && blocks == 0 ? steps_without_block_ + 1 : 0;
  ASSERT_LT(steps_without_block_, limits_.block_turn_steps) << "a waiting block missed its turn";
  const int64_t trailing = blocks - leads;
  if (is_paced && trailing > 0 && blocks > 1) {
    ASSERT_LE(tokens, pace_) << "who decodes had no time for it";
  }
  const bool row_left = static_cast<int64_t>(step.rows.size()) < limits_.step_rows_max;
  const bool room = row_left && limits_.step_tokens_max - tokens >= block_skipped_max;
  const bool room_in_pace = !is_paced || blocks == 0 || pace_ - tokens >= block_skipped_max;
  ASSERT_FALSE(blocks_skipped > 0 && room && room_in_pace) << "every waiting block would have fitted";
  tally_.paced_steps += blocks_skipped > 0 && room ? 1 : 0;
  tally_.block_first_steps += leads > 0 ? 1 : 0;
  tally_.elbowed_steps += leads > due ? 1 : 0;
  tally_.crowded_steps += decodes < decodes_runnable ? 1 : 0;
}

// Within a tenant: blocks by age of the request and priority, decodes by the time since their last token.
void World::CheckOrderInTenant(const RunStep& step, const std::vector<RequestId>& skipped) {
  for (const RunStep::Row& row : step.rows) {
    const Request& taken = requests_.at(row.id);
    for (const RequestId id : skipped) {
      const Request& left = requests_.at(id);
      if (left.tenant != taken.tenant || PhaseOf(left) != row.phase) continue;
      const int64_t levels = taken.asked.priority - left.asked.priority;
      if (row.phase == StepPhase::kPrefill) {
        ASSERT_LE(taken.arrival - left.arrival, limits_.priority_places * levels) << row.id << " before " << id;
      } else if (levels <= 0) {
        ASSERT_LE(taken.ready_step, left.ready_step) << row.id << " before " << id;
      }
    }
  }
}

// The bound on a decode's wait. `own` decodes of its tenant may go first: those that were there, and those that came
// later with a higher priority. Before each of them and before itself, others take at most what OthersDue says. All
// of that runs in steps that begin with decodes or with a quarter of the rows' blocks, min(rows, tokens) at a time; one
// step in block_turn_steps may not.
void World::CheckWaiting(const RunStep& step, const std::vector<RequestId>& skipped) {
  std::map<TenantId, int64_t> decodes_run;
  std::map<TenantId, int64_t> decodes_seen;
  for (const RunStep::Row& row : step.rows) {
    if (row.phase == StepPhase::kDecode) ++decodes_run[requests_.at(row.id).tenant];
  }
  decodes_seen = decodes_run;
  for (const RequestId id : skipped) {
    if (PhaseOf(requests_.at(id)) == StepPhase::kDecode) ++decodes_seen[requests_.at(id).tenant];
  }
  for (const RequestId id : skipped) {
    Request& request = requests_.at(id);
    if (PhaseOf(request) == StepPhase::kPrefill) continue;
    if (request.waited++ == 0) request.ahead = decodes_seen[request.tenant] - 1;
    request.overtaken += decodes_run[request.tenant];
    const int64_t own = request.ahead + int64_t{limits_.priority_places} * (kPriorityMax - request.asked.priority);
    ASSERT_LE(request.overtaken, own) << "decode " << id << " waits while its tenant's others run";
    const int64_t rows = own + (own + 1) * OthersDue(request.tenant, 1);
    const int64_t steps = rows / std::min(limits_.step_rows_max - limits_.step_rows_max / 4, limits_.step_tokens_max);
    ASSERT_LE(request.waited, steps + CeilDiv(steps, limits_.block_turn_steps - 1) + 1) << "decode " << id;
    tally_.decode_waited_max = std::max(tally_.decode_waited_max, request.waited);
  }
}

// A tenant of whose entries none has waited since the last count came in between, and begins anew.
void World::CountGaps() {
  std::map<TenantId, std::set<RequestId>> blocks;
  std::map<TenantId, std::set<RequestId>> decodes;
  for (const auto& [id, request] : requests_) {
    if (!request.runnable() || MustEnd(request)) continue;
    (PhaseOf(request) == StepPhase::kPrefill ? blocks : decodes)[request.tenant].insert(id);
  }
  block_gaps_.Count(std::move(blocks));
  decode_gaps_.Count(std::move(decodes));
}

void World::Gaps::Count(std::map<TenantId, std::set<RequestId>> now) {
  std::erase_if(tokens, [&](const auto& entry) {
    const std::set<RequestId>& before = waiting[entry.first];
    const std::set<RequestId>& after = now[entry.first];
    return std::ranges::none_of(before, [&](RequestId id) { return after.contains(id); });
  });
  std::erase_if(now, [](const auto& entry) { return entry.second.empty(); });
  waiting = std::move(now);
}

// Between two turns of a tenant that waits, and before its first one, others take at most what OthersDue says.
void World::CheckGap(const RunStep::Row& row, TenantId tenant) {
  const bool is_block = row.phase == StepPhase::kPrefill;
  Gaps& gaps = is_block ? block_gaps_ : decode_gaps_;
  const int64_t cost_max = is_block ? limits_.step_tokens_max : 1;
  gaps.tokens[tenant] = 0;
  std::set<RequestId>& own = gaps.waiting[tenant];
  own.erase(row.id);
  if (own.empty()) gaps.waiting.erase(tenant);
  for (const auto& [other, entries] : gaps.waiting) {
    if (other == tenant) continue;
    gaps.tokens[other] += row.tokens;
    ASSERT_LE(gaps.tokens[other], OthersDue(other, cost_max))
        << "tenant " << other << " waits while others run " << (is_block ? "blocks" : "decodes");
  }
}

// What must hold after every event.
void World::CheckSettled() {
  ASSERT_FALSE(session_asks_) << "a session's arrival was not answered";
  ASSERT_FALSE(request_asks_) << "a request's arrival was not answered";
  absl::Time wake = absl::InfiniteFuture();
  for (const auto& [id, request] : requests_) {
    if (in_flight_.empty()) {
      ASSERT_FALSE(request.runnable()) << "idle, though request " << id << " could run";
    }
    const bool must_end = MustEnd(request);
    ASSERT_TRUE(request.in_flight || !must_end) << "request " << id << " ought to be over";
    if (now_ < drain_until_) wake = std::min(wake, drain_until_);
    if (must_end) continue;
    wake = std::min({wake, request.asked.deadline, request.blocked_since + limits_.reader_patience});
  }
  ASSERT_EQ(scheduler_.next_wake(), wake);
  const SchedulerLoad load = scheduler_.load();
  ASSERT_EQ(load.pages_reserved, Reserved());
  ASSERT_EQ(load.sessions, static_cast<int64_t>(sessions_.size()));
  ASSERT_EQ(load.requests, static_cast<int64_t>(requests_.size()));
  ASSERT_EQ(load.requests_waiting, Waiting());
  ASSERT_EQ(load.step_in_flight, !in_flight_.empty());
  scheduler_.CheckInvariants();
}

bool World::IsTooSlow(const Request& request) const {
  return request.too_slow || now_ >= request.blocked_since + limits_.reader_patience;
}

bool World::MustEnd(const Request& request) const {
  return request.cancelled || request.finished || now_ >= request.asked.deadline || IsTooSlow(request) ||
         sessions_.at(request.asked.session).closed || (draining_ && !request.started) || now_ >= drain_until_;
}

int64_t World::Waiting() const {
  return std::ranges::count_if(requests_, [](const auto& entry) { return !entry.second.started; });
}

int64_t World::Reserved() const {
  int64_t pages = 0;
  for (const auto& [id, session] : sessions_) pages += session.pages;
  return pages - uncounted_;
}

bool World::HasFew(TenantId tenant) const {
  const auto waiting = std::ranges::count_if(
      requests_, [&](const auto& entry) { return !entry.second.started && entry.second.tenant == tenant; });
  return 16 * waiting < limits_.queue_max;
}

std::set<int64_t> World::HeldPages() const {
  std::set<int64_t> held;
  for (const auto& [id, session] : sessions_) held.insert(session.held.begin(), session.held.end());
  return held;
}

int64_t World::Held() const { return static_cast<int64_t>(HeldPages().size()); }

// New pages, or fewer.
void World::Hold(Session& session, int64_t pages) {
  session.pages = pages;
  while (static_cast<int64_t>(session.held.size()) > pages) session.held.erase(std::prev(session.held.end()));
  while (static_cast<int64_t>(session.held.size()) < pages) session.held.insert(++pages_made_);
}

int32_t World::weight_max(TenantId tenant) const {
  const auto found = weights_.find(tenant);
  return found == weights_.end() ? 1 : found->second.second;
}

int32_t World::weight_now(TenantId tenant) const {
  const auto found = weight_now_.find(tenant);
  return found == weight_now_.end() ? 1 : found->second;
}

int32_t World::weight_min(TenantId tenant) const {
  const auto found = weights_.find(tenant);
  return found == weights_.end() ? 1 : found->second.first;
}

int64_t World::OthersDue(TenantId tenant, int64_t cost_max) const {
  int64_t sum = 0;
  for (const TenantId other : tenants_) {
    if (other != tenant) sum += CeilDiv(cost_max * weight_max(other), weight_min(tenant)) + cost_max;
  }
  return sum;
}

}  // namespace ebb
