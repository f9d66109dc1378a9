#include "engine/lane_work.h"

#include <numeric>
#include <utility>

#include "engine/parallel.h"
#include "policies/check.h"
#include "policies/registry.h"

namespace ebb {
namespace {

bool GoesByAttention(const ValidSpec& policy) {
  const ScorerRow* const row = FindScorer(policy.scorer_name);
  return policy.evicts && row != nullptr && row->non_negative;
}

bool SameSinks(const ValidSpec& a, const ValidSpec& b, int32_t lanes) {
  for (int32_t lane = 0; lane < lanes; ++lane) {
    if (a.rule(lane).sinks != b.rule(lane).sinks) return false;
  }
  return true;
}

bool SameState(const ValidSpec& a, const ValidSpec& b, int32_t lanes) {
  const ScorerRow* const row = FindScorer(a.scorer_name);
  EBB_CHECK(row != nullptr);
  return a.scorer_name == b.scorer_name && a.parameters == b.parameters && a.reduction == b.reduction &&
         a.scope == b.scope && a.evicts == b.evicts && (!row->state_by_sinks || SameSinks(a, b, lanes));
}

// Fills one state, and says from what.
StateOrigin Fill(const Scorer& scorer, const LaneView& lane, std::span<const float> old_scores,
                 std::span<const float> attention, const MutableScorerState& state) {
  if (state.slot.empty() && state.lane.empty()) return StateOrigin::kNone;
  if (scorer.Rebuild(lane, state)) return StateOrigin::kRebuilt;
  // Who looks at the newest query alone would hold this now; sums over many queries are another thing.
  const bool newest_only = scorer.needs().last_row;
  if (newest_only && !attention.empty() && scorer.Seed(attention, state)) return StateOrigin::kFromAttention;
  if (!old_scores.empty() && scorer.Seed(old_scores, state)) return StateOrigin::kFromScores;
  if (!attention.empty() && scorer.Seed(attention, state)) return StateOrigin::kFromAttention;
  return StateOrigin::kEmpty;
}

bool IsEmpty(const Plan& plan) {
  return std::ranges::all_of(plan, [](const auto& victims) { return victims.empty(); });
}

}  // namespace

std::vector<int32_t> AllMaps(const SessionCache& cache) {
  std::vector<int32_t> maps(cache.maps().size());
  std::iota(maps.begin(), maps.end(), 0);
  return maps;
}

MapRanking::MapRanking(const Device& device, const SessionOnEngine& session, const ValidSpec& policy,
                       std::vector<int32_t> maps)
    : device_(device),
      session_(session),
      policy_(policy),
      maps_(std::move(maps)),
      scratch_(device.ops->host_threads().threads()) {}

// The next maps, how many: with their probes, and room on every thread, so that none allocates while it ranks.
int64_t MapRanking::Prepare(int32_t lanes) {
  const int32_t of_map = policy_.lockstep ? 1 : session_.cache().lanes_of_map();
  const int64_t count = std::min<int64_t>(std::max(1, lanes / of_map), std::ssize(maps_) - done_);
  ready_.clear();
  probed_.clear();
  probed_.reserve(count);
  for (int64_t i = 0; i < count; ++i) {
    Candidates& from = ready_.emplace_back(device_.Of(session_, policy_, maps_[done_ + i]));
    probed_.push_back(Probe(from, *device_.rope, *device_.ops));
    from.probed = probed_.back();
    for (EvictScratch& scratch : scratch_) scratch.Reserve(from);
  }
  return count;
}

bool MapRanking::AdvanceScores(int32_t lanes, std::vector<std::vector<float>>& scores) {
  scores.resize(maps_.size());
  return Advance(lanes, [&scores](int64_t i, const Candidates& from, EvictScratch& scratch) {
    RankSlots(from, scratch);
    scores[i].assign(scratch.keep.begin(), scratch.keep.end());
  });
}

Adoption::Adoption(const Device& device, SessionOnEngine& session, const ValidSpec& policy)
    : device_(device), session_(session), policy_(policy), former_(session.policy()) {}

bool Adoption::Advance(int32_t lanes) {
  if (part_ == Part::kBegin) part_ = Begin();
  switch (part_) {
    case Part::kBegin:
    case Part::kDone:
      break;
    case Part::kScores:
      if (ranking_->AdvanceScores(lanes, old_scores_)) part_ = Part::kAttention;
      break;
    case Part::kAttention:
      if (!session_.last_queries().empty() && session_.cache_length() > 0 && policy_.evicts && !policy_.lockstep) {
        attention_.emplace(session_, *device_.rope, *device_.ops);
      }
      part_ = Part::kAdopt;
      break;
    case Part::kAdopt:
      AdoptMaps();
      part_ = origins_.empty() ? Part::kDone : Part::kFill;
      break;
    case Part::kFill: {
      const int32_t count = std::min(lanes, static_cast<int32_t>(origins_.size()) - filled_);
      FillLanes(filled_, count);
      filled_ += count;
      if (filled_ == std::ssize(origins_)) part_ = Part::kDone;
      break;
    }
  }
  return part_ == Part::kDone;
}

Adoption::Part Adoption::Begin() {
  SessionCache& cache = session_.cache();
  if (SameState(former_, policy_, cache.shape().lanes()) && cache.share() == ShareFor(policy_)) {
    for (SlotMap& map : cache.maps()) map.SetPositions(policy_.positions);
    const StateShape& shape = cache.maps()[0].state_shape();
    origins_.assign(1, shape.slot_floats + shape.lane_floats > 0 ? StateOrigin::kCarried : StateOrigin::kNone);
    return Part::kDone;
  }
  lanes_of_old_map_ = cache.lanes_of_map();
  if (!GoesByAttention(former_) || former_.needs().probes) return Part::kAttention;
  former_.modifier = Modifier::kNone;
  ranking_.emplace(device_, session_, former_, AllMaps(cache));
  return Part::kScores;
}

void Adoption::AdoptMaps() {
  SessionCache& cache = session_.cache();
  cache.Adopt(policy_);
  if (cache.share() == Share::kAllLanes) return;
  const CacheShape& shape = cache.shape();
  origins_.assign(shape.lanes(), StateOrigin::kNone);
  readers_.resize(device_.ops->host_threads().threads());
  if (!policy_.needs().memory) return;
  for (LaneReader& reader : readers_) reader.Reserve(shape.capacity, shape.format.head_dim);
}

void Adoption::FillLanes(int32_t first, int32_t count) {
  SessionCache& cache = session_.cache();
  const CacheShape& shape = cache.shape();
  device_.ops->host_threads().For(count, [&](int64_t item, int32_t thread) {
    const auto lane = static_cast<int32_t>(first + item);
    const int32_t layer = lane / shape.kv_heads;
    const int32_t head = lane % shape.kv_heads;
    SlotMap& map = cache.map(layer, head);
    if (map.live() == 0) return;
    LaneView view = cache.view(layer, head, policy_, static_cast<int32_t>(session_.log().size()));
    if (policy_.needs().memory) {
      readers_[thread].Point(*device_.ops, cache.storage(layer, head), device_.rope_view);
      view.memory = &readers_[thread];
    }
    for (int32_t g = 0; g < (policy_.heads_apart() ? shape.query_heads : 1); ++g) {
      const std::span<const float> seen = !attention_             ? std::span<const float>()
                                          : policy_.heads_apart() ? attention_->row(lane, g)
                                                                  : attention_->mean(lane);
      const std::span<const float> scores = old_scores_.empty()
                                                ? std::span<const float>()
                                                : std::span<const float>(old_scores_[lane / lanes_of_old_map_]);
      origins_[lane] = Fill(*policy_.scorer, view, scores, seen, map.state(cache.first_track(layer, head) + g));
    }
  });
}

StateOrigin Adoption::origin() const {
  EBB_CHECK(part_ == Part::kDone);
  // Lanes differ in what is in them, not in what they start from; one that is empty starts from nothing.
  const auto told = std::ranges::find_if(origins_, [](StateOrigin origin) { return origin != StateOrigin::kNone; });
  return told == origins_.end() ? StateOrigin::kNone : *told;
}

Choosing::Choosing(const Device& device, const SessionOnEngine& session, const ValidSpec& policy,
                   std::span<const int32_t> keep)
    : ranking_(device, session, policy, AllMaps(session.cache())),
      plan_(session.cache().maps().size()),
      chosen_(plan_.size()) {
  const SessionCache& cache = session.cache();
  for (int32_t map = 0; map < std::ssize(plan_); ++map) {
    counts_.push_back(std::max(0, cache.maps()[map].live() - keep[cache.first_lane(map)]));
    plan_[map].reserve(counts_.back());
  }
}

absl::StatusOr<bool> Choosing::Advance(int32_t lanes) {
  if (std::ranges::all_of(counts_, [](int32_t count) { return count == 0; })) return true;
  const bool done = ranking_.Advance(lanes, [this](int64_t map, const Candidates& from, EvictScratch& scratch) {
    chosen_[map] = ChooseVictims(from, counts_[map], scratch);
    if (chosen_[map].ok()) plan_[map].assign(scratch.victims.begin(), scratch.victims.end());
  });
  for (const absl::Status& status : chosen_) {
    if (!status.ok()) return status;
  }
  return done;
}

Measuring::Measuring(const Device& device, const SessionOnEngine& session, const Plan& plan)
    : device_(device), session_(session), plan_(plan) {}

bool Measuring::Advance(int32_t lanes) {
  if (IsEmpty(plan_) || session_.last_queries().empty()) return true;
  const SessionCache& cache = session_.cache();
  const CacheShape& shape = cache.shape();
  Parallel& threads = device_.ops->host_threads();
  if (!attention_) {
    attention_.emplace(session_, *device_.rope, *device_.ops);
    scratch_.resize(threads.threads());
    for (Scratch& one : scratch_) {
      one.reader.Reserve(shape.capacity, shape.format.head_dim);
      one.caote.Reserve(shape.capacity, shape.format.head_dim);
    }
    return false;
  }
  const auto first = static_cast<int32_t>(losses_.size());
  losses_.resize(first + std::min(lanes, shape.lanes() - first));
  threads.For(std::ssize(losses_) - first, [&](int64_t item, int32_t thread) {
    const auto lane = static_cast<int32_t>(first + item);
    const int32_t layer = lane / shape.kv_heads;
    const int32_t head = lane % shape.kv_heads;
    LaneView view = cache.view(layer, head, session_.policy(), static_cast<int32_t>(session_.log().size()));
    scratch_[thread].reader.Point(*device_.ops, cache.storage(layer, head), device_.rope_view);
    view.memory = &scratch_[thread].reader;
    losses_[lane] =
        MeasureEviction(view, attention_->mean(lane), plan_[plan_.size() == 1 ? 0 : lane], scratch_[thread].caote);
  });
  return std::ssize(losses_) == shape.lanes();
}

Loss Measuring::loss() const {
  Loss loss;
  for (const EvictionLoss& lane : losses_) loss.Add(lane, session_.cache().shape().lanes());
  return loss;
}

}  // namespace ebb
