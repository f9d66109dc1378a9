#include "engine/evict_request.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/lane_work.h"
#include "policies/check.h"
#include "policies/registry.h"
#include "policies/status.h"

namespace ebb {
namespace {

absl::Status CheckForm(const EvictRequest& request) {
  const int choices =
      (request.range ? 1 : 0) + (request.keep ? 1 : 0) + (request.older_than ? 1 : 0) + (request.slots.empty() ? 0 : 1);
  if (choices != 1) {
    return RefuseField("EVICT_AMBIGUOUS", "what",
                       absl::StrFormat("%d of range, keep, older_than and slots are given; give one", choices));
  }
  if (request.range && (request.range->start < 0 || request.range->start >= request.range->end)) {
    return RefuseField(
        "RANGE_EMPTY", "range",
        absl::StrFormat("[%d, %d) holds no token; start must be below end", request.range->start, request.range->end));
  }
  if (request.keep && *request.keep < 1) {
    return RefuseField("KEEP_OUT_OF_RANGE", "keep.count", "at least 1 token stays");
  }
  if (request.older_than && *request.older_than < 0) {
    return RefuseField("NEGATIVE_VALUE", "older_than", absl::StrFormat("%d is below 0", *request.older_than));
  }
  return absl::OkStatus();
}

// The policy that decides: the session's own, or a named scorer's with its defaults, pruning to `keep`, which is every
// lane's share.
absl::StatusOr<ValidSpec> PolicyFor(const EvictRequest& request, const ValidSpec& policy,
                                    const CalibrationOr& calibration) {
  const std::string& name = request.scorer.empty() ? policy.scorer_name : request.scorer;
  const ScorerRow* const row = FindScorer(name);
  if (row == nullptr) return UnknownScorer("keep.scorer", name);
  if (!row->evicts) {
    return RefuseField("MEANINGLESS_COMBINATION", "keep.scorer",
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
    const std::string field = absl::StrFormat("slots.lanes[%d]", i);
    const bool no_layer = lane.layer < 0 || lane.layer >= shape.layers;
    if (no_layer || lane.head < 0 || lane.head >= shape.kv_heads) {
      return RefuseField("LANE_OUT_OF_RANGE", field + (no_layer ? ".layer" : ".head"),
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
        "LANES_MISSING", "slots.lanes",
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

class Eviction final : public EvictWork {
 public:
  Eviction(const EvictRequest& request, const Device& device, SessionOnEngine& session)
      : request_(request), device_(device), session_(session) {}

  absl::Status Begin(const CalibrationOr& calibration) {
    EBB_TRY(session_.CheckSettled());
    EBB_TRY(CheckForm(request_));
    if (request_.keep) {
      EBB_ASSIGN(policy_, PolicyFor(request_, session_.policy(), calibration));
      if (policy_.scorer == session_.policy().scorer) return absl::OkStatus();
      EBB_TRY(CheckLanesAgree(policy_, session_.cache()));
      maps_ = session_.cache().CopyMaps();
      adoption_.emplace(device_, session_, policy_);
    } else if (request_.range) {
      plan_ = PlanRange(session_, request_.range->start, request_.range->end);
    } else if (request_.older_than) {
      plan_ = PlanRange(session_, 0, static_cast<int32_t>(session_.log().size()) - *request_.older_than);
    } else {
      EBB_ASSIGN(plan_, PlanSlots(request_, session_));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance(int32_t lanes) override {
    EBB_CHECK(lanes >= 1);
    if (plan_.empty()) {
      EBB_TRY(Choose(lanes));
      return true;
    }
    if (!measuring_) {
      EBB_TRY(CheckSomebodyStays());
      report_ = Report(plan_, session_);
      measuring_.emplace(device_, session_, plan_);
    }
    if (!measuring_->Advance(lanes)) return true;
    report_.loss = measuring_->loss();
    return false;
  }

  const EvictReport& report() const override { return report_; }

  void Commit() override {
    EBB_CHECK(!request_.dry_run);
    FreeSlots(session_.cache(), plan_);
    session_.CountEvicted(MostLost(report_.victims));
  }

 private:
  // As the session's cache would be under the policy that decides.
  absl::Status Choose(int32_t lanes) {
    std::optional<InPlace> in_place;
    if (!maps_.maps.empty()) in_place.emplace(session_.cache(), maps_);
    if (adoption_) {
      if (!adoption_->Advance(lanes)) return absl::OkStatus();
      const StateOrigin origin = adoption_->origin();
      adoption_.reset();
      if (origin != StateOrigin::kEmpty) return absl::OkStatus();
      return Refuse(absl::StatusCode::kFailedPrecondition,
                    absl::StrFormat("keep.scorer: %s decides by what it saw of earlier steps, and this session "
                                    "runs %s, which gathered none of it",
                                    request_.scorer, session_.policy().scorer_name),
                    {.reason = "SCORER_HAS_NO_STATE", .field = "keep.scorer"});
    }
    if (!choosing_) {
      choosing_.emplace(device_, session_, policy_,
                        std::vector<int32_t>(session_.cache().shape().lanes(), *request_.keep));
    }
    const absl::StatusOr<bool> over = choosing_->Advance(lanes);
    if (!over.ok()) {
      return RefuseField("NOT_ENOUGH_CANDIDATES", "keep",
                         absl::StrFormat("%d: sinks %d and recent %d are protected; use at least their sum",
                                         *request_.keep, policy_.sinks, policy_.recent));
    }
    if (*over) plan_ = PerLane(std::move(choosing_->plan()), session_.cache());
    return absl::OkStatus();
  }

  absl::Status CheckSomebodyStays() const {
    const SessionCache& cache = session_.cache();
    for (int32_t lane = 0; lane < cache.shape().lanes(); ++lane) {
      const int32_t live = cache.map_of(lane).live();
      if (live > 0 && static_cast<int32_t>(plan_[plan_.size() == 1 ? 0 : lane].size()) == live) {
        return RefuseField("NOTHING_WOULD_STAY", "what",
                           absl::StrFormat("all %d tokens of a lane would leave; at least 1 stays", live));
      }
    }
    return absl::OkStatus();
  }

  const EvictRequest request_;
  const Device device_;
  SessionOnEngine& session_;
  ValidSpec policy_ = {};         // that decides, with `keep`
  SessionCache::Maps maps_ = {};  // under another scorer than the session's; empty: its own
  std::optional<Adoption> adoption_ = {};
  std::optional<Choosing> choosing_ = {};
  Plan plan_ = {};  // by lane, or one for all; empty: not yet chosen
  std::optional<Measuring> measuring_ = {};
  EvictReport report_ = {};
};

}  // namespace

absl::StatusOr<std::unique_ptr<EvictWork>> BeginEvictOf(const EvictRequest& request, const Device& device,
                                                        const CalibrationOr& calibration, SessionOnEngine& session) {
  auto eviction = std::make_unique<Eviction>(request, device, session);
  EBB_TRY(eviction->Begin(calibration));
  return eviction;
}

}  // namespace ebb
