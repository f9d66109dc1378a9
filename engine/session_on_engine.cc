#include "engine/session_on_engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/learned_positions.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {

SessionOnEngine::SessionOnEngine(const ValidSpec& policy, SessionCache cache, int32_t block_size_max,
                                 int32_t length_limit)
    : policy_(policy), cache_(std::move(cache)), block_size_max_(block_size_max), length_limit_(length_limit) {
  log_.reserve(static_cast<size_t>(cache_.shape().capacity));
  BoundBudget();
}

SessionOnEngine::SessionOnEngine(const ValidSpec& policy, SessionCache cache, int32_t block_size_max,
                                 int32_t length_limit, SessionState state)
    : policy_(policy),
      cache_(std::move(cache)),
      block_size_max_(block_size_max),
      length_limit_(length_limit),
      log_(std::move(state.log)),
      next_position_(state.next_position),
      evicted_(state.evicted),
      prompt_ended_(state.prompt_ended),
      decode_steps_(state.decode_steps),
      last_queries_(std::move(state.last_queries)),
      stale_from_(state.stale_from) {
  BoundBudget();
}

std::unique_ptr<SessionOnEngine> SessionOnEngine::Fork() const {
  EBB_CHECK(CheckSettled().ok());
  auto fork = std::make_unique<SessionOnEngine>(policy_, cache_.Fork(), block_size_max_, length_limit_);
  fork->policy_ = policy_;  // as its prompt left it
  fork->log_.assign(log_.begin(), log_.end());
  fork->next_position_ = next_position_;
  fork->evicted_ = evicted_;
  fork->prompt_ended_ = prompt_ended_;
  fork->decode_steps_ = decode_steps_;
  fork->block_step_ = block_step_;
  fork->last_queries_ = last_queries_;
  fork->stale_from_ = stale_from_;
  return fork;
}

// Pages were reserved for the limit. A prompt may outgrow it, where some of its tokens were evicted by hand on the way,
// and so may its share; EndPrompt then refuses.
void SessionOnEngine::BoundBudget() {
  const bool waits = policy_.trigger.budget == 0 || (policy_.schedule == Schedule::kOncePrompt && !prompt_ended_);
  if (waits) policy_.budget_max = std::min(policy_.budget_max, length_limit_);
}

int32_t SessionOnEngine::cache_length() const {
  int32_t longest = 0;
  for (int32_t map = 0; map < std::ssize(cache_.maps()); ++map) longest = std::max(longest, live_of(map));
  return longest;
}

int64_t SessionOnEngine::live_slots() const {
  int64_t slots = 0;
  for (int32_t map = 0; map < std::ssize(cache_.maps()); ++map) slots += int64_t{live_of(map)} * cache_.lanes_of_map();
  return slots;
}

int32_t SessionOnEngine::position_max() const {
  return policy_.positions == Positions::kOriginal ? next_position_ - 1 : cache_length() - 1;
}

int32_t SessionOnEngine::room() const {
  const bool grows = policy_.schedule == Schedule::kOncePrompt && (!prompt_ended_ || policy_.then == Then::kGrow);
  const bool bounded_by_length = policy_.bounded || policy_.trigger.budget == 0 || grows;
  const int32_t room = bounded_by_length ? length_limit_ - cache_length() : std::numeric_limits<int32_t>::max();
  return policy_.learned_positions > 0 ? std::min(room, policy_.learned_positions - next_position_) : room;
}

int32_t SessionOnEngine::steps_to_eviction() const {
  int32_t steps = std::numeric_limits<int32_t>::max();
  const bool waits = policy_.schedule == Schedule::kOncePrompt && !prompt_ended_;
  if (!policy_.evicts || policy_.trigger.budget == 0 || waits) return steps;
  if (policy_.schedule == Schedule::kEveryN) return policy_.every_n - decode_steps_ % policy_.every_n;
  for (int32_t map = 0; map < std::ssize(cache_.maps()); ++map) {
    const Trigger trigger = policy_.trigger_of(cache_.first_lane(map));
    steps = std::min(steps, trigger.budget + trigger.overflow - live_of(map));
  }
  return std::max(steps, 1);
}

absl::Status SessionOnEngine::CheckSettled() const {
  if (edit_left() > 0) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("an edit has %d tokens to run; run or abandon them first", edit_left()),
                  {.reason = "EDIT_PENDING"});
  }
  if (draft_.tokens.empty()) return absl::OkStatus();
  return Refuse(
      absl::StatusCode::kFailedPrecondition,
      absl::StrFormat("a draft of %d tokens waits for its verdict; accept some of it, or none, first", draft_tokens()),
      {.reason = "DRAFT_PENDING", .metadata = {{"draft_tokens", absl::StrFormat("%d", draft_tokens())}}});
}

