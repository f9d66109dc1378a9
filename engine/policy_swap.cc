#include "engine/policy_swap.h"

#include <algorithm>
#include <utility>

#include "engine/lane_attention.h"
#include "policies/allocation.h"
#include "policies/check.h"
#include "policies/registry.h"
#include "policies/status.h"

namespace ebb {
namespace {

bool GoesByAttention(const ValidSpec& policy) {
  const ScorerRow* const row = FindScorer(policy.scorer_name);
  return policy.evicts && row != nullptr && row->non_negative;
}

// The old policy's scores of every lane, [n] each; empty where they are not attention received.
std::vector<std::vector<float>> OldScores(const Device& device, const SessionOnEngine& session) {
  ValidSpec policy = session.policy();
  if (!GoesByAttention(policy) || policy.needs().probes) return {};
  policy.modifier = Modifier::kNone;
  const CacheShape& shape = session.cache().shape();
  std::vector<std::vector<float>> scores(shape.lanes());
  EvictScratch scratch;
  for (int32_t map = 0; map < static_cast<int32_t>(session.cache().maps().size()); ++map) {
    RankSlots(device.Of(session, policy, map), scratch);
    for (int32_t i = 0; i < session.cache().lanes_of_map(); ++i) {
      scores[session.cache().first_lane(map) + i] = scratch.keep;
    }
  }
  return scores;
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
  const bool began = !session.last_queries().empty() && session.cache_length() > 0;
  std::optional<LastAttention> attention;
  if (began && policy.evicts && !policy.lockstep) attention.emplace(session, *device.rope, *device.ops);
  cache.Adopt(policy);
  auto origin = StateOrigin::kNone;
  if (cache.share() == Share::kAllLanes) return origin;
  LaneReader reader;
  const bool memory = policy.needs().memory;
  for (int32_t lane = 0; lane < shape.lanes(); ++lane) {
    const int32_t layer = lane / shape.kv_heads;
    const int32_t head = lane % shape.kv_heads;
    SlotMap& map = cache.map(layer, head);
    if (map.live() == 0) continue;
    LaneView view = cache.view(layer, head, policy, static_cast<int32_t>(session.log().size()));
    if (memory) {
      reader.Point(*device.ops, cache.storage(layer, head), device.rope_view);
      view.memory = &reader;
    }
    for (int32_t g = 0; g < (policy.heads_apart() ? shape.query_heads : 1); ++g) {
      const std::span<const float> seen = !attention             ? std::span<const float>()
                                          : policy.heads_apart() ? attention->row(lane, g)
                                                                 : attention->mean(lane);
      const std::span<const float> scores =
          old_scores.empty() ? std::span<const float>() : std::span<const float>(old_scores[lane]);
      origin = Fill(*policy.scorer, view, scores, seen, map.state(cache.first_track(layer, head) + g));
    }
  }
  return origin;
}

void SeparateLanesThatDiffer(const ValidSpec& policy, SessionCache& cache) {
  const int32_t together = cache.lanes_of_map();
  for (int32_t lane = 0; lane < cache.shape().lanes(); ++lane) {
    if (policy.rule(lane) != policy.rule(lane / together * together)) return cache.SeparateLanes();
  }
}

std::vector<LaneRule> LanesByScores(const Device& device, const SessionOnEngine& session, const ValidSpec& policy) {
  EBB_CHECK(policy.lanes_follow_scores());
  EBB_CHECK(policy.lanes.empty());
  const SessionCache& cache = session.cache();
  const auto tokens = static_cast<int32_t>(session.log().size());
  const int32_t kept = policy.sinks + policy.recent;
  const double floor = policy.allocation_parameters.at("floor");
  std::vector<LaneRule> lanes;
  std::vector<AdaCandidate> candidates;
  EvictScratch scratch;
  for (int32_t layer = 0; layer < cache.shape().layers; ++layer) {
    candidates.clear();
    for (int32_t head = 0; head < cache.shape().kv_heads; ++head) {
      Candidates from = device.Of(session, policy, cache.map_index(layer, head));
      const std::vector<float> probed = Probe(from, *device.rope, *device.ops);
      from.probed = probed;
      RankSlots(from, scratch);
      AppendCandidates(cache.view(layer, head, policy, tokens), scratch.keep, candidates);
    }
    for (const int32_t room : AdaRooms(candidates, cache.shape().kv_heads, policy.trigger.budget - kept, floor)) {
      lanes.push_back({.budget = kept + room, .sinks = policy.sinks, .recent = policy.recent});
    }
  }
  return lanes;
}

absl::StatusOr<Plan> PlanPruning(const Device& device, const SessionOnEngine& session, const ValidSpec& policy,
                                 std::span<const int32_t> keep) {
  Plan plan;
  EvictScratch scratch;
  for (int32_t map = 0; map < static_cast<int32_t>(session.cache().maps().size()); ++map) {
    Candidates from = device.Of(session, policy, map);
    const std::vector<float> probed = Probe(from, *device.rope, *device.ops);
    from.probed = probed;
    EBB_TRY(ChooseVictims(from, std::max(0, from.slots().live() - keep[session.cache().first_lane(map)]), scratch));
    plan.push_back(scratch.victims);
  }
  return plan;
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
  LaneReader reader;
  CaoteScratch scratch;
  for (int32_t lane = 0; lane < shape.lanes(); ++lane) {
    const int32_t layer = lane / shape.kv_heads;
    const int32_t head = lane % shape.kv_heads;
    LaneView view = cache.view(layer, head, session.policy(), static_cast<int32_t>(session.log().size()));
    reader.Point(*device.ops, cache.storage(layer, head), device.rope_view);
    view.memory = &reader;
    const std::vector<int32_t>& victims = plan[plan.size() == 1 ? 0 : lane];
    loss.Add(MeasureEviction(view, attention.mean(lane), victims, scratch), shape.lanes());
  }
  return loss;
}

}  // namespace ebb
