#include "engine/policy_change.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
constexpr PolicyChange::Stage PolicyChange::kStages[] = {
    &PolicyChange::Adopt,          &PolicyChange::ShareByScores, &PolicyChange::FindShape, &PolicyChange::Choose,
    &PolicyChange::ChooseByFormer, &PolicyChange::Measure,       &PolicyChange::Free};

PolicyChange::PolicyChange(const Device& device, const EngineLimits& limits, PagePool& pool, SessionOnEngine& session)
    : device_(device), limits_(limits), pool_(pool), session_(session) {}

absl::StatusOr<std::unique_ptr<PolicyChange>> PolicyChange::Begin(const Device& device, const EngineLimits& limits,
                                                                  PagePool& pool, SessionOnEngine& session,
                                                                  const ValidSpec& policy) {
  std::unique_ptr<PolicyChange> change(new PolicyChange(device, limits, pool, session));
  EBB_TRY(change->Check(policy));
  change->swap_ = {.length_before = session.cache_length(), .pages_before = session.pages()};
  change->maps_ = session.cache().CopyMaps();
  const InPlace in_place(session.cache(), change->maps_);
  SeparateLanesThatDiffer(change->next_, session.cache());
  EBB_TRY(CheckLanesAgree(change->next_, session.cache()));
  change->keep_ = KeptByLane(session.cache(), change->next_, change->prunes_);
  return change;
}

// Finds out what will be in force, and whether it may.
absl::Status PolicyChange::Check(const ValidSpec& policy) {
  EBB_TRY(session_.CheckSettled());
  if (policy.kv_type != session_.policy().kv_type || policy.rope_cache != session_.policy().rope_cache) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  "policy.cache: a session keeps the format it was created with; leave it out",
                  {.reason = "CACHE_FORMAT_FIXED", .field = "policy.cache"});
  }
  next_ = policy;
  if (session_.prompt_ended()) {
    EBB_ASSIGN(next_, FixBudget(policy, static_cast<int32_t>(session_.log().size())));
  }
  prunes_ =
      next_.evicts && next_.trigger.budget > 0 && (next_.schedule != Schedule::kOncePrompt || session_.prompt_ended());
  return CheckLength(next_, prunes_, session_.cache_length(), LengthLimit(next_, prompt(), limits_));
}

absl::Status PolicyChange::CheckSize() const {
  if (shape_.pages() <= pool_.pages_total()) return absl::OkStatus();
  return RefuseField("SESSION_TOO_LARGE", "policy.trigger.budget",
                     absl::StrFormat("the session would need %d pages, there are %d in all; use a smaller budget",
                                     shape_.pages(), pool_.pages_total()));
}

absl::StatusOr<bool> PolicyChange::Advance(int32_t lanes) {
  EBB_CHECK(lanes >= 1);
  if (stage_ == std::size(kStages)) return false;
  const InPlace in_place(session_.cache(), maps_);
  EBB_ASSIGN(const bool over, (this->*kStages[stage_])(lanes));
  if (over) ++stage_;
  return stage_ < std::size(kStages);
}

absl::StatusOr<bool> PolicyChange::Adopt(int32_t lanes) {
  if (!adoption_) adoption_.emplace(device_, session_, next_);
  if (!adoption_->Advance(lanes)) return false;
  swap_.state = adoption_->origin();
  adoption_.reset();
  return true;
}

absl::StatusOr<bool> PolicyChange::ShareByScores(int32_t lanes) {
  if (!next_.lanes_follow_scores() || !prunes_) return true;
  if (swap_.state == StateOrigin::kEmpty) return NoScoresToShareBy(next_);
  if (!ranking_) ranking_.emplace(device_, session_, next_, AllMaps(session_.cache()));
  if (!ranking_->AdvanceScores(lanes, scores_)) return false;
  ranking_.reset();
  next_.lanes = LanesFromScores(session_, next_, scores_);
  keep_ = KeptByLane(session_.cache(), next_, prunes_);
  return true;
}

absl::StatusOr<bool> PolicyChange::FindShape(int32_t /*lanes*/) {
  EBB_ASSIGN(shape_, ShapeFor({.policy = next_, .block_size_max = session_.block_size_max()}, prompt(), limits_));
  EBB_TRY(CheckSize());
  return true;
}

absl::StatusOr<bool> PolicyChange::Choose(int32_t lanes) {
  if (swap_.state == StateOrigin::kEmpty) return true;
  if (!choosing_) choosing_.emplace(device_, session_, next_, keep_);
  const absl::StatusOr<bool> over = choosing_->Advance(lanes);
  EBB_CHECK(over.ok());
  if (*over) plan_ = PerLane(std::move(choosing_->plan()), session_.cache());
  return *over;
}

// Who leaves where the next policy cannot tell yet: the former one's choice, on the maps that it left.
absl::StatusOr<bool> PolicyChange::ChooseByFormer(int32_t lanes) {
  if (swap_.state != StateOrigin::kEmpty) return true;
  // During a piece the session's own are in maps_.
  if (adopted_.maps.empty()) {
    adopted_ = session_.cache().TakeMaps(maps_);
    SeparateLanesThatDiffer(next_, session_.cache());
    former_ = FormerAt(session_.policy(), next_, keep_);
    choosing_.emplace(device_, session_, former_, keep_);
  }
  const absl::StatusOr<bool> over = choosing_->Advance(lanes);
  EBB_CHECK(over.ok());
  if (!*over) return false;
  plan_ = PerLane(std::move(choosing_->plan()), session_.cache());
  session_.cache().TakeMaps(std::move(adopted_));
  swap_.old_chose = std::ranges::any_of(plan_, [](const auto& victims) { return !victims.empty(); });
  return true;
}

absl::StatusOr<bool> PolicyChange::Measure(int32_t lanes) {
  if (!measuring_) measuring_.emplace(device_, session_, plan_);
  if (!measuring_->Advance(lanes)) return false;
  swap_.loss = measuring_->loss();
  return true;
}

absl::StatusOr<bool> PolicyChange::Free(int32_t /*lanes*/) {
  swap_.victims = VictimsOf(session_.cache(), plan_);
  swap_.slots_evicted = FreeSlots(session_.cache(), plan_);
  swap_.length_after = session_.cache_length();
  swap_.pages_after = shape_.pages();
  return true;
}

absl::StatusOr<PolicySwap> PolicyChange::Try(int64_t spare) {
  EBB_CHECK(stage_ == std::size(kStages));
  const InPlace in_place(session_.cache(), maps_);
  const int64_t growth = session_.cache().PagesToResize(shape_);
  EBB_TRY(pool_.Reserve(std::max<int64_t>(0, growth - spare)).status());
  return swap_;
}

absl::StatusOr<PolicySwap> PolicyChange::Commit() {
  EBB_CHECK(stage_ == std::size(kStages));
  PageLease more;
  {
    const InPlace in_place(session_.cache(), maps_);
    EBB_ASSIGN(more, pool_.Reserve(session_.cache().PagesToResize(shape_)));
  }
  session_.cache().TakeMaps(std::move(maps_));
  session_.CountEvicted(MostLost(swap_.victims));
  session_.cache().Resize(shape_, std::move(more), *device_.ops);
  session_.SetPolicy(next_, LengthLimit(next_, prompt(), limits_));
  return std::move(swap_);
}

}  // namespace ebb
