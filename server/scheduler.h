// Decides what runs next; does nothing itself. The worker waits for an event, calls On, carries out the effects.
//
// No thread, clock, lock, I/O or randomness lives here, so a run is a function of its events: the same list gives the
// same effects. tests/property/scheduler_simulation_test.cc drives it through virtual time from a seed.
//
// Promises
//   reservation   pages_reserved <= pages_total; an admitted session keeps its pages until it is closed
//   answers       each arrival gets one Admit or Reject at once; each admitted request gets one End, and no row of it
//                 is in flight after that
//   step          at most one in flight; <= step_tokens_max tokens in <= step_rows_max rows, at most one row a request
//   blocks        prompt tokens are cut by block_size from the request's start; a row is one such block, never a part
//                 of one and never two
//   conserving    while no step is in flight, nothing is runnable
//   decodes first one token for every runnable decode, before any block; if they are too many they rotate, fair
//                 between tenants. Except: in any block_turn_steps steps during which a block waits, a block runs; to
//                 keep that, one block may go before the decodes, never in two steps running. And:
//   elbow room    where not all that could run has a row, a tenant with fewer decodes than its share of the rows, by
//                 weight among all of the highest tier that have something to run, has a block in the step before the
//                 decodes, if one waits. Blocks go in their fair order, so others' may come before it; all of them
//                 together take a quarter of the rows at most, and leave a token for each decode that then has a row.
//                 That ends at a block which does not fit so; one of step_tokens_max - step_rows_max tokens always
//                 does. So who asks little waits no longer for its prompt the more decodes a neighbour has
//   pace          while somebody waits for what follows a runnable decode, a step has one block, those of elbow room,
//                 and others only as long as all its tokens are at most StepDone::pace. Nobody does who closes the
//                 session behind that decode: it comes with the step's begin. Where the pace is less than
//                 step_tokens_max, elbow room is as in a crowded step: so a prompt that few are before waits for no
//                 more steps, whatever the pace
//   fair          blocks and decodes each go by the tier of their tenant (tiered_queue.h), within a tier by start-time
//                 fair queueing over tenants, then priority, then age (for a block that of its request, for a decode
//                 the time since its last token): fair_queue.h states the bounds. A block is charged as its tokens, or
//                 as a row's part of a step's tokens if that is more. Who comes, or comes back after others had their
//                 share of what it had, goes before those of its tier that were served before
//
// Nothing starves. Where all tenants are of one tier, let R = min(step_rows_max - step_rows_max / 4, step_tokens_max),
// W = the sum over all other tenants of their weight over the own one, rounded up, and one more of each, and n = the
// requests of the same tenant and phase that are ahead of it now, plus priority_places for each level of priority above
// its own. While it is runnable, a decode waits for at most F = (n + (n + 1) * W) / R steps that begin with decodes, so
// for at most F + ceil(F / (block_turn_steps - 1)) + 1 steps. A block waits for at most block_turn_steps steps for each
// block that its fair queue puts before it: the prompts of those n, and what other tenants are due meanwhile
// (fair_queue.h); requests that come later, but for priority, do not lengthen n. With tiers, what a tier waits for is
// what it would wait for alone, and in front of each of its rows what tiered_queue.h allows those above and below it.
// Requests of the lowest tier wait in three quarters of the queue alone; a tenant of the others that has few in it
// finds places when others have filled it (QueuePlaces).

#ifndef EBB_SERVER_SCHEDULER_H_
#define EBB_SERVER_SCHEDULER_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "server/tiered_queue.h"

