// Where journals rest: a folder of this server alone (server/folder_store.h), or a Redis that several servers share
// (server/redis_store.h). The journal's thread calls (server/journal.h), and nobody else.

#ifndef EBB_SERVER_SESSION_STORE_H_
#define EBB_SERVER_SESSION_STORE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/scheduler.h"
#include "server/session_files.h"
#include "server/sessions.h"

namespace ebb {

// A snapshot to be, whole and sealed, of the journal's thread.
using MakeSnapshot = absl::AnyInvocable<std::string()>;

// What becomes of a session that is not written.
enum class Fate {
  kNeverBegan,  // nothing of it is in the store
  kReadOnly,    // it is what it was, and takes no more writes
  kGone,        // it is not this server's any more: another's, or nobody's until the store is there again
};

class SessionStore {
 public:
  struct Failure {
    SessionId session = 0;
    Fate fate = Fate::kReadOnly;
    absl::Status why = {};  // of kGone what callers are told, else what the store says
  };

  virtual ~SessionStore() = default;

  // A session begins with its snapshot, or goes on where its past was read. Refused, the store knows nothing of it.
  virtual absl::Status Begin(SessionId session, const SessionName& name, std::string_view snapshot) = 0;
  virtual absl::Status Continue(SessionId session, const SessionName& name, const JournalPlace& place) = 0;
  // Of the next Write. In all of these REQUIRES: the session was begun or continued, and neither removed nor forgotten.
  virtual void Append(SessionId session, std::string_view record, bool is_input) = 0;
  // All that was appended. Says of which sessions it could not be.
  virtual std::vector<Failure> Write() = 0;
  // What was appended is written, and from here on a snapshot takes its place: its bytes are written in slices.
  virtual std::vector<Failure> Renew(SessionId session, MakeSnapshot& snapshot) = 0;
  virtual absl::Status Remove(SessionId session) = 0;
  // What is in the store stays there.
  virtual void Forget(SessionId session) = 0;

  // A slice of a snapshot that is to be written. One that cannot be is given up: the journals before it are there.
  virtual bool has_slices() const = 0;
  virtual void WriteSlice() = 0;

  // Before each commit, and when tend_in() is over: whether sessions are still this server's. Says which are not.
  virtual std::vector<Failure> Tend() { return {}; }
  virtual absl::Duration tend_in() const { return absl::InfiniteDuration(); }
};

}  // namespace ebb

#endif  // EBB_SERVER_SESSION_STORE_H_
