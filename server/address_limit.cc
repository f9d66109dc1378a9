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

Admission AddressLimit::Admit(const std::string& peer, int socket, absl::Time now) {
  if (limits_.at_once == 0 && limits_.begun_a_minute == 0) return Admission::kAdmitted;
  if (of_.size() >= addresses_max_ && !of_.contains(peer)) ForgetWhoHasNone(now);
  Connections& connections = of_[peer];
  if (connections.begun.per_minute() != limits_.begun_a_minute) connections.begun.SetRate(limits_.begun_a_minute, now);
  if (connections.begun.Wait(now) > absl::ZeroDuration()) return Admission::kTooOften;
  if (limits_.at_once > 0) {
    if (!HasRoom(connections, now)) return Admission::kTooMany;
    connections.counted.push_back({.socket = socket, .cookie = CookieOf(socket)});
  }
  connections.begun.Take(1, now);
  return Admission::kAdmitted;
}

bool AddressLimit::HasRoom(Connections& connections, absl::Time now) const {
  if (connections.counted.size() < limits_.at_once) return true;
  if (now - connections.looked < kLookEvery) return false;  // a flood of them is not looked through each time
  connections.looked = now;
  RemoveClosed(connections.counted);
  return connections.counted.size() < limits_.at_once;
}

void AddressLimit::RemoveClosed(std::vector<Connection>& counted) {
  std::erase_if(counted, [](const Connection& each) { return CookieOf(each.socket) != each.cookie; });
}

void AddressLimit::ForgetWhoHasNone(absl::Time now) {
  absl::erase_if(of_, [now](auto& each) {
    RemoveClosed(each.second.counted);
    return each.second.counted.empty() && each.second.begun.Taken(now) == 0;
  });
  addresses_max_ = std::max(kAddresses, 2 * of_.size());
}

}  // namespace ebb