namespace ebb {

using RequestId = uint64_t;  // unique over the life of a worker
using SessionId = uint64_t;

struct SchedulerLimits {
  int64_t pages_total = 0;                             // what all sessions together may reserve
  int32_t step_tokens_max = 512;                       // >= 1, and >= every request's block_size
  int32_t step_rows_max = 64;                          // >= 1
  int32_t block_turn_steps = 2;                        // >= 2; a waiting block runs at least once in so many steps
  int32_t queue_max = 256;                             // admitted requests that have not run a row yet
  int32_t priority_places = 64;                        // how many later arrivals one level of priority overtakes
  int32_t tier_floor = 16;                             // tokens of higher tiers for one of a lower one that waits
  absl::Duration reader_patience = absl::Seconds(30);  // then a blocked stream ends
  absl::Duration retry_min = absl::Milliseconds(100);  // bounds of the retry hint
  absl::Duration retry_max = absl::Seconds(30);
};

// Of a queue for `queue_max`, the places that a tenant finds which has `own` in it. Who has fewer than a sixteenth
// finds as many places again, so that nobody keeps others out by asking for much.
inline constexpr int64_t QueuePlaces(int64_t queue_max, int64_t own) {
  return 16 * own < queue_max ? 2 * queue_max : queue_max;
}

// After which who is refused by a server that drains may try again: long enough for who stands in front of it to
// notice.
inline constexpr absl::Duration kRetryElsewhere = absl::Seconds(1);

// Events. Those of callers about a request that has already ended are ignored: they race with the end of a stream.

// A session asks for its pages, the capacity of all its lanes. Answered under `id`.
struct SessionArrived {
  RequestId id = 0;
  SessionId session = 0;
  TenantId tenant = 0;
  int64_t pages = 0;  // >= 0
  int64_t shared =
      0;  // of these, such as other sessions have already; below 0 where copies promised to others cost more
};
// What all sessions reserve together, a page that several share counted once. Shared pages are copied, and a session
// that goes leaves those that others share: the sum over the sessions does not know.
struct PagesCounted {
  int64_t pages = 0;  // >= 0
};
// An admitted session has another number of pages from now on. REQUIRES: all sessions' together are at most
// pages_total, which the page pool has seen to; a session that is closed counts until its Release.
struct SessionResized {
  SessionId session = 0;
  int64_t pages = 0;  // >= 0
};
// From the next step on nothing of the session runs until it is held no more; its request keeps its deadline and its
// reader's patience. REQUIRES: admitted and not yet closed.
struct SessionHeld {
  SessionId session = 0;
  bool held = true;
};
// Ends the session's request, if any, with kSessionClosed, then answers Release. REQUIRES: admitted and not yet closed.
struct SessionClosed {
  SessionId session = 0;
};
// Work on an admitted session that has no other request: a prompt, in blocks, then decodes; either may be absent.
struct RequestArrived {
  RequestId id = 0;
  SessionId session = 0;
  int32_t priority = 0;  // 0 .. kPriorityMax, larger first
  int32_t prompt_tokens = 0;
  int32_t block_size = 128;   // 1 .. step_tokens_max, if there is a prompt
  int32_t decode_tokens = 0;  // rows of one token after the prompt, at most
  bool closes = false;        // its session is closed with it
  absl::Time deadline = absl::InfiniteFuture();
};
struct Cancelled {
  RequestId id = 0;
};
// The request's stream is full: it is not stepped until ReaderReady, and ends after reader_patience.
struct ReaderBlocked {
  RequestId id = 0;
};
struct ReaderReady {
  RequestId id = 0;
};
// A row of the step in flight, which has others, is complete before these, and its request over.
struct RowDone {
  RequestId id = 0;
};
// The step in flight is complete.
struct StepDone {
  std::vector<RequestId> finished = {};  // rows whose request is over before its last token: a stop, an error
  // Requests of which more of the prompt is in than their row brought, for some of it need not be run.
  struct Shortened {
    RequestId id = 0;
    int32_t prompt_left = 0;  // at most what was left
  };
  std::vector<Shortened> shortened = {};
  int32_t pace = std::numeric_limits<int32_t>::max();  // tokens that who is awaited has time for; from now on
};
// From now on arrivals are refused. Requests that have not run a row end; the others go on, but not beyond `until`.
struct Draining {
  absl::Time until = absl::InfiniteFuture();
};
// A tenant's share, 1 .. kWeightMax, among those of its tier; 1 and kNormal until set. The tier counts from each
// request's next row on.
struct TenantChanged {
  TenantId tenant = 0;
  int32_t weight = 1;
  Tier tier = Tier::kNormal;
};
// Those of SchedulerLimits that may change. Requests that wait beyond a smaller queue stay; a blocked stream ends after
// so long, also one that is blocked already.
struct LimitsChanged {
  int32_t queue_max = 0;  // >= 0
  absl::Duration reader_patience = {};
};
// Time has passed: next_wake() is due.
struct Tick {};

using Event =
    std::variant<SessionArrived, PagesCounted, SessionResized, SessionHeld, SessionClosed, RequestArrived, Cancelled,
                 ReaderBlocked, ReaderReady, RowDone, StepDone, Draining, TenantChanged, LimitsChanged, Tick>;

// Effects.

struct Admit {
  RequestId id = 0;  // of the session's or the request's arrival
};
enum class RefuseReason {
  kNoPages,    // not enough of them are free
  kTooLarge,   // more pages than there are in all; trying again cannot help
  kQueueFull,  // queue_max requests wait, and the tenant is no exception
  kDraining,
};
struct Reject {
  RequestId id = 0;
  RefuseReason reason = RefuseReason::kNoPages;
  std::optional<absl::Duration> retry_after = {};  // a hint from the work in hand; none where trying again cannot help
};
enum class StepPhase { kPrefill, kDecode };
struct RunStep {
  struct Row {
    RequestId id = 0;
    StepPhase phase = StepPhase::kDecode;
    int32_t tokens = 0;  // kDecode: 1; kPrefill: the next block of the prompt
  };
  std::span<const Row> rows = {};  // never empty; valid until RowDone or StepDone
};
enum class EndCause {
  kDone,  // all tokens ran, or RowDone or StepDone said so; wins over a cause that came during the same step
  kCancelled,
  kDeadline,
  kSlowReader,
  kSessionClosed,
  kDraining,
};
struct End {
  RequestId id = 0;
  EndCause cause = EndCause::kDone;
};
// The session's pages are free again: destroy it now. Comes before any Admit that counts on them.
struct Release {
  SessionId session = 0;
};
using Effect = std::variant<Admit, Reject, RunStep, End, Release>;

// What the scheduler holds, for metrics and GetStatus.
struct SchedulerLoad {
  int64_t pages_total = 0;
  int64_t pages_reserved = 0;
  int64_t sessions = 0;
  int64_t requests = 0;          // admitted and not ended; waiting and blocked ones included
  int64_t requests_waiting = 0;  // have not run a row yet
  int64_t requests_blocked = 0;  // their reader is slow
  bool step_in_flight = false;
  bool draining = false;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  // Appends to `effects`, in the order to carry out. REQUIRES: `now` never goes back. O(rows * log requests); a refusal
  // and Draining also O(requests).
  void On(const Event& event, absl::Time now, std::vector<Effect>& effects);

