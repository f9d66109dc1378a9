#include "server/address_limit.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace ebb {
namespace {

// 0: no socket.
uint64_t CookieOf(int socket) {
  uint64_t cookie = 0;
  socklen_t size = sizeof(cookie);
  return getsockopt(socket, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

std::string Text(int family, const void* address) {
  char text[INET6_ADDRSTRLEN] = {};
  return inet_ntop(family, address, text, sizeof(text));
}

}  // namespace

std::string NameOfPeer(const sockaddr_storage& peer) {
  if (peer.ss_family == AF_INET) return Text(AF_INET, &reinterpret_cast<const sockaddr_in&>(peer).sin_addr);
  if (peer.ss_family != AF_INET6) return "unknown";
  in6_addr address = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&address)) return Text(AF_INET, &address.s6_addr[12]);
  if (!IN6_IS_ADDR_LOOPBACK(&address)) std::memset(&address.s6_addr[8], 0, 8);
  return Text(AF_INET6, &address);
}

bool AddressLimit::Admits(const std::string& peer, int socket, absl::Time now) {
  if (max_ == 0) return true;
  if (of_.size() >= addresses_max_ && !of_.contains(peer)) ForgetWhoHasNone();
  Connections& connections = of_[peer];
  std::vector<Connection>& counted = connections.counted;
  if (counted.size() >= max_) {
    if (now - connections.looked < kLookEvery) return false;  // a flood of them is not looked through each time
    connections.looked = now;
    RemoveClosed(counted);
    if (counted.size() >= max_) return false;
  }
  counted.push_back({.socket = socket, .cookie = CookieOf(socket)});
  return true;
}

void AddressLimit::RemoveClosed(std::vector<Connection>& counted) {
  std::erase_if(counted, [](const Connection& each) { return CookieOf(each.socket) != each.cookie; });
}

void AddressLimit::ForgetWhoHasNone() {
  absl::erase_if(of_, [](auto& each) {
    RemoveClosed(each.second.counted);
    return each.second.counted.empty();
  });
  addresses_max_ = std::max(kAddresses, 2 * of_.size());
}

}  // namespace ebb
