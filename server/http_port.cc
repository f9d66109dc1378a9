#include "server/http_port.h"

#include <httplib.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/metrics.h"

namespace ebb {
namespace {

constexpr int kThreads = 3;
constexpr time_t kTimeoutSeconds = 5;  // of one read or write
constexpr size_t kPayloadBytesMax = 1024;
constexpr char kText[] = "text/plain; charset=utf-8";
constexpr char kIndex[] =
    "Ebb's HTTP port.\n"
    "/metrics  Prometheus\n"
    "/healthz  200 while it lives, else 503 and why it is to be restarted\n"
    "/readyz   200 when it takes requests, else 503 and why\n";
constexpr char kConsole[] = "/console  a page to watch and try it\n";

// httplib would set SO_REUSEPORT: a second server would then silently share the port.
void SetSocketOptions(socket_t socket) {
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
}

void AnswerCheck(const absl::Status& check, const char* ok, httplib::Response& response) {
  response.status = check.ok() ? 200 : 503;
  response.set_content(check.ok() ? ok : std::string(check.message()) + "\n", kText);
}

}  // namespace

class HttpPort::Server {
 public:
  explicit Server(const HttpPages& pages) {
    const HttpPages::Console& console = pages.console;
    http_.new_task_queue = [threads = kThreads + console.threads] {
      return new httplib::ThreadPool(static_cast<size_t>(threads));
    };
    http_.set_socket_options([this](socket_t socket) {
      socket_ = socket;
      SetSocketOptions(socket);
    });
    http_.set_keep_alive_max_count(1);
    http_.set_read_timeout(kTimeoutSeconds);
    http_.set_write_timeout(kTimeoutSeconds);
    http_.set_tcp_nodelay(true);  // a stream's lines are short, and each is to be seen at once
    http_.set_payload_max_length(std::max(kPayloadBytesMax, console.body_bytes_max));
    http_.set_pre_routing_handler(
        [posts = console.posts](const httplib::Request& request, httplib::Response& response) {
          const bool is_call = request.method == "POST" && !posts.empty() && request.path.starts_with(posts);
          // The library's limit of a body holds for what says its length alone.
          const bool is_bounded = request.has_header("Content-Length") && !request.has_header("Transfer-Encoding") &&
                                  !request.has_header("Content-Encoding");
          if (is_call && !is_bounded) {
            response.status = 411;
            return httplib::Server::HandlerResponse::Handled;
          }
          if (is_call || request.method == "GET" || request.method == "HEAD") {
            return httplib::Server::HandlerResponse::Unhandled;
          }
          response.status = 405;
          response.set_header("Allow", "GET, HEAD");
          return httplib::Server::HandlerResponse::Handled;
        });
    if (console.add_to != nullptr) console.add_to(http_);
    http_.Get("/", [index = std::string(kIndex) + (console.add_to != nullptr ? kConsole : "")](
                       const auto&, auto& response) { response.set_content(index, kText); });
    http_.Get("/healthz",
              [alive = pages.health.alive](const auto&, auto& response) { AnswerCheck(alive(), "ok\n", response); });
    http_.Get("/readyz",
              [ready = pages.health.ready](const auto&, auto& response) { AnswerCheck(ready(), "ready\n", response); });
    http_.Get("/metrics", [metrics = pages.metrics](const auto&, auto& response) {
      response.set_content(metrics(), Metrics::kContentType);
    });
  }

  ~Server() {
    if (!thread_.joinable()) return;
    http_.stop();
    thread_.join();
  }

  absl::Status Listen(const Address& listen) {
    address_ = listen;
    errno = 0;
    const bool bound = listen.port == 0 ? (address_.port = http_.bind_to_any_port(listen.host)) > 0
                                        : http_.bind_to_port(listen.host, listen.port);
    if (!bound) {
      return Refuse(absl::StatusCode::kUnavailable,
                    absl::StrFormat("cannot listen on %s: %s", FormatAddress(listen),
                                    errno != 0 ? std::strerror(errno) : "no such host"),
                    {.reason = "PORT_UNAVAILABLE"});
    }
    ::listen(socket_, SOMAXCONN);  // the library lets five connections wait, and the system turns away others
    thread_ = std::thread([this] {
      http_.listen_after_bind();
      ended_ = true;
    });
    // stop() does nothing before the loop runs; the loop is a few instructions away, or has failed and ended.
    while (!http_.is_running() && !ended_) std::this_thread::yield();
    return absl::OkStatus();
  }

  const Address& address() const { return address_; }

 private:
  httplib::Server http_;
  socket_t socket_ = INVALID_SOCKET;  // that listens
  Address address_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<HttpPort>> HttpPort::Start(const Address& listen, const HttpPages& pages) {
  EBB_CHECK(pages.metrics != nullptr);
  EBB_CHECK(pages.health.alive != nullptr);
  EBB_CHECK(pages.health.ready != nullptr);
  auto server = std::make_unique<Server>(pages);
  EBB_TRY(server->Listen(listen));
  return std::unique_ptr<HttpPort>(new HttpPort(std::move(server)));
}

HttpPort::HttpPort(std::unique_ptr<Server> server) : server_(std::move(server)) {}

HttpPort::~HttpPort() = default;

const Address& HttpPort::address() const { return server_->address(); }

}  // namespace ebb
