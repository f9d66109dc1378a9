// The only door to a model on a device: open sessions, run batches of their tokens, evict, describe.
//
// One thread owns an engine and every session opened on it (server/worker.h); nothing here locks. A step is atomic:
// when Run returns, each row's tokens are in the session's log and cache and the policy has evicted what was due.
//
//   EBB_ASSIGN(auto engine, Engine::Open({.model_path = "models/ebb-tiny-q8_0.gguf"}));
//   EBB_ASSIGN(auto session, engine->OpenSession({.policy = policy}));
//   BatchRow row{.session = session.get(), .tokens = prompt, .want = Want::kLast};
//   EBB_TRY(session->CanAppend(prompt.size()));
//   EBB_TRY(engine->OwnPages(row));
//   engine->Run({&row, 1});
//   int32_t next = sampler.Draw(row.logits, session->log()).token;

#ifndef EBB_ENGINE_ENGINE_H_
#define EBB_ENGINE_ENGINE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/accuracy.h"
#include "engine/device_use.h"
#include "engine/edit.h"
#include "engine/eviction_census.h"
#include "engine/model/architecture.h"
#include "engine/pack_report.h"
#include "engine/parallel.h"
#include "engine/placement.h"
#include "engine/row_facts.h"
#include "engine/text/tokenizer.h"
#include "policies/caote.h"
#include "policies/spec.h"

namespace ebb {

class DescribeWork;    // engine/cache_work.h
class EvictWork;       // likewise
class Ops;             // engine/ops.h
class PolicyWork;      // likewise
class ReopenWork;      // likewise
class SaveWork;        // likewise
struct ImageLimits;    // engine/snapshot/session_image.h
struct SessionImage;   // likewise
class SnapshotWriter;  // engine/snapshot/snapshot_file.h

struct EngineOptions {
  std::string model_path = {};        // of a GGUF file, or of a folder as hubs lay it out (hub_model.h)
  std::string calibration_path = {};  // what `calibrated` goes by; empty: the file beside the model
  std::string head_gates_path = {};   // what the allocation `duo` goes by; empty: the file beside the model
  int32_t threads = 0;                // compute threads; 0: as many as this process may run on
  int64_t arena_bytes =
      0;  // memory for K and V; 0: half of what the cgroup (else the machine) leaves after the weights
  double prefix_share = 0;        // of the pages, 0 .. 1: what KeepPrefix may keep
  int32_t step_tokens_max = 512;  // most rows of one Run
  Accuracy accuracy = Accuracy::kFast;
  std::string isa = {};  // scalar, avx2, avx512, ...; empty: EBB_ISA, else the best this CPU has
  // For measuring: what stands between the engine and its ops. Empty: nothing does.
  std::function<std::unique_ptr<Ops>(std::unique_ptr<Ops>)> between = {};
  // Where packed weights are kept for the next start: PackPath. Empty: nowhere.
  std::string pack_cache = {};
  // What computes sessions beside the ops (gpu/placed_engine.h), for the fingerprint; empty: nothing does.
  std::string beside = {};
};

// The file of packed weights of a model: its path with .packed for its ending, in its folder where `pack_cache` is
// "beside", else in the folder that this names. Empty where `pack_cache` is.
std::string PackPath(const std::string& pack_cache, const std::string& model_path);

struct SessionOptions {
  ValidSpec policy = {};
  int32_t block_size_max = 128;  // most tokens one step may append, 1 .. step_tokens_max; part of what is reserved
};

// One conversation: its token log, its cache under its policy. Destroying it gives its pages back; it goes before its
// engine does. Made by Engine alone, used by the engine's thread alone.
class Session {
 public:
  virtual ~Session() = default;
  virtual const ValidSpec& policy() const = 0;
  virtual std::span<const int32_t> log() const = 0;  // every token ever appended, evicted ones too
  // Live tokens in the longest lane. All lanes agree unless Evict took a range or an age of which some lanes had
  // already lost tokens.
  virtual int32_t cache_length() const = 0;
  virtual int64_t live_slots() const = 0;    // live tokens of all lanes together
  virtual int32_t capacity() const = 0;      // slots reserved for the largest lane
  virtual int64_t pages() const = 0;         // reserved pages, all lanes; those that it shares included
  virtual int64_t shared_pages() const = 0;  // of these, such as other sessions hold, too; O(pages)
  virtual int64_t evicted() const = 0;       // tokens evicted so far, each time of the lane that lost most
  // Largest RoPE position in use, -1 while there is none: with original positions that of the newest token, evicted or
  // not; with compacted ones cache_length() - 1. Past the trained context where it reaches it.
  virtual int32_t position_max() const = 0;
  // Decode steps until the policy may next evict, that one included: >= 1; INT32_MAX where it never does. A draft of
  // which so many are accepted is bit for bit as many decode steps.
  virtual int32_t steps_to_eviction() const = 0;
  // Tokens of a draft that waits for Engine::Accept; 0: none does. No other count includes them.
  virtual int32_t draft_tokens() const = 0;
  // Tokens of an edit that Run has yet to be given; 0: none is under way.
  virtual int32_t edit_left() const = 0;
  // OK while there are neither, else FAILED_PRECONDITION DRAFT_PENDING or EDIT_PENDING.
  virtual absl::Status CheckSettled() const = 0;
  // Whether a device computes it, where the host alone runs drafts.
  virtual bool on_device() const = 0;
  // Its device failed, and its cache is gone with it: all that is left to do is to destroy it, and to begin again from
  // its log.
  virtual bool is_lost() const = 0;
  // OK, or why `tokens` more cannot be appended in one step: RESOURCE_EXHAUSTED LENGTH_LIMIT for `full` (naming limit
  // and length), INVALID_ARGUMENT BLOCK_TOO_LARGE, FAILED_PRECONDITION DRAFT_PENDING. Changes nothing.
  virtual absl::Status CanAppend(int32_t tokens) const = 0;
  // Tokens that a session which does not evict may still hold; INT32_MAX where it evicts.
  virtual int32_t room() const = 0;
};

enum class Want { kNone, kLast, kAll };  // logits of which of the row's tokens

// What an eviction cost, measured on the newest token's attention: the mean over the lanes of the attention that left
// (0..1), and of how far each lane's output moved, |X - X'| / |X| (caote.h).
struct Loss {
  double mass = 0;
  double error = 0;

