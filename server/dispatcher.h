// Serves sessions with an engine, one step at a time: carries out what the scheduler decides.
//
// Owns the engine, the scheduler, the sessions and the calls on them; one thread calls (server/worker.h), and nothing
// here locks, waits or knows gRPC. A call's life: Start admits it or ends it; every row of RunStep runs one block of
// its prompt, or one token that is drawn, run and sent; its End comes once, whatever ends it, and after that the
// session is free for the next call.

#ifndef EBB_SERVER_DISPATCHER_H_
#define EBB_SERVER_DISPATCHER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/cache_work.h"
#include "engine/drafter.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/snapshot/session_image.h"
#include "server/answer_text.h"
#include "server/call.h"
#include "server/clock.h"
#include "server/journal.h"
#include "server/metrics.h"
#include "server/model_drafter.h"
#include "server/scheduler.h"
#include "server/sessions.h"
#include "server/shadows.h"
#include "server/tenants.h"
#include "server/watchers.h"

namespace ebb {

struct DispatcherOptions {
  int32_t step_rows_max = 64;
  int32_t queue_max = 4096;  // calls that wait or run
  int32_t sessions_max = 100000;
  int32_t watchers_max = 64;  // of evictions, of all tenants
  absl::Duration reader_patience = absl::Seconds(60);
  int32_t measure_every = 16;  // of a session's steps that evict, how many for one whose loss is measured; 0: none is
  // Of the time that the last step took, how much a piece of work on a cache may take before the next one: what is
  // begun is finished beyond that, a lane for each thread. 0: so many lanes a piece.
  double work_share = 0.5;
  ShadowOptions shadow = {};
  Engine* draft_engine = nullptr;  // of the draft model (server/draft_model.h); outlives the dispatcher; null: none
  ValidSpec draft_policy = {};     // of its caches
  TenantTable tenants = {};
  Journal* journal = nullptr;     // where sessions are journaled; outlives the dispatcher; null: they are not
  int64_t snapshot_every = 1024;  // tokens of a session's journal before a snapshot takes its place
};

// A session as GetSession shows it.
struct SessionInfo {
  SessionRequest request = {};
  ValidSpec policy = {};  // in force: a budget_ratio may be fixed by now
  bool busy = false;
  uint64_t generation = 0;
  int64_t tokens = 0;
  int32_t cache_length = 0;
  int32_t cache_capacity = 0;
  int64_t reserved_bytes = 0;
  int64_t shared_bytes = 0;  // of these, in pages that other sessions have, too
  int64_t used_bytes = 0;
  int64_t live_slots = 0;  // of all lanes
  int64_t evicted = 0;
  int32_t draft_tokens = 0;  // that wait
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  absl::Time created = {};
  absl::Time last_used = {};
};

struct EvictOutcome {
  EvictReport report = {};
  int64_t bytes = 0;
  uint64_t generation = 0;
};

struct AcceptOutcome {
  CallUsage usage = {};
  uint64_t generation = 0;
};

// A policy to put in force.
struct PolicyRequest {
  ValidSpec policy = {};
  bool own_kv_type = false;     // the session's, in the place of policy.kv_type
  bool own_rope_cache = false;  // likewise
  bool dry_run = false;
};

// A branch of a session.
struct ForkRequest {
  std::string tenant = {};
  std::string session = {};  // id of the one that is forked
  std::optional<uint64_t> expected_generation = {};
  uint64_t made_for = 0;  // SessionView::id that `sampling` was made from
  std::string id = {};    // of the branch
  std::optional<PolicyRequest> policy = {};
  SamplingOptions sampling = {};
  std::optional<absl::Duration> ttl = {};  // else the session's
  std::string request_id = {};
  bool reserve_copies = false;
};

struct PolicyOutcome {
  std::string session = {};  // its id
  PolicySwap swap = {};
  ValidSpec policy = {};  // in force after the call
  uint64_t generation = 0;
};

// What the server knows of a session beside its cache, on its way to the store and back. Of the request count sampling
// and ttl.
struct SavedSession {
  SessionRequest request = {};
  std::vector<float> logits = {};  // of the log's last token; empty while the log is
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t evicting_steps = 0;
  bool past_context = false;
  // What a session has that goes on under its own name, and one that begins from it has not.
  struct Past {
    uint64_t generation = 1;
    absl::Time created = {};
  };
  std::optional<Past> past = {};
};

// What a session is brought back from.
struct SessionPast {
  SavedSession saved = {};
  SessionImage image = {};
  std::vector<JournalRecord> records = {};   // what it did since then
  std::optional<JournalPlace> journal = {};  // where those are, and what it does goes on; empty: nowhere
};

struct SaveOutcome {
  SavedSession session = {};
  SnapshotWriter snapshot = {};  // the engine's records
  uint64_t generation = 0;
  int64_t tokens = 0;
};

struct CacheDescription {
  int32_t capacity = 0;
  int64_t session_tokens = 0;
  uint64_t generation = 0;
  std::vector<LaneReport> lanes = {};
};

// What the server has done and holds.
struct WorkTotals {
  EngineMemory memory = {};
  SchedulerLoad load = {};
  int64_t used_bytes = 0;
  int64_t steps = 0;
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t evicted_tokens = 0;
};

// Who waits for what the dispatcher does in pieces.
template <typename Answer>
struct Asker {
  absl::AnyInvocable<void(absl::StatusOr<Answer>)> answer = {};  // once
  absl::AnyInvocable<bool()> is_gone = [] {
    return false;
  };  // cancelled, or past the deadline: what goes on is dropped
};

class Dispatcher {
 public:
  // `engine` and `metrics` outlive the dispatcher.
  Dispatcher(Engine& engine, const DispatcherOptions& options, Metrics& metrics);
  ~Dispatcher();  // REQUIRES: no call is left

