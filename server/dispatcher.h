// Serves sessions with an engine, one step at a time: carries out what the scheduler decides.
//
// Owns the engine, the scheduler, the sessions and the calls on them; one thread calls (server/worker.h), and nothing
// here locks, waits or knows gRPC. A call's life: Start admits it or ends it; every row of RunStep runs one block of
// its prompt, or one token that is drawn, sent and run; its End comes once, whatever ends it, and after that the
// session is free for the next call.

#ifndef EBB_SERVER_DISPATCHER_H_
#define EBB_SERVER_DISPATCHER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/cache_work.h"
#include "engine/drafter.h"
#include "engine/engine.h"
#include "engine/snapshot/session_image.h"
#include "server/answer_text.h"
#include "server/call.h"
#include "server/clock.h"
#include "server/journal.h"
#include "server/metrics.h"
#include "server/model_drafter.h"
#include "server/scheduler.h"
#include "server/session_requests.h"
#include "server/sessions.h"
#include "server/shadows.h"
#include "server/step_pace.h"
#include "server/swap_folder.h"
#include "server/tenants.h"
#include "server/token_draws.h"
#include "server/watchers.h"

namespace ebb {

// Where sessions that nobody uses leave their pages to others. The functions are of any thread.
struct SwapOptions {
  SwapFolder* folder = nullptr;  // outlives the dispatcher; null: they stay in memory
  std::string (*seal)(SaveOutcome) = nullptr;
  absl::StatusOr<std::unique_ptr<LoadedSession>> (*load)(const ImageLimits&, int32_t vocab, SnapshotBytes) = nullptr;
};

// What of its options a running dispatcher takes anew.
struct LiveOptions {
  // A request is in time that ends well with its first token within the one, and the others, on average, within the
  // other of each other: for which prompts beside it wait (server/step_pace.h).
  absl::Duration ttft_target = absl::Milliseconds(2500);
  absl::Duration inter_token_target = absl::Milliseconds(100);
  int32_t measure_every = 16;  // of a session's steps that evict, how many for one whose loss is measured; 0: none is
  ShadowOptions shadow = {};
  int32_t sessions_max = 100000;                       // of all tenants, as watchers_max; >= 1
  int32_t watchers_max = 64;                           // of evictions; >= 0
  absl::Duration reader_patience = absl::Seconds(60);  // a stream whose reader takes nothing for so long ends
  int32_t queue_max = 4096;                            // calls that wait or run; >= 1
  int64_t snapshot_every = 1024;  // tokens of a session's journal before a snapshot takes its place; >= 1

  bool operator==(const LiveOptions&) const = default;
};

struct DispatcherOptions {
  LiveOptions live = {};
  int32_t step_rows_max = 64;
  // Of the time that the last step took, how much a piece of work on a cache may take before the next one: what is
  // begun is finished beyond that, a lane for each thread. 0: so many lanes a piece.
  double work_share = 0.5;
  Engine* draft_engine = nullptr;  // of the draft model (server/draft_model.h); outlives the dispatcher; null: none
  ValidSpec draft_policy = {};     // of its caches
  TenantTable tenants = {};
  Journal* journal = nullptr;  // where sessions are journaled; outlives the dispatcher; null: they are not
  // The journal's thread: brings back a session that was lost, and is in its journal alone; null: its name is nobody's
  // here until somebody does.
  std::function<void(const SessionName&)> recover = {};
  Experiments* experiments = nullptr;  // that sessions may count in; outlives the dispatcher; null: none
  SwapOptions swap = {};
  // Of several models' dispatchers together.
  Clock clock = {};
  std::shared_ptr<TenantUses> tenant_uses = {};  // null: it has its own
  SessionNames* session_names = nullptr;         // outlive the dispatcher; null: there are no other models
  ModelId model = 0;                             // whose sessions these are, among them
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
  // A copy of the session as it stands. ABORTED SESSION_BUSY; FAILED_PRECONDITION DRAFT_PENDING; UNAVAILABLE NO_MEMORY.
  void Save(const std::string& tenant, const std::string& id, std::optional<uint64_t> expected,
            Asker<SaveOutcome> asker);
  bool has_work() const { return undertaking_ != nullptr; }
  // A piece of it. Between Settle and RunStep.
  void Work();