  // One lane's share of a mean over `lanes`.
  void Add(const EvictionLoss& lane, int32_t lanes) {
    mass += lane.mass / lanes;
    if (lane.output > 0) error += lane.error / lane.output / lanes;
  }
};

// Who left one lane.
struct LaneVictims {
  int32_t layer = 0, head = 0;
  std::vector<int32_t> tokens = {};  // indices in the log, ascending
};

// Tokens that left the lane that lost most.
inline int32_t MostLost(std::span<const LaneVictims> lanes) {
  size_t most = 0;
  for (const LaneVictims& lane : lanes) most = std::max(most, lane.tokens.size());
  return static_cast<int32_t>(most);
}

// One session's share of a batch.
struct BatchRow {
  Session* session = nullptr;  // each session at most once per batch
  // REQUIRES: session->CanAppend(tokens.size()), or they are the next of the session's edit, at most its
  // block_size_max; and every id in 0..vocab-1
  std::span<const int32_t> tokens = {};
  Want want = Want::kNone;
  // With kLast: knowing so much of the logits is enough (Sampler), unless it is nothing. A device then yields no more,
  // and keeps the row (TakeLogits); the host yields it as ever.
  gpu::DrawNeeds enough = {};
  bool draft = false;         // run the tokens and let them wait for Accept; the session stays as it is
  bool prompt_ends = false;   // the session's first prompt ends here: a budget_ratio becomes a budget
  bool measure = false;       // report loss and ages of what this step evicts, for one more attention pass of one query
  bool list_victims = false;  // report who leaves in this step, for memory that is allocated in it
  // Written by Run:
  // [1 or T, vocab], valid until the next Run; empty where a device kept them, and then `facts` is what it yields.
  std::span<const float> logits = {};
  RowFacts facts = {};
  int32_t length = 0;                     // live tokens in the longest lane, with the step's own, before any left
  int32_t evicted = 0;                    // tokens that left the lane that lost most in this step
  int64_t evicted_slots = 0;              // all lanes together
  int64_t nan_scores = 0;                 // keep scores that were NaN, all lanes
  Loss loss = {};                         // with `measure`
  EvictionCensus census = {};             // ages with `measure` alone
  std::vector<LaneVictims> victims = {};  // with `list_victims`: every lane that lost a token, in layer-major order
  // Of prompt_ends alone: the budget that the ratio gives may be too small, or, where tokens of the prompt were evicted
  // by hand, more than the session reserved. The tokens are in, and the session is bounded by its length until a later
  // prompt_ends succeeds.
  absl::Status status = {};
  // UNAVAILABLE GPU_FAULT: the row did not run, and the session is lost.
  absl::Status fault = {};
};

// What Evict takes: exactly one of the choices.
struct EvictRequest {
  struct Range {
    int32_t start = 0, end = 0;
  };  // tokens of the log, [start, end)
  std::optional<Range> range = {};
  std::optional<int32_t> keep = {};        // prune every lane to this many tokens
  std::string scorer = {};                 // with keep: whose scores; empty: the session's own policy
  std::optional<int32_t> older_than = {};  // tokens whose age (log length - index) exceeds this
  struct LaneSlots {
    int32_t layer = 0, head = 0;
    std::vector<int32_t> slots = {};
  };
  std::vector<LaneSlots> slots = {};  // exact slots; every lane is named once and loses the same number
  bool dry_run = false;               // answer, change nothing
};

struct EvictReport {
  int32_t length_before = 0, length_after = 0;  // tokens per lane
  int64_t slots_evicted = 0;                    // all lanes
  std::vector<LaneVictims> victims = {};        // of every lane
  Loss loss = {};
};

// What a new policy's scorer starts from on a warm cache.
enum class StateOrigin {
  kNone,           // it keeps nothing
  kCarried,        // the state there was
  kRebuilt,        // K, V and positions of the cache
  kFromScores,     // the former scorer's scores, both being attention received
  kFromAttention,  // what the newest token attends to
  kEmpty,          // nothing: it has yet to see
};
inline constexpr size_t kStateOrigins = static_cast<size_t>(StateOrigin::kEmpty) + 1;

struct PolicySwap {
  StateOrigin state = StateOrigin::kNone;
  bool old_chose = false;                       // the former policy chose who left, since the new one's state is empty
  int32_t length_before = 0, length_after = 0;  // tokens in the longest lane
  int64_t slots_evicted = 0;                    // all lanes
  int64_t pages_before = 0, pages_after = 0;
  Loss loss = {};
  std::vector<LaneVictims> victims = {};  // of every lane
};

// One lane as DescribeCache shows it; entries are live slots in ascending slot order.
struct LaneReport {
  int32_t layer = 0, head = 0;
  int32_t capacity = 0;  // slots reserved
  int32_t budget = 0;    // tokens it is pruned to; 0 where it is not, or not yet known
  std::vector<int32_t> slots = {}, tokens = {}, positions = {};
  std::vector<float> scores = {};  // the policy's keep scores; empty where it has none (full)
};

// A branch of a session.
struct ForkOptions {
  std::optional<ValidSpec> policy = {};  // its own; else the session's
  bool reserve_copies = false;           // neither branch will ever be refused a page for what they share
};

struct Fork {
  std::unique_ptr<Session> session = {};
  std::optional<PolicySwap> swap = {};  // what a policy of its own did
};

struct EngineMemory {
  int64_t page_bytes = 0;
  int64_t pages_total = 0, pages_reserved = 0;  // each once, whoever shares it; promised copies are reserved
  int64_t pages_shared = 0;                     // held by several sessions
  int64_t pages_promised = 0;                   // set aside for copies of these
  int64_t pages_spared = 0;  // that sessions would reserve more if none were shared, promised copies deducted
  int64_t pages_copied = 0;  // so far, since a session wrote to them while they were shared
  int64_t pages_kept = 0;    // for sessions that begin alike; those that no session holds count as free
  int64_t weight_bytes = 0;  // packed
};

struct FreedPages {
  int64_t pages = 0;
  std::vector<bool> by = {};  // each session: whether it has a part in that
};

// What a model says about the limits of policies. `config` outlives what it returns.
inline SpecLimits LimitsOf(const ModelConfig& config) {
  return {.trained_context = config.context,
          .query_heads = config.group(),
          .layers = config.layers,
          .kv_heads = config.kv_heads,
          .windows = config.windows,
          .learned_positions = config.positions == PositionKind::kLearned ? config.context : 0,
          .calibration = &config.calibration,
          .head_gates = config.head_gates};
}

class Engine {
 public:
  // DATA_LOSS, NOT_FOUND or FAILED_PRECONDITION from the model file; UNAVAILABLE when the arena cannot be had;
  // INVALID_ARGUMENT for options out of range or an instruction set this CPU lacks. A calibration that is missing or
  // another model's is no error here: it is Resolve's answer to who asks for `calibrated`.
  static absl::StatusOr<std::unique_ptr<Engine>> Open(const EngineOptions& options);
  virtual ~Engine() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual std::string fingerprint()
      const = 0;  // what decides bits: model file's hash or size, instruction set, accuracy
  virtual EngineMemory memory() const = 0;
  virtual std::optional<DeviceUse> device_use() const { return {}; }  // absent: it has none
  // Where its tokens are computed; drafts, edits and what is asked of its cache are the host's in any case. O(cache).
  virtual Placement PlacementOf(const Session& /*session*/) const { return {}; }
  virtual const PackReport& packs() const = 0;  // of opening it
  // What comes free when all of `sessions` are gone, promised copies included: what others share of their pages stays.
  // O(their pages).
  virtual FreedPages FreedBy(std::span<const Session* const> sessions) const = 0;
  // That compute its steps, for what others have to compute between two of them.
  virtual Parallel& host_threads() const = 0;
  int32_t threads() const { return host_threads().threads(); }
  virtual int32_t step_tokens_max() const = 0;

