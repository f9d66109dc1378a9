#include "tests/support/redis_process.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "policies/check.h"

namespace ebb {
namespace {

int FreePort() {
  const int probe = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EBB_CHECK(bind(probe, reinterpret_cast<sockaddr*>(&address), size) == 0);
  EBB_CHECK(getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  close(probe);
  return ntohs(address.sin_port);
}

}  // namespace

RedisProcess::RedisProcess(const std::string& folder) : folder_(folder), port_(FreePort()) { Start(); }

void RedisProcess::Kill() { process_.reset(); }

void RedisProcess::Start() {
  process_ = std::make_unique<ChildProcess>(
      std::vector<std::string>{"redis-server", "--bind", "127.0.0.1", "--port", absl::StrCat(port_), "--dir", folder_,
                               "--save", "", "--appendonly", "yes", "--appendfsync", "always"});
  EXPECT_NE(process_->WaitForLine("Ready to accept connections"), "") << "redis-server does not start";
}

RedisOptions RedisProcess::options() const { return {.address = {.host = "127.0.0.1", .port = port_}}; }

std::string RedisProcess::Ask(const RedisCommand& command) const {
  const auto reply = RedisConnection(options()).Run(command);
  EXPECT_TRUE(reply.ok()) << reply.status();
  return reply.ok() ? reply->text : "";
}

}  // namespace ebb
