// Another policy on a warm cache: who stays, who leaves, and whether it may be (lane_work.h has what takes long).

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

// Puts other slot maps in the place of a session's while it lives.
class InPlace {
 public:
  InPlace(SessionCache& cache, SessionCache::Maps& maps) : cache_(cache), maps_(maps) { Exchange(); }
  ~InPlace() { Exchange(); }
  InPlace(const InPlace&) = delete;
  InPlace& operator=(const InPlace&) = delete;

 private:
  void Exchange() { maps_ = cache_.TakeMaps(std::move(maps_)); }

  SessionCache& cache_;
  SessionCache::Maps& maps_;
};

// FAILED_PRECONDITION LANES_DIFFER where Scope::kLayer finds lanes that hold different tokens.
absl::Status CheckLanesAgree(const ValidSpec& policy, const SessionCache& cache);

// Separates the lanes where `policy` has different rules for some that share a map.
void SeparateLanesThatDiffer(const ValidSpec& policy, SessionCache& cache);

// FAILED_PRECONDITION CACHE_TOO_LONG where `live` tokens are more than `limit`, and `next` evicts none of them.
absl::Status CheckLength(const ValidSpec& next, bool prunes, int32_t live, int32_t limit);

// Why lanes cannot share by the scores of a scorer whose state would begin empty.
absl::Status NoScoresToShareBy(const ValidSpec& next);

// Tokens that lanes may hold when `next` takes over, each by its own trigger.
std::vector<int32_t> KeptByLane(const SessionCache& cache, const ValidSpec& next, bool prunes);

// Every lane's rule by `scores`, by slot map, that `policy` gives to what lives now, with its budget as their mean.
// REQUIRES: policy.lanes_follow_scores(), and its budget is known.
std::vector<LaneRule> LanesFromScores(const SessionOnEngine& session, const ValidSpec& policy,
                                      std::span<const std::vector<float>> scores);

// The former policy, for a last choice that leaves every lane `keep` [lanes] tokens under the next one's protection.
ValidSpec FormerAt(const ValidSpec& former, const ValidSpec& next, std::span<const int32_t> keep);

// A plan by slot map, as one by lane; one for all lanes stays one.
Plan PerLane(Plan plan, const SessionCache& cache);

// Who sits in the slots of a plan by lane, or one for all lanes: every lane, in layer-major order.
std::vector<LaneVictims> VictimsOf(const SessionCache& cache, const Plan& plan);

// Frees the slots of a plan by lane, or one for all lanes, and separates lanes that no longer agree. Returns how many,
// all lanes together.
int64_t FreeSlots(SessionCache& cache, const Plan& plan);

}  // namespace ebb

#endif  // EBB_ENGINE_POLICY_SWAP_H_
