#include "policies/rank.h"

#include <algorithm>
#include <cmath>

#include "policies/check.h"
#include "policies/select.h"

namespace ebb {
namespace {

// Scores of one track, modifier included, into scratch.one.
void RankTrack(const ValidSpec& policy, const Track& track, RankScratch& scratch) {
  scratch.one.resize(track.lane.token.size());
  policy.scorer->Score(track.lane, track.state, scratch.one);
  if (policy.modifier == Modifier::kNone) return;
  Caote(track.lane, policy.modifier == Modifier::kCaote ? CaoteForm::kExact : CaoteForm::kFast, scratch.caote,
        scratch.one);
}

// Marks the k best candidates of one query head in `keep` by adding `raise`, once.
void RaiseBest(const LaneView& lane, int32_t k, float raise, RankScratch& scratch, std::span<float> keep) {
  const std::span<const float> one = scratch.one;
  scratch.order.clear();
  for (int32_t slot = 0; slot < static_cast<int32_t>(one.size()); ++slot) {
    if (lane.token[slot] >= 0) scratch.order.push_back(slot);
  }
  // Candidates alone: the sinks and the recent tokens stay whatever they score.
  std::ranges::sort(scratch.order, {}, [&](int32_t slot) { return lane.token[slot]; });
  const auto end = scratch.order.end() - std::min(lane.recent, lane.live);
  const auto begin = std::min(scratch.order.begin() + std::min(lane.sinks, lane.live), end);
  const auto last = begin + std::min<std::ptrdiff_t>(k, end - begin);
  std::partial_sort(begin, last, end, [&](int32_t a, int32_t b) {
    return one[a] != one[b] ? one[a] > one[b] : lane.token[a] > lane.token[b];  // the older leaves first
  });
  for (auto slot = begin; slot != last; ++slot) {
    if (keep[*slot] < raise) keep[*slot] += raise;
  }
}

// One KV head's opinion into scratch.lane.
void RankLane(const ValidSpec& policy, std::span<const Track> tracks, RankScratch& scratch) {
  const auto heads = static_cast<float>(tracks.size());
  if (tracks.size() == 1) {
    RankTrack(policy, tracks[0], scratch);
    std::swap(scratch.one, scratch.lane);
    return;
  }
  scratch.lane.assign(tracks[0].lane.token.size(), policy.reduction == Reduction::kMax ? -INFINITY : 0.0F);
  for (const Track& track : tracks) {
    RankTrack(policy, track, scratch);
    for (size_t slot = 0; slot < scratch.lane.size(); ++slot) {
      const float one = scratch.one[slot];
      float& lane = scratch.lane[slot];
      switch (policy.reduction) {
        case Reduction::kMean:
        case Reduction::kUnion:
          lane += one / heads;
          break;
        case Reduction::kMax:
          lane = std::max(lane, one);
          break;
        case Reduction::kL2:
          lane += one * one;
          break;
      }
    }
  }
  if (policy.reduction == Reduction::kL2) {
    for (float& lane : scratch.lane) lane = std::sqrt(lane);
  }
  if (policy.reduction != Reduction::kUnion) return;
  const LaneView& lane = tracks[0].lane;
  const int32_t k = (lane.budget - lane.sinks - lane.recent) / static_cast<int32_t>(tracks.size());
  const float raise = 2 * std::max(1.0F, std::ranges::max(scratch.lane));
  for (const Track& track : tracks) {
    RankTrack(policy, track, scratch);
    RaiseBest(track.lane, std::max(k, 0), raise, scratch, scratch.lane);
  }
}

}  // namespace

void RankScratch::Reserve(int32_t slots) {
  const auto size = static_cast<size_t>(slots);
  one.reserve(size);
  lane.reserve(size);
  order.reserve(size);
}

void Rank(const ValidSpec& policy, std::span<const Track> tracks, RankScratch& scratch, std::span<float> keep) {
  EBB_CHECK(!tracks.empty());
  const size_t heads = policy.heads_apart() ? static_cast<size_t>(tracks[0].lane.query_heads) : 1;
  EBB_CHECK(tracks.size() % heads == 0);
  const bool squares = policy.modifier != Modifier::kNone && tracks.size() > heads;
  for (size_t first = 0; first < tracks.size(); first += heads) {
    RankLane(policy, tracks.subspan(first, heads), scratch);
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      const float lane = squares ? scratch.lane[slot] * scratch.lane[slot] : scratch.lane[slot];
      keep[slot] = first == 0 ? lane : keep[slot] + lane;
    }
  }
  if (tracks.size() == heads) return;
  const auto lanes = static_cast<float>(tracks.size() / heads);
  for (float& k : keep) k = squares ? std::sqrt(k) : k / lanes;
}

}  // namespace ebb
