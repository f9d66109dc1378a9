#include "server/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr size_t kHeadBytes = 16 << 10;
constexpr std::string_view kRange = "range:";
constexpr size_t kOther = std::numeric_limits<size_t>::max();  // of a line that is another header
constexpr int kLookMs = 250;                                   // between two looks at who has waited too long
constexpr int64_t kTakenASecond = 64 << 10;                    // bytes of an answer

bool WaitFor(const Clock& clock, socket_t socket, int16_t events, absl::Time until) {
  pollfd wait = {.fd = socket, .events = events, .revents = 0};
  while (true) {
    const int64_t left = absl::ToInt64Milliseconds(absl::Ceil(until - clock.Now(), absl::Milliseconds(1)));
    const int ready = poll(&wait, 1, static_cast<int>(std::clamp<int64_t>(left, 0, std::numeric_limits<int>::max())));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

void TellName(const sockaddr_storage& name, std::string& ip, int& port) {
  char text[INET6_ADDRSTRLEN] = {};
  const bool is_v6 = name.ss_family == AF_INET6;
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(name);
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(name);
  const void* const address = is_v6 ? static_cast<const void*>(&v6.sin6_addr) : &v4.sin_addr;
  if (!is_v6 && name.ss_family != AF_INET) return;
  ip = inet_ntop(name.ss_family, address, text, sizeof(text));
  port = ntohs(is_v6 ? v6.sin6_port : v4.sin_port);
}

// A connection as the library reads and writes it, on a socket that never blocks.
class Wire final : public httplib::Stream {
 public:
  // `tls`: null for plain HTTP.
  Wire(const Clock& clock, socket_t socket, SSL* tls, absl::Time read_until, absl::Duration piece)
      : clock_(clock), socket_(socket), tls_(tls), read_until_(read_until), piece_(piece) {}

  bool Greet() {
    return tls_ == nullptr || Try(read_until_, POLLIN, [this] { return SSL_accept(tls_); }) > 0;
  }
  // The head is there.
  void ReadBodyUntil(absl::Time until) {
    read_until_ = until;
    left_ = std::numeric_limits<size_t>::max();
    in_head_ = false;
  }

  bool is_readable() const override {
    return at_ < end_ || (tls_ != nullptr && SSL_pending(tls_) > 0) || WaitFor(clock_, socket_, POLLIN, read_until_);
  }
  // And whether there is somebody to write to.
  bool is_writable() const override {
    char byte;
    if (!WaitFor(clock_, socket_, POLLOUT, clock_.Now() + piece_)) return false;
    const ssize_t seen = recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return seen > 0 || (seen < 0 && (errno == EAGAIN || errno == EINTR));
  }
  ssize_t read(char* to, size_t size) override {
    if (at_ == end_) {
      if (left_ == 0) return -1;
      const ssize_t got = Try(read_until_, POLLIN, [this] {
        return tls_ != nullptr ? SSL_read(tls_, buffer_.data(), static_cast<int>(buffer_.size()))
                               : recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      });
      if (got <= 0) return got;
      at_ = 0;
      end_ = static_cast<size_t>(got);
      left_ -= std::min(left_, end_);
    }
    const size_t taken = std::min(size, end_ - at_);
    std::memcpy(to, buffer_.data() + at_, taken);
    at_ += taken;
    if (in_head_) HideRange(std::span(to, taken));
    return static_cast<ssize_t>(taken);
  }
  ssize_t write(const char* from, size_t size) override {
    const absl::Time until = clock_.Now() + piece_ + absl::Seconds(1) * size / kTakenASecond;
    for (size_t done = 0; done < size;) {
      const ssize_t sent = Try(until, POLLOUT, [&] {
        const size_t rest = std::min<size_t>(size - done, 1 << 20);
        return tls_ != nullptr ? SSL_write(tls_, from + done, static_cast<int>(rest))
                               : send(socket_, from + done, rest, MSG_DONTWAIT | MSG_NOSIGNAL);
      });
      if (sent <= 0) return -1;
      done += static_cast<size_t>(sent);
    }
    return static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override { Name(getpeername, ip, port); }
  void get_local_ip_and_port(std::string& ip, int& port) const override { Name(getsockname, ip, port); }
  socket_t socket() const override { return socket_; }

 private:
  template <typename Ask>
  void Name(const Ask& ask, std::string& ip, int& port) const {
    sockaddr_storage name = {};
    socklen_t size = sizeof(name);
    if (ask(socket_, reinterpret_cast<sockaddr*>(&name), &size) == 0) TellName(name, ip, port);
  }

  // Of a head's line that begins with `Range:`, what comes next of it: no header that the library knows.
  void HideRange(std::span<char> next) {
    for (char& byte : next) {
      if (byte == '\n') {
        of_range_ = 0;
      } else if (of_range_ < kRange.size()) {
        of_range_ = absl::ascii_tolower(static_cast<unsigned char>(byte)) == kRange[of_range_] ? of_range_ + 1 : kOther;
        if (of_range_ == kRange.size()) byte = ';';
      }
    }
  }

  // What `act` returns once it is above 0; 0 at the end of what is sent; -1 for an error, or when time is up.
  template <typename Act>
  ssize_t Try(absl::Time until, int16_t events, const Act& act) const {
    while (true) {
      if (tls_ != nullptr) ERR_clear_error();
      const ssize_t done = act();
      if (done > 0) return done;
      int16_t wanted = events;
      if (tls_ != nullptr) {
        const int why = SSL_get_error(tls_, static_cast<int>(done));
        if (why == SSL_ERROR_ZERO_RETURN) return 0;
        if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) return -1;
        wanted = why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
      } else if (done == 0 || (errno != EAGAIN && errno != EINTR)) {
        return done;
      }
      if (!WaitFor(clock_, socket_, wanted, until)) return -1;
    }
  }

  const Clock& clock_;
  const socket_t socket_;
  SSL* const tls_;
  absl::Time read_until_;
  const absl::Duration piece_;
  std::array<char, 4096> buffer_;  // what was read, from at_ to end_: the library reads heads byte by byte
  size_t at_ = 0, end_ = 0;
  size_t left_ = kHeadBytes;  // that may still be read
  bool in_head_ = true;
  size_t of_range_ = 0;  // bytes of kRange that the line has begun with; kOther: it is another header
};

using TlsContext = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;

TlsContext MakeTls(const std::function<bool(SSL_CTX&)>& set_up) {
  TlsContext context(set_up ? SSL_CTX_new(TLS_server_method()) : nullptr, SSL_CTX_free);
  if (!set_up) return context;
  EBB_CHECK(context != nullptr);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  EBB_CHECK(set_up(*context));
  return context;
}

}  // namespace

HttpServer::HttpServer(int threads, const HttpLimits& limits, const std::function<bool(SSL_CTX&)>& set_up_tls)
    : limits_(limits),
      served_max_(static_cast<size_t>(threads) + limits.queue_max),
      tls_(MakeTls(set_up_tls)),
      events_(epoll_create1(EPOLL_CLOEXEC)),
      stops_(eventfd(0, EFD_CLOEXEC)),
      workers_(static_cast<size_t>(threads)) {
  epoll_event stop = {.events = EPOLLIN, .data = {.fd = stops_.get()}};
  EBB_CHECK(events_.ok() && stops_.ok() && epoll_ctl(events_.get(), EPOLL_CTL_ADD, stops_.get(), &stop) == 0);
  set_pre_routing_handler({});
}

HttpServer::~HttpServer() { Stop(absl::ZeroDuration()); }

std::string HttpServer::TargetIsTooLong() {
  return absl::StrFormat("the path with its query has more than %d bytes", kTargetBytesMax);
}

void HttpServer::set_pre_routing_handler(HandlerWithResponse handler) {
  httplib::Server::set_pre_routing_handler(
      [handler = std::move(handler)](const httplib::Request& request, httplib::Response& response) {
        if (request.target.size() > kTargetBytesMax) {
          response.status = 414;
          return HandlerResponse::Handled;
        }
        return handler ? handler(request, response) : HandlerResponse::Unhandled;
      });
}

absl::StatusOr<Address> HttpServer::Start(const Address& listen, const char* key, const AcceptorLimits& limits,
                                          const RefusedConnections& refused) {
  EBB_ASSIGN(acceptor_, Acceptor::Listen(listen, key, limits));
  svr_sock_ = events_.get();  // the library goes on with answers in pieces for as long as it has one
  looking_ = std::thread([this] { Look(); });
  acceptor_->Start([this](int /*listener*/, OpenFile connection) { Take(std::move(connection)); }, refused);
  return acceptor_->address();
}

void HttpServer::Stop(absl::Duration patience) {
  {
    const absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  if (acceptor_ != nullptr) acceptor_->Stop();
  const uint64_t one = 1;
  EBB_CHECK(write(stops_.get(), &one, sizeof(one)) == sizeof(one));
  if (looking_.joinable()) looking_.join();
  {
    const absl::MutexLock lock(&mutex_);
    const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return served_.empty(); };
    mutex_.AwaitWithTimeout(absl::Condition(&none), patience);
  }
  svr_sock_ = INVALID_SOCKET;
  {
    const absl::MutexLock lock(&mutex_);
    for (const socket_t socket : served_) ::shutdown(socket, SHUT_RDWR);
  }
  workers_.shutdown();
}

void HttpServer::Take(OpenFile connection) {
  const absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  if (waiting_.size() >= limits_.waiting_max) {
    const auto longest = std::min_element(waiting_.begin(), waiting_.end(),
                                          [](const auto& a, const auto& b) { return a.second < b.second; });
    Close(longest->first);
  }
  const socket_t socket = connection.Release();
  waiting_.emplace(socket, clock_.Now() + limits_.head);
  epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data = {.fd = socket}};
  if (epoll_ctl(events_.get(), EPOLL_CTL_ADD, socket, &event) != 0) Close(socket);
}

