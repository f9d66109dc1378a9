// Selection compares integers. A token's `turn` packs the total order into 64 bits, score above age, so the count-th
// smallest turn is a threshold, and one more pass over the slots meets the victims in slot order. The passes have no
// branch that depends on data: scores are as good as random, and a wrong guess costs more than ten slots.

#include "policies/select.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

// Ages between the sinks and the recent tokens, both included.
struct Unprotected {
  int32_t oldest = 0;
  int32_t newest = 0;

  bool Has(int32_t token) const { return (token >= oldest) & (token <= newest); }
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

// REQUIRES: sinks + recent < live.
Unprotected FindUnprotected(const LaneView& lane, std::vector<int32_t>& ages) {
  // Nobody evicts the protected, so both ends of a lane are nearly always without gaps: guess, and check by counting.
  int32_t newest = 0;
  for (const int32_t token : lane.token) newest = std::max(newest, token);
  const Unprotected guess = {.oldest = lane.sinks, .newest = newest - lane.recent};
  int32_t sinks = 0;
  int32_t recent = 0;
  for (const int32_t token : lane.token) {
    sinks += static_cast<int32_t>((token >= 0) & (token < guess.oldest));
    recent += static_cast<int32_t>(token > guess.newest);
  }
  if (sinks == lane.sinks && recent == lane.recent) return guess;

  ages.clear();
  ages.reserve(lane.token.size());
  std::ranges::copy_if(lane.token, std::back_inserter(ages), [](int32_t token) { return token >= 0; });
  const auto at_rank = [&](int32_t rank) {
    std::nth_element(ages.begin(), ages.begin() + rank, ages.end());
    return ages[rank];
  };
  return {.oldest = at_rank(lane.sinks), .newest = at_rank(lane.live - lane.recent - 1)};
}

uint64_t KthSmallest(std::vector<uint64_t>& turns, int32_t k) {
  if (k == 1) return std::ranges::min(turns);  // each decode step without overflow; half the time of what follows
  const auto kth = turns.begin() + (k - 1);
  std::nth_element(turns.begin(), kth, turns.end());
  return *kth;
}

}  // namespace

absl::Status SelectVictims(const LaneView& lane, std::span<const float> keep, int32_t count, SelectScratch& scratch,
                           std::vector<int32_t>& victims) {
  EBB_CHECK(keep.size() == lane.token.size());
  EBB_CHECK(std::ranges::count_if(lane.token, [](int32_t token) { return token >= 0; }) == lane.live);
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
  const auto turn = [&](size_t slot) {
    const int32_t token = lane.token[slot];
    return Turn(keep[slot], token) | Unless(unprotected.Has(token));  // the protected and the free: after everyone
  };
  scratch.turns.resize(keep.size());
  for (size_t slot = 0; slot < keep.size(); ++slot) scratch.turns[slot] = turn(slot);
  const uint64_t last = KthSmallest(scratch.turns, count);
  for (size_t slot = 0; slot < keep.size(); ++slot) {
    if (turn(slot) <= last) victims.push_back(static_cast<int32_t>(slot));
  }
  EBB_CHECK(static_cast<int32_t>(victims.size()) == count);
  return absl::OkStatus();
}

}  // namespace ebb