  // Pages that a session with these options reserves: capacity of all its lanes. INVALID_ARGUMENT when block_size_max
  // is out of range; a number that exceeds pages_total is not an error here.
  virtual absl::StatusOr<int64_t> PagesFor(const SessionOptions& options) const = 0;

  // Reserves and opens. UNAVAILABLE NO_PAGES, naming both numbers, when fewer pages are free.
  virtual absl::StatusOr<std::unique_ptr<Session>> OpenSession(const SessionOptions& options) = 0;

  // A session with the same log, cache, policy and scorer's states: until one of them goes on their digests are equal,
  // and nothing that happens to one ever shows in the other. They share pages; who writes to a shared page first puts a
  // copy in its place (OwnPages). With a policy of its own, that is put in force as by SetPolicy.
  //
  // The branch reserves what a session that evicts nobody needs to go on to its limit: a page for every page that is
  // still empty, and the promise of a copy for every page that has a free slot. A full page is shared without: a
  // session that evicts, and so writes into it again, takes the page for its copy then, and may find none
  // (OwnPages). With `reserve_copies` copies of those are promised, too, to all who share them.
  //
  // O(pages) time, without copying K or V, and memory beside the pages. FAILED_PRECONDITION DRAFT_PENDING; UNAVAILABLE
  // NO_PAGES; what SetPolicy refuses. `session` is as it was in any case.
  virtual absl::StatusOr<Fork> ForkSession(Session& session, const ForkOptions& options) = 0;