  // Every session that Save can be asked for, those in memory first.
  std::vector<SessionName> Names() const;
  // Opens a session that goes on where its past ends, or returns the one that the same request_id opened: work in
  // pieces, too, of a few lanes or a record of the journal, and nobody finds the session before it is whole. Of
  // `saved.request` counts all but policy and block size, which are the image's. Errors: those of Create; DATA_LOSS
  // SNAPSHOT_DAMAGED when logits and log do not go together, JOURNAL_DAMAGED when a record is not what can have
  // happened; CANCELLED CALL_CANCELLED. REQUIRES: !has_work().
  void Restore(std::unique_ptr<LoadedSession> loaded, Asker<SessionInfo> asker);
  WorkTotals Totals() const;
  // As TenantBook::List.
  std::vector<TenantView> Tenants(const std::string& after, size_t count) const;

  // From now on, of what is new; the scheduler's weights at once.
  void SetTenants(std::shared_ptr<const TenantTable> tenants);
  // From the next step on, of sessions that are open, too: shadows begin and end. Sessions and watches beyond their
  // number stay. REQUIRES: no step is under way.
  void SetLive(const LiveOptions& live);
  // dispatcher_experiments.cc
  // What the arm's policy needs that no session could have: CreateSession's refusals that do not depend on who else is
  // there.
  absl::Status CheckPolicy(const ValidSpec& policy) const;
  // The assignment that it counts for; empty: none. NOT_FOUND UNKNOWN_SESSION.
  absl::StatusOr<std::optional<Assignment>> ReportOutcome(const std::string& tenant, const std::string& id,
                                                          const TaskOutcome& outcome);

  // Tells `watcher` what leaves the caches from now on, until its End, which comes in any case, perhaps at once: with
  // NOT_FOUND UNKNOWN_SESSION, UNAVAILABLE DRAINING, and what Watchers::CheckRoom refuses.
  void Watch(CallId id, const WatchRequest& request, EvictionWatcher& watcher);
  // The caller hung up. A watch that is over is not an error.
  void Unwatch(CallId id);
  // Drained, and no call is left: nothing more will be evicted.
  void EndWatches();

  // A session that was lost does not come back.
  void GiveUp(const SessionName& name) { sessions_.GiveUp(name); }

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

  // dispatcher_swap.cc
  //
  // A question may have to wait: for its session, which is swapped, or for pages, which other sessions give up first.
  // Whoever asked looks at `awaits` before the answer, which then is none, and parks the question: it is asked again
  // when what it waits for is there, or cannot be had, and is then answered. So nothing here has changed anything when
  // it awaits.
  using Message = absl::AnyInvocable<void(Dispatcher&)>;
  bool awaits() const { return needed_.has_value(); }
  // REQUIRES: awaits(). `call`, not 0, may be cancelled meanwhile, or its deadline pass.
  void Park(Message question, CallId call = 0, absl::Time deadline = absl::InfiniteFuture());
  // Goes on with what is waited for, and asks again what needs wait no more. After Settle.
  void Swap();
  bool has_ready() const;
  // How news from other threads come in: `post` runs what it is given on the dispatcher's, soon. Before any other call.
  void SetPost(absl::AnyInvocable<void(Message)> post) { post_ = std::move(post); }

  // Closes the step that ran, plans the next, and closes what is overdue. Then RunStep if there is one.
  void Settle();
  bool has_step() const { return !planned_.empty(); }
  void RunStep();
  // True when Settle has something to do now, else how long until it will.
  absl::Duration idle_time() const;
  // Watchers do not count: they only see what calls do.
  bool idle() const { return calls_.empty() && !has_work() && parked_.empty(); }

  const Clock& clock() const { return clock_; }
  const ModelConfig& model() const { return engine_.config(); }

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
    int64_t next = 0;                                        // index in the log of the next token to send
    int32_t sent = 0;                                        // tokens
    int32_t sent_max = std::numeric_limits<int32_t>::max();  // with which the answer ends
    int32_t generated = 0;                                   // of these, not sent again
    int64_t evicted = 0;
    int32_t untold_evicted = 0;  // of these, those that left since the last tokens were sent
    bool raised = false;         // the session's generation, by this call
    FinishReason finish = FinishReason::kNone;
    FinishReason finish_by_count = FinishReason::kMaxTokens;  // when nothing else ended the answer
    absl::Status failure = {};                                // ends the call
    std::vector<int32_t> drafting = {};  // the token in flight, and the draft behind it; empty: none
    DraftLength draft_length = DraftLength(1);
    int32_t drafted = 0;                // tokens of drafts that ran
    int32_t accepted = 0;               // of these
    EditPlan edit = {};                 // of request.edit
    std::vector<int32_t> edited = {};   // tokens of its blocks that ran
    SamplingOptions lost = {};          // how tokens are drawn that the client was told, and the server has lost
    std::optional<Drawn> settled = {};  // the token that follows what was accepted of its draft
    Drawn drawn = {};                   // the token in flight
    absl::Time arrived = {};
    absl::Time first_step = absl::InfiniteFuture();
    absl::Time prompt_end = {};
    absl::Time first_token = absl::InfiniteFuture();
    absl::Time last_token = {};
    absl::Time blocked_since = absl::InfiniteFuture();  // infinite: the reader keeps up
    absl::Duration blocked = {};                        // before that
  };

