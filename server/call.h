// A call that works on a session, as plain structs: what it asks (CallRequest), and where its results go (CallOutput).
//
// One call at a time writes to a session. What the log holds, exactly:
//   - a token is in the log when the model has run it; a prompt's tokens come in blocks. A generated token is drawn,
//     sent and run in one step, in whose midst nobody sees the session: what a client has seen is in the log, whatever
//     ends its call. With a draft of the server's behind it, it is sent with what is accepted of that
//   - the session keeps the logits of the log's last token, so the next call draws at once, and two calls of ten tokens
//     draw the same twenty as one call
//   - an end token, and the tokens that spelled a stop text, are in the log
//   - the last token of an answer whose session is thrown away with it is sent and not run

#ifndef EBB_SERVER_CALL_H_
#define EBB_SERVER_CALL_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/edit.h"
#include "engine/sampler.h"
#include "engine/speculation.h"
#include "policies/spec.h"
#include "server/experiments/experiments.h"

namespace ebb {

using CallId = uint64_t;

enum class FinishReason { kNone, kEndOfSequence, kStop, kMaxTokens, kLengthLimit };

// When an answer ends. Token ids are in range.
struct StoppingOptions {
  int32_t max_tokens = 256;               // >= 1; tokens sent again after resume_from count
  std::vector<std::string> stop = {};     // none is empty
  std::vector<int32_t> stop_tokens = {};  // beside the model's own
  bool ignore_eos = false;                // the model's own do not end the answer
  bool logprobs = false;                  // report them; SamplingOptions::logprobs says how many alternatives
};

// Prompt tokens that a session reads at a time, where its caller names no number.
inline constexpr int32_t kDefaultBlockSize = 128;

// A session to open.
struct SessionRequest {
  std::string tenant = {};
  std::string id = {};  // without `sessions/`; unique in the tenant
  ValidSpec policy = {};
  SamplingOptions sampling = {};
  int32_t block_size = kDefaultBlockSize;
  absl::Duration ttl = absl::InfiniteDuration();
  std::string request_id = {};                // empty: none
  std::optional<Assignment> assignment = {};  // of an experiment, whose arm the policy is
};

// Who makes the drafts of a generation.
enum class DraftSource { kNone, kLookup, kModel };

// Drafts that the server makes.
struct Speculation {
  DraftSource source = DraftSource::kNone;
  int32_t tokens_max = 16;  // of a draft, 1 .. kDraftTokensMax - 1
};

// A draft to verify behind the log.
struct DraftRequest {
  DraftProposal proposal = {};
  bool manual = false;   // it waits for Dispatcher::Accept
  int32_t logprobs = 0;  // 0..20 alternatives to report beside each score
};

// An edit of the log.
struct EditJob {
  EditRequest edit = {};
  bool require_exact = false;  // refused unless it is EditExactness::kExact
};

// Another answer to a call's prompt, made by a call of its own on a throw-away branch of the session as the prompt left
// it. Its seed follows from the call's and from its place; CallOutput::Branch says where it goes.
struct AnswerBranch {
  CallId call = 0;
  std::string session = {};  // id of the branch
};

struct CallRequest {
  std::string method = {};  // for SESSION_BUSY: who holds the session
  std::string tenant = {};
  std::string session = {};                          // id; empty: a throw-away session, `open`
  std::optional<SessionRequest> open = {};           // closed when the call ends
  std::optional<uint64_t> expected_generation = {};  // the caller's condition
  std::optional<uint64_t> made_for = {};  // SessionView::id it was made for: the name may be another's by now
  std::optional<uint64_t> generation_of_prompt = {};  // the prompt was encoded to continue the log at this generation
  std::vector<int32_t> prompt = {};
  int32_t block_size = 0;                // 0: the session's; at most that
  std::optional<int32_t> score_at = {};  // log-probabilities are wanted of the prompt's tokens from this index on, >= 1
  std::optional<DraftRequest> draft = {};   // in the place of a prompt; `decodes` adds the token that follows
  std::optional<EditJob> edit = {};         // likewise
  bool decodes = false;                     // generate after the prompt
  SamplingOptions sampling = {};            // of `decodes`
  StoppingOptions stopping = {};            // likewise
  Speculation speculation = {};             // of `decodes`
  std::vector<AnswerBranch> branches = {};  // of `decodes`, with a prompt: more answers to it
  bool is_admitted = false;                 // with the call whose prompt it answers: quotas let it through
  std::optional<int64_t> resume_from = {};  // index in the log of the first token to send; default: its end
  absl::Time deadline = absl::InfiniteFuture();
  absl::Time came = absl::InfiniteFuture();  // to the worker; infinite: with its start
};

// A block of the prompt is in.
struct BlockDone {
  int32_t tokens_done = 0;
  int32_t tokens_total = 0;
  int32_t cache_length = 0;
  int32_t evicted = 0;
  absl::Duration elapsed = {};  // since the call's first step
};

// Tokens of the answer: in the log, but for one that the step under way runs.
struct TokensDone {
  std::span<const int32_t> tokens = {};
  std::string text = {};         // may lag behind
  const Drawn* drawn = nullptr;  // of the one token, if log-probabilities were asked for
  int32_t evicted = 0;           // since the tokens before
  int32_t cache_length = 0;      // now
};

// A draft has run.
struct DraftDone {
  std::span<const Drawn> scores = {};  // of its tokens
  int32_t accepted = 0;
  int32_t pending = 0;               // or how many wait
  const Drawn* likeliest = nullptr;  // behind the whole draft, where they wait
};

// An edit has run.
struct EditDone {
  const EditPlan& plan;
  absl::Duration elapsed = {};  // since the call's first step
};

struct CallUsage {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  int64_t evicted = 0;
  int32_t cache_length = 0;
  int64_t session_tokens = 0;
  bool past_trained_context = false;
  int32_t drafted_tokens = 0;
  int32_t accepted_tokens = 0;  // of these; part of completion_tokens
  int32_t reused_tokens = 0;    // of prompt_tokens
};

struct CallTimings {
  absl::Duration queue = {};
  absl::Duration prefill = {};
  std::optional<absl::Duration> first_token = {};
  absl::Duration decode = {};
};

// The call is over. Beside the status and the usage, which is all zero before it has begun, the rest counts only when
// the status is OK.
struct CallEnd {
  absl::Status status = {};
  FinishReason finish = FinishReason::kNone;  // kNone unless the call decodes
  std::string text = {};                      // what was still held back
  int32_t evicted = 0;                        // since the last tokens
  CallUsage usage = {};
  CallTimings timings = {};
  uint64_t generation = 0;
};

// Whether the reader keeps up. kFull: the call is not stepped again until Worker::ReaderReady.
enum class Reader { kReady, kFull };

// Where a call's results go. Called by the worker's thread; must not wait. Nothing is called after End, which may
// destroy the output.
class CallOutput {
 public:
  virtual ~CallOutput() = default;
  virtual Reader OnBlock(const BlockDone& block) = 0;
  virtual Reader OnTokens(const TokensDone& tokens) = 0;
  virtual void OnScores(std::span<const TokenLogprob> scores) = 0;  // of CallRequest::score_at
  virtual void OnDraft(const DraftDone& /*draft*/) {}               // of CallRequest::draft
  virtual void OnEdit(const EditDone& /*edit*/) {}                  // of CallRequest::edit
  // Of CallRequest::branches: the output of the index-th, whose call begins now. REQUIRED of who asks for branches.
  virtual CallOutput* Branch(size_t /*index*/) { return nullptr; }
  virtual void End(const CallEnd& end, bool discard) = 0;  // discard: do not wait for a reader that stays slow
};

}  // namespace ebb

#endif  // EBB_SERVER_CALL_H_
