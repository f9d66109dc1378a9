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

// Victims of each map of the session, slots ascending.
using Plan = std::vector<std::vector<int32_t>>;

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

// The scorer that decides, and whether it is made for this call only.
absl::StatusOr<std::shared_ptr<const Scorer>> ScorerFor(const EvictRequest& request, const ValidSpec& policy) {
  if (request.scorer.empty() || request.scorer == policy.scorer_name) return policy.scorer;
  const ScorerRow* row = FindScorer(request.scorer);
  if (row == nullptr) {
    std::string known;
    for (const ScorerRow& each : ScorerRegistry())
      known += absl::StrFormat("%s%s", known.empty() ? "" : ", ", each.name);
    return Refuse(absl::StatusCode::kNotFound,
                  absl::StrFormat("evict.keep.scorer: no scorer named '%s'; use %s", request.scorer, known),
                  {.reason = "UNKNOWN_SCORER", .field = "evict.keep.scorer"});
  }
  EBB_ASSIGN(const ScorerParameters parameters, ResolveParameters(*row, {}));
  std::shared_ptr<const Scorer> scorer = row->make(parameters);
  if (scorer->needs().any() || scorer->needs().state_floats > 0) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("evict.keep.scorer: %s decides by what attention showed it, and this session runs "
                                  "%s, which gathered none of it",
                                  request.scorer, policy.scorer_name),
                  {.reason = "SCORER_HAS_NO_STATE", .field = "evict.keep.scorer"});
  }
  return scorer;
}

absl::StatusOr<Plan> PlanKeep(const EvictRequest& request, const SessionOnEngine& session) {
  const ValidSpec& policy = session.policy();
  EBB_ASSIGN(const std::shared_ptr<const Scorer> scorer, ScorerFor(request, policy));
  // Protection that was not given follows the budget, and `keep` is the budget here.
  const ScorerRow* const row = FindScorer(policy.scorer_name);
  EBB_CHECK(row != nullptr);
  const bool follows = policy.recent_follows_budget && row->recent != nullptr;
  const int32_t recent = follows ? row->recent(*request.keep, policy.sinks) : policy.recent;
  Plan plan;
  EvictScratch scratch;
  for (const SlotMap& map : session.cache().maps()) {
    const int32_t count = std::max(0, map.live() - *request.keep);
    const absl::Status chosen =
        ChooseVictims(*scorer, map.view(policy.sinks, recent),
                      scorer == policy.scorer ? map.state() : std::span<const float>(), count, scratch);
    if (!chosen.ok()) {
      return RefuseField("NOT_ENOUGH_CANDIDATES", "evict.keep",
                         absl::StrFormat("%d: sinks %d and recent %d are protected; use at least their sum",
                                         *request.keep, policy.sinks, recent));
    }
    plan.push_back(scratch.victims);
  }
  return plan;
}

// Every live token with start <= index < end.
Plan PlanRange(const SessionOnEngine& session, int32_t start, int32_t end) {
  Plan plan;
  for (const SlotMap& map : session.cache().maps()) {
    std::vector<int32_t>& victims = plan.emplace_back();
    for (int32_t slot = 0; slot < map.end(); ++slot) {
      const int32_t token = map.token()[slot];
      if (token >= 0 && token >= start && token < end) victims.push_back(slot);
    }
  }
  return plan;
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

EvictReport Report(const Plan& plan, const SessionOnEngine& session) {
  const SessionCache& cache = session.cache();
  EvictReport report;
  report.length_before = session.cache_length();
  for (int32_t layer = 0; layer < cache.shape().layers; ++layer) {
    for (int32_t head = 0; head < cache.shape().kv_heads; ++head) {
      const size_t lane = static_cast<size_t>(layer) * cache.shape().kv_heads + head;
      const SlotMap& map = cache.map(layer, head);
      EvictReport::Victims& victims = report.victims.emplace_back(EvictReport::Victims{.layer = layer, .head = head});
      const std::vector<int32_t>& slots = plan[plan.size() == 1 ? 0 : lane];
      for (const int32_t slot : slots) victims.tokens.push_back(map.token()[slot]);
      std::sort(victims.tokens.begin(), victims.tokens.end());
      report.slots_evicted += static_cast<int64_t>(slots.size());
      report.length_after = std::max(report.length_after, map.live() - static_cast<int32_t>(slots.size()));
    }
  }
  return report;
}

}  // namespace

absl::StatusOr<EvictReport> CarryOut(const EvictRequest& request, SessionOnEngine& session) {
  EBB_TRY(CheckForm(request));
  Plan plan;
  if (request.keep) {
    EBB_ASSIGN(plan, PlanKeep(request, session));
  } else if (request.range) {
    plan = PlanRange(session, request.range->start, request.range->end);
  } else if (request.older_than) {
    plan = PlanRange(session, 0, static_cast<int32_t>(session.log().size()) - *request.older_than);
  } else {
    EBB_ASSIGN(plan, PlanSlots(request, session));
  }
  SessionCache& cache = session.cache();
  // The same slots in every lane need no map for each.
  const bool alike = std::all_of(plan.begin(), plan.end(), [&](const auto& lane) { return lane == plan.front(); });
  if (cache.shared() && alike) plan.resize(1);
  for (size_t i = 0; i < plan.size(); ++i) {
    const SlotMap& map = cache.maps()[cache.maps().size() == 1 ? 0 : i];
    if (map.live() > 0 && static_cast<int32_t>(plan[i].size()) == map.live()) {
      return RefuseField("NOTHING_WOULD_STAY", "evict",
                         absl::StrFormat("all %d tokens of a lane would leave; at least 1 stays", map.live()));
    }
  }
  EvictReport report = Report(plan, session);
  if (request.dry_run) return report;
  if (plan.size() > cache.maps().size()) cache.SeparateLanes();
  int32_t most = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    cache.maps()[i].Free(plan[i]);
    most = std::max(most, static_cast<int32_t>(plan[i].size()));
  }
  session.CountEvicted(most);
  return report;
}

}  // namespace ebb
