#include "engine/policy_swap.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/allocation.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {

absl::Status CheckLanesAgree(const ValidSpec& policy, const SessionCache& cache) {
  if (ShareFor(policy) != Share::kLayer || cache.Agree(Share::kLayer)) return absl::OkStatus();
  return Refuse(absl::StatusCode::kFailedPrecondition,
                "policy.scope: LAYER keeps the same tokens in all heads of a layer, and this session's heads already "
                "hold different ones; use KV_HEAD, or begin a session with LAYER",
                {.reason = "LANES_DIFFER", .field = "policy.scope"});
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

std::vector<LaneRule> LanesFromScores(const SessionOnEngine& session, const ValidSpec& policy,
                                      std::span<const std::vector<float>> scores) {
  EBB_CHECK(policy.lanes_follow_scores());
  EBB_CHECK(policy.lanes.empty());
  const SessionCache& cache = session.cache();
  const auto tokens = static_cast<int32_t>(session.log().size());
  const int32_t kept = policy.sinks + policy.recent;
  const double floor = policy.allocation_parameters.at("floor");
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
  return WithWindows(policy, std::move(lanes));
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

}  // namespace ebb
