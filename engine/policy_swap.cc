#include "engine/policy_swap.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/lane_attention.h"
#include "engine/parallel.h"
#include "policies/allocation.h"
#include "policies/check.h"
#include "policies/registry.h"
#include "policies/status.h"

namespace ebb {
namespace {

// Slot maps of a session under a policy, which outlives this, with the probes of its scorer; and work on all of them.
class RankedMaps {
 public:
  RankedMaps(const Device& device, const SessionOnEngine& session, const ValidSpec& policy,
             std::span<const int32_t> maps)
      : threads_(device.ops->host_threads()), scratch_(threads_.threads()) {
    // Whichever maps a thread gets, it allocates nothing while it ranks.
    for (const int32_t map : maps) {
      Candidates& from = maps_.emplace_back(device.Of(session, policy, map));
      probed_.push_back(Probe(from, *device.rope, *device.ops));
      from.probed = probed_.back();
      for (EvictScratch& scratch : scratch_) scratch.Reserve(from);
    }
  }

  // Calls work(i, maps[i], scratch memory) for each, on every host thread.
  template <typename Work>
  void ForEach(const Work& work) {
    threads_.For(std::ssize(maps_), [&](int64_t i, int32_t thread) { work(i, maps_[i], scratch_[thread]); });
  }

 private:
  Parallel& threads_;
  std::vector<EvictScratch> scratch_;  // by thread
  std::vector<Candidates> maps_ = {};
  std::vector<std::vector<float>> probed_ = {};
};

std::vector<int32_t> AllMaps(const SessionCache& cache) {
  std::vector<int32_t> maps(cache.maps().size());
  std::iota(maps.begin(), maps.end(), 0);
  return maps;
}

bool GoesByAttention(const ValidSpec& policy) {
  const ScorerRow* const row = FindScorer(policy.scorer_name);
  return policy.evicts && row != nullptr && row->non_negative;
}

// The old policy's scores by slot map; empty where they are not attention received.
std::vector<std::vector<float>> OldScores(const Device& device, const SessionOnEngine& session) {
  ValidSpec policy = session.policy();
  if (!GoesByAttention(policy) || policy.needs().probes) return {};
  policy.modifier = Modifier::kNone;
  return MapScores(device, session, policy, AllMaps(session.cache()));
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

}  // namespace

std::vector<std::vector<float>> MapScores(const Device& device, const SessionOnEngine& session, const ValidSpec& policy,
                                          std::span<const int32_t> maps) {
  std::vector<std::vector<float>> scores;
  for (const int32_t map : maps) scores.emplace_back(session.cache().maps()[map].token().size());
  RankedMaps(device, session, policy, maps).ForEach([&](int64_t i, const Candidates& from, EvictScratch& scratch) {
    RankSlots(from, scratch);
    std::ranges::copy(scratch.keep, scores[i].begin());
  });
  return scores;
}

absl::StatusOr<StateOrigin> AdoptPolicy(const Device& device, SessionOnEngine& session, const ValidSpec& policy) {
  SessionCache& cache = session.cache();
  const CacheShape& shape = cache.shape();
  if (ShareFor(policy) == Share::kLayer && !cache.Agree(Share::kLayer)) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  "policy.scope: LAYER keeps the same tokens in all heads of a layer, and this session's heads already "
                  "hold different ones; use KV_HEAD, or begin a session with LAYER",
                  {.reason = "LANES_DIFFER", .field = "policy.scope"});
  }
  if (SameState(session.policy(), policy, shape.lanes()) && cache.share() == ShareFor(policy)) {
    for (SlotMap& map : cache.maps()) map.SetPositions(policy.positions);
    const bool has_state = cache.maps()[0].state_shape().slot_floats + cache.maps()[0].state_shape().lane_floats > 0;
    return has_state ? StateOrigin::kCarried : StateOrigin::kNone;
  }
  const std::vector<std::vector<float>> old_scores = OldScores(device, session);
  const int32_t lanes_of_old_map = cache.lanes_of_map();
  const bool began = !session.last_queries().empty() && session.cache_length() > 0;
  std::optional<LastAttention> attention;
  if (began && policy.evicts && !policy.lockstep) attention.emplace(session, *device.rope, *device.ops);
  cache.Adopt(policy);
  if (cache.share() == Share::kAllLanes) return StateOrigin::kNone;
  const bool memory = policy.needs().memory;
  Parallel& threads = device.ops->host_threads();
  std::vector<LaneReader> readers(threads.threads());
  for (LaneReader& reader : readers) {
    if (memory) reader.Reserve(shape.capacity, shape.format.head_dim);
  }
  std::vector<StateOrigin> origins(shape.lanes(), StateOrigin::kNone);
  threads.For(shape.lanes(), [&](int64_t item, int32_t thread) {
    const auto lane = static_cast<int32_t>(item);
    const int32_t layer = lane / shape.kv_heads;
    const int32_t head = lane % shape.kv_heads;
    SlotMap& map = cache.map(layer, head);
    if (map.live() == 0) return;
    LaneView view = cache.view(layer, head, policy, static_cast<int32_t>(session.log().size()));
    if (memory) {
      readers[thread].Point(*device.ops, cache.storage(layer, head), device.rope_view);
      view.memory = &readers[thread];
    }
    for (int32_t g = 0; g < (policy.heads_apart() ? shape.query_heads : 1); ++g) {
      const std::span<const float> seen = !attention             ? std::span<const float>()
                                          : policy.heads_apart() ? attention->row(lane, g)
                                                                 : attention->mean(lane);
      const std::span<const float> scores =
          old_scores.empty() ? std::span<const float>() : std::span<const float>(old_scores[lane / lanes_of_old_map]);
      origins[lane] = Fill(*policy.scorer, view, scores, seen, map.state(cache.first_track(layer, head) + g));
    }
  });
  // Lanes differ in what is in them, not in what they start from; one that is empty starts from nothing.
  const auto told = std::ranges::find_if(origins, [](StateOrigin origin) { return origin != StateOrigin::kNone; });
  return told == origins.end() ? StateOrigin::kNone : *told;
}

