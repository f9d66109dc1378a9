// The world around a scheduler, for simulation: it keeps its own books of sessions and requests, hands every event to
// the scheduler, and holds every effect against what server/scheduler.h and fair_queue.h promise.
//
// It shares no code with the scheduler and never asks whose turn it is; where the header leaves a choice, any choice
// within the stated bound passes. A broken promise is a gtest failure, after which the world is not to be used.

#ifndef EBB_TESTS_PROPERTY_SCHEDULER_WORLD_H_
#define EBB_TESTS_PROPERTY_SCHEDULER_WORLD_H_

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "server/scheduler.h"

namespace ebb {

class World {
 public:
  struct Session {
    TenantId tenant = 0;
    int64_t pages = 0;
    std::set<int64_t> held = {};            // so many pages by number, some of which others hold, too
    std::optional<RequestId> request = {};  // live
    bool paused = false;                    // by SessionHeld
    bool closed = false;
  };
  struct Request {
    RequestArrived asked = {};
    TenantId tenant = 0;
    int64_t arrival = 0;  // counts admitted requests
    int32_t prompt_left = 0;
    int32_t decode_left = 0;
    absl::Time blocked_since = absl::InfiniteFuture();
    bool too_slow = false;  // its reader was, by the patience of that time
    bool paused = false;    // as its session
    bool cancelled = false;
    bool finished = false;  // the last StepDone said so
    bool started = false;
    bool in_flight = false;
    int64_t ready_step = 0;  // the first step that could have it
    int64_t waited = 0;      // steps that could have had it and did not, in a row
    int64_t ahead = 0;       // decodes of its tenant that may be older, counted when it began to wait
    int64_t overtaken = 0;   // decodes of its tenant that ran while it waited

    bool blocked() const { return blocked_since != absl::InfiniteFuture(); }
    bool runnable() const { return !in_flight && !blocked() && !paused; }
    int32_t next_tokens() const;
  };
  // What happened, so that a simulation can show that it met every situation.
  struct Tally {
    std::array<int64_t, 6> ends = {};      // by EndCause
    std::array<int64_t, 4> refusals = {};  // by RefuseReason
    int64_t steps = 0;
    int64_t crowded_steps = 0;      // more decodes than places
    int64_t block_first_steps = 0;  // a block before decodes that were waiting
    int64_t elbowed_steps = 0;      // and more than one, or one that was not due
    int64_t paced_steps = 0;        // a block was left for the pace alone
    int64_t decode_waited_max = 0;
  };

  explicit World(const SchedulerLimits& limits) : limits_(limits), scheduler_(limits) {}

  // REQUIRES: what server/scheduler.h requires of the event.
  void On(const Event& event, absl::Time now);

  const Scheduler& scheduler() const { return scheduler_; }
  const std::map<SessionId, Session>& sessions() const { return sessions_; }  // admitted and not released
  const std::map<RequestId, Request>& requests() const { return requests_; }  // admitted and not ended
  const std::vector<RunStep::Row>& in_flight() const { return in_flight_; }
  const Tally& tally() const { return tally_; }
  // Pages that somebody holds, each once.
  int64_t Held() const;
  // All effects so far as numbers, for comparing two runs.
  const std::vector<int64_t>& record() const { return record_; }
  // Tokens that ran for a tenant, by phase.
  int64_t tokens_run(TenantId tenant, StepPhase phase) const;
  // What they counted for its share.
  int64_t charged(TenantId tenant, StepPhase phase) const;

 private:
  // One of the two fair queues as seen from outside: what others took while a tenant was waiting in it.
  struct Gaps {
    std::map<TenantId, std::set<RequestId>> waiting = {};  // never an empty set
    std::map<TenantId, int64_t> tokens = {};  // taken by others since the tenant began to wait or last took

    void Count(std::map<TenantId, std::set<RequestId>> now);
  };

  void Note(const SessionArrived& event);
  void Note(const PagesCounted& event);
  void Note(const SessionResized& event);
  void Note(const SessionHeld& event);
  void Note(const SessionClosed& event);
  void Note(const RequestArrived& event);
  void Note(const Cancelled& event);
  void Note(const ReaderBlocked& event);
  void Note(const ReaderReady& event);
  void Note(const RowDone& event);
  void Note(const StepDone& event);
  void Note(const Draining& event);
  void Note(const TenantChanged& event);
  void Note(const LimitsChanged& event);
  void Note(const Tick& event);

  void Check(const Admit& admit);
  void Check(const Reject& refuse);
  void Check(const RunStep& step);
  void Check(const End& end);
  void Check(const Release& release);

  void CheckRow(const RunStep::Row& row);
  void CheckComposition(const RunStep& step, const std::vector<RequestId>& skipped);
  void CheckOrderInTenant(const RunStep& step, const std::vector<RequestId>& skipped);
  void CheckWaiting(const RunStep& step, const std::vector<RequestId>& skipped);
  void CountGaps();
  void CheckGap(const RunStep::Row& row, TenantId tenant);
  void CheckSettled();

  bool IsTooSlow(const Request& request) const;  // its reader
  bool MustEnd(const Request& request) const;
  int64_t Waiting() const;
  bool HasFew(TenantId tenant) const;
  int64_t Reserved() const;
  std::set<int64_t> HeldPages() const;
  void Hold(Session& session, int64_t pages);
  int32_t weight_now(TenantId tenant) const;
  int32_t weight_max(TenantId tenant) const;
  int32_t weight_min(TenantId tenant) const;
  // Tokens that other tenants may take before an entry of this one, all costing at most `cost_max` (fair_queue.h).
  int64_t OthersDue(TenantId tenant, int64_t cost_max) const;

  SchedulerLimits limits_;
  Scheduler scheduler_;
  absl::Time now_ = absl::InfinitePast();
  std::map<SessionId, Session> sessions_;
  std::map<RequestId, Request> requests_;
  std::optional<SessionArrived> session_asks_;  // not answered yet
  std::optional<RequestArrived> request_asks_;
  std::vector<RunStep::Row> in_flight_;
  bool draining_ = false;
  absl::Time drain_until_ = absl::InfiniteFuture();
  std::map<TenantId, std::pair<int32_t, int32_t>> weights_;  // smallest and largest so far
  std::map<TenantId, int32_t> weight_now_;
  std::set<TenantId> tenants_;  // that ever had a session
  std::set<RequestId> ended_;

  int64_t pages_made_ = 0;
  int64_t uncounted_ = 0;  // what the sum over the sessions is more than was last counted
  int64_t arrivals_ = 0;
  int64_t steps_ = 0;
  int64_t steps_without_block_ = 0;
  int64_t pace_ = std::numeric_limits<int32_t>::max();
  Gaps block_gaps_;
  Gaps decode_gaps_;
  std::map<std::pair<TenantId, StepPhase>, int64_t> tokens_run_;
  std::map<std::pair<TenantId, StepPhase>, int64_t> charged_;
  Tally tally_;
  std::vector<int64_t> record_;
};

}  // namespace ebb

#endif  // EBB_TESTS_PROPERTY_SCHEDULER_WORLD_H_
