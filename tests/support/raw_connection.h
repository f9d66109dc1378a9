// A client of bytes, for what no library would send.

#ifndef EBB_TESTS_SUPPORT_RAW_CONNECTION_H_
#define EBB_TESTS_SUPPORT_RAW_CONNECTION_H_

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "server/address.h"
#include "server/files.h"

namespace ebb {

// A connection that has said so much, and reads only what is asked for.
class RawConnection {
 public:
  RawConnection(const Address& address, const std::string& said)
      : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(address.port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    Say(said);
  }
  void Say(const std::string& more) const {
    EXPECT_EQ(send(socket_.get(), more.data(), more.size(), MSG_NOSIGNAL), static_cast<ssize_t>(more.size()));
  }
  void SayNoMore() const { shutdown(socket_.get(), SHUT_WR); }
  // Whether something has come, or the other side has hung up.
  bool IsAnswered() const {
    char byte;
    return recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
  }
  // What comes next, once something does; empty where the other side has hung up.
  std::string Next() const {
    std::array<char, 4096> some;
    const ssize_t got = recv(socket_.get(), some.data(), some.size(), 0);
    return std::string(some.data(), static_cast<size_t>(std::max<ssize_t>(0, got)));
  }
  // All that comes until the other side has hung up.
  std::string Rest() const {
    std::string rest;
    for (std::string next = Next(); !next.empty(); next = Next()) rest += next;
    return rest;
  }

 private:
  const OpenFile socket_;
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_RAW_CONNECTION_H_
