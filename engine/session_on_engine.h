// The session as the engine sees it: the log, the cache, and the policy in force.

#ifndef EBB_ENGINE_SESSION_ON_ENGINE_H_
#define EBB_ENGINE_SESSION_ON_ENGINE_H_

#include <cstdint>
#include <memory>
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

// An edit that was begun, and whose tokens were not all run yet.
struct PendingEdit {
  bool in_place = false;           // the log is the edited one already; else it grows as tokens are run
  std::vector<int32_t> log = {};   // the edited log
  std::vector<int32_t> work = {};  // indices in it of the tokens to run, ascending
  size_t done = 0;                 // of these
  size_t seated = 0;               // of the step in flight
  // [maps][work] whether a token that does not live in the map's lanes is to stay there once it was run.
  std::vector<std::vector<bool>> stays = {};
  std::vector<std::vector<int32_t>> leaving = {};  // [maps] slots that the step's visitors leave, ascending
  // [maps] states [tracks, slot_floats] that tokens which stay begin with; empty: with nothing.
  std::vector<std::vector<float>> states = {};

  std::span<const int32_t> Next(size_t count) const { return std::span(work).subspan(done, count); }
};

// What a session is beside its policy and its cache.
struct SessionState {
  std::vector<int32_t> log = {};
  int32_t next_position = 0;  // of the next token, with original positions
  int64_t evicted = 0;
  bool prompt_ended = false;
  int32_t decode_steps = 0;  // since the policy last ran; a prefill block of more than one token always runs it
  std::vector<float> last_queries = {};
  int32_t stale_from = kNothingStale;  // index of the first token whose K and V may be another text's
};

// A session's cache where another device computes it (gpu/placed_engine.h). While it is newer, what the session's own
// slot maps say is what was before, and goes back to what is when the cache comes home.
class CacheElsewhere {
 public:
  virtual ~CacheElsewhere() = default;
  virtual bool is_newer() const = 0;
  virtual int32_t live(int32_t lane) const = 0;  // tokens there, by the model's count of lanes
  virtual bool is_lost() const = 0;              // with its device
};

class SessionOnEngine final : public Session {
 public:
  // `length_limit`: most live tokens while the policy does not evict.
  SessionOnEngine(const ValidSpec& policy, SessionCache cache, int32_t block_size_max, int32_t length_limit);
  // One that goes on where another was.
  SessionOnEngine(const ValidSpec& policy, SessionCache cache, int32_t block_size_max, int32_t length_limit,
                  SessionState state);

  // The same session on the same pages, with a future of its own. REQUIRES: CheckSettled.
  std::unique_ptr<SessionOnEngine> Fork() const;

  const ValidSpec& policy() const override { return policy_; }
  std::span<const int32_t> log() const override { return log_; }
  int32_t cache_length() const override;
  int64_t live_slots() const override;
  int32_t capacity() const override { return cache_.shape().capacity; }
  int64_t pages() const override { return cache_.pages(); }
  int64_t shared_pages() const override { return cache_.shared_pages(); }
  int64_t evicted() const override { return evicted_; }
  int32_t position_max() const override;
  int32_t room() const override;
  int32_t steps_to_eviction() const override;
  int32_t draft_tokens() const override { return static_cast<int32_t>(draft_.tokens.size()); }
  int32_t edit_left() const override { return static_cast<int32_t>(edit_.work.size() - edit_.done); }
  absl::Status CheckSettled() const override;
  bool on_device() const override { return elsewhere_ != nullptr; }
  bool is_lost() const override { return elsewhere_ != nullptr && elsewhere_->is_lost(); }
  absl::Status CanAppend(int32_t tokens) const override;

  // Null: the cache is here alone.
  CacheElsewhere* elsewhere() const { return elsewhere_.get(); }
  void SetElsewhere(std::unique_ptr<CacheElsewhere> elsewhere) { elsewhere_ = std::move(elsewhere); }
  // Appends to the log what another device has run, in a step in which `evicted` tokens left each lane. REQUIRES:
  // CanAppend before that step; the cache elsewhere is newer.
  void AppendElsewhere(std::span<const int32_t> tokens, int32_t evicted);

