#include "policies/rank.h"

#include <algorithm>
#include <cmath>

#include "policies/age_order.h"
#include "policies/check.h"

namespace ebb {
namespace {

// sqrt(a^2 + b^2), without the underflow that float squares have below 1e-19.
float Hypotenuse(float a, float b) { return static_cast<float>(std::sqrt(double{a} * a + double{b} * b)); }

// Scores of one track, modifier included, into scratch.one.
void RankTrack(const ValidSpec& policy, const Track& track, RankScratch& scratch) {
  scratch.one.resize(track.lane.token.size());
  LaneView lane = track.lane;
  lane.by_age = scratch.by_age;
  policy.scorer->Score(lane, track.state, scratch.one);
  if (policy.modifier == Modifier::kNone) return;
  Caote(track.lane, policy.modifier == Modifier::kCaote ? CaoteForm::kExact : CaoteForm::kFast, scratch.caote,
        scratch.one);
}

// One KV head's opinion into scratch.lane: that of its one track, or the largest or the L2 norm over its query heads'.
void RankLane(const ValidSpec& policy, std::span<const Track> tracks, RankScratch& scratch) {
  RankTrack(policy, tracks[0], scratch);
  std::swap(scratch.one, scratch.lane);
  const std::span<float> lane = scratch.lane;
  for (const Track& track : tracks.subspan(1)) {
    RankTrack(policy, track, scratch);
    const std::span<const float> one = scratch.one;
    for (size_t slot = 0; slot < lane.size(); ++slot) {
      const bool larger = one[slot] > lane[slot] || std::isnan(one[slot]);
      const float largest = larger ? one[slot] : lane[slot];
      lane[slot] = policy.reduction == Reduction::kL2 ? Hypotenuse(one[slot], lane[slot]) : largest;
    }
  }
}

// Adds to scratch.let_go who is not among the track's k best candidates, by the rule that decides who leaves.
void LetGo(const LaneView& lane, int32_t k, RankScratch& scratch) {
  const int32_t candidates = std::max(lane.live - lane.sinks - lane.recent, 0);
  EBB_CHECK(SelectVictims(lane, scratch.one, std::max(candidates - k, 0), scratch.select, scratch.victims).ok());
  for (const int32_t slot : scratch.victims) ++scratch.let_go[slot];
}

// Lifts the scores of those whom some track would not let go above the scores of the others.
void LiftTheWanted(std::span<const int32_t> token, int32_t tracks, std::span<const int32_t> let_go,
                   std::span<float> keep) {
  float ceiling = -INFINITY;  // of the unwanted
  float floor = INFINITY;     // of the wanted
  for (size_t slot = 0; slot < keep.size(); ++slot) {
    if (token[slot] < 0) continue;
    if (let_go[slot] == tracks) ceiling = std::fmax(ceiling, keep[slot]);
    if (let_go[slot] < tracks) floor = std::fmin(floor, keep[slot]);
  }
  if (floor > ceiling) return;  // as they are; or nobody is unwanted
  for (size_t slot = 0; slot < keep.size(); ++slot) {
    if (let_go[slot] == tracks || keep[slot] == INFINITY) continue;
    keep[slot] = std::nextafter(ceiling + (keep[slot] - floor), INFINITY);
  }
}

void RankUnion(const ValidSpec& policy, std::span<const Track> tracks, RankScratch& scratch, std::span<float> keep) {
  const LaneView& lane = tracks[0].lane;
  const auto count = static_cast<int32_t>(tracks.size());
  const int32_t k = std::max(lane.budget - lane.sinks - lane.recent, 0) / count;
  scratch.let_go.assign(keep.size(), 0);
  std::ranges::fill(keep, 0.0F);
  for (const Track& track : tracks) {
    RankTrack(policy, track, scratch);
    LetGo(track.lane, k, scratch);
    for (size_t slot = 0; slot < keep.size(); ++slot) keep[slot] += scratch.one[slot] / static_cast<float>(count);
  }
  LiftTheWanted(lane.token, count, scratch.let_go, keep);
}

}  // namespace

void RankScratch::Reserve(int32_t slots, int32_t head_dim) {
  const auto size = static_cast<size_t>(slots);
  one.reserve(size);
  lane.reserve(size);
  let_go.reserve(size);
  victims.reserve(size);
  select.ages.reserve(size);
  select.turns.reserve(size);
  by_age.reserve(size);
  spare.reserve(size);
  caote.Reserve(slots, head_dim);
}

void Rank(const ValidSpec& policy, std::span<const Track> tracks, RankScratch& scratch, std::span<float> keep) {
  EBB_CHECK(!tracks.empty());
  const size_t heads = policy.heads_apart() ? static_cast<size_t>(policy.query_heads) : 1;
  EBB_CHECK(tracks.size() % heads == 0);
  scratch.by_age.clear();
  if (policy.scorer->needs().by_age) SortByAge(tracks[0].lane, scratch.spare, scratch.by_age);
  if (policy.reduction == Reduction::kUnion) return RankUnion(policy, tracks, scratch, keep);
  const bool squares = policy.modifier != Modifier::kNone;
  for (size_t first = 0; first < tracks.size(); first += heads) {
    RankLane(policy, tracks.subspan(first, heads), scratch);
    const std::span<const float> lane = scratch.lane;
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      keep[slot] = first == 0 ? lane[slot] : squares ? Hypotenuse(keep[slot], lane[slot]) : keep[slot] + lane[slot];
    }
  }
  const auto lanes = static_cast<float>(tracks.size() / heads);
  if (lanes == 1 || squares) return;
  for (float& k : keep) k /= lanes;
}

}  // namespace ebb
