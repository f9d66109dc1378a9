// Another policy on a warm cache: what its scorer's state can start from, and what the change costs.

#ifndef EBB_ENGINE_POLICY_SWAP_H_
#define EBB_ENGINE_POLICY_SWAP_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/evictor.h"
#include "engine/engine.h"
#include "engine/ops.h"
#include "engine/session_on_engine.h"
#include "policies/spec.h"

namespace ebb {

// What the engine's parts of a session are read with.
struct Device {
  Ops* ops = nullptr;
  const Rope* rope = nullptr;
  RopeView rope_view = {};

  Candidates Of(const SessionOnEngine& session, const ValidSpec& policy, int32_t map) const {
    return {.policy = &policy,
            .cache = &session.cache(),
            .map = map,
            .tokens = static_cast<int32_t>(session.log().size()),
            .ops = ops,
            .rope = rope_view};
  }
};

// Victims, slots ascending: of each slot map, of each lane, or of all lanes alike, as is said.
using Plan = std::vector<std::vector<int32_t>>;

// Puts the slot maps of a session back when it goes, unless they are to be kept: what a trial, or a change that was
// refused in its midst, did to them never happened.
class MapsRestored {
 public:
  explicit MapsRestored(SessionCache& cache) : cache_(cache), before_(cache.CopyMaps()) {}
  ~MapsRestored() {
    if (!keeps_) cache_.TakeMaps(std::move(before_));
  }
  MapsRestored(const MapsRestored&) = delete;
  MapsRestored& operator=(const MapsRestored&) = delete;

  void Keep() { keeps_ = true; }
  // As they were.
  const SessionCache::Maps& before() const { return before_; }

 private:
  SessionCache& cache_;
  SessionCache::Maps before_;
  bool keeps_ = false;
};

// Keep scores of these slot maps under `policy`, [maps][slots], ranked on every host thread. REQUIRES: the maps are as
// AdoptPolicy left them.
std::vector<std::vector<float>> MapScores(const Device& device, const SessionOnEngine& session, const ValidSpec& policy,
                                          std::span<const int32_t> maps);

// Makes the session's maps what `policy` needs, and fills its scorer's states as well as can be, in this order: as they
// are, where scorer, parameters, reduction and scope stay, and the sinks where the state depends on them; from K, V and
// positions; from what the newest token attends to, where the scorer looks at the newest query alone; from the old
// scorer's scores; from that attention; empty. FAILED_PRECONDITION LANES_DIFFER where Scope::kLayer finds lanes that
// hold different tokens; nothing changes then.
absl::StatusOr<StateOrigin> AdoptPolicy(const Device& device, SessionOnEngine& session, const ValidSpec& policy);

// Separates the lanes where `policy` has different rules for some that share a map.
void SeparateLanesThatDiffer(const ValidSpec& policy, SessionCache& cache);

// FAILED_PRECONDITION CACHE_TOO_LONG where `live` tokens are more than `limit`, and `next` evicts none of them.
absl::Status CheckLength(const ValidSpec& next, bool prunes, int32_t live, int32_t limit);

// Why lanes cannot share by the scores of a scorer whose state would begin empty.
absl::Status NoScoresToShareBy(const ValidSpec& next);

// Tokens that lanes may hold when `next` takes over, each by its own trigger.
std::vector<int32_t> KeptByLane(const SessionCache& cache, const ValidSpec& next, bool prunes);

// Every lane's rule by the scores that `policy` gives to what lives now, with its budget as their mean. REQUIRES:
// policy.lanes_follow_scores(), its budget is known, and the maps are as AdoptPolicy left them.
std::vector<LaneRule> LanesByScores(const Device& device, const SessionOnEngine& session, const ValidSpec& policy);

// The slots, by slot map, that `policy` would free to bring every lane to `keep` [lanes] tokens. Where anybody would
// leave, it ranks every map, on every host thread. REQUIRES: the maps are
// as AdoptPolicy left them, and `keep` is the same for all lanes of a map. INVALID_ARGUMENT NOT_ENOUGH_CANDIDATES as
// ChooseVictims.
absl::StatusOr<Plan> PlanPruning(const Device& device, const SessionOnEngine& session, const ValidSpec& policy,
                                 std::span<const int32_t> keep);

// The former policy, for a last choice that leaves every lane `keep` [lanes] tokens under the next one's protection.
ValidSpec FormerAt(const ValidSpec& former, const ValidSpec& next, std::span<const int32_t> keep);

// A plan by slot map, as one by lane; one for all lanes stays one.
Plan PerLane(Plan plan, const SessionCache& cache);

// Who sits in the slots of a plan by lane, or one for all lanes: every lane, in layer-major order.
std::vector<LaneVictims> VictimsOf(const SessionCache& cache, const Plan& plan);

// Frees the slots of a plan by lane, or one for all lanes, and separates lanes that no longer agree. Returns how many,
// all lanes together.
int64_t FreeSlots(SessionCache& cache, const Plan& plan);

// What leaves with a plan by lane, or one for all lanes, measured on the newest token's attention, mean over the lanes.
// On every host thread.
Loss MeasurePlan(const Device& device, const SessionOnEngine& session, const Plan& plan);

}  // namespace ebb

#endif  // EBB_ENGINE_POLICY_SWAP_H_
