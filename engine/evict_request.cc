#include "engine/evict_request.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/cache/evictor.h"
#include "policies/check.h"
#include "policies/registry.h"
#include "policies/status.h"

namespace ebb {
namespace {

absl::Status CheckForm(const EvictRequest& request) {
  const int choices =
      (request.range ? 1 : 0) + (request.keep ? 1 : 0) + (request.older_than ? 1 : 0) + (request.slots.empty() ? 0 : 1);
  if (choices != 1) {
    return RefuseField("EVICT_AMBIGUOUS", "evict",
                       absl::StrFormat("%d of range, keep, older_than and slots are given; give one", choices));
  }
  if (request.range && (request.range->start < 0 || request.range->start >= request.range->end)) {
    return RefuseField(
        "RANGE_EMPTY", "evict.range",
        absl::StrFormat("[%d, %d) holds no token; start must be below end", request.range->start, request.range->end));
  }
  if (request.keep && *request.keep < 1)
    return RefuseField("KEEP_OUT_OF_RANGE", "evict.keep", "at least 1 token stays");
  if (request.older_than && *request.older_than < 0) {
    return RefuseField("NEGATIVE_VALUE", "evict.older_than", absl::StrFormat("%d is below 0", *request.older_than));
  }
  return absl::OkStatus();
}

// The policy that decides: the session's own, or a named scorer's with its defaults, pruning to `keep`, which is every
// lane's share.
absl::StatusOr<ValidSpec> PolicyFor(const EvictRequest& request, const ValidSpec& policy,
                                    const CalibrationOr& calibration) {
  const std::string& name = request.scorer.empty() ? policy.scorer_name : request.scorer;
  const ScorerRow* const row = FindScorer(name);
  if (row == nullptr) return UnknownScorer("evict.keep.scorer", name);
  if (!row->evicts) {
    return RefuseField("MEANINGLESS_COMBINATION", "evict.keep.scorer",
                       absl::StrFormat("the scorer %s never evicts and ranks nobody; name another, or use range, "
                                       "older_than or slots",
                                       name));
  }
  if (name == policy.scorer_name) {
    // Protection that was not given follows the budget, and `keep` is the budget here.
    ValidSpec pruning = policy;
    pruning.trigger.budget = *request.keep;
    pruning.lanes.clear();
    if (policy.sinks_follow_budget && row->sinks != nullptr) pruning.sinks = row->sinks(*request.keep);
    if (policy.recent_follows_budget) {
      pruning.recent = DefaultRecent(*row, policy.parameters, *request.keep, pruning.sinks, policy.query_heads);
    }
    return pruning;
  }
  EBB_ASSIGN(const ScorerParameters parameters, ResolveParameters(*row, {}));
  ValidSpec other = policy;
  other.scorer_name = name;
  other.parameters = parameters;
  EBB_ASSIGN(other.scorer, MakeScorer(*row, parameters, calibration));
  other.evicts = true;
  other.lockstep = row->lockstep;
  other.modifier = Modifier::kNone;
  other.reduction = Reduction::kMean;
  other.trigger.budget = *request.keep;
  other.allocation = Allocation::kUniform;
  other.lanes.clear();
  if (policy.sinks_follow_budget) other.sinks = row->sinks == nullptr ? 0 : row->sinks(*request.keep);
  if (policy.recent_follows_budget) {
    other.recent = DefaultRecent(*row, parameters, *request.keep, other.sinks, policy.query_heads);
  }
  return other;
}

// As the session's cache would be under the policy that decides, which is put back afterwards.
absl::StatusOr<Plan> PlanKeep(const EvictRequest& request, const Device& device, const CalibrationOr& calibration,
                              SessionOnEngine& session) {
  EBB_ASSIGN(const ValidSpec policy, PolicyFor(request, session.policy(), calibration));
  const bool own = policy.scorer == session.policy().scorer;
  std::optional<MapsRestored> restored;
  if (!own) {
    restored.emplace(session.cache());
    EBB_ASSIGN(const StateOrigin origin, AdoptPolicy(device, session, policy));
    if (origin == StateOrigin::kEmpty) {
      return Refuse(absl::StatusCode::kFailedPrecondition,
                    absl::StrFormat("evict.keep.scorer: %s decides by what it saw of earlier steps, and this session "
                                    "runs %s, which gathered none of it",
                                    request.scorer, session.policy().scorer_name),
                    {.reason = "SCORER_HAS_NO_STATE", .field = "evict.keep.scorer"});
    }
  }
  const std::vector<int32_t> keep(session.cache().shape().lanes(), *request.keep);
  auto plan = PlanPruning(device, session, policy, keep);
  if (!plan.ok()) {
    return RefuseField("NOT_ENOUGH_CANDIDATES", "evict.keep",
                       absl::StrFormat("%d: sinks %d and recent %d are protected; use at least their sum",
                                       *request.keep, policy.sinks, policy.recent));
  }
  return PerLane(*std::move(plan), session.cache());
}

// Every live token with start <= index < end.
Plan PlanRange(SessionOnEngine& session, int32_t start, int32_t end) {
  Plan plan;
  for (const SlotMap& map : session.cache().maps()) {
    std::vector<int32_t>& victims = plan.emplace_back();
    for (int32_t slot = 0; slot < map.end(); ++slot) {
      const int32_t token = map.token()[slot];
      if (token >= 0 && token >= start && token < end) victims.push_back(slot);
    }
  }
  return PerLane(std::move(plan), session.cache());
}

// One entry per lane, layer-major.
absl::StatusOr<Plan> PlanSlots(const EvictRequest& request, const SessionOnEngine& session) {
  const CacheShape& shape = session.cache().shape();
  Plan plan(shape.lanes());
  std::vector<bool> named(shape.lanes(), false);
  for (size_t i = 0; i < request.slots.size(); ++i) {
    const EvictRequest::LaneSlots& lane = request.slots[i];
    const std::string field = absl::StrFormat("evict.slots.lanes[%d]", i);
    if (lane.layer < 0 || lane.layer >= shape.layers || lane.head < 0 || lane.head >= shape.kv_heads) {
      return RefuseField("LANE_OUT_OF_RANGE", field,
                         absl::StrFormat("there is no layer %d, head %d; the model has %d layers of %d KV heads",
                                         lane.layer, lane.head, shape.layers, shape.kv_heads));
    }
    const int32_t index = lane.layer * shape.kv_heads + lane.head;
    if (named[index])
      return RefuseField("LANE_REPEATED", field,
                         absl::StrFormat("layer %d, head %d is named twice", lane.layer, lane.head));
    named[index] = true;
    if (lane.slots.size() != request.slots.front().slots.size()) {
      return RefuseField("LANES_UNEQUAL", field,
                         absl::StrFormat("%d slots, while the first lane has %d; every lane loses the same number",
                                         lane.slots.size(), request.slots.front().slots.size()));
    }
    std::vector<int32_t> slots = lane.slots;
    std::sort(slots.begin(), slots.end());
    const SlotMap& map = session.cache().map(lane.layer, lane.head);
    for (size_t s = 0; s < slots.size(); ++s) {
      if (slots[s] < 0 || slots[s] >= map.end() || map.token()[slots[s]] < 0) {
        return RefuseField("SLOT_NOT_LIVE", field + ".slots", absl::StrFormat("slot %d holds no token", slots[s]));
      }
      if (s > 0 && slots[s] == slots[s - 1]) {
        return RefuseField("SLOT_REPEATED", field + ".slots", absl::StrFormat("slot %d is named twice", slots[s]));
      }
    }
    plan[index] = std::move(slots);
  }
  if (static_cast<int32_t>(request.slots.size()) != shape.lanes()) {
    return RefuseField(
        "LANES_MISSING", "evict.slots.lanes",
        absl::StrFormat("%d of %d lanes are named; name every one", request.slots.size(), shape.lanes()));
  }
  return plan;
}

EvictReport Report(const Plan& plan, SessionOnEngine& session) {
  const SessionCache& cache = session.cache();
  EvictReport report;
  report.length_before = session.cache_length();
  report.victims = VictimsOf(cache, plan);
  for (int32_t layer = 0; layer < cache.shape().layers; ++layer) {
    for (int32_t head = 0; head < cache.shape().kv_heads; ++head) {
      const size_t lane = static_cast<size_t>(layer) * cache.shape().kv_heads + head;
      const SlotMap& map = cache.map(layer, head);
      const std::vector<int32_t>& slots = plan[plan.size() == 1 ? 0 : lane];
      report.slots_evicted += static_cast<int64_t>(slots.size());
      report.length_after = std::max(report.length_after, map.live() - static_cast<int32_t>(slots.size()));
    }
  }
  return report;
}

}  // namespace

absl::StatusOr<EvictReport> CarryOut(const EvictRequest& request, const Device& device,
                                     const CalibrationOr& calibration, SessionOnEngine& session) {
  EBB_TRY(CheckForm(request));
  Plan plan;  // by lane, or one for all
  if (request.keep) {
    EBB_ASSIGN(plan, PlanKeep(request, device, calibration, session));
  } else if (request.range) {
    plan = PlanRange(session, request.range->start, request.range->end);
  } else if (request.older_than) {
    plan = PlanRange(session, 0, static_cast<int32_t>(session.log().size()) - *request.older_than);
  } else {
    EBB_ASSIGN(plan, PlanSlots(request, session));
  }
  SessionCache& cache = session.cache();
  const int32_t lanes = cache.shape().lanes();
  for (int32_t lane = 0; lane < lanes; ++lane) {
    const SlotMap& map = cache.map(lane / cache.shape().kv_heads, lane % cache.shape().kv_heads);
    if (map.live() > 0 && static_cast<int32_t>(plan[plan.size() == 1 ? 0 : lane].size()) == map.live()) {
      return RefuseField("NOTHING_WOULD_STAY", "evict",
                         absl::StrFormat("all %d tokens of a lane would leave; at least 1 stays", map.live()));
    }
  }
  EvictReport report = Report(plan, session);
  report.loss = MeasurePlan(device, session, plan);
  if (request.dry_run) return report;
  FreeSlots(cache, plan);
  session.CountEvicted(MostLost(report.victims));
  return report;
}

}  // namespace ebb
