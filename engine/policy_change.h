// Another policy for a session, worked out on slot maps of its own, piece by piece, and put in force at once.

#ifndef EBB_ENGINE_POLICY_CHANGE_H_
#define EBB_ENGINE_POLICY_CHANGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/page_pool.h"
#include "engine/cache_work.h"
#include "engine/lane_work.h"
#include "engine/policy_swap.h"
#include "engine/session_on_engine.h"
#include "engine/session_shape.h"

namespace ebb {

class PolicyChange final : public PolicyWork {
 public:
  // `session`, `pool` and what `device` and `limits` point to outlive it. Refuses what Engine::SetPolicy refuses and is
  // known at once.
  static absl::StatusOr<std::unique_ptr<PolicyChange>> Begin(const Device& device, const EngineLimits& limits,
                                                             PagePool& pool, SessionOnEngine& session,
                                                             const ValidSpec& policy);

  absl::StatusOr<bool> Advance(int32_t lanes) override;
  absl::StatusOr<PolicySwap> Commit() override;
  absl::StatusOr<PolicySwap> Try(int64_t spare) override;

 private:
  // Each does a piece of its stage, with the maps that the work is on in the session's place, and says whether the
  // stage is over. They follow in this order.
  using Stage = absl::StatusOr<bool> (PolicyChange::*)(int32_t lanes);
  absl::StatusOr<bool> Adopt(int32_t lanes);
  absl::StatusOr<bool> ShareByScores(int32_t lanes);
  absl::StatusOr<bool> FindShape(int32_t lanes);
  absl::StatusOr<bool> Choose(int32_t lanes);
  absl::StatusOr<bool> ChooseByFormer(int32_t lanes);
  absl::StatusOr<bool> Measure(int32_t lanes);
  absl::StatusOr<bool> Free(int32_t lanes);
  static const Stage kStages[];

  PolicyChange(const Device& device, const EngineLimits& limits, PagePool& pool, SessionOnEngine& session);
  absl::Status Check(const ValidSpec& policy);
  absl::Status CheckSize() const;
  Prompt prompt() const { return session_.prompt_ended() ? Prompt::kEnded : Prompt::kAhead; }

  Device device_;
  EngineLimits limits_;
  PagePool& pool_;
  SessionOnEngine& session_;
  ValidSpec next_ = {};
  bool prunes_ = false;
  size_t stage_ = 0;
  SessionCache::Maps maps_ = {};  // that the work is on; the session's own during a piece
  std::optional<Adoption> adoption_ = {};
  std::optional<MapRanking> ranking_ = {};  // for the heads' shares
  std::vector<std::vector<float>> scores_ = {};
  std::vector<int32_t> keep_ = {};   // [lanes]
  ValidSpec former_ = {};            // the policy that chooses, where the next one cannot tell yet
  SessionCache::Maps adopted_ = {};  // meanwhile
  std::optional<Choosing> choosing_ = {};
  Plan plan_ = {};  // by lane, or one for all
  std::optional<Measuring> measuring_ = {};
  CacheShape shape_ = {};
  PolicySwap swap_ = {};
};

}  // namespace ebb

#endif  // EBB_ENGINE_POLICY_CHANGE_H_
