// A connection to Redis that is made anew whenever it is lost. One thread at a time.

#ifndef EBB_SERVER_REDIS_CONNECTION_H_
#define EBB_SERVER_REDIS_CONNECTION_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/address.h"
#include "server/clock.h"

struct redisContext;

namespace ebb {

struct RedisOptions {
  Address address = {};
  std::string password_file = {};             // read for each connection; empty: none is asked for
  absl::Duration timeout = absl::Seconds(2);  // of connecting, and of each answer
};

// The file's first line; empty where there is none, or the file cannot be read.
std::string ReadRedisPassword(const std::string& file);

using RedisCommand = std::vector<std::string>;

struct RedisReply {
  std::string text = {};  // of a string; a number as it is written; empty for nil
  bool is_nil = false;
  std::vector<RedisReply> list = {};  // of an array
};

class RedisConnection {
 public:
  explicit RedisConnection(RedisOptions options) : options_(std::move(options)) {}

  // Sends all commands at once and returns their answers, in order. UNAVAILABLE STORE_FAILED with RetryInfo when the
  // connection is lost, or when an answer is an error: then any of them may have been carried out. The same, and
  // nothing was sent, when there is no connection and none can be made; one that lacks its password names the file.
  absl::StatusOr<std::vector<RedisReply>> Run(std::span<const RedisCommand> commands);
  absl::StatusOr<RedisReply> Run(const RedisCommand& command);

  // For who must not wait for a Redis that is away: as Run, and once more where that failed in less than half a
  // timeout, as after a restart of Redis. Once both have failed, this fails at once, with their error, for kFailFast.
  absl::StatusOr<RedisReply> RunFailFast(const RedisCommand& command);
  static constexpr absl::Duration kFailFast = absl::Seconds(1);

  // How often it was lost, or could not be made.
  int64_t lost() const { return lost_; }
  // How often it was made: what the server has may be older than it was, where that has changed.
  int64_t made() const { return made_; }

 private:
  struct Free {
    void operator()(redisContext* context) const;
  };

  absl::Status Connect();
  absl::StatusOr<RedisReply> Receive();
  absl::Status Failed(const std::string& what);

  const RedisOptions options_;
  std::unique_ptr<redisContext, Free> context_ = {};
  int64_t made_ = 0;
  int64_t lost_ = 0;
  const Clock clock_ = {};
  absl::Status failure_ = absl::OkStatus();     // RunFailFast's last
  absl::Time again_at_ = absl::InfinitePast();  // until which it is that of all
};

}  // namespace ebb

#endif  // EBB_SERVER_REDIS_CONNECTION_H_