  // Tokens that a step runs, without shadows'.
  struct RowTokens {
    int32_t prompt = 0;
    int32_t decode = 0;   // with their drafts
    int32_t answers = 0;  // rows, also those that need not run
  };

  // dispatcher_calls.cc
  absl::Status CheckStart(const Call& call, const OpenSession& session) const;
  absl::Status PlanCall(Call& call);
  bool PrepareBlock(Call& call, int32_t tokens, BatchRow& row);
  bool PrepareToken(Call& call, BatchRow& row);
  static bool IsLost(const Call& call);
  gpu::DrawNeeds NeedsBehind(const Call& call, const BatchRow& row) const;
  bool PrepareDraft(Call& call, BatchRow& row);
  void DraftOnRows();
  void DraftOn(size_t index);
  void DraftByModel();
  static void PutDraft(Call& call, std::span<const int32_t> draft, BatchRow& row);
  void CommitBlock(Call& call, const BatchRow& row);
  static void Raise(Call& call);
  void SayToken(Call& call, const BatchRow& row);
  void CommitRow(Call& call, const BatchRow& row);
  void CommitCache(OpenSession& session, const BatchRow& row, EvictionCause cause);
  void Resend(Call& call);
  void Send(Call& call, std::span<const int32_t> tokens);
  TokensDone Take(Call& call, std::span<const int32_t> tokens);
  void Score(Call& call, const BatchRow& row);
  bool IsOver(const Call& call) const;
  void Report(Call& call, Reader reader);
  void EndCall(CallId id, EndCause cause);
  absl::Status EndStatus(const Call& call, EndCause cause) const;
  CallEnd Summary(Call& call) const;

  // dispatcher_steps.cc
  RowTokens BeginRows(size_t in_flight, absl::Time now);
  static bool IsBlock(const Call& call, const BatchRow& row);
  static void Charge(Call& call, int32_t tokens, StepPhase phase, absl::Time now);
  bool IsMeasured(const OpenSession& session) const;

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
  // What a step of the session yields is what its next token is drawn from.
  void TakeLogits(OpenSession& session, const BatchRow& row) const;
  void TakeLogitsOfRows();

  // dispatcher_edits.cc
  absl::Status PlanEdit(Call& call, OpenSession& session);
  absl::Status CheckNotEdited(const OpenSession& session) const;
  bool PrepareEdit(Call& call, int32_t tokens, BatchRow& row);
  void CommitEdit(Call& call, const BatchRow& row);
  void AbandonEdit(Call& call);

  // dispatcher_forks.cc
  absl::StatusOr<OpenSession*> Branch(OpenSession& session, const SessionRequest& request, const ForkOptions& options,
                                      int64_t pages_to_leave);
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
    explicit Undertaking(OpenSession* session) : session_(session) {}
    virtual ~Undertaking() = default;

    OpenSession* session() { return session_; }  // null: one that is yet to be found
    virtual bool IsGone() = 0;
    virtual CacheWork* work() = 0;  // null until it has begun
    virtual absl::Status Begin() = 0;
    virtual void Answer(const absl::Status& status) = 0;  // OK when nothing is left