  // Keeps a session as it is after a block of its first prompt, for sessions of the same `tenant` that begin alike.
  // What is kept takes no page from anybody: it is let go when they are wanted, what was used longest ago first.
  // REQUIRES: all that was ever done to the session is to run blocks of `block_size` tokens, none of which ended the
  // prompt.
  virtual void KeepPrefix(const Session& session, std::string_view tenant, int32_t block_size) = 0;

  // Makes an empty session of `tenant`, of which `prompt` is to be run in blocks of `block_size`, what it would be
  // after some of them: as many as are known from KeepPrefix, but not the whole prompt. Its Digest is that of running
  // them. Answers how many tokens these are, 0 where none are known.
  virtual int32_t BeginWithPrefix(Session& session, std::string_view tenant, std::span<const int32_t> prompt,
                                  int32_t block_size) = 0;

  // Makes the pages that the row's tokens go to the session's own, copying those that it shares; for a draft also sets
  // pages aside for what Accept may write. Before Run, for each row. Nothing to do where no session was forked.
  // UNAVAILABLE NO_PAGES; the session is as it was then, and can go on when pages are free.
  virtual absl::Status OwnPages(const BatchRow& row) = 0;

  // The same for all pages of a session: before BeginEdit, whose steps write to slots that hold tokens.
  virtual absl::Status OwnAllPages(Session& session) = 0;