  SessionCache& cache() { return cache_; }
  const SessionCache& cache() const { return cache_; }

  // Appends to the log and seats the tokens in every lane. REQUIRES: CanAppend.
  void Append(std::span<const int32_t> tokens);

  // Goes on, with an empty log so far, where another session of this policy and shape was after blocks of more than one
  // token: `log` and what it was then. REQUIRES: the log is empty.
  void BeginAt(std::span<const int32_t> log, const SessionCache::Kept& cache, std::span<const float> last_queries,
               int64_t evicted);

  // Seats a draft behind the log for one step, and frees its slots again. REQUIRES: CanAppend.
  Draft& SeatDraft(std::span<const int32_t> tokens);
  void UnseatDraft();
  // The draft that waits, which then no longer does.
  Draft TakeDraft() { return std::exchange(draft_, {}); }
  // Appends one of its tokens, with K, V and queries. REQUIRES: those before it were appended, and nothing else.
  void Keep(const Draft& draft, int32_t token, Ops& ops);

  // The log and the cache as the plan has them before its first token is run. REQUIRES: the plan is of this session, as
  // it stands.
  void StartEdit(const EditPlan& plan);
  // With what tokens that an edit brings into a map's lanes begin.
  void SetNewcomersState(int32_t map, std::vector<float> states) { edit_.states[map] = std::move(states); }
  // Seats the next tokens of the edit for one step. REQUIRES: they are `tokens`, at most block_size_max().
  void SeatEdit(std::span<const int32_t> tokens);
  // After that step: who only visited a lane leaves it. The last one ends the edit.
  void CloseEditStep();
  // Ends the edit behind the last token that was run: what follows leaves log and cache.
  void AbandonEdit();
  // Log and cache end behind the first `tokens` of the log.
  void Rewind(int32_t tokens);
  bool edits_in_place() const { return edit_.in_place; }
  // Index of the first token whose K and V may be those of another text (EditPlan).
  int32_t stale_from() const { return stale_from_; }

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
  int32_t length_limit() const { return length_limit_; }
  int32_t next_position() const { return next_position_; }
  // Decode steps since a block came or the policy was put in force.
  int32_t steps_since_policy() const { return decode_steps_; }
  bool prompt_ended() const { return prompt_ended_; }

  // The newest token's queries, unrotated: [lanes, query heads, head_dim]. With them anyone can ask at any time what
  // the session attends to. Empty before the first step.
  std::vector<float>& last_queries() { return last_queries_; }
  const std::vector<float>& last_queries() const { return last_queries_; }
  // Logits of the newest token that a device kept, come home with the cache; empty where none did, or they were taken.
  std::vector<float>& kept_logits() { return kept_logits_; }
  // The RoPE position of the newest token, live or not.
  int32_t last_position(const SlotMap& map) const {
    return map.positions() == Positions::kOriginal ? next_position_ - 1 : map.live() - 1;
  }

  // As Engine states it; moves nothing when it refuses.
  absl::Status ShiftPositions(int32_t from, int32_t delta);

 private:
  bool is_away() const { return elsewhere_ != nullptr && elsewhere_->is_newer(); }
  int32_t live_of(int32_t map) const {
    return is_away() ? elsewhere_->live(cache_.first_lane(map)) : cache_.maps()[static_cast<size_t>(map)].live();
  }
  void BoundBudget();
  void Replace(const EditPlan& plan);
  void CountStep(int32_t tokens);

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
  std::vector<float> kept_logits_ = {};
  Draft draft_ = {};
  PendingEdit edit_ = {};
  int32_t stale_from_ = kNothingStale;
  std::unique_ptr<CacheElsewhere> elsewhere_ = {};
};

}  // namespace ebb

#endif  // EBB_ENGINE_SESSION_ON_ENGINE_H_
