// The session as the engine sees it: the log, the cache, and the policy in force.

#ifndef EBB_ENGINE_SESSION_ON_ENGINE_H_
#define EBB_ENGINE_SESSION_ON_ENGINE_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/session_cache.h"
#include "engine/engine.h"

namespace ebb {

// Tokens that were run and wait for a verdict. Their K and V lie in slots that are free: nobody sees them there, and
// nobody takes these slots before the verdict, so to reject a draft is to forget it.
struct Draft {
  std::vector<int32_t> tokens = {};
  std::vector<int32_t> slots = {};  // [maps, tokens] where their K and V lie
  std::vector<float> queries = {};  // [tokens, lanes, query heads, head_dim], unrotated

  int32_t slot(size_t map, size_t token) const { return slots[map * tokens.size() + token]; }
  std::span<const float> queries_of(size_t token) const {
    const size_t floats = queries.size() / tokens.size();
    return std::span<const float>(queries).subspan(token * floats, floats);
  }
};

class SessionOnEngine final : public Session {
 public:
  // `length_limit`: most live tokens while the policy does not evict.
  SessionOnEngine(const ValidSpec& policy, SessionCache cache, int32_t block_size_max, int32_t length_limit);

  const ValidSpec& policy() const override { return policy_; }
  std::span<const int32_t> log() const override { return log_; }
  int32_t cache_length() const override;
  int64_t live_slots() const override;
  int32_t capacity() const override { return cache_.shape().capacity; }
  int64_t pages() const override { return cache_.pages(); }
  int64_t evicted() const override { return evicted_; }
  int32_t position_max() const override;
  int32_t room() const override;
  int32_t steps_to_eviction() const override;
  int32_t draft_tokens() const override { return static_cast<int32_t>(draft_.tokens.size()); }
  absl::Status CheckSettled() const override;
  absl::Status CanAppend(int32_t tokens) const override;

  SessionCache& cache() { return cache_; }
  const SessionCache& cache() const { return cache_; }

  // Appends to the log and seats the tokens in every lane. REQUIRES: CanAppend.
  void Append(std::span<const int32_t> tokens);

  // Seats a draft behind the log for one step, and frees its slots again. REQUIRES: CanAppend.
  Draft& SeatDraft(std::span<const int32_t> tokens);
  void UnseatDraft();
  // The draft that waits, which then no longer does.
  Draft TakeDraft() { return std::exchange(draft_, {}); }
  // Appends one of its tokens, with K, V and queries. REQUIRES: those before it were appended, and nothing else.
  void Keep(const Draft& draft, int32_t token, Ops& ops);

  // The first prompt has ended: a budget_ratio becomes a budget, or waits on where the one it gives is too small or
  // more than was reserved.
  absl::Status EndPrompt();

  // The lanes' budgets, where they follow from scores.
  void SetLanes(std::vector<LaneRule> lanes) { policy_.lanes = std::move(lanes); }

  // After the policy ran for the first prompt: what its schedule makes of it from here on.
  void PromptEvicted();

  void CountEvicted(int32_t tokens) { evicted_ += tokens; }

  // Tokens that the policy takes from the lanes of a map after this step: 0 unless its schedule and its trigger say so.
  int32_t TokensDue(int32_t map) const;

  // Puts another policy in force. The cache has adopted it already.
  void SetPolicy(const ValidSpec& policy, int32_t length_limit);

  int32_t block_size_max() const { return block_size_max_; }
  // Decode steps since a block came or the policy was put in force.
  int32_t steps_since_policy() const { return decode_steps_; }
  bool prompt_ended() const { return prompt_ended_; }

  // The newest token's queries, unrotated: [lanes, query heads, head_dim]. With them anyone can ask at any time what
  // the session attends to. Empty before the first step.
  std::vector<float>& last_queries() { return last_queries_; }
  const std::vector<float>& last_queries() const { return last_queries_; }
  // The RoPE position of the newest token, live or not.
  int32_t last_position(const SlotMap& map) const {
    return map.positions() == Positions::kOriginal ? next_position_ - 1 : map.live() - 1;
  }

  // As Engine states it; moves nothing when it refuses.
  absl::Status ShiftPositions(int32_t from, int32_t delta);

 private:
  void BoundBudget();

  ValidSpec policy_;
  SessionCache cache_;
  int32_t block_size_max_ = 0;
  int32_t length_limit_ = 0;
  std::vector<int32_t> log_ = {};
  int32_t next_position_ = 0;  // of the next token, with original positions
  int64_t evicted_ = 0;
  bool prompt_ended_ = false;
  int32_t decode_steps_ = 0;  // since the policy last ran; a prefill block of more than one token always runs it
  bool block_step_ = false;
  std::vector<float> last_queries_ = {};
  Draft draft_ = {};
};

}  // namespace ebb

#endif  // EBB_ENGINE_SESSION_ON_ENGINE_H_