  // Runs one step. REQUIRES: the rows' tokens sum to 1 .. step_tokens_max; OwnPages of each row. In steady state it
  // allocates nothing, but for a log that outgrows its capacity and doubles it.
  virtual void Run(std::span<BatchRow> rows) = 0;

  // The logits [vocab] of a session's last token, of which its last step yielded `facts` alone. They go where its
  // cache goes, and are the caller's from now on. UNAVAILABLE GPU_FAULT: the session is lost. REQUIRES: nobody took
  // them, and no token came since.
  virtual absl::StatusOr<std::vector<float>> TakeLogits(Session& session) = 0;

  // Keeps the first `count` tokens of the draft that waits, and forgets the others. `row` names the session, and
  // whether the loss is measured and victims are listed; what became of the tokens is written to it as by Run, loss as
  // the mean over the steps that evicted.
  //
  // The kept tokens become `count` decode steps: each takes the slot it would have had, tells the scorer what it
  // attends to, and lets the policy evict before the next. So the cache, the scorer's states and the logits are bit for
  // bit those of decoding the tokens one by one as long as nobody is evicted before the last of them. At a full cache
  // the draft's later tokens have seen what the earlier ones would have evicted: up to count - 1 tokens more
  // (POLICIES 8, deferred). Tokens that are not kept leave no trace. REQUIRES: 0 <= count <=
  // row.session->draft_tokens().
  virtual void Accept(BatchRow& row, int32_t count) = 0;

  // What an edit of the session comes to; changes nothing. INVALID_ARGUMENT with the field path: EDIT_EMPTY,
  // OUT_OF_RANGE, SPANS_OVERLAP, NOTHING_WOULD_STAY, RESTORE_NEEDS_TAIL; FAILED_PRECONDITION EMPTY_SESSION,
  // DRAFT_PENDING, POSITIONS_FIXED where tokens would move whose positions the model learned; RESOURCE_EXHAUSTED
  // LENGTH_LIMIT where a session that does not evict has no room for it.
  virtual absl::StatusOr<EditPlan> PlanEdit(const Session& session, const EditRequest& request) const = 0;

  // Begins it: the replaced tokens leave, those behind them move, and rows of Run then bring plan.WorkTokens(), in
  // blocks; nothing else touches the session meanwhile. A token that was evicted from a lane is no longer there when
  // its step is over. REQUIRES: the plan is of this session, as it stands; ids in 0..vocab-1; OwnAllPages.
  virtual void BeginEdit(Session& session, const EditPlan& plan) = 0;

  // Ends an edit behind the last token that was run: log and cache then end there. REQUIRES: edit_left() > 0, and a
  // step of the edit has run.
  virtual void AbandonEdit(Session& session) = 0;

  // Forgets the log's tokens from `tokens` on: log and cache end there. Who was evicted meanwhile stays evicted, and
  // what the policy remembers of those who stay includes what the forgotten ones paid them, so this is for sessions
  // that guess. The next token has to be run before there are logits to go on from. O(cache). REQUIRES: CheckSettled; 1
  // <= tokens <= the log's length.
  virtual void Rewind(Session& session, int32_t tokens) = 0;

  // A hash of all that decides what the session yields from here on: its log, who sits in which slot, their positions,
  // K and V, and the scorer's states. Equal sessions have equal digests on any machine of one byte order. O(cache).
  virtual uint64_t Digest(const Session& session) const = 0;

