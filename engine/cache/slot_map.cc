#include "engine/cache/slot_map.h"

#include <algorithm>
#include <numeric>

#include "policies/check.h"

namespace ebb {
namespace {

constexpr int32_t kFree = -1;

}  // namespace

SlotMap::SlotMap(int32_t capacity, int32_t block_max, int32_t state_floats, Positions positions)
    : capacity_(capacity),
      block_max_(block_max),
      state_floats_(static_cast<size_t>(state_floats)),
      positions_(positions),
      token_(capacity, kFree),
      position_((capacity + 15) / 16 * 16, kFree),
      state_(static_cast<size_t>(capacity) * state_floats, 0.0F),
      placed_slots_(block_max),
      placed_positions_(block_max),
      freed_below_(positions == Positions::kCompacted ? capacity : 0, 0) {
  EBB_CHECK(capacity > 0);
  EBB_CHECK(block_max > 0);
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
  for (int32_t i = 0; i < count; ++i) {
    const int32_t slot = TakeLowestFree();
    const int32_t position = positions_ == Positions::kCompacted ? live_ : first_position + i;
    token_[slot] = first_token + i;
    position_[slot] = position;
    std::fill_n(state_.begin() + static_cast<std::ptrdiff_t>(slot * state_floats_), state_floats_, 0.0F);
    placed_slots_[i] = slot;
    placed_positions_[i] = position;
    ++live_;
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
    position_[slot] = kFree;
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

void SlotMap::Shift(int32_t from, int32_t delta) {
  EBB_CHECK(positions_ == Positions::kOriginal);
  for (int32_t slot = 0; slot < end_; ++slot) {
    if (position_[slot] >= from) position_[slot] += delta;
  }
}

void SlotMap::CheckInvariants() const {
  std::vector<std::pair<int32_t, int32_t>> live;  // token, position
  for (int32_t slot = 0; slot < static_cast<int32_t>(position_.size()); ++slot) {
    const bool used = slot < capacity_ && token_[slot] != kFree;
    EBB_CHECK(used == (position_[slot] != kFree));
    EBB_CHECK(!used || slot < end_);
    EBB_CHECK(used || slot >= std::min(lowest_free_, capacity_));
    if (used) live.emplace_back(token_[slot], position_[slot]);
  }
  EBB_CHECK(static_cast<int32_t>(live.size()) == live_);
  std::sort(live.begin(), live.end());
  for (size_t i = 0; i < live.size(); ++i) {
    EBB_CHECK(i == 0 || live[i - 1].first < live[i].first);
    EBB_CHECK(positions_ == Positions::kOriginal || live[i].second == static_cast<int32_t>(i));
  }
}

}  // namespace ebb