  // When Tick is due if nothing else happens; InfiniteFuture when there is nothing to wait for.
  absl::Time next_wake() const;

  // O(1): asked after every event.
  SchedulerLoad load() const;

  // When pages may be free again: the hint of a Reject with kNoPages. O(requests).
  absl::Duration RetryForPages() const { return *RetryAfter(RefuseReason::kNoPages); }

  // Checks every invariant, O(sessions + requests). Tests call it after each event.
  void CheckInvariants() const;

 private:
  struct Session {
    TenantId tenant = 0;
    int64_t pages = 0;
    std::optional<RequestId> request = {};
    bool held = false;    // its request is not runnable
    bool closed = false;  // waits for its row in flight
  };
  struct Request {
    SessionId session = 0;
    int32_t priority = 0;
    int64_t arrival = 0;      // counts up: its age among blocks
    int32_t prompt_left = 0;  // beyond the row in flight
    int32_t block_size = 1;
    int32_t decode_left = 0;  // likewise
    bool closes = false;
    absl::Time deadline = absl::InfiniteFuture();
    absl::Time blocked_since = absl::InfiniteFuture();  // infinite: the reader is ready
    absl::Time wake = absl::InfiniteFuture();           // its entry in wakes_, none if infinite
    std::optional<EndCause> ending = {};                // set while its last row is in flight
    bool started = false;
    bool in_flight = false;