  // Any thread.
  absl::StatusOr<SessionView> Look(const std::string& tenant, const std::string& id) const;

  // Calls. `output` gets its End in any case, perhaps at once; it lives until then.
  void Start(CallId id, CallRequest request, CallOutput& output);
  // A call that is over is not an error: news may come late.
  void Cancel(CallId id);
  void ReaderReady(CallId id);

  // Opens a session, or returns the one that the same request_id opened. Errors: those of Sessions::CheckRoom, and
  // RESOURCE_EXHAUSTED where a quota of the tenant says so (server/quota.h), as of calls and watches; UNAVAILABLE
  // NO_PAGES or DRAINING with RetryInfo; INVALID_ARGUMENT SESSION_TOO_LARGE when it needs more pages than there are.
  absl::StatusOr<SessionInfo> Create(const SessionRequest& request);
  // Opens a branch of a session, which stays as it is, or returns the session that the same request_id opened. ABORTED
  // SESSION_BUSY or GENERATION_MISMATCH, and what Create and Engine::ForkSession refuse.
  absl::StatusOr<SessionInfo> Fork(const ForkRequest& request);
  absl::StatusOr<SessionInfo> Get(const std::string& tenant, const std::string& id);
  std::vector<SessionInfo> List(const std::string& tenant, const std::string& after, size_t count) const;
  // Bytes given back: those that no other session shares. ABORTED GENERATION_MISMATCH.
  absl::StatusOr<int64_t> Delete(const std::string& tenant, const std::string& id, std::optional<uint64_t> expected);

