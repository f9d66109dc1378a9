#include "tests/support/redis_process.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>

#include "absl/strings/str_cat.h"

namespace ebb {
namespace {

// One that is free now, and that the system gives nobody who asks for any: a Redis that was killed comes back to its
// own.
int FreePort() {
  std::random_device device;
  for (;;) {
    const int port = std::uniform_int_distribution(20000, 32000)(device);
    const int probe = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool is_free = bind(probe, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    close(probe);
    if (is_free) return port;
  }
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
