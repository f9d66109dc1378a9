// Selection compares integers. A token's `turn` packs the total order into 64 bits, score above age, so the count-th
// smallest turn is a threshold, and one more pass over the slots meets the victims in slot order. The passes have no
// branch that depends on data, and are compiled for vectors (wide.h): selection runs for every lane at every step.

#include "policies/select.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"
#include "policies/wide.h"

namespace ebb {
namespace {

// Ages between the sinks and the recent tokens, both included.
struct Unprotected {
  int32_t oldest = 0;
  int32_t newest = 0;
};

// All ones where the condition does not hold.
constexpr uint64_t Unless(bool condition) { return uint64_t{condition} - 1; }

// The smaller leaves first; NaN has rank 0. Positive floats order like their bits, negative ones the other way round.
uint64_t Turn(float keep, int32_t token) {
  constexpr uint32_t kSign = 0x80000000;
  const auto bits = std::bit_cast<uint32_t>(keep + 0.0F);  // -0 becomes +0
  const uint32_t flip = (bits >> 31) * 0xFFFFFFFF | kSign;
  const bool is_nan = keep != keep;
  const uint64_t rank = (bits ^ flip) & Unless(is_nan);
  return rank << 32 | static_cast<uint32_t>(token);
}

EBB_WIDE int32_t CountLive(const int32_t* token, int64_t n) {
  int32_t live = 0;
  for (int64_t slot = 0; slot < n; ++slot) live += static_cast<int32_t>(token[slot] >= 0);
  return live;
}

EBB_WIDE int32_t Newest(const int32_t* token, int64_t n) {
  int32_t newest = 0;
  for (int64_t slot = 0; slot < n; ++slot) newest = std::max(newest, token[slot]);
  return newest;
}

struct Protected {
  int32_t sinks = 0;
  int32_t recent = 0;
};
EBB_WIDE Protected CountProtected(const int32_t* token, int64_t n, Unprotected guess) {
  int32_t sinks = 0;
  int32_t recent = 0;
  for (int64_t slot = 0; slot < n; ++slot) {
    sinks += static_cast<int32_t>((token[slot] >= 0) & (token[slot] < guess.oldest));
    recent += static_cast<int32_t>(token[slot] > guess.newest);
  }
  return {.sinks = sinks, .recent = recent};
}

// The protected and the free come after everyone.
EBB_WIDE void WriteTurns(const int32_t* token, const float* keep, int64_t n, Unprotected unprotected, uint64_t* turns) {
  for (int64_t slot = 0; slot < n; ++slot) {
    const bool may_leave = (token[slot] >= unprotected.oldest) & (token[slot] <= unprotected.newest);
    turns[slot] = Turn(keep[slot], token[slot]) | Unless(may_leave);
  }
}

EBB_WIDE uint64_t Smallest(const uint64_t* turns, int64_t n) {
  uint64_t smallest = ~uint64_t{0};
  for (int64_t slot = 0; slot < n; ++slot) smallest = std::min(smallest, turns[slot]);
  return smallest;
}

// Writes the slots whose turn is at most `last` to `out`, ascending; they are few.
EBB_WIDE void Collect(const uint64_t* turns, int64_t n, uint64_t last, std::vector<int32_t>& out) {
  constexpr int64_t kBlock = 64;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    int64_t found = 0;
    for (int64_t slot = begin; slot < end; ++slot) found += static_cast<int64_t>(turns[slot] <= last);
    for (int64_t slot = begin; slot < end && found > 0; ++slot) {
      if (turns[slot] <= last) out.push_back(static_cast<int32_t>(slot));
    }
  }
}

EBB_WIDE int64_t CountNans(const int32_t* token, const float* keep, int64_t n) {
  int32_t nans = 0;
  for (int64_t slot = 0; slot < n; ++slot)
    nans += static_cast<int32_t>((token[slot] >= 0) & (keep[slot] != keep[slot]));
  return nans;
}

// REQUIRES: sinks + recent < live.
Unprotected FindUnprotected(const LaneView& lane, std::vector<int32_t>& ages) {
  // Nobody evicts the protected, so both ends of a lane are nearly always without gaps: guess, and check by counting.
  const int32_t* token = lane.token.data();
  const Unprotected guess = {.oldest = lane.sinks, .newest = Newest(token, std::ssize(lane.token)) - lane.recent};
  const Protected found = CountProtected(token, std::ssize(lane.token), guess);
  if (found.sinks == lane.sinks && found.recent == lane.recent) return guess;

  ages.clear();
  ages.reserve(lane.token.size());
  std::ranges::copy_if(lane.token, std::back_inserter(ages), [](int32_t age) { return age >= 0; });
  const auto at_rank = [&](int32_t rank) {
    std::nth_element(ages.begin(), ages.begin() + rank, ages.end());
    return ages[rank];
  };
  return {.oldest = at_rank(lane.sinks), .newest = at_rank(lane.live - lane.recent - 1)};
}

}  // namespace

absl::Status SelectVictims(const LaneView& lane, std::span<const float> keep, int32_t count, SelectScratch& scratch,
                           std::vector<int32_t>& victims) {
  const int32_t* token = lane.token.data();
  const int64_t slots = std::ssize(lane.token);
  EBB_CHECK(keep.size() == lane.token.size());
  EBB_CHECK(CountLive(token, slots) == lane.live);
  EBB_CHECK(lane.sinks >= 0);
  EBB_CHECK(lane.recent >= 0);
  EBB_CHECK(count >= 0);
  victims.clear();
  if (count == 0) return absl::OkStatus();
  const int64_t candidates = std::max<int64_t>(int64_t{lane.live} - lane.sinks - lane.recent, 0);
  if (count > candidates) {
    return Refuse(
        absl::StatusCode::kInvalidArgument,
        absl::StrFormat("%d tokens were to leave, but only %d of %d may be evicted beside sinks %d and "
                        "recent %d",
                        count, candidates, lane.live, lane.sinks, lane.recent),
        {.reason = "NOT_ENOUGH_CANDIDATES",
         .metadata = {{"count", absl::StrFormat("%d", count)}, {"candidates", absl::StrFormat("%d", candidates)}}});
  }
  const Unprotected unprotected = FindUnprotected(lane, scratch.ages);
  std::vector<uint64_t>& turns = scratch.turns;
  turns.resize(keep.size());
  WriteTurns(token, keep.data(), slots, unprotected, turns.data());
  uint64_t last = 0;
  if (count == 1) {  // each decode step without overflow
    last = Smallest(turns.data(), slots);
  } else {
    std::nth_element(turns.begin(), turns.begin() + (count - 1), turns.end());
    last = turns[count - 1];
    WriteTurns(token, keep.data(), slots, unprotected, turns.data());  // in slot order again
  }
  Collect(turns.data(), slots, last, victims);
  EBB_CHECK(static_cast<int32_t>(victims.size()) == count);
  return absl::OkStatus();
}

int64_t CountNan(std::span<const int32_t> token, std::span<const float> keep) {
  EBB_CHECK(keep.size() == token.size());
  return CountNans(token.data(), keep.data(), std::ssize(token));
}

}  // namespace ebb