  // Between two steps: keeps the first `count` tokens of the draft that waits, and forgets the others. ABORTED
  // SESSION_BUSY or GENERATION_MISMATCH, FAILED_PRECONDITION NO_DRAFT, INVALID_ARGUMENT OUT_OF_RANGE.
  absl::StatusOr<AcceptOutcome> Accept(const std::string& tenant, const std::string& id,
                                       std::optional<uint64_t> expected, uint32_t count);
  // Work on a session's cache: one at a time, in pieces, of which Work does one before each step. Meanwhile the session
  // is held: its call, or one that begins, waits, while others take their steps. Until the last piece the session is as
  // it was, so an asker that is gone (CANCELLED CALL_CANCELLED) or a session that is deleted (CANCELLED
  // SESSION_DELETED) leaves it so. Errors come through the asker: NOT_FOUND UNKNOWN_SESSION, ABORTED
  // GENERATION_MISMATCH, and those named. REQUIRES: !has_work().
  //
  // Whoever writes to the session, unless it edits: ABORTED SESSION_BUSY. What Engine::SetPolicy refuses. A dry run
  // changes nothing; it counts on the pages of shadows, which the change itself would drop for them.
  void SetPolicy(const std::string& tenant, const std::string& id, std::optional<uint64_t> expected,
                 const PolicyRequest& request, Asker<PolicyOutcome> asker);
  // ABORTED SESSION_BUSY, and what Engine::Evict refuses. INVALID_ARGUMENT ANSWER_TOO_LARGE where more than
  // `victims_max` slots would leave, all lanes together.
  void Evict(const std::string& tenant, const std::string& id, std::optional<uint64_t> expected,
             const EvictRequest& request, int64_t victims_max, Asker<EvictOutcome> asker);
  void Describe(const std::string& tenant, const std::string& id, std::optional<int32_t> layer,
                std::optional<int32_t> head, Asker<CacheDescription> asker);
  bool has_work() const { return undertaking_ != nullptr; }
  // A piece of it. Between Settle and RunStep.
  void Work();

  // Between two steps: a copy of the session as it stands. ABORTED SESSION_BUSY or GENERATION_MISMATCH;
  // FAILED_PRECONDITION DRAFT_PENDING; UNAVAILABLE NO_MEMORY.
  absl::StatusOr<SaveOutcome> Save(const std::string& tenant, const std::string& id, std::optional<uint64_t> expected);
  // Every session that Save can be asked for.
  std::vector<SessionName> Names() const;
  // Opens a session that goes on where its past ends, or returns the one that the same request_id opened. Of
  // `saved.request` counts all but policy and block size, which are the image's. Errors: those of Create; DATA_LOSS
  // SNAPSHOT_DAMAGED when logits and log do not go together, JOURNAL_DAMAGED when a record is not what can have
  // happened. The past is used up, unless it is refused for want of room or pages.
  absl::StatusOr<SessionInfo> Restore(SessionPast& past);
  WorkTotals Totals() const;

  // From now on, of what is new; the scheduler's weights at once.
  void SetTenants(std::shared_ptr<const TenantTable> tenants);

  // Tells `watcher` what leaves the caches from now on, until its End, which comes in any case, perhaps at once: with
  // NOT_FOUND UNKNOWN_SESSION, UNAVAILABLE DRAINING, and what Watchers::CheckRoom refuses.
  void Watch(CallId id, const WatchRequest& request, EvictionWatcher& watcher);
  // The caller hung up. A watch that is over is not an error.
  void Unwatch(CallId id);
  // Drained, and no call is left: nothing more will be evicted.
  void EndWatches();

  // From now on nothing new is taken; calls that run may go on until `until`.
  void Drain(absl::Time until);

  // dispatcher_journal.cc
  // Has `tell` called when what was done until now is written, with OK or why it cannot be: at once where nothing is
  // journaled.
  void Hold(absl::AnyInvocable<void(const absl::Status&)> tell);
  // Leaves the journal what was done and is to be said since the last time.
  void Commit();
  // Hears from the journal. Before messages are: what a reader says comes after what was said of it.
  void HearJournal();
  // Waits until everything is written and said.
  void FlushJournal();