absl::Status SessionOnEngine::CanAppend(int32_t tokens) const {
  EBB_TRY(CheckSettled());
  if (tokens < 1 || tokens > block_size_max_) {
    return RefuseField("BLOCK_TOO_LARGE", "block_size",
                       absl::StrFormat("a step of %d tokens; this session takes 1 to %d", tokens, block_size_max_));
  }
  EBB_TRY(CheckLearnedPositions(policy_, next_position_, tokens));
  const int32_t length = cache_length();
  if (tokens > room()) {
    return Refuse(absl::StatusCode::kResourceExhausted,
                  absl::StrFormat("%d tokens more would exceed the session's length limit of %d; it holds %d", tokens,
                                  length_limit_, length),
                  {.reason = "LENGTH_LIMIT",
                   .quota = "session",
                   .metadata = {{"length_limit", absl::StrFormat("%d", length_limit_)},
                                {"length", absl::StrFormat("%d", length)}}});
  }
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  if (tokens > kMost - static_cast<int32_t>(log_.size()) || tokens > kMost - next_position_) {
    return Refuse(absl::StatusCode::kResourceExhausted, "the session's token log is full at 2^31 - 1 tokens",
                  {.reason = "LENGTH_LIMIT", .quota = "session"});
  }
  return absl::OkStatus();
}

void SessionOnEngine::Append(std::span<const int32_t> tokens) {
  const auto count = static_cast<int32_t>(tokens.size());
  const auto first = static_cast<int32_t>(log_.size());
  for (SlotMap& map : cache_.maps()) map.Place(first, next_position_, count);
  log_.insert(log_.end(), tokens.begin(), tokens.end());
  next_position_ += count;
  CountStep(count);
}

void SessionOnEngine::AppendElsewhere(std::span<const int32_t> tokens, int32_t evicted) {
  EBB_CHECK(is_away());
  log_.insert(log_.end(), tokens.begin(), tokens.end());
  next_position_ += static_cast<int32_t>(tokens.size());
  evicted_ += evicted;
  CountStep(static_cast<int32_t>(tokens.size()));
}

void SessionOnEngine::BeginAt(std::span<const int32_t> log, const SessionCache::Kept& cache,
                              std::span<const float> last_queries, int64_t evicted) {
  EBB_CHECK(log_.empty());
  cache_.Take(cache);
  log_.assign(log.begin(), log.end());
  next_position_ += static_cast<int32_t>(log.size());
  last_queries_.assign(last_queries.begin(), last_queries.end());
  evicted_ += evicted;
  decode_steps_ = 0;
  block_step_ = true;
}

void SessionOnEngine::CountStep(int32_t tokens) {
  block_step_ = tokens > 1;
  decode_steps_ = block_step_ ? 0 : decode_steps_ + 1;
  kept_logits_ = {};
}

// Tokens from an index on leave log and cache.
void SessionOnEngine::Rewind(int32_t tokens) {
  for (SlotMap& map : cache_.maps()) map.FreeFrom(tokens);
  next_position_ -= static_cast<int32_t>(log_.size()) - tokens;
  log_.resize(tokens);
  if (stale_from_ >= tokens) stale_from_ = kNothingStale;
}

// The edited log, in which what lives keeps its slots.
void SessionOnEngine::Replace(const EditPlan& plan) {
  std::vector<int32_t> to(log_.size(), -1);
  for (size_t i = 0; i < plan.former.size(); ++i) {
    if (plan.former[i] >= 0) to[plan.former[i]] = static_cast<int32_t>(i);
  }
  for (SlotMap& map : cache_.maps()) map.Renumber(to);
  next_position_ += static_cast<int32_t>(plan.log.size()) - static_cast<int32_t>(log_.size());
  log_ = plan.log;
  stale_from_ = plan.stale_from;
}

void SessionOnEngine::StartEdit(const EditPlan& plan) {
  EBB_CHECK(CheckSettled().ok());
  edit_ = {.in_place = plan.mode != EditMode::kRecomputeTail, .log = plan.log, .work = plan.work};
  const size_t maps = cache_.maps().size();
  edit_.leaving.resize(maps);
  edit_.states.resize(maps);
  for (const SlotMap& map : cache_.maps()) {
    std::vector<bool> lives(log_.size(), false);
    for (const int32_t token : map.token()) {
      if (token >= 0) lives[token] = true;
    }
    std::vector<bool>& stays = edit_.stays.emplace_back();
    for (const int32_t index : plan.work) {
      const int32_t former = plan.former[index];
      stays.push_back(former < 0 || plan.restore || (!edit_.in_place && lives[former]));
    }
  }
  if (edit_.in_place) return Replace(plan);
  Rewind(plan.from);
  if (!plan.restore) return;
  for (SlotMap& map : cache_.maps()) map.ResetState(StateShape(map.state_shape()));
  decode_steps_ = 0;
}