void SeparateLanesThatDiffer(const ValidSpec& policy, SessionCache& cache) {
  const int32_t together = cache.lanes_of_map();
  for (int32_t lane = 0; lane < cache.shape().lanes(); ++lane) {
    if (policy.rule(lane) != policy.rule(lane / together * together)) return cache.SeparateLanes();
  }
}

absl::Status CheckLength(const ValidSpec& next, bool prunes, int32_t live, int32_t limit) {
  if ((prunes && !next.bounded) || live <= limit) return absl::OkStatus();
  return Refuse(absl::StatusCode::kFailedPrecondition,
                absl::StrFormat("policy.trigger.budget: the cache holds %d tokens, and this policy evicts none of "
                                "them to stay within %d; use a larger budget, or evict first",
                                live, limit),
                {.reason = "CACHE_TOO_LONG", .field = "policy.trigger.budget"});
}

absl::Status NoScoresToShareBy(const ValidSpec& next) {
  const std::string field = absl::StrFormat("policy.%s", RowOf(next.allocation).name);
  return Refuse(absl::StatusCode::kFailedPrecondition,
                absl::StrFormat("%s: heads share by scores, and %s has yet to see what it scores by; use another "
                                "scorer, or set the scorer first and the allocation once it has seen a step",
                                field, next.scorer_name),
                {.reason = "SCORER_HAS_NO_STATE", .field = field});
}

std::vector<int32_t> KeptByLane(const SessionCache& cache, const ValidSpec& next, bool prunes) {
  std::vector<int32_t> keep(cache.shape().lanes());
  for (int32_t lane = 0; lane < cache.shape().lanes(); ++lane) {
    keep[lane] = cache.map_of(lane).live();
    if (prunes) keep[lane] -= TokensToDrop(next.trigger_of(lane), keep[lane]);
  }
  return keep;
}

std::vector<LaneRule> LanesByScores(const Device& device, const SessionOnEngine& session, const ValidSpec& policy) {
  EBB_CHECK(policy.lanes_follow_scores());
  EBB_CHECK(policy.lanes.empty());
  const SessionCache& cache = session.cache();
  const auto tokens = static_cast<int32_t>(session.log().size());
  const int32_t kept = policy.sinks + policy.recent;
  const double floor = policy.allocation_parameters.at("floor");
  const std::vector<std::vector<float>> scores = MapScores(device, session, policy, AllMaps(cache));
  std::vector<LaneRule> lanes;
  std::vector<AdaCandidate> candidates;
  for (int32_t layer = 0; layer < cache.shape().layers; ++layer) {
    candidates.clear();
    for (int32_t head = 0; head < cache.shape().kv_heads; ++head) {
      AppendCandidates(cache.view(layer, head, policy, tokens), scores[cache.map_index(layer, head)], candidates);
    }
    for (const int32_t room : AdaRooms(candidates, cache.shape().kv_heads, policy.trigger.budget - kept, floor)) {
      lanes.push_back({.budget = kept + room, .sinks = policy.sinks, .recent = policy.recent});
    }
  }
  return lanes;
}