  // Closes the step that ran, plans the next, and closes what is overdue. Then RunStep if there is one.
  void Settle();
  bool has_step() const { return planned_.has_value(); }
  void RunStep();
  // True when Settle has something to do now, else how long until it will.
  absl::Duration idle_time() const;
  // Watchers do not count: they only see what calls do.
  bool idle() const { return calls_.empty() && !has_work(); }

  const Clock& clock() const { return clock_; }

 private:
  struct Call {
    CallId id = 0;
    CallRequest request = {};
    CallOutput* output = nullptr;
    OpenSession* session = nullptr;
    AnswerText text = {};
    int32_t prepaid = 0;  // tokens that the tenant was charged for and that have not run
    int32_t prompt_done = 0;
    int32_t reused = 0;           // of these, that did not run
    bool blocks_are_all = false;  // that were ever done to the session
    int32_t decode_rows = 0;
    int64_t next = 0;       // index in the log of the next token to send
    int32_t sent = 0;       // tokens
    int32_t generated = 0;  // of these, not sent again
    int64_t evicted = 0;
    bool raised = false;  // the session's generation, by this call
    FinishReason finish = FinishReason::kNone;
    FinishReason finish_by_count = FinishReason::kMaxTokens;  // when nothing else ended the answer
    absl::Status failure = {};                                // ends the call
    int32_t token = 0;                                        // drawn, in flight
    std::vector<int32_t> drafting = {};                       // that token, and the draft behind it; empty: none
    DraftLength draft_length = DraftLength(1);
    int32_t drafted = 0;                // tokens of drafts that ran
    int32_t accepted = 0;               // of these
    EditPlan edit = {};                 // of request.edit
    std::vector<int32_t> edited = {};   // tokens of its blocks that ran
    SamplingOptions lost = {};          // how tokens are drawn that the client was told, and the server has lost
    std::optional<Drawn> settled = {};  // the token that follows what was accepted of its draft
    Drawn drawn = {};
    absl::Time arrived = {};
    absl::Time first_step = absl::InfiniteFuture();
    absl::Time prompt_end = {};
    absl::Time first_token = absl::InfiniteFuture();
    absl::Time last_token = {};
    absl::Time blocked_since = absl::InfiniteFuture();  // infinite: the reader keeps up
    absl::Duration blocked = {};                        // before that
  };

  // dispatcher_calls.cc
  absl::Status CheckStart(const Call& call, const OpenSession& session) const;
  absl::Status PlanCall(Call& call);
  static void Charge(Call& call, int32_t tokens, StepPhase phase, absl::Time now);
  bool IsMeasured(const OpenSession& session) const;
  bool PrepareBlock(Call& call, int32_t tokens, BatchRow& row);
  bool PrepareToken(Call& call, BatchRow& row);
  bool PrepareDraft(Call& call, BatchRow& row);
  void DraftOn(Call& call, BatchRow& row);
  void DraftByModel();
  static void PutDraft(Call& call, std::span<const int32_t> draft, BatchRow& row);
  void CommitBlock(Call& call, const BatchRow& row);
  void CommitToken(Call& call, const BatchRow& row);
  void CommitRow(Call& call, const BatchRow& row);
  void CommitCache(OpenSession& session, const BatchRow& row, EvictionCause cause);
  void Resend(Call& call);
  void Send(Call& call, std::span<const int32_t> tokens, int32_t evicted);
  TokensDone Take(Call& call, std::span<const int32_t> tokens);
  void Score(Call& call, const BatchRow& row);
  bool IsOver(const Call& call) const;
  void Report(Call& call, Reader reader);
  void EndCall(CallId id, EndCause cause);
  absl::Status EndStatus(const Call& call, EndCause cause) const;
  CallEnd Summary(Call& call) const;

  // dispatcher_prefixes.cc
  int32_t BeginPrompt(Call& call, int32_t tokens);
  void RecordReused(Call& call);
  void KeepPrefix(const Call& call);