void SessionOnEngine::SeatEdit(std::span<const int32_t> tokens) {
  EBB_CHECK(!tokens.empty());
  EBB_CHECK(tokens.size() <= static_cast<size_t>(std::min(block_size_max_, edit_left())));
  const std::span<const int32_t> work = edit_.Next(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) EBB_CHECK(tokens[i] == edit_.log[work[i]]);
  const int32_t offset = next_position_ - static_cast<int32_t>(log_.size());
  if (!edit_.in_place) {
    log_.insert(log_.end(), edit_.log.begin() + static_cast<int64_t>(log_.size()), edit_.log.begin() + work.back() + 1);
    next_position_ = static_cast<int32_t>(log_.size()) + offset;
  }
  edit_.seated = tokens.size();
  std::vector<int32_t> found(tokens.size());
  for (size_t m = 0; m < cache_.maps().size(); ++m) {
    SlotMap& map = cache_.maps()[m];
    map.Find(work, found);
    map.Seat(work, offset);
    edit_.leaving[m].clear();
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (found[i] >= 0) continue;
      const int32_t slot = map.placed_slots()[i];
      if (!edit_.stays[m][edit_.done + i]) {
        edit_.leaving[m].push_back(slot);
      } else if (!edit_.states[m].empty()) {
        map.SetState(slot, edit_.states[m]);
      }
    }
    std::ranges::sort(edit_.leaving[m]);
  }
  CountStep(static_cast<int32_t>(tokens.size()));
}

void SessionOnEngine::CloseEditStep() {
  for (size_t m = 0; m < cache_.maps().size(); ++m) cache_.maps()[m].Free(edit_.leaving[m]);
  edit_.done += std::exchange(edit_.seated, 0);
  if (edit_left() == 0) edit_ = {};
}

void SessionOnEngine::AbandonEdit() {
  EBB_CHECK(edit_left() > 0);
  EBB_CHECK(edit_.done > 0);
  const int32_t end = edit_.work[edit_.done - 1] + 1;
  edit_ = {};
  Rewind(end);
}

Draft& SessionOnEngine::SeatDraft(std::span<const int32_t> tokens) {
  const auto first = static_cast<int32_t>(log_.size());
  draft_.tokens.assign(tokens.begin(), tokens.end());
  for (SlotMap& map : cache_.maps()) {
    map.Place(first, next_position_, draft_tokens());
    draft_.slots.insert(draft_.slots.end(), map.placed_slots().begin(), map.placed_slots().end());
  }
  return draft_;
}

void SessionOnEngine::UnseatDraft() {
  // Placed from the lowest free slot on: in ascending order.
  for (SlotMap& map : cache_.maps()) map.Free(map.placed_slots());
}

void SessionOnEngine::Keep(const Draft& draft, int32_t token, Ops& ops) {
  Append({&draft.tokens[token], 1});
  cache_.OwnPlaced();
  // The lowest free slot: never one that a later token of the draft lies in.
  for (int32_t lane = 0; lane < cache_.shape().lanes(); ++lane) {
    const int32_t layer = lane / cache_.shape().kv_heads, head = lane % cache_.shape().kv_heads;
    const SlotMove move = {.from = draft.slot(cache_.map_index(layer, head), token),
                           .to = cache_.map(layer, head).placed_slots().front()};
    if (move.from != move.to) ops.Move(cache_.storage(layer, head), {&move, 1});
  }
  const std::span<const float> queries = draft.queries_of(token);
  last_queries_.assign(queries.begin(), queries.end());
}

int32_t SessionOnEngine::TokensDue(int32_t map) const {
  if (!policy_.evicts || policy_.trigger.budget == 0) return 0;
  switch (policy_.schedule) {
    case Schedule::kEveryStep:
      break;
    case Schedule::kEveryN:
      if (!block_step_ && decode_steps_ % policy_.every_n != 0) return 0;
      break;
    case Schedule::kOncePrompt:
      if (!prompt_ended_) return 0;
  }
  return TokensToDrop(policy_.trigger_of(cache_.first_lane(map)), cache_.maps()[map].live());
}

absl::Status SessionOnEngine::EndPrompt() {
  auto fixed = FixBudget(policy_, static_cast<int32_t>(log_.size()));
  if (!fixed.ok()) return fixed.status();
  policy_ = *std::move(fixed);
  prompt_ended_ = true;
  return absl::OkStatus();
}

void SessionOnEngine::PromptEvicted() {
  if (prompt_ended_) SettleAfterPrompt(policy_);
}

void SessionOnEngine::SetPolicy(const ValidSpec& policy, int32_t length_limit) {
  policy_ = policy;
  length_limit_ = length_limit;
  BoundBudget();
  decode_steps_ = 0;
  PromptEvicted();
}

absl::Status SessionOnEngine::ShiftPositions(int32_t from, int32_t delta) {
  EBB_CHECK(policy_.positions == Positions::kOriginal);
  const auto stays_in_range = [&](int32_t position) {
    const int64_t moved = position < from ? position : int64_t{position} + delta;
    return moved >= 0 && moved < std::numeric_limits<int32_t>::max();
  };
  const auto refuse = [&](int32_t position) {
    return RefuseField("POSITION_OUT_OF_RANGE", "delta",
                       absl::StrFormat("position %d would become %d", position, int64_t{position} + delta));
  };
  if (!stays_in_range(next_position_)) return refuse(next_position_);
  for (const SlotMap& map : cache_.maps()) {
    for (const int32_t position : map.position()) {
      if (position >= 0 && !stays_in_range(position)) return refuse(position);
    }
  }
  for (SlotMap& map : cache_.maps()) map.Shift(from, delta);
  if (next_position_ >= from) next_position_ += delta;
  return absl::OkStatus();
}

}  // namespace ebb
