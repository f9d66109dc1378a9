#include "server/acceptor.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/log.h"
#include "server/low_priority.h"

namespace ebb {
namespace {

constexpr rlim_t kFilesShared = 256;  // of which AcceptorLimits::files_left are left
constexpr int kRetryMs = 100;         // when none is left at all
constexpr absl::Duration kTellEvery = absl::Minutes(1);

// Descriptors are numbered from the lowest that is free, so a high number says that few are left.
int DescriptorsMax(int files_left) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > std::numeric_limits<int>::max()) {
    return std::numeric_limits<int>::max();
  }
  return static_cast<int>(limit.rlim_cur -
                          static_cast<rlim_t>(files_left) * std::min(limit.rlim_cur, kFilesShared) / kFilesShared);
}

absl::Status Unavailable(const Address& listen, const char* key, const char* why) {
  return Refuse(absl::StatusCode::kUnavailable,
                absl::StrFormat("%s: cannot listen on %s: %s", key, FormatAddress(listen), why),
                {.reason = "PORT_UNAVAILABLE", .field = key});
}

struct FreeAddresses {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

absl::StatusOr<Addresses> Resolve(const Address& listen, const char* key, const std::string& host) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(listen.port).c_str(), &hints, &found);
  if (error != 0) return Unavailable(listen, key, gai_strerror(error));
  return Addresses(found);
}

void SetPort(sockaddr& address, int port) {
  const in_port_t network = htons(static_cast<uint16_t>(port));
  if (address.sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = network;
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = network;
  }
}

int PortOf(const OpenFile& socket) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  EBB_CHECK(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) == 0);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

// Not ok, with errno, where the address cannot be had. `both`: an IPv6 socket takes IPv4, too.
OpenFile ListenAt(const addrinfo& at, bool both) {
  OpenFile socket(::socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  const int v6_only = both ? 0 : 1;
  const auto set = [&](int level, int option, const int& value) {
    return setsockopt(socket.get(), level, option, &value, sizeof(value)) == 0;
  };
  const bool listens = socket.ok() && set(SOL_SOCKET, SO_REUSEADDR, on) &&
                       (at.ai_family != AF_INET6 || set(IPPROTO_IPV6, IPV6_V6ONLY, v6_only)) &&
                       bind(socket.get(), at.ai_addr, at.ai_addrlen) == 0 && listen(socket.get(), SOMAXCONN) == 0;
  return listens ? std::move(socket) : OpenFile();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Listen(const Address& listen, const char* key,
                                                           const AcceptorLimits& limits) {
  Address address = listen;
  std::vector<OpenFile> listeners;
  const bool everywhere = listen.host == "0.0.0.0" || listen.host == "::";
  if (everywhere) {
    EBB_ASSIGN(const Addresses all, Resolve(listen, key, "::"));
    OpenFile socket = ListenAt(*all, true);
    if (socket.ok()) listeners.push_back(std::move(socket));
  }
  if (listeners.empty()) {  // or the machine has no IPv6
    EBB_ASSIGN(const Addresses found, Resolve(listen, key, everywhere ? "0.0.0.0" : listen.host));
    for (addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
      SetPort(*at->ai_addr, address.port);
      OpenFile socket = ListenAt(*at, false);
      const bool others = !listeners.empty() || at->ai_next != nullptr;
      if (!socket.ok() && (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT) && others) continue;
      if (!socket.ok()) return Unavailable(listen, key, std::strerror(errno));
      if (address.port == 0) address.port = PortOf(socket);
      listeners.push_back(std::move(socket));
    }
  }
  if (address.port == 0) address.port = PortOf(listeners.front());
  OpenFile stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.ok()) return Unavailable(listen, key, std::strerror(errno));
  return std::unique_ptr<Acceptor>(
      new Acceptor(key, std::move(address), std::move(listeners), std::move(stop), limits));
}

Acceptor::Acceptor(const char* key, Address address, std::vector<OpenFile> listeners, OpenFile stop,
                   const AcceptorLimits& limits)
    : key_(key),
      address_(std::move(address)),
      listeners_(std::move(listeners)),
      stop_(std::move(stop)),
      descriptors_max_(DescriptorsMax(limits.files_left)),
      of_an_address_(limits.of_an_address) {}

void Acceptor::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    EBB_CHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
    thread_.join();
  }
  listeners_.clear();
}

void Acceptor::Start(std::function<void(int listener, OpenFile connection)> take, const RefusedConnections& refused) {
  take_ = std::move(take);
  refused_.emplace(refused);
  AtLowPriority([this] { thread_ = std::thread([this] { Run(); }); });  // also where it does no more than hang up
}

void Acceptor::Run() {
  pthread_setname_np(pthread_self(), "acceptor");
  std::vector<pollfd> waits;
  for (const OpenFile& listener : listeners_) waits.push_back({.fd = listener.get(), .events = POLLIN, .revents = 0});
  waits.push_back({.fd = stop_.get(), .events = POLLIN, .revents = 0});
  while (true) {
    poll(waits.data(), waits.size(), -1);
    if (waits.back().revents != 0) return;
    bool exhausted = false;
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (waits[i].revents != 0 && !TakeOne(waits[i].fd)) exhausted = true;
    }
    if (exhausted) poll(&waits.back(), 1, kRetryMs);
  }
}

// False: the system has nothing to make a connection of.
bool Acceptor::TakeOne(int listener) {
  sockaddr_storage from = {};
  socklen_t size = sizeof(from);
  OpenFile connection(accept4(listener, reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!connection.ok()) {
    const bool exhausted = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (exhausted) TellOfFiles();
    return !exhausted;  // else its client has gone
  }
  if (connection.get() >= descriptors_max_) {
    refused_->files.Add();
    TellOfFiles();
    return true;
  }
  const std::string peer = NameOfPeer(from);
  if (const Admission said = Admit(peer, connection.get()); said != Admission::kAdmitted) {
    (said == Admission::kTooMany ? refused_->at_once : refused_->begun).Add();
    TellOfAddress(peer, said);
    return true;
  }
  const int on = 1;
  setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  take_(listener, std::move(connection));
  return true;
}

Admission Acceptor::Admit(const std::string& peer, int socket) {
  const std::lock_guard lock(limits_mutex_);
  return of_an_address_.Admit(peer, socket, clock_.Now());
}

void Acceptor::SetLimits(const ConnectionLimits& of_an_address) {
  const std::lock_guard lock(limits_mutex_);
  of_an_address_.SetLimits(of_an_address);
}

bool Acceptor::IsToldNow(absl::Time& last) {
  const absl::Time now = clock_.Now();
  if (now - last < kTellEvery) return false;
  last = now;
  return true;
}

void Acceptor::TellOfFiles() {
  if (!IsToldNow(told_of_files_)) return;
  LogWarn("connections_refused", {{"port", key_}, {"descriptors", descriptors_max_}},
          "almost all files that the process may open are connections: raise `ulimit -n`, or find who opens them");
}

void Acceptor::TellOfAddress(const std::string& peer, Admission why) {
  if (!IsToldNow(told_of_address_)) return;
  LogWarn("connections_refused", {{"port", key_}, {"address", peer}},
          why == Admission::kTooMany
              ? "it has as many connections as an address may have: raise server.connections_per_address where it is "
                "many clients', or find out what opens them"
              : "it has begun as many connections as an address may in a minute: raise "
                "server.new_connections_per_address where it is many clients', or find out what opens them");
}

}  // namespace ebb