  // dispatcher_drafts.cc
  static absl::Status CheckDraftFits(const DraftRequest& draft, const OpenSession& session);
  void CommitDraft(Call& call, const BatchRow& row);
  void CommitOwnDraft(Call& call, const BatchRow& row);
  static void CountDraft(Call& call, int32_t drafted, int32_t accepted);
  BatchRow Keep(OpenSession& session, int32_t count, std::span<const float> logits);
  // Of `logits` [rows, vocab], at least one row, the last is what the session's next token is drawn from.
  void TakeLogits(OpenSession& session, std::span<const float> logits) const;

  // dispatcher_edits.cc
  absl::Status PlanEdit(Call& call, OpenSession& session);
  absl::Status CheckNotEdited(const OpenSession& session) const;
  bool PrepareEdit(Call& call, int32_t tokens, BatchRow& row);
  void CommitEdit(Call& call, const BatchRow& row);
  void AbandonEdit(Call& call);

  // dispatcher_forks.cc
  absl::StatusOr<OpenSession*> Branch(OpenSession& session, const SessionRequest& request, const ForkOptions& options);
  absl::StatusOr<ebb::Fork> ForkCache(Session& cache, const ForkOptions& options);
  absl::Status StartBranches(Call& call);
  void OwnPagesOfRows();
  bool OwnPages(Call& call, BatchRow& row);
  bool OwnAllPages(Call& call);
  absl::Status NoPages(const absl::Status& refused) const;
  void CountFork(OpenSession& branch, const std::optional<PolicySwap>& swap);

  // Work on one session's cache, whatever it is and whoever asked for it.
  class Undertaking {
   public:
    explicit Undertaking(OpenSession& session) : session_(session) {}
    virtual ~Undertaking() = default;

    OpenSession& session() { return session_; }
    virtual bool IsGone() = 0;
    virtual CacheWork* work() = 0;  // null until it has begun
    virtual absl::Status Begin() = 0;
    virtual void Answer(const absl::Status& status) = 0;  // OK when nothing is left

   private:
    OpenSession& session_;
  };

  // dispatcher_work.cc
  template <typename CacheWorkOf, typename Answer>
  class UndertakingOf;
  template <typename CacheWorkOf, typename Answer>
  void Undertake(const std::string& tenant, const std::string& id, std::string_view method,
                 absl::AnyInvocable<absl::StatusOr<std::unique_ptr<CacheWorkOf>>(OpenSession&)> begin,
                 absl::AnyInvocable<absl::StatusOr<Answer>(OpenSession&, CacheWorkOf&)> finish, Asker<Answer> asker);
  // Ends the work: OK when nothing is left.
  void EndWork(const absl::Status& status);
  absl::StatusOr<PolicyOutcome> FinishSetPolicy(OpenSession& session, const PolicyRequest& request, PolicyWork& work);
  absl::StatusOr<EvictOutcome> FinishEvict(OpenSession& session, const EvictRequest& request, int64_t victims_max,
                                           EvictWork& work);

  // dispatcher_journal.cc
  absl::Status BeginJournal(OpenSession& session);
  MakeSnapshot SnapshotOf(SaveOutcome copy) const;
  void Record(OpenSession& session, JournalRecord::What what);
  void RecordAnswer(OpenSession& session, JournalRecord::What what);
  void AnswerFrom(const OpenSession& session);
  void BeginAnswer(Call& call);
  void RenewOne();
  absl::Status Replay(OpenSession& session, const JournalRecord& record);
  absl::Status ReplayRow(OpenSession& session, std::span<const int32_t> tokens, bool prompt_ends, bool draft);
  absl::Status ReplayEdit(OpenSession& session, const JournalRecord::Edit& edit);
  absl::Status ReplayAccept(OpenSession& session, int32_t count);
  absl::StatusOr<SaveOutcome> Copy(const OpenSession& session) const;  // dispatcher_snapshots.cc

