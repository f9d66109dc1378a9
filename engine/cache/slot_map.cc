#include "engine/cache/slot_map.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "policies/check.h"

namespace ebb {
namespace {

constexpr int32_t kFree = -1;

size_t WholeTiles(int32_t slots) { return static_cast<size_t>((slots + kTileSlots - 1) / kTileSlots * kTileSlots); }

}  // namespace

SlotMap::SlotMap(int32_t capacity, int32_t block_max, const StateShape& state, Positions positions)
    : capacity_(capacity),
      block_max_(block_max),
      positions_(positions),
      token_(WholeTiles(capacity), kFree),
      position_(positions == Positions::kCompacted ? WholeTiles(capacity) : 0, kFree),
      placed_slots_(block_max),
      placed_positions_(block_max),
      freed_below_(positions == Positions::kCompacted ? capacity : 0, 0) {
  EBB_CHECK(capacity > 0);
  EBB_CHECK(block_max > 0);
  ResetState(state);
}

void SlotMap::ResetState(const StateShape& state) {
  state_shape_ = state;
  slot_state_.assign(int64_t{state.tracks} * capacity_ * state.slot_floats, 0.0F);
  lane_state_.assign(state.tracks * state.lane_floats, 0.0F);
}

void SlotMap::SetState(int32_t slot, std::span<const float> states) {
  EBB_CHECK(static_cast<int64_t>(states.size()) == int64_t{state_shape_.tracks} * state_shape_.slot_floats);
  for (int32_t track = 0; track < state_shape_.tracks; ++track) {
    std::copy_n(states.begin() + int64_t{track} * state_shape_.slot_floats, state_shape_.slot_floats,
                slot_state_.begin() + SlotStateAt(track, slot));
  }
}

void SlotMap::KeepTracks(int32_t first, int32_t count) {
  EBB_CHECK(first >= 0);
  EBB_CHECK(first + count <= state_shape_.tracks);
  const auto slot = slot_state_.begin();
  const auto lane = lane_state_.begin();
  slot_state_ = std::vector<float>(slot + SlotStateAt(first, 0), slot + SlotStateAt(first + count, 0));
  lane_state_ =
      std::vector<float>(lane + first * state_shape_.lane_floats, lane + (first + count) * state_shape_.lane_floats);
  state_shape_.tracks = count;
}

void SlotMap::Resize(int32_t capacity, int32_t block_max) {
  EBB_CHECK(end_ <= capacity);
  EBB_CHECK(block_max > 0);
  std::vector<float> state(int64_t{state_shape_.tracks} * capacity * state_shape_.slot_floats, 0.0F);
  const int64_t kept = int64_t{end_} * state_shape_.slot_floats;
  for (int32_t track = 0; track < state_shape_.tracks; ++track) {
    std::copy_n(slot_state_.begin() + SlotStateAt(track, 0), kept,
                state.begin() + int64_t{track} * capacity * state_shape_.slot_floats);
  }
  slot_state_ = std::move(state);
  capacity_ = capacity;
  block_max_ = block_max;
  token_.resize(WholeTiles(capacity), kFree);
  if (!position_.empty()) position_.resize(WholeTiles(capacity), kFree);
  placed_ = 0;
  placed_slots_.assign(block_max, 0);
  placed_positions_.assign(block_max, 0);
  freed_below_.assign(positions_ == Positions::kCompacted ? capacity : 0, 0);
}

void SlotMap::SetPositions(Positions positions) {
  if (positions == positions_) return;
  positions_ = positions;
  freed_below_ = std::vector<int32_t>(positions == Positions::kCompacted ? capacity_ : 0, 0);
  position_ = std::vector<int32_t>();
  if (positions == Positions::kOriginal) return;
  position_.assign(WholeTiles(capacity_), kFree);
  RankAll();
}

// Compacted positions from the order of tokens.
void SlotMap::RankAll() {
  std::vector<int32_t> live;
  for (int32_t slot = 0; slot < end_; ++slot) {
    if (token_[slot] != kFree) live.push_back(slot);
  }
  std::ranges::sort(live, {}, [this](int32_t slot) { return token_[slot]; });
  for (int32_t rank = 0; rank < live_; ++rank) position_[live[rank]] = rank;
}

void SlotMap::Compact(std::vector<SlotMove>& moves) {
  int32_t to = 0;
  for (int32_t from = live_; from < end_; ++from) {
    if (token_[from] == kFree) continue;
    while (token_[to] != kFree) ++to;  // below live_: as many are free there as are taken past it
    moves.push_back({.from = from, .to = to});
    token_[to] = std::exchange(token_[from], kFree);
    if (!position_.empty()) position_[to] = std::exchange(position_[from], kFree);
    for (int32_t track = 0; track < state_shape_.tracks; ++track) {
      std::copy_n(slot_state_.begin() + SlotStateAt(track, from), state_shape_.slot_floats,
                  slot_state_.begin() + SlotStateAt(track, to));
    }
  }
  end_ = live_;
  lowest_free_ = live_;
}

void SlotMap::Fill(std::span<const int32_t> token, std::span<const int32_t> position) {
  EBB_CHECK(end_ == 0);
  EBB_CHECK(token.size() <= static_cast<size_t>(capacity_));
  EBB_CHECK(position.empty() || (position.size() == token.size() && positions_ == Positions::kOriginal));
  std::ranges::copy(token, token_.begin());
  end_ = static_cast<int32_t>(token.size());
  live_ = end_ - static_cast<int32_t>(std::ranges::count(token, kFree));
  if (positions_ == Positions::kCompacted) return RankAll();
  if (position.empty()) return;
  position_.assign(WholeTiles(capacity_), kFree);
  std::ranges::copy(position, position_.begin());
}

int32_t SlotMap::TakeLowestFree() {
  while (lowest_free_ < end_ && token_[lowest_free_] != kFree) ++lowest_free_;  // ends at a free slot, or at end_
  EBB_CHECK(lowest_free_ < capacity_);
  end_ = std::max(end_, lowest_free_ + 1);
  return lowest_free_++;
}

void SlotMap::Place(int32_t first_token, int32_t first_position, int32_t count) {
  EBB_CHECK(count > 0);
  EBB_CHECK(count <= block_max_);
  EBB_CHECK(count <= capacity_ - live_);
  placed_ = static_cast<size_t>(count);
  if (position_.empty() && first_position != first_token) TellPositionsFromTokens();
  for (int32_t i = 0; i < count; ++i) {
    const int32_t slot = TakeLowestFree();
    const int32_t position = positions_ == Positions::kCompacted ? live_ : first_position + i;
    token_[slot] = first_token + i;
    if (!position_.empty()) position_[slot] = position;
    for (int32_t track = 0; track < state_shape_.tracks; ++track) {
      std::fill_n(slot_state_.begin() + SlotStateAt(track, slot), state_shape_.slot_floats, 0.0F);
    }
    placed_slots_[i] = slot;
    placed_positions_[i] = position;
    ++live_;
  }
}

void SlotMap::Seat(std::span<const int32_t> tokens, int32_t offset) {
  EBB_CHECK(!tokens.empty());
  EBB_CHECK(tokens.size() <= static_cast<size_t>(block_max_));
  placed_ = tokens.size();
  Find(tokens, {placed_slots_.data(), placed_});
  if (position_.empty() && offset != 0) TellPositionsFromTokens();
  for (size_t i = 0; i < placed_; ++i) {
    if (placed_slots_[i] >= 0) continue;
    const int32_t slot = TakeLowestFree();
    token_[slot] = tokens[i];
    if (!position_.empty()) position_[slot] = tokens[i] + offset;
    for (int32_t track = 0; track < state_shape_.tracks; ++track) {
      std::fill_n(slot_state_.begin() + SlotStateAt(track, slot), state_shape_.slot_floats, 0.0F);
    }
    placed_slots_[i] = slot;
    ++live_;
  }
  if (positions_ == Positions::kCompacted) RankAll();
  for (size_t i = 0; i < placed_; ++i) placed_positions_[i] = position()[placed_slots_[i]];
}

void SlotMap::Find(std::span<const int32_t> tokens, std::span<int32_t> slots) const {
  std::ranges::fill(slots, kFree);
  for (int32_t slot = 0; slot < end_; ++slot) {
    if (token_[slot] == kFree) continue;
    const auto at = std::ranges::lower_bound(tokens, token_[slot]);
    if (at != tokens.end() && *at == token_[slot]) slots[at - tokens.begin()] = slot;
  }
}

void SlotMap::FreeFrom(int32_t token) {
  std::vector<int32_t> slots;
  for (int32_t slot = 0; slot < end_; ++slot) {
    if (token_[slot] >= token && token_[slot] != kFree) slots.push_back(slot);
  }
  Free(slots);
}

void SlotMap::Renumber(std::span<const int32_t> to) {
  std::vector<int32_t> leaving;
  for (int32_t slot = 0; slot < end_; ++slot) {
    if (token_[slot] != kFree && to[token_[slot]] < 0) leaving.push_back(slot);
  }
  Free(leaving);
  const bool moves = !position_.empty() && positions_ == Positions::kOriginal;
  for (int32_t slot = 0; slot < end_; ++slot) {
    if (token_[slot] == kFree) continue;
    const int32_t by = to[token_[slot]] - token_[slot];
    token_[slot] += by;
    if (moves) position_[slot] += by;
  }
}

void SlotMap::Free(std::span<const int32_t> slots) {
  if (slots.empty()) return;
  const bool compacted = positions_ == Positions::kCompacted;
  if (compacted) std::fill_n(freed_below_.begin(), live_, 0);
  for (const int32_t slot : slots) {
    EBB_CHECK(slot >= 0);
    EBB_CHECK(slot < end_);
    EBB_CHECK(token_[slot] != kFree);
    if (compacted) ++freed_below_[position_[slot]];
    token_[slot] = kFree;
    if (!position_.empty()) position_[slot] = kFree;
    lowest_free_ = std::min(lowest_free_, slot);
  }
  if (compacted) {  // a token's new rank is its old one less the freed ranks below it
    std::partial_sum(freed_below_.begin(), freed_below_.begin() + live_, freed_below_.begin());
    for (int32_t slot = 0; slot < end_; ++slot) {
      if (position_[slot] != kFree) position_[slot] -= freed_below_[position_[slot]];
    }
  }
  live_ -= static_cast<int32_t>(slots.size());
  while (end_ > 0 && token_[end_ - 1] == kFree) --end_;
}

void SlotMap::TellPositionsFromTokens() {
  EBB_CHECK(positions_ == Positions::kOriginal);
  position_ = token_;
}

void SlotMap::Shift(int32_t from, int32_t delta) {
  EBB_CHECK(positions_ == Positions::kOriginal);
  if (position_.empty()) TellPositionsFromTokens();
  for (int32_t slot = 0; slot < end_; ++slot) {
    if (position_[slot] >= from) position_[slot] += delta;
  }
}

void SlotMap::CheckInvariants() const {
  EBB_CHECK(position_.empty() ? positions_ == Positions::kOriginal : position_.size() == token_.size());
  std::vector<std::pair<int32_t, int32_t>> live;  // token, position
  const std::vector<int32_t>& positions = position_.empty() ? token_ : position_;
  for (int32_t slot = 0; slot < static_cast<int32_t>(token_.size()); ++slot) {
    const bool used = token_[slot] != kFree;
    EBB_CHECK(used == (positions[slot] != kFree));
    EBB_CHECK(!used || slot < end_);
    EBB_CHECK(!used || slot < capacity_);
    EBB_CHECK(used || slot >= std::min(lowest_free_, capacity_));
    if (used) live.emplace_back(token_[slot], positions[slot]);
  }
  EBB_CHECK(static_cast<int32_t>(live.size()) == live_);
  std::sort(live.begin(), live.end());
  for (size_t i = 0; i < live.size(); ++i) {
    EBB_CHECK(i == 0 || live[i - 1].first < live[i].first);
    EBB_CHECK(positions_ == Positions::kOriginal || live[i].second == static_cast<int32_t>(i));
  }
}

}  // namespace ebb
