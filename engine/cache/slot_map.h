// Who sits where in a lane: for each slot its token, its RoPE position and what the policy remembers about it.
//
// Evicting frees slots; new tokens take the lowest-numbered free ones, in token order. Slot order decides rounding, so
// it is part of a session's state. Nothing else ever moves: re-indexing compacted positions is arithmetic on integers
// beside the pages.
//
// Invariants: live tokens are distinct; a free slot has token and position -1; with compacted positions, the live
// positions are 0 .. live - 1 in order of token; no slot at or past end() is live. Memory is reserved at construction:
// no call allocates, but the one that first tells original positions from the tokens' indices (Shift).

#ifndef EBB_ENGINE_CACHE_SLOT_MAP_H_
#define EBB_ENGINE_CACHE_SLOT_MAP_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/ops.h"
#include "policies/lane_view.h"
#include "policies/scorer.h"
#include "policies/spec.h"

namespace ebb {

// What the lanes of one map keep for the scorer: `tracks` states, each of some floats per slot and some beside them.
struct StateShape {
  int32_t tracks = 1;
  int32_t slot_floats = 0;
  int64_t lane_floats = 0;

  bool operator==(const StateShape&) const = default;
};

class SlotMap {
 public:
  // `block_max`: most tokens that one Place brings.
  SlotMap(int32_t capacity, int32_t block_max, const StateShape& state, Positions positions);

  // Seats tokens first_token, first_token + 1, ... and zeroes their slots' state. `first_position` is the RoPE position
  // of the first with original positions; compacted ones follow from the rank. REQUIRES: count <= block_max, live() +
  // count <= capacity.
  void Place(int32_t first_token, int32_t first_position, int32_t count);

  // Fills an empty map as another was: `token` by slot up to the last live one, -1 where free, and `position`
  // alike for original positions that are not the tokens' indices, else empty. States stay as they are, all zero.
  // REQUIRES: nothing was ever placed; the invariants above hold of what is given, which fits.
  void Fill(std::span<const int32_t> token, std::span<const int32_t> position);

  // Seats tokens, ascending, wherever they belong in the order of tokens: one that lives keeps its slot and its state,
  // the others enter the lowest free slots, with states zeroed. Original positions are the tokens' indices plus
  // `offset`. placed_slots() and placed_positions() are theirs from now on. REQUIRES: at most block_max of them; live()
  // + those that enter <= capacity.
  void Seat(std::span<const int32_t> tokens, int32_t offset);

  // The slots of tokens, ascending; -1 where one does not live.
  void Find(std::span<const int32_t> tokens, std::span<int32_t> slots) const;

  // Frees the slots of tokens from `token` on.
  void FreeFrom(int32_t token);

  // Token t becomes to[t], or leaves where that is negative; original positions move with it. REQUIRES: `to` [past the
  // largest live token] ascends over the tokens that stay.
  void Renumber(std::span<const int32_t> to);

  // Calls visit(slot) for the slots that the next Place of `count` tokens takes, ascending.
  template <typename Visit>
  void VisitNext(int32_t count, const Visit& visit) const {
    for (int32_t slot = lowest_free_; count > 0; ++slot) {
      if (slot < end_ && token_[slot] >= 0) continue;
      visit(slot);
      --count;
    }
  }

  // Slots and positions of the last Place or Seat, in token order.
  std::span<const int32_t> placed_slots() const { return {placed_slots_.data(), placed_}; }
  std::span<const int32_t> placed_positions() const { return {placed_positions_.data(), placed_}; }

  // Frees slots, given in ascending order; closes up compacted positions. REQUIRES: every one is live. O(n).
  void Free(std::span<const int32_t> slots);

  // Adds `delta` to every original position at `from` or later.
  void Shift(int32_t from, int32_t delta);

  int32_t capacity() const { return capacity_; }
  int32_t live() const { return live_; }
  int32_t end() const { return end_; }  // one past the highest live slot
  Positions positions() const { return positions_; }

  // [end], by slot.
  std::span<const int32_t> token() const { return {token_.data(), static_cast<size_t>(end_)}; }
  // [end rounded up to 16], by slot; -1 past the end.
  std::span<const int32_t> position() const {
    return {(position_.empty() ? token_ : position_).data(), static_cast<size_t>((end_ + 15) / 16 * 16)};
  }
  const StateShape& state_shape() const { return state_shape_; }
  // Of one track: [end * slot_floats] and [lane_floats].
  MutableScorerState state(int32_t track) {
    return {
        .slot = {slot_state_.data() + SlotStateAt(track, 0), static_cast<size_t>(end_) * state_shape_.slot_floats},
        .lane = {lane_state_.data() + track * state_shape_.lane_floats, static_cast<size_t>(state_shape_.lane_floats)}};
  }
  ScorerState state(int32_t track) const {
    return {
        .slot = {slot_state_.data() + SlotStateAt(track, 0), static_cast<size_t>(end_) * state_shape_.slot_floats},
        .lane = {lane_state_.data() + track * state_shape_.lane_floats, static_cast<size_t>(state_shape_.lane_floats)}};
  }

  // Sets the states of a live slot to `states` [tracks, slot_floats].
  void SetState(int32_t slot, std::span<const float> states);

  // Throws the state away and makes room for another, all zero.
  void ResetState(const StateShape& state);

  // Keeps the states of `count` tracks from `first` on, and throws the others away.
  void KeepTracks(int32_t first, int32_t count);

  // Makes room for `capacity` slots and steps of `block_max`. REQUIRES: no live slot lies past it.
  void Resize(int32_t capacity, int32_t block_max);

  // Switches between original positions, which are the tokens' indices, and compacted ones, their ranks.
  void SetPositions(Positions positions);

  // Seats the tokens of slots at or past live() in free slots below it, so that the live slots are 0 .. live() - 1;
  // K and V are the caller's to move. Appends the moves in ascending order of `from`.
  void Compact(std::vector<SlotMove>& moves);

  LaneView view(int32_t sinks, int32_t recent) const {
    return {.token = token(),
            .live = live_,
            .sinks = sinks,
            .recent = recent,
            .position = position().first(static_cast<size_t>(end_))};
  }

  // O(n): every invariant above. Tests call it after each step.
  void CheckInvariants() const;

 private:
  int32_t TakeLowestFree();
  void RankAll();
  void TellPositionsFromTokens();

  int64_t SlotStateAt(int32_t track, int32_t slot) const {
    return (int64_t{track} * capacity_ + slot) * state_shape_.slot_floats;
  }

  int32_t capacity_ = 0;
  int32_t block_max_ = 0;
  StateShape state_shape_ = {};
  Positions positions_ = Positions::kOriginal;
  int32_t live_ = 0;
  int32_t end_ = 0;
  int32_t lowest_free_ = 0;                     // no slot below it is free
  std::vector<int32_t> token_ = {};             // rounded up to whole tiles
  std::vector<int32_t> position_ = {};          // alike; empty where original positions are the tokens' indices
  std::vector<float> slot_state_ = {};          // [tracks, capacity, slot_floats]
  std::vector<float> lane_state_ = {};          // [tracks, lane_floats]
  size_t placed_ = 0;                           // tokens of the last Place
  std::vector<int32_t> placed_slots_ = {};      // [block_max]
  std::vector<int32_t> placed_positions_ = {};  // [block_max]
  std::vector<int32_t> freed_below_ = {};       // scratch of Free: freed ranks at or below a rank
};

}  // namespace ebb

#endif  // EBB_ENGINE_CACHE_SLOT_MAP_H_
