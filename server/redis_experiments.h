// Experiments in the Redis in which servers share their sessions (server/redis_sessions.h), so that those of a server
// that is gone go on at another. Each server writes its own; scripts, each of which Redis runs as a whole, say who may.
//
//   PREFIX experiments                set of HEAPs: SERVER, what it writes; OWNER/NUMBER, left by another and taken by
//                                     OWNER; /NUMBER, left to others
//   PREFIX experiments:HEAP           hash: NAME to image
//   PREFIX experiments:taken:HEAP     there, for a week, once another server has taken the heap
//   PREFIX experiments:aside          hash: NAME-NUMBER to the image of one that was set aside
//
// A heap whose owner's lease is over may be taken, which renames it. So it moves as a whole, and is one server's at any
// time; what is in it is added to what the taker has and goes in the same script that writes the sum. Whoever dies
// before that leaves both to the next one. A server that was taken for dead finds it out with its next write, and
// begins anew: what it had seen is another's.

#ifndef EBB_SERVER_REDIS_EXPERIMENTS_H_
#define EBB_SERVER_REDIS_EXPERIMENTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/clock.h"
#include "server/experiment_store.h"
#include "server/redis_connection.h"

namespace ebb {

class RedisExperiments final : public ExperimentStore {
 public:
  // Of the server that holds, or has held, this lease. Connects when it is first asked.
  RedisExperiments(const RedisOptions& redis, std::string prefix, std::string server, absl::Duration lease)
      : prefix_(std::move(prefix)), server_(std::move(server)), lease_(lease), connection_(redis) {}

  // After Redis was away, for the time of a lease, nothing new: others are about to renew theirs.
  absl::StatusOr<Lefts> Find() override;
  absl::StatusOr<std::string> Read(const Left& left) override;
  absl::StatusOr<std::string> SetAside(const Left& left) override;
  absl::Status Leave(const std::string& place) override;
  absl::Status Write(const std::string& id, std::string_view image, const Lefts& merged) override;
  absl::Status Remove(const std::string& id, const Lefts& merged) override;
  bool HasBeenAway() override { return std::exchange(known_, answered_) != answered_; }

 private:
  // For all of these: many experiments wait for one timeout.
  absl::StatusOr<RedisReply> Run(const RedisCommand& command);
  // After this server was told that it was taken: from then on it may write again.
  absl::Status BeginAnew();
  RedisCommand Script(std::string_view body, std::vector<std::string> more) const;
  // Of Write; without an image, of Remove.
  absl::Status Put(const std::string& id, std::string_view image, const Lefts& merged);

  const std::string prefix_;
  const std::string server_;
  const absl::Duration lease_;
  const Clock clock_ = {};
  RedisConnection connection_;
  int64_t answered_ = 0;  // connection_.made() when Redis last answered
  int64_t known_ = 0;     // that, when somebody last asked
  bool was_taken_ = false;
  absl::Time quiet_until_ = absl::InfinitePast();  // Redis was away, and all leases may have ended with it
};

}  // namespace ebb

#endif  // EBB_SERVER_REDIS_EXPERIMENTS_H_