  // Writes all that decides what the session yields from here on, to a writer that has nothing yet; changes nothing.
  // O(cache). FAILED_PRECONDITION DRAFT_PENDING or EDIT_PENDING.
  absl::Status Save(const Session& session, SnapshotWriter& to) const;

  // What ReadSession (session_image.h) has to know. Constant: any thread.
  virtual ImageLimits image_limits() const = 0;

  // Opens a session that goes on where the one of the image was when it was saved: its Digest is equal, and so are the
  // tokens to come. The slot maps move out of `image`, unless it is refused: UNAVAILABLE NO_PAGES.
  absl::StatusOr<std::unique_ptr<Session>> Reopen(SessionImage& image);

  // Puts another policy in force on the warm cache, before the next step. What does not fit its budget leaves now, and
  // pages are reserved or given back; where lanes shrink, shared pages that tokens move to are copied.
  // FAILED_PRECONDITION CACHE_FORMAT_FIXED when it names another cache format, LANES_DIFFER (policy_swap.h),
  // CACHE_TOO_LONG when a policy that does not evict has no room for what is live; INVALID_ARGUMENT SESSION_TOO_LARGE
  // when it needs more pages than there are in all, and what FixBudget refuses; FAILED_PRECONDITION DRAFT_PENDING, as
  // Evict and the two at the end; UNAVAILABLE NO_PAGES. A refusal changes nothing.
  absl::StatusOr<PolicySwap> SetPolicy(Session& session, const ValidSpec& policy);

  // What SetPolicy would answer if `spare` more pages were free; changes nothing.
  absl::StatusOr<PolicySwap> TryPolicy(Session& session, const ValidSpec& policy, int64_t spare);

  // Evicts now. INVALID_ARGUMENT with the field path (range, keep.count, slots.lanes[2]...) when the request is
  // malformed or would leave no token; NOT_FOUND UNKNOWN_SCORER; FAILED_PRECONDITION SCORER_HAS_NO_STATE when another
  // scorer's state would begin empty (StateOrigin::kEmpty).
  absl::StatusOr<EvictReport> Evict(Session& session, const EvictRequest& request);

  // `layer` and `head` empty: all. Lanes in layer-major order.
  absl::StatusOr<std::vector<LaneReport>> Describe(const Session& session, std::optional<int32_t> layer,
                                                   std::optional<int32_t> head) const;

  // These calls in pieces, between which other sessions may run (cache_work.h).
  virtual absl::StatusOr<std::unique_ptr<PolicyWork>> BeginSetPolicy(Session& session, const ValidSpec& policy) = 0;
  virtual absl::StatusOr<std::unique_ptr<EvictWork>> BeginEvict(Session& session, const EvictRequest& request) = 0;
  virtual absl::StatusOr<std::unique_ptr<DescribeWork>> BeginDescribe(const Session& session,
                                                                      std::optional<int32_t> layer,
                                                                      std::optional<int32_t> head) const = 0;
  virtual absl::StatusOr<std::unique_ptr<SaveWork>> BeginSave(const Session& session) const = 0;
  // The pages are the work's from here on. `image` outlives it, and is used up, unless this is refused.
  virtual absl::StatusOr<std::unique_ptr<ReopenWork>> BeginReopen(SessionImage& image) = 0;

  // Moves the RoPE positions of cached tokens at `from` or later by `delta`, in all lanes, and the next token's with
  // them. What golden cases and later edits need. REQUIRES: positions ORIGINAL. INVALID_ARGUMENT POSITION_OUT_OF_RANGE
  // when a position, the next token's included, would leave 0 .. 2^31 - 2; nothing moves then.
  virtual absl::Status ShiftPositions(Session& session, int32_t from, int32_t delta) = 0;

  // Frees cached tokens whose RoPE position is in [start, end), in all lanes; returns how many per lane.
  virtual absl::StatusOr<int32_t> RemovePositions(Session& session, int32_t start, int32_t end) = 0;
};

}  // namespace ebb

#endif  // EBB_ENGINE_ENGINE_H_
