#include "server/redis_connection.h"

#include <hiredis/hiredis.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/status.h"

namespace ebb {
namespace {

// REQUIRES: no error, nor has any of its list.
RedisReply ReplyFrom(const redisReply& reply) {
  RedisReply read;
  switch (reply.type) {
    case REDIS_REPLY_INTEGER:
      read.text = absl::StrFormat("%d", reply.integer);
      break;
    case REDIS_REPLY_NIL:
      read.is_nil = true;
      break;
    case REDIS_REPLY_ARRAY:
      for (size_t i = 0; i < reply.elements; ++i) read.list.push_back(ReplyFrom(*reply.element[i]));
      break;
    default:  // strings of all kinds
      read.text.assign(reply.str, reply.len);
      break;
  }
  return read;
}

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};

}  // namespace

std::string ReadRedisPassword(const std::string& file) {
  std::ifstream stream(file);
  std::string password;
  std::getline(stream, password);
  return password;
}

void RedisConnection::Free::operator()(redisContext* context) const { redisFree(context); }

absl::Status RedisConnection::Failed(const std::string& what) {
  context_.reset();
  ++lost_;
  return Refuse(
      absl::StatusCode::kUnavailable,
      absl::StrFormat("the store failed: Redis: %s", what),  // tenants read it: it names neither address nor folder
      {.reason = "STORE_FAILED", .retry = absl::Seconds(5)});
}

absl::Status RedisConnection::Connect() {
  if (context_ != nullptr) return absl::OkStatus();
  std::string password;
  if (!options_.password_file.empty()) {
    password = ReadRedisPassword(options_.password_file);  // it may be another by now
    if (password.empty()) {
      return Failed(absl::StrFormat("store.redis_password_file: a password is expected on the first line of %s",
                                    std::filesystem::path(options_.password_file).filename().string()));
    }
  }
  const timeval timeout = absl::ToTimeval(options_.timeout);
  context_.reset(redisConnectWithTimeout(options_.address.host.c_str(), options_.address.port, timeout));
  if (context_ == nullptr) return Failed("no memory for a connection");
  if (context_->err != 0) return Failed(absl::StrFormat("connecting: %s", context_->errstr));
  redisSetTimeout(context_.get(), timeout);
  redisEnableKeepAlive(context_.get());
  ++made_;
  if (password.empty()) return absl::OkStatus();
  const std::unique_ptr<redisReply, FreeReply> reply(
      static_cast<redisReply*>(redisCommand(context_.get(), "AUTH %b", password.data(), password.size())));
  if (reply == nullptr) return Failed(context_->errstr);
  if (reply->type == REDIS_REPLY_ERROR) return Failed(reply->str);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RedisReply>> RedisConnection::Run(std::span<const RedisCommand> commands) {
  EBB_TRY(Connect());
  for (const RedisCommand& command : commands) {
    std::vector<const char*> words;
    std::vector<size_t> lengths;
    for (const std::string& word : command) {
      words.push_back(word.data());
      lengths.push_back(word.size());
    }
    if (redisAppendCommandArgv(context_.get(), static_cast<int>(words.size()), words.data(), lengths.data()) !=
        REDIS_OK) {
      return Failed(context_->errstr);
    }
  }
  std::vector<RedisReply> replies;
  for (size_t i = 0; i < commands.size(); ++i) {
    EBB_ASSIGN(RedisReply reply, Receive());
    replies.push_back(std::move(reply));
  }
  return replies;
}

absl::StatusOr<RedisReply> RedisConnection::Receive() {
  void* received = nullptr;
  const int status = redisGetReply(context_.get(), &received);
  const std::unique_ptr<redisReply, FreeReply> reply(static_cast<redisReply*>(received));
  if (status != REDIS_OK || reply == nullptr) return Failed(context_->errstr);
  // A server that still loads, is full, or is another's replica: the connection is dropped with what it has yet to say.
  if (reply->type == REDIS_REPLY_ERROR) return Failed(reply->str);
  return ReplyFrom(*reply);
}

absl::StatusOr<RedisReply> RedisConnection::Run(const RedisCommand& command) {
  EBB_ASSIGN(std::vector<RedisReply> replies, Run(std::span(&command, 1)));
  return std::move(replies.front());
}

absl::StatusOr<RedisReply> RedisConnection::RunFailFast(const RedisCommand& command) {
  const absl::Time asked = clock_.Now();
  if (asked < again_at_) return failure_;
  auto reply = Run(command);
  if (!reply.ok() && clock_.Now() - asked < options_.timeout / 2) reply = Run(command);
  if (!reply.ok()) {
    failure_ = reply.status();
    again_at_ = clock_.Now() + kFailFast;
  }
  return reply;
}

}  // namespace ebb