absl::StatusOr<Plan> PlanPruning(const Device& device, const SessionOnEngine& session, const ValidSpec& policy,
                                 std::span<const int32_t> keep) {
  const SessionCache& cache = session.cache();
  Plan plan(cache.maps().size());
  std::vector<int32_t> counts;
  for (int32_t map = 0; map < std::ssize(cache.maps()); ++map) {
    counts.push_back(std::max(0, cache.maps()[map].live() - keep[cache.first_lane(map)]));
    plan[map].reserve(counts.back());
  }
  if (std::ranges::all_of(counts, [](int32_t count) { return count == 0; })) return plan;
  std::vector<absl::Status> chosen(plan.size());
  RankedMaps(device, session, policy, AllMaps(cache))
      .ForEach([&](int64_t map, const Candidates& from, EvictScratch& scratch) {
        chosen[map] = ChooseVictims(from, counts[map], scratch);
        if (chosen[map].ok()) plan[map].assign(scratch.victims.begin(), scratch.victims.end());
      });
  for (const absl::Status& status : chosen) EBB_TRY(status);
  return plan;
}

ValidSpec FormerAt(const ValidSpec& former, const ValidSpec& next, std::span<const int32_t> keep) {
  ValidSpec last = former;
  last.lanes.clear();
  for (size_t lane = 0; lane < keep.size(); ++lane) {
    const LaneRule rule = next.rule(static_cast<int32_t>(lane));
    const int32_t sinks = std::min(rule.sinks, keep[lane]);
    last.lanes.push_back({.budget = former.rule(static_cast<int32_t>(lane)).budget,
                          .sinks = sinks,
                          .recent = std::min(rule.recent, keep[lane] - sinks)});
  }
  return last;
}

Plan PerLane(Plan plan, const SessionCache& cache) {
  if (plan.size() == 1) return plan;
  Plan lanes(cache.shape().lanes());
  for (int32_t lane = 0; lane < cache.shape().lanes(); ++lane) {
    lanes[lane] = plan[lane / (cache.shape().lanes() / static_cast<int32_t>(plan.size()))];
  }
  return lanes;
}

std::vector<LaneVictims> VictimsOf(const SessionCache& cache, const Plan& plan) {
  std::vector<LaneVictims> lanes(cache.shape().lanes());
  for (int32_t i = 0; i < cache.shape().lanes(); ++i) {
    LaneVictims& lane = lanes[i];
    lane.layer = i / cache.shape().kv_heads;
    lane.head = i % cache.shape().kv_heads;
    const SlotMap& map = cache.map(lane.layer, lane.head);
    for (const int32_t slot : plan[plan.size() == 1 ? 0 : i]) lane.tokens.push_back(map.token()[slot]);
    std::sort(lane.tokens.begin(), lane.tokens.end());
  }
  return lanes;
}

int64_t FreeSlots(SessionCache& cache, const Plan& plan) {
  const int32_t lanes = cache.shape().lanes();
  // Lanes that share a map keep it where all of them lose the same slots.
  const auto alike = [&] {
    for (int32_t lane = 0; lane < lanes; ++lane) {
      if (plan[lane] != plan[lane / cache.lanes_of_map() * cache.lanes_of_map()]) return false;
    }
    return true;
  };
  if (plan.size() > 1 && !alike()) cache.SeparateLanes();
  int64_t freed = 0;
  for (int32_t map = 0; map < static_cast<int32_t>(cache.maps().size()); ++map) {
    const std::vector<int32_t>& victims = plan[plan.size() == 1 ? 0 : cache.first_lane(map)];
    cache.maps()[map].Free(victims);
    freed += static_cast<int64_t>(victims.size()) * cache.lanes_of_map();
  }
  return freed;
}

Loss MeasurePlan(const Device& device, const SessionOnEngine& session, const Plan& plan) {
  Loss loss;
  const bool nobody = std::ranges::all_of(plan, [](const auto& victims) { return victims.empty(); });
  if (nobody || session.last_queries().empty()) return loss;
  const LastAttention attention(session, *device.rope, *device.ops);
  const SessionCache& cache = session.cache();
  const CacheShape& shape = cache.shape();
  Parallel& threads = device.ops->host_threads();
  struct Scratch {
    LaneReader reader = {};
    CaoteScratch caote = {};
  };
  std::vector<Scratch> scratch(threads.threads());
  for (Scratch& one : scratch) {
    one.reader.Reserve(shape.capacity, shape.format.head_dim);
    one.caote.Reserve(shape.capacity, shape.format.head_dim);
  }
  std::vector<EvictionLoss> losses(shape.lanes());
  threads.For(shape.lanes(), [&](int64_t item, int32_t thread) {
    const auto lane = static_cast<int32_t>(item);
    const int32_t layer = lane / shape.kv_heads;
    const int32_t head = lane % shape.kv_heads;
    LaneView view = cache.view(layer, head, session.policy(), static_cast<int32_t>(session.log().size()));
    scratch[thread].reader.Point(*device.ops, cache.storage(layer, head), device.rope_view);
    view.memory = &scratch[thread].reader;
    losses[lane] =
        MeasureEviction(view, attention.mean(lane), plan[plan.size() == 1 ? 0 : lane], scratch[thread].caote);
  });
  for (const EvictionLoss& lane : losses) loss.Add(lane, shape.lanes());
  return loss;
}

}  // namespace ebb