   private:
    OpenSession* session_;
  };

  // dispatcher_snapshots.cc
  class Restoring;
  absl::Status CheckRestore(const SessionPast& past, int64_t pages);
  int64_t PagesToReplay(const SessionPast& past) const;
  absl::StatusOr<std::unique_ptr<Restoring>> BeginRestore(std::unique_ptr<LoadedSession>& loaded);
  absl::StatusOr<SessionInfo> FinishRestore(OpenSession& session, const SessionPast& past);

  // dispatcher_work.cc
  void WorkOnNext();
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

  // dispatcher_experiments.cc
  void BeginTrial(OpenSession& session);
  void NoteMemory(OpenSession& session) const;  // held until now
  static void NoteCall(OpenSession& session, const CallTimings& timings, int32_t generated);
  void TellTrial(OpenSession& session);  // what it has shown since the last time
  void EndTrial(OpenSession& session);

  // dispatcher_journal.cc
  // A snapshot in the making, of a session with a call, which is held meanwhile.
  struct Renewing {
    SessionId session = 0;
    std::unique_ptr<SaveWork> work = {};  // not null
  };
  absl::Status BeginJournal(OpenSession& session);
  MakeSnapshot SnapshotOf(SaveOutcome copy) const;
  void Record(OpenSession& session, JournalRecord::What what);
  void RecordAnswer(OpenSession& session, JournalRecord::What what);
  void AnswerFrom(const OpenSession& session);
  void BeginAnswer(Call& call, int64_t length);
  void BeginRenewal();
  void WorkOnRenewal();
  void FinishRenewal(const OpenSession& session);
  void EndRenewal();
  void DropRenewal();
  absl::Status Replay(OpenSession& session, const JournalRecord& record);
  absl::Status ReplayRow(OpenSession& session, std::span<const int32_t> tokens, bool prompt_ends, bool draft);
  absl::Status ReplayEdit(OpenSession& session, const JournalRecord::Edit& edit);
  absl::Status ReplayAccept(OpenSession& session, int32_t count);
  absl::StatusOr<SaveOutcome> Copy(OpenSession& session);  // dispatcher_snapshots.cc

  // dispatcher_swap.cc
  struct Need {
    std::string tenant = {};  // whose it is
    SessionId session = 0;    // that has to be in memory; 0: none
    int64_t pages = 0;        // that have to be free
  };
  struct Parked {
    Message question = {};
    Need need = {};
    int64_t round = 0;  // in which it is its tenant's turn: one question of each tenant's
    CallId call = 0;
    absl::Time deadline = absl::InfiniteFuture();
    bool ready = false;
    absl::Status verdict = {};  // why what is wanted cannot be had
  };
  // A session on its way into a file, or out of one; the other is null.
  struct Leaving {
    SessionId session = 0;
    uint64_t file = 0;
    absl::Time began = {};
    std::unique_ptr<SaveWork> work = {};  // null when it is with the folder's thread
  };
  struct Coming {
    SessionId session = 0;
    uint64_t reading = 0;  // tells it from those that were dropped
    absl::Time began = {};
    bool is_read = false;
    absl::StatusOr<std::unique_ptr<LoadedSession>> loaded = nullptr;
    std::unique_ptr<ReopenWork> work = {};  // null until it has its pages
  };
  absl::StatusOr<OpenSession*> FindHere(const std::string& tenant, const std::string& id);
  bool AwaitPages(const std::string& tenant, int64_t pages, SessionId session);
  bool AwaitPagesOf(const absl::Status& refused, const OpenSession& session);
  bool AwaitPagesFor(const std::string& tenant, const std::string& id, const PolicyRequest& request);
  std::pair<std::string, int64_t> MostWaiting() const;
  bool HasPlace(const std::string& tenant) const;
  void MakePlace();
  int64_t FreePages() const;
  int64_t AwaitedPages();
  absl::Status NotEnoughPages(int64_t pages, std::optional<absl::Duration> retry) const;
  OpenSession* NextToLeave(int64_t missing, SessionId but) const;
  absl::StatusOr<bool> Provide(const Need& need);
  absl::StatusOr<bool> MakeRoom(int64_t pages, SessionId but);
  absl::StatusOr<bool> BringBack(OpenSession& session);
  absl::Status BeginLeaving(OpenSession& session);
  bool has_swap_work() const;
  void WorkOnSwap();
  void WriteLeaving();
  void HaveWritten(uint64_t file, int64_t bytes, const absl::Status& status);
  void CannotLeave(const absl::Status& status);
  void BeginReading(OpenSession& session);
  void HaveRead(uint64_t reading, absl::StatusOr<std::unique_ptr<LoadedSession>> loaded);
  absl::Status CheckRead(const OpenSession& session,
                         const absl::StatusOr<std::unique_ptr<LoadedSession>>& loaded) const;
  void DropComing();
  void CameBack();
  void ForgetSwap(OpenSession& session);
  void CountSwapFile(int64_t sessions, int64_t bytes);
  absl::StatusOr<SaveOutcome> Outline(OpenSession& session);  // dispatcher_snapshots.cc

  // dispatcher_faults.cc
  void LookForFault();
  void TellOfShortage(const DeviceUse& use);
  void Lose(OpenSession& session);
  void LeaveToJournal(const OpenSession& session);
  absl::Status GpuFault(const OpenSession& session) const;
  // Of what the engine was asked of the session.
  absl::Status OrGpuFault(const OpenSession& session, const absl::Status& status) const;

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
  // A number for a session of so many pages, which from then on are its own; SessionClosed gives both back.
  absl::StatusOr<SessionId> LetIn(const SessionRequest& request, int64_t pages);
  // As it begins.
  OpenSession Begun(SessionId id, const SessionRequest& request);
  // REQUIRES: Sessions::CheckRoom.
  OpenSession& Add(OpenSession session);
  void Close(OpenSession& session);
  void Deliver(const Event& event);
  absl::Status Verdict(const Reject& rejected) const;
  SessionInfo Info(const OpenSession& session) const;
  static ValidSpec PolicyFor(const OpenSession& session, const PolicyRequest& request);
  int64_t SlotBytes(const ValidSpec& policy) const;
  // The session has `slots` live slots, or `pages`, now.
  void CountSlots(OpenSession& session, int64_t slots);
  void CountPages(OpenSession& session, int64_t pages);
  void CountUnderPolicy(OpenSession& session);
  void NotePlacement(OpenSession& session);
  void CountSwap(OpenSession& session, const PolicySwap& swap);
  // Who left by request, of any session's cache; `event.loss` is not null.
  void CountLeft(const OpenSession& session, const EvictionEvent& event);
  void CountEviction(const OpenSession& session, int32_t tokens, int64_t slots, const EvictionCensus& census);
  static void CountLoss(const OpenSession& session, const Loss& loss);
  void CountStep(int32_t prompt_tokens, int32_t decode_tokens, absl::Duration took);
  bool IsLate(const Call& call, const absl::Status& status) const;
  void CountCall(Call& call, const CallEnd& end);
  void Unblock(Call& call);
  void CountLoad();

  Engine& engine_;
  DispatcherOptions options_;  // but for what is live, as it was made with
  Metrics& metrics_;
  const Clock clock_;
  Scheduler scheduler_;
  StepPace pace_;
  TenantBook tenants_;
  Sessions sessions_;
  Watchers watchers_;
  Shadows shadows_;
  ModelDrafter drafter_;
  DraftCost draft_cost_ = {};
  TokenDraws draws_;
  std::map<CallId, Call> calls_;
  SessionId sessions_made_ = 0;

  std::vector<Effect> decided_;  // by the event at hand
  std::vector<Effect> effects_;  // decided, of which the first carried_out_ are carried out
  size_t carried_out_ = 0;
  bool carrying_out_ = false;               // effects_ is being emptied further up
  std::optional<Reject> rejected_ = {};     // the last answer to an arrival, if it was a refusal
  std::vector<ebb::RunStep::Row> planned_;  // the next step; empty: there is none
  std::vector<ebb::RunStep::Row> running_;  // the step at hand, also what of it is over
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

  std::optional<Renewing> renewing_ = {};
  JournalBatch batch_of_journal_ = {};  // what the journal has yet to hear of
  SessionId asked_of_ = 0;              // the session that the question at hand wrote to, or read
  bool only_read_ = false;              // the latter

  std::optional<Need> needed_ = {};  // by the question at hand
  absl::Status verdict_ = {};        // of the question at hand, which waited
  bool has_waited_ = false;          // the question at hand: what it waited for is its own
  std::list<Parked> parked_ = {};    // round after round; in each, in the order in which they came
  std::optional<Leaving> leaving_ = {};
  bool is_writing_ = false;  // a copy is on its way to the disk, wanted or not: there is one at a time
  std::optional<Coming> coming_ = {};
  uint64_t swaps_made_ = 0;
  int64_t swap_bytes_ = 0;   // of all files
  bool stirred_ = false;     // what is waited for may be there
  bool swaps_next_ = false;  // whose turn it is: a swap's, or the work's that was undertaken
  absl::AnyInvocable<void(Message)> post_ = {};

  bool device_failed_ = false;
  struct {
    absl::Time at = absl::InfinitePast();
    ShortSteps steps = {};
  } told_of_shortage_ = {};
  EngineMemory counted_ = {};  // as the metrics know it
  WorkTotals totals_ = {};
};

}  // namespace ebb

#endif  // EBB_SERVER_DISPATCHER_H_