void HttpServer::Close(socket_t waiting) {
  waiting_.erase(waiting);
  close(waiting);
}

// Looks, without taking it, at what has come. Also where it is too long, or nothing more will come: who reads finds
// out.
bool HttpServer::HasHead(socket_t socket) const {
  std::array<char, kHeadBytes> seen;
  const ssize_t size = recv(socket, seen.data(), seen.size(), MSG_PEEK | MSG_DONTWAIT);
  if (size <= 0) return size == 0 || (errno != EAGAIN && errno != EINTR);
  const std::string_view text(seen.data(), static_cast<size_t>(size));
  if (text.size() == seen.size()) return true;
  if (tls_ == nullptr) return text.find("\r\n\r\n") != std::string_view::npos;
  constexpr char kHandshake = 0x16;
  if (text.front() != kHandshake) return true;  // it is no TLS, as the handshake will find
  const auto byte = [&](size_t at) { return static_cast<size_t>(static_cast<unsigned char>(text[at])); };
  return text.size() >= 5 && text.size() >= 5 + (byte(3) << 8U) + byte(4);  // a record's header says its length
}

void HttpServer::Look() {
  std::array<epoll_event, 64> events;
  while (true) {
    const int seen = epoll_wait(events_.get(), events.data(), events.size(), kLookMs);
    const absl::MutexLock lock(&mutex_);
    for (int i = 0; i < seen && !stopping_; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      const auto found = waiting_.find(event.data.fd);
      if (found == waiting_.end()) continue;
      const socket_t socket = found->first;
      const absl::Time until = found->second;
      if ((event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0 && !HasHead(socket)) continue;
      if (served_.size() >= served_max_) {
        Close(socket);
        continue;
      }
      epoll_ctl(events_.get(), EPOLL_CTL_DEL, socket, nullptr);
      waiting_.erase(found);
      served_.insert(socket);
      workers_.enqueue([this, socket, until] { Serve(socket, until); });
    }
    const absl::Time now = clock_.Now();
    for (auto next = waiting_.begin(); next != waiting_.end();) {
      const auto [socket, until] = *next++;
      if (stopping_ || until <= now) Close(socket);
    }
    if (stopping_) return;
  }
}

void HttpServer::Serve(socket_t socket, absl::Time head_until) {
  const std::unique_ptr<SSL, decltype(&SSL_free)> tls(tls_ != nullptr ? SSL_new(tls_.get()) : nullptr, SSL_free);
  if (tls != nullptr) SSL_set_fd(tls.get(), socket);
  Wire wire(clock_, socket, tls.get(), head_until, limits_.piece);
  if ((tls != nullptr) == (tls_ != nullptr) && wire.Greet()) {
    bool closed = false;
    process_request(wire, true, closed,
                    [&](httplib::Request& /*head*/) { wire.ReadBodyUntil(clock_.Now() + limits_.body); });
    if (tls != nullptr) SSL_shutdown(tls.get());
  }
  ::shutdown(socket, SHUT_RDWR);
  const absl::MutexLock lock(&mutex_);
  served_.erase(socket);
  close(socket);
}

}  // namespace ebb