    bool blocked() const { return blocked_since != absl::InfiniteFuture(); }
    bool done() const { return prompt_left == 0 && decode_left == 0; }
    // Somebody waits for what follows its next decode.
    bool is_awaited() const { return decode_left > (closes ? 1 : 0); }
    int32_t next_block() const { return std::min(prompt_left, block_size); }
    int64_t steps_left() const { return (int64_t{prompt_left} + block_size - 1) / block_size + decode_left; }
  };
  using Effects = std::vector<Effect>;

  void Handle(const SessionArrived& event, Effects& effects);
  void Handle(const PagesCounted& event, Effects& effects);
  void Handle(const SessionResized& event, Effects& effects);
  void Handle(const SessionHeld& event, Effects& effects);
  void Handle(const SessionClosed& event, Effects& effects);
  void Handle(const RequestArrived& event, Effects& effects);
  void Handle(const Cancelled& event, Effects& effects);
  void Handle(const ReaderBlocked& event, Effects& effects);
  void Handle(const ReaderReady& event, Effects& effects);
  void Handle(const RowDone& event, Effects& effects);
  void Handle(const StepDone& event, Effects& effects);
  void Handle(const Draining& event, Effects& effects);
  void Handle(const TenantChanged& event, Effects& effects);
  void Handle(const LimitsChanged& event, Effects& effects);
  void Handle(const Tick& event, Effects& effects);

  // Unless its session is held.
  void Enqueue(RequestId id, const Request& request);
  void Dequeue(RequestId id, const Request& request);
  bool HasPlace(TenantId tenant) const;
  void FindCramped();
  void SetWake(RequestId id, Request& request);
  void Stop(RequestId id, EndCause cause, Effects& effects);
  void EndNow(RequestId id, EndCause cause, Effects& effects);
  void ReleaseNow(SessionId id, Effects& effects);
  void Expire(Effects& effects);
  void StartStep(Effects& effects);
  std::optional<absl::Duration> RetryAfter(RefuseReason reason) const;

  SchedulerLimits limits_;
  absl::Time now_ = absl::InfinitePast();
  std::map<SessionId, Session> sessions_;
  std::map<RequestId, Request> requests_;
  int64_t pages_reserved_ = 0;  // by all sessions together
  int64_t pages_shared_ = 0;    // what the sum over the sessions counts more
  int64_t waiting_ = 0;         // requests that have not started
  int64_t blocked_ = 0;         // requests whose reader is slow

  TieredQueue blocks_;   // runnable requests with prompt left; cost: their next block
  TieredQueue decodes_;  // runnable requests without; cost 1
  int64_t awaited_ = 0;  // of these, those where is_awaited()
  int64_t arrivals_ = 0;
  int64_t turns_ = 0;                // counts entries into decodes_: their age
  int32_t steps_without_block_ = 0;  // in a row, while a block was waiting

  int32_t pace_ = std::numeric_limits<int32_t>::max();
  std::vector<TenantId> cramped_;  // FindCramped's: who is to have a block before others' decodes

  std::vector<RunStep::Row> in_flight_;  // empty: no step
  absl::Time step_start_ = absl::InfinitePast();
  absl::Duration step_mean_ = absl::ZeroDuration();  // exponential mean, a new step counts 1/8

  std::set<std::pair<absl::Time, RequestId>> wakes_;
  bool draining_ = false;
  absl::Time drain_until_ = absl::InfiniteFuture();
};

}  // namespace ebb

#endif  // EBB_SERVER_SCHEDULER_H_
