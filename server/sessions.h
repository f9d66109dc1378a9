// The directory of sessions: who owns one, who writes to it, its generation, when it expires.
//
// Names are per tenant: a session of another tenant is simply not there. The worker's thread owns the directory and all
// sessions in it. Other threads may Look: they see each session as it was when its last call ended, which is what a
// prompt has to be encoded to continue.

#ifndef EBB_SERVER_SESSIONS_H_
#define EBB_SERVER_SESSIONS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/engine.h"
#include "server/call.h"
#include "server/journal_record.h"
#include "server/last_logits.h"
#include "server/metrics.h"
#include "server/scheduler.h"
#include "server/session_names.h"
#include "server/swapped_session.h"
#include "server/tenants.h"

namespace ebb {

// What a session shows for the experiment that it counts in.
struct Trial {
  Assignment assignment = {};
  const ArmMetrics* metrics = nullptr;
  Observations fresh = {};               // since Experiments::Add was last called
  absl::Time held_since = {};            // its pages, as far as `fresh` knows
  std::deque<std::string> reports = {};  // request_ids of the last outcomes
};

// A session that is being served.
struct OpenSession {
  SessionId id = 0;
  SessionRequest request = {};                   // what it was opened with
  bool throw_away = false;                       // closed when its call ends; not listed
  bool closed = false;                           // hidden, and gone when its call ends
  bool is_branch = false;                        // it began as one
  TenantAccount* account = nullptr;              // its tenant's
  std::unique_ptr<Session> cache = {};           // null while it is swapped
  std::unique_ptr<SwappedSession> swapped = {};  // null while it is not
  uint64_t generation = 1;
  LastLogits logits = {};                // of the log's last token; none while the log is empty, or it is swapped
  std::vector<float> draft_logits = {};  // [cache->draft_tokens(), vocab] of the draft that waits
  bool prompt_ended = false;             // a prompt has ended: a budget_ratio is fixed
  std::string writer = {};               // method of the call that writes to it; empty: none
  std::string_view work = {};            // method of the work on its cache that goes on (Dispatcher::Work); likewise
  absl::Time created = {};
  absl::Time last_used = {};
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t counted_slots = 0;              // live slots as the metrics know them
  int64_t counted_pages = 0;              // likewise
  int64_t charged_pages = 0;              // to its tenant: likewise, those of one that is swapped included
  int64_t evicting_steps = 0;             // since it was opened
  bool past_context = false;              // counted as past the trained context
  bool journaled = false;                 // what it does is written down (dispatcher_journal.cc)
  absl::Status journal = {};              // why that failed; it takes no more writes
  absl::Status lost = {};                 // its device failed: what those are told who wait for it
  int64_t since_snapshot = 0;             // tokens that would have to be run again to have it back
  std::optional<AnswerPlan> answer = {};  // that is being written, or was when the server was killed
  const TenantMetrics* tenant_metrics = nullptr;
  const PolicyMetrics* policy_metrics = nullptr;
  Counter* policy_tokens = nullptr;   // of its tenant under its policy
  Placement placement = {};           // as its cache, its policy and its device were when these last changed
  std::unique_ptr<Trial> trial = {};  // null: it counts in no experiment

  absl::Time expiry() const { return last_used + request.ttl; }
};

// OK, or ABORTED GENERATION_MISMATCH with both.
absl::Status CheckGeneration(const OpenSession& session, std::optional<uint64_t> expected);
// OK, or ABORTED SESSION_BUSY with who writes to it, or works on its cache.
absl::Status CheckIdle(const OpenSession& session);
// The same of a call that can wait until the work is done.
absl::Status CheckNoWriter(const OpenSession& session);

// OK, or FAILED_PRECONDITION JOURNAL_FAILED.
absl::Status CheckJournal(const OpenSession& session);

// Why who works on or watches a session that is closed hears no more of it: UNAVAILABLE GPU_FAULT, what became of its
// journal, or CANCELLED SESSION_DELETED.
absl::Status WhyClosed(const OpenSession& session);

// UNAVAILABLE NO_MEMORY, of another session, or a copy of one.
absl::Status NoMemoryForSession();
absl::Status NoMemoryForCopy();

// A session as other threads see it.
struct SessionView {
  SessionId id = 0;
  uint64_t generation = 0;
  std::vector<int32_t> log_tail = {};  // the last tokens of the log, at most kLogTail
  int32_t block_size = 0;
  SamplingOptions sampling = {};
};
inline constexpr size_t kLogTail = 4;

class Sessions {
 public:
  // `names`, which outlive this, are also those of sessions of other models; null: there are no others.
  explicit Sessions(int32_t sessions_max, SessionNames* names = nullptr, ModelId model = 0)
      : sessions_max_(sessions_max), all_names_(names), model_(model) {}
  void SetMax(int32_t sessions_max) { sessions_max_ = sessions_max; }  // those beyond it stay

