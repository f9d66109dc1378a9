#include "engine/session_on_engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {

SessionOnEngine::SessionOnEngine(const ValidSpec& policy, SessionCache cache, int32_t block_size_max,
                                 int32_t length_limit)
    : policy_(policy), cache_(std::move(cache)), block_size_max_(block_size_max), length_limit_(length_limit) {
  log_.reserve(static_cast<size_t>(cache_.shape().capacity));
  BoundBudget();
}

// Pages were reserved for the limit. A prompt may outgrow it, where some of its tokens were evicted by hand on the way,
// and so may its share; EndPrompt then refuses.
void SessionOnEngine::BoundBudget() {
  const bool waits = policy_.trigger.budget == 0 || (policy_.schedule == Schedule::kOncePrompt && !prompt_ended_);
  if (waits) policy_.budget_max = std::min(policy_.budget_max, length_limit_);
}

int32_t SessionOnEngine::cache_length() const {
  int32_t longest = 0;
  for (const SlotMap& map : cache_.maps()) longest = std::max(longest, map.live());
  return longest;
}

int64_t SessionOnEngine::live_slots() const {
  int64_t slots = 0;
  for (const SlotMap& map : cache_.maps()) slots += int64_t{map.live()} * cache_.lanes_of_map();
  return slots;
}

int32_t SessionOnEngine::position_max() const {
  return policy_.positions == Positions::kOriginal ? next_position_ - 1 : cache_length() - 1;
}

int32_t SessionOnEngine::room() const {
  const bool grows = policy_.schedule == Schedule::kOncePrompt && (!prompt_ended_ || policy_.then == Then::kGrow);
  const bool bounded_by_length = policy_.bounded || policy_.trigger.budget == 0 || grows;
  return bounded_by_length ? length_limit_ - cache_length() : std::numeric_limits<int32_t>::max();
}

int32_t SessionOnEngine::steps_to_eviction() const {
  int32_t steps = std::numeric_limits<int32_t>::max();
  const bool waits = policy_.schedule == Schedule::kOncePrompt && !prompt_ended_;
  if (!policy_.evicts || policy_.trigger.budget == 0 || waits) return steps;
  if (policy_.schedule == Schedule::kEveryN) return policy_.every_n - decode_steps_ % policy_.every_n;
  for (size_t i = 0; i < cache_.maps().size(); ++i) {
    const Trigger trigger = policy_.trigger_of(cache_.first_lane(static_cast<int32_t>(i)));
    steps = std::min(steps, trigger.budget + trigger.overflow - cache_.maps()[i].live());
  }
  return std::max(steps, 1);
}

absl::Status SessionOnEngine::CheckSettled() const {
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
  block_step_ = count > 1;
  decode_steps_ = block_step_ ? 0 : decode_steps_ + 1;
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
  if (!prompt_ended_ || policy_.schedule != Schedule::kOncePrompt) return;
  // What was selected and the sinks are the oldest budget - recent tokens, and stay; protecting them leaves the recent
  // window to slide.
  if (policy_.then == Then::kSlideRecent) {
    policy_.sinks = policy_.trigger.budget - policy_.recent;
    for (LaneRule& lane : policy_.lanes) lane.sinks = lane.budget - lane.recent;
  }
  if (policy_.then == Then::kGrow) policy_.evicts = false;
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
