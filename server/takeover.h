// Sessions of servers that are gone come here: those in a shared store (server/redis_sessions.h) whose owner's lease is
// over, or that were let go. Looks for them now and then, and at once when a call names one.

#ifndef EBB_SERVER_TAKEOVER_H_
#define EBB_SERVER_TAKEOVER_H_

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/kept_sessions.h"
#include "server/metrics.h"
#include "server/redis_connection.h"
#include "server/redis_store.h"
#include "server/worker.h"

namespace ebb {

class Takeover {
 public:
  // All of them outlive it.
  Takeover(RedisStore& store, Worker& worker, const JournalMetrics& metrics);
  ~Takeover();  // Stop

  // Takes all that can be taken. Waits. REQUIRES: not started.
  KeptSessions Round();
  // From now on a thread does so, every third of a lease, and other servers name `endpoint` to clients.
  void Start(const std::string& endpoint);
  // Takes no more. Waits for what is being taken.
  void Stop();

  // Any thread; asks Redis. What is to be said of a session that this server does not have, instead of `unknown`:
  // UNAVAILABLE SESSION_MOVED with where it is, or that it is on its way here; DATA_LOSS JOURNAL_DAMAGED; UNAVAILABLE
  // STORE_FAILED; `unknown` when it is nowhere.
  absl::Status Seek(const SessionName& name, const absl::Status& unknown);

 private:
  void Loop();
  absl::Status Take(const SessionName& name);

  RedisStore& store_;
  Worker& worker_;
  const JournalMetrics& metrics_;
  RedisConnection connection_;                     // the thread's, or Round's caller's
  std::map<SessionName, absl::Time> not_before_;   // likewise: what could not be opened here
  absl::Time quiet_until_ = absl::InfinitePast();  // likewise: Redis was away, and all leases may have ended with it

  std::mutex seek_mutex_;
  RedisConnection seeking_ ABSL_GUARDED_BY(seek_mutex_);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ebb

#endif  // EBB_SERVER_TAKEOVER_H_
