// The thread that writes journals, and lets nobody be told of what is not yet written.
//
// The worker leaves it a batch before each step, with the tokens that were drawn for it, and one behind it: what its
// sessions did, and what is to be said of it to whom. The thread takes all batches that wait, writes each session's
// records with one write, syncs those that have to be, and only then says what waits, in order; meanwhile the worker
// runs its step. So a step costs the worker no wait for the store (server/session_store.h), and what a client was told
// is what the store has.
//
// A session whose journal cannot be written is failed for good: whoever waits to be told something about it is told
// why instead, and the dispatcher refuses further writes to it, or closes it where it is no longer this server's. The
// others go on.
//
// From time to time a snapshot takes the place of the journal before it. Its bytes are written in slices between
// commits, so that nobody waits for more than one; until it is whole what is older stays.

#ifndef EBB_SERVER_JOURNAL_H_
#define EBB_SERVER_JOURNAL_H_

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/call.h"
#include "server/metrics.h"
#include "server/scheduler.h"
#include "server/session_store.h"

namespace ebb {

struct SaveOutcome;

struct JournalBatch {
  // A session begins, here with its first snapshot.
  struct Open {
    SessionId session = 0;
    SessionName name = {};
    MakeSnapshot snapshot = {};
  };
  // Or goes on from what it was brought back from.
  struct Continue {
    SessionId session = 0;
    SessionName name = {};
    JournalPlace place = {};
  };
  struct Append {
    SessionId session = 0;
    std::string record = {};
    bool is_input = false;
  };
  // The snapshot takes the place of what was appended so far.
  struct Renew {
    SessionId session = 0;
    MakeSnapshot snapshot = {};
  };
  struct Remove {
    SessionId session = 0;
  };
  // What is in the store stays there, written to by nobody.
  struct Leave {
    SessionId session = 0;
  };
  using Deed = std::variant<Open, Continue, Append, Renew, Remove, Leave>;

  // Said when the batch is written, with OK, or why `about` could not be.
  struct Telling {
    SessionId about = 0;   // 0: of no session
    bool is_read = false;  // of what the session was, whether or not it takes writes
    absl::AnyInvocable<void(const absl::Status&)> tell = {};
  };

  std::vector<Deed> deeds = {};  // of sessions that it does not know nothing is done
  std::vector<Telling> tellings = {};

  bool empty() const { return deeds.empty() && tellings.empty(); }
};

// What the worker has to hear of.
struct JournalNews {
  struct Failed {
    SessionId session = 0;
    Fate fate = Fate::kReadOnly;
    absl::Status status = {};
  };
  std::vector<Failed> failed = {};
  std::vector<CallId> blocked = {};  // their readers are full
};

class Journal {
 public:
  // `metrics` outlive it. `seal` makes a snapshot of what Dispatcher::Save copied.
  using Seal = std::string (*)(SaveOutcome);
  Journal(std::unique_ptr<SessionStore> store, Seal seal, const JournalMetrics& metrics);
  ~Journal();  // commits what waits
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // The worker's thread. Waits while as many batches wait as may: then the disk is slower than the model.
  void Commit(JournalBatch batch);
  // Any thread but its own. Waits until what was committed is written and said.
  void Flush();
  // The worker's thread.
  JournalNews TakeNews();

  // Within a Telling.
  void ReaderIsFull(CallId call);

  // Before anybody calls: the name belongs to files that could not be read now, and no session may begin under it.
  void Reserve(const SessionName& name);

  Seal seal() const { return seal_; }

 private:
  static constexpr size_t kBatchesMax = 64;

  void Loop();
  void CommitAll(std::vector<JournalBatch>& batches);
  void Tell(JournalBatch::Telling& telling);
  void Do(JournalBatch::Open& open);
  absl::Status Begin(JournalBatch::Open& open);
  void Do(JournalBatch::Continue& go_on);
  void Do(JournalBatch::Append& append);
  void Do(JournalBatch::Renew& renew);
  void Do(JournalBatch::Remove& remove);
  void Do(JournalBatch::Leave& leave);
  bool Writes(SessionId session) const { return sessions_.contains(session) && !failed_.contains(session); }
  void Heed(const std::vector<SessionStore::Failure>& failures);
  void Fail(SessionId session, Fate fate, const absl::Status& why);

  struct Failed {
    Fate fate = Fate::kReadOnly;
    absl::Status status = {};
  };

  const std::unique_ptr<SessionStore> store_;
  const Seal seal_;
  const JournalMetrics& metrics_;

  // The thread's.
  std::map<SessionId, SessionName> sessions_;  // that the store has
  std::map<SessionId, Failed> failed_;
  std::vector<SessionId> closed_sessions_;  // of these, those that the dispatcher has closed, until all is told

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<JournalBatch> waiting_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  JournalNews news_ ABSL_GUARDED_BY(mutex_);
  std::set<SessionName> reserved_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace ebb

#endif  // EBB_SERVER_JOURNAL_H_