  // dispatcher_watchers.cc
  absl::StatusOr<SessionId> Watched(const WatchRequest& request);
  void EndWatchesOf(const OpenSession& session);
  void TellRow(const OpenSession& session, const BatchRow& row, EvictionCause cause);
  // Of `event` cause, length_before, evicted, evicted_slots, loss and victims are set.
  void Tell(const OpenSession& session, EvictionEvent event);

  // dispatcher.cc
  absl::StatusOr<OpenSession*> Open(const SessionRequest& request, bool throw_away);
  // Whether the tenant may have another session, of so many pages.
  absl::Status CheckQuotas(const std::string& tenant, int64_t pages);
  // REQUIRES: Sessions::CheckRoom.
  absl::StatusOr<OpenSession*> TakeIn(const SessionRequest& request, bool throw_away, int64_t pages,
                                      absl::FunctionRef<absl::StatusOr<std::unique_ptr<Session>>()> open);
  void Close(OpenSession& session);
  void Deliver(const Event& event);
  absl::Status Verdict(const Reject& rejected) const;
  SessionInfo Info(const OpenSession& session) const;
  static ValidSpec PolicyFor(const OpenSession& session, const PolicyRequest& request);
  int64_t SlotBytes(const ValidSpec& policy) const;
  // The session has `slots` live slots, or `pages`, now.
  void CountSlots(OpenSession& session, int64_t slots);
  void CountPages(OpenSession& session, int64_t pages);
  void CountSwap(OpenSession& session, const PolicySwap& swap);
  // Who left by request, of any session's cache; `event.loss` is not null.
  void CountLeft(const OpenSession& session, const EvictionEvent& event);
  void CountEviction(const OpenSession& session, int32_t tokens, int64_t slots);
  static void CountLoss(const OpenSession& session, const Loss& loss);
  void CountStep(int32_t prompt_tokens, int32_t decode_tokens, absl::Duration took);
  void CountCall(Call& call, const CallTimings& timings);
  void Unblock(Call& call);
  void CountLoad();

  Engine& engine_;
  const DispatcherOptions options_;
  Metrics& metrics_;
  const Clock clock_;
  Scheduler scheduler_;
  TenantBook tenants_;
  Sessions sessions_;
  Watchers watchers_;
  Shadows shadows_;
  ModelDrafter drafter_;
  DraftCost draft_cost_ = {};
  Sampler sampler_;
  std::map<CallId, Call> calls_;
  SessionId sessions_made_ = 0;

  std::vector<Effect> decided_;  // by the event at hand
  std::vector<Effect> effects_;  // decided, of which the first carried_out_ are carried out
  size_t carried_out_ = 0;
  bool carrying_out_ = false;            // effects_ is being emptied further up
  std::optional<Reject> rejected_ = {};  // the last answer to an arrival, if it was a refusal
  std::optional<ebb::RunStep> planned_ = {};
  std::optional<StepDone> ran_ = {};
  std::unique_ptr<Undertaking> undertaking_ = {};
  absl::Duration step_took_ = {};                    // the last
  std::vector<StepDone::Shortened> shortened_ = {};  // by the step at hand
  int32_t spare_tokens_ = 0;                         // of the step that is put together: room for drafts
  std::vector<ModelDrafter::Wish> wishes_;           // of the step that is put together
  std::vector<size_t> wishing_rows_;                 // of each, its row
  std::vector<BatchRow> batch_;                      // of calls, then of shadows
  std::vector<Call*> batch_calls_;                   // of each row that has one
  std::vector<OpenSession*> batch_sessions_;         // theirs

  JournalBatch batch_of_journal_ = {};  // what the journal has yet to hear of
  SessionId asked_of_ = 0;              // the session that the question at hand wrote to, or read
  bool only_read_ = false;              // the latter

  EngineMemory counted_ = {};  // as the metrics know it
  WorkTotals totals_ = {};
};

}  // namespace ebb

#endif  // EBB_SERVER_DISPATCHER_H_
