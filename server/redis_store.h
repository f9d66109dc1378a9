// Journals in a Redis that several servers share (server/redis_sessions.h has the layout and who may write).
//
// The server holds a lease there as long as it lives, and renews it from the journal's thread. One that was paused
// longer finds its sessions taken, by its first commit afterwards, before it tells anybody anything. While Redis is
// away, writes wait for it, and so does what was to be told of them; past `patience` the sessions that wait are given
// up, and come back from what Redis has once it is there (server/takeover.h).

#ifndef EBB_SERVER_REDIS_STORE_H_
#define EBB_SERVER_REDIS_STORE_H_

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/clock.h"
#include "server/metrics.h"
#include "server/redis_connection.h"
#include "server/redis_sessions.h"
#include "server/session_store.h"

namespace ebb {

struct RedisStoreOptions {
  RedisOptions redis = {};
  std::string prefix = "ebb:";
  std::string endpoint = {};  // where clients reach this server, as others name it
  absl::Duration lease = absl::Seconds(10);
  absl::Duration patience = absl::Seconds(30);
};

// UNAVAILABLE SESSION_MOVED with RetryInfo: the session is at `endpoint`, or will be; empty: on its way.
absl::Status SessionMoved(const SessionName& name, const std::string& endpoint);

class RedisStore final : public SessionStore {
 public:
  // Takes the lease. UNAVAILABLE STORE_UNUSABLE. `metrics` outlive it.
  static absl::StatusOr<std::unique_ptr<RedisStore>> Open(const RedisStoreOptions& options,
                                                          const JournalMetrics& metrics);
  ~RedisStore() override;  // ends the lease: its sessions are anybody's

  absl::Status Begin(SessionId session, const SessionName& name, std::string_view snapshot) override;
  absl::Status Continue(SessionId session, const SessionName& name, const JournalPlace& place) override;
  void Append(SessionId session, std::string_view record, bool is_input) override;
  std::vector<Failure> Write() override;
  std::vector<Failure> Renew(SessionId session, MakeSnapshot& snapshot) override;
  absl::Status Remove(SessionId session) override;
  void Forget(SessionId session) override;
  bool has_slices() const override { return !growing_.empty(); }
  void WriteSlice() override;
  std::vector<Failure> Tend() override;
  absl::Duration tend_in() const override { return std::max(renew_at_ - clock_.Now(), absl::ZeroDuration()); }

  // Any thread.
  const RedisKeys& keys() const { return keys_; }
  const RedisStoreOptions& options() const { return options_; }
  bool Holds(const SessionName& name) const;
  // Once the port is known; others hear of it with the next renewal.
  void SetEndpoint(const std::string& endpoint);

 private:
  struct Writing {
    SessionName name = {};
    JournalPlace place = {};
    std::string unwritten = {};     // records
    JournalEnd unwritten_end = {};  // behind them
  };
  // A snapshot on its way to Redis.
  struct Growing {
    SessionId session = 0;
    uint32_t number = 0;
    std::string bytes = {};
    size_t slices = 0;  // that are there
  };

  RedisStore(const RedisStoreOptions& options, const std::string& server, const JournalMetrics& metrics);
  absl::StatusOr<std::vector<RedisReply>> Insist(std::span<const RedisCommand> commands);
  absl::StatusOr<RedisReply> Insist(const RedisCommand& command);
  void Ask(std::span<const SessionId> asked, std::span<const RedisCommand> commands, std::vector<Failure>& failures);
  absl::Status Verdict(const SessionName& name, const RedisReply& reply) const;
  std::vector<Failure> CheckAll();
  absl::StatusOr<bool> AddSlice(Growing& growing);
  void Hold(SessionId session, const SessionName& name);
  std::string endpoint() const;

  const RedisStoreOptions options_;
  const JournalMetrics& metrics_;
  const RedisKeys keys_;
  const Clock clock_;

  // The journal's thread's, but for Open.
  RedisConnection connection_;
  bool is_away_ = false;                           // Redis, for longer than anybody waits
  absl::Time sent_ = absl::InfinitePast();         // the last that was answered
  absl::Time lease_until_ = absl::InfinitePast();  // at least
  absl::Time renew_at_ = absl::InfinitePast();
  int64_t checked_ = 0;  // connection_.made() when all sessions were known to be this server's
  std::map<SessionId, Writing> sessions_;
  std::set<SessionId> unwritten_;
  std::deque<Growing> growing_;
  int64_t begun_ = 0;

  mutable std::mutex mutex_;
  std::set<SessionName> held_ ABSL_GUARDED_BY(mutex_);
  std::string endpoint_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ebb

#endif  // EBB_SERVER_REDIS_STORE_H_