  // OK, or why there cannot be this session: ALREADY_EXISTS NAME_TAKEN; UNAVAILABLE SESSIONS_FULL, or
  // SESSION_RECOVERING where its name or request_id is one's that was lost, with RetryInfo. What the tenant may have is
  // its account's to say.
  absl::Status CheckRoom(const SessionRequest& request) const;
  // The same of the one that was lost.
  absl::Status CheckReturn(const SessionRequest& request) const;
  // The living session that a CreateSession with this request_id made, or null.
  OpenSession* FindRequest(const std::string& tenant, const std::string& request_id);

  // ALREADY_EXISTS NAME_TAKEN where a session of another model has the name, perhaps since CheckRoom. From now on it is
  // this one's, until Hide.
  absl::Status Claim(const SessionRequest& request);

  // REQUIRES: CheckRoom and Claim. The session is looked up from now on.
  OpenSession& Add(OpenSession session);

  // NOT_FOUND UNKNOWN_SESSION, naming it, or UNAVAILABLE SESSION_RECOVERING.
  absl::StatusOr<OpenSession*> Find(const std::string& tenant, const std::string& id);
  bool has(SessionId id) const { return sessions_.contains(id); }
  OpenSession& at(SessionId id) { return *sessions_.at(id); }

  // The session can no longer be found by name. Its pages may still be in use until Remove.
  void Hide(const OpenSession& session);
  // The same, but its name stays its own: it is Added again, unless GiveUp says that it will not be.
  void Lose(const OpenSession& session);
  void GiveUp(const SessionName& name);
  void Remove(SessionId id);

  // Makes the session's state visible to Look.
  void Publish(const OpenSession& session);

  // A call begins or ends: the time to live starts anew.
  void Touch(OpenSession& session, absl::Time now);
  // Of sessions in no call, whose time has come.
  std::vector<SessionId> Expired(absl::Time now) const;
  absl::Time next_expiry() const;

  // The tenant's sessions after the name `after`, ascending, at most `count`; throw-away ones are left out.
  std::vector<const OpenSession*> List(const std::string& tenant, const std::string& after, size_t count) const;
  size_t size() const { return sessions_.size(); }
  const std::map<SessionId, std::unique_ptr<OpenSession>>& all() const { return sessions_; }

  // Any thread. Errors of Find.
  absl::StatusOr<SessionView> Look(const std::string& tenant, const std::string& id) const;

 private:
  using Name = SessionName;
  void Unlist(const OpenSession& session);

  int32_t sessions_max_;
  SessionNames* const all_names_;
  const ModelId model_;
  std::map<SessionId, std::unique_ptr<OpenSession>> sessions_;  // hidden ones too
  std::map<Name, SessionId> names_;
  std::map<Name, SessionId> requests_;  // by request_id
  std::set<std::pair<absl::Time, SessionId>> expiries_;

  mutable std::mutex views_mutex_;
  std::map<Name, SessionView> views_ ABSL_GUARDED_BY(views_mutex_);
  std::map<Name, std::string> lost_ ABSL_GUARDED_BY(views_mutex_);  // and on their way back: request_id of each
};

}  // namespace ebb

#endif  // EBB_SERVER_SESSIONS_H_
