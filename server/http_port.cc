#include "server/http_port.h"

#include <httplib.h>

#include <algorithm>
#include <string>
#include <utility>

#include "policies/check.h"
#include "policies/status.h"
#include "server/http_server.h"
#include "server/metrics.h"

namespace ebb {
namespace {

constexpr int kThreads = 8;                                // beside the console's
constexpr absl::Duration kLastAnswers = absl::Seconds(1);  // for those that have begun, when the port closes
constexpr size_t kPayloadBytesMax = 1024;
constexpr char kText[] = "text/plain; charset=utf-8";
constexpr char kIndex[] =
    "Ebb's HTTP port.\n"
    "/metrics  Prometheus\n"
    "/healthz  200 while it lives, else 503 and why it is to be restarted\n"
    "/readyz   200 when it takes requests, else 503 and why\n";
constexpr char kConsole[] = "/console  a page to watch and try it\n";

void AnswerCheck(const absl::Status& check, const char* ok, httplib::Response& response) {
  response.status = check.ok() ? 200 : 503;
  response.set_content(check.ok() ? ok : std::string(check.message()) + "\n", kText);
}

}  // namespace

class HttpPort::Server {
 public:
  explicit Server(const HttpPages& pages) : http_(kThreads + pages.console.threads, {}) {
    const HttpPages::Console& console = pages.console;
    http_.set_payload_max_length(std::max(kPayloadBytesMax, console.body_bytes_max));
    http_.set_pre_routing_handler(
        [posts = console.posts](const httplib::Request& request, httplib::Response& response) {
          const bool is_call = request.method == "POST" && !posts.empty() && request.path.starts_with(posts);
          // The library's limit of a body holds for what says its length alone, and it would take forms apart.
          const bool is_bounded = request.has_header("Content-Length") && !request.has_header("Transfer-Encoding") &&
                                  !request.has_header("Content-Encoding");
          if (is_call && (!is_bounded || request.is_multipart_form_data())) {
            response.status = is_bounded ? 415 : 411;
            return httplib::Server::HandlerResponse::Handled;
          }
          if (is_call || request.method == "GET" || request.method == "HEAD") {
            return httplib::Server::HandlerResponse::Unhandled;
          }
          response.status = 405;
          response.set_header("Allow", "GET, HEAD");
          return httplib::Server::HandlerResponse::Handled;
        });
    http_.set_error_handler([](const httplib::Request&, httplib::Response& response) {
      if (response.status == 414) response.set_content(HttpServer::TargetIsTooLong() + "\n", kText);
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

  ~Server() { http_.Stop(kLastAnswers); }

  absl::Status Listen(const Address& listen, const RefusedConnections& refused) {
    // Who looks after the server is answered also where its callers have all files that they may.
    EBB_ASSIGN(address_, http_.Start(listen, "server.http_listen", {.files_left = 32}, refused));
    return absl::OkStatus();
  }

  const Address& address() const { return address_; }

 private:
  HttpServer http_;
  Address address_;
};

absl::StatusOr<std::unique_ptr<HttpPort>> HttpPort::Start(const Address& listen, const HttpPages& pages,
                                                          const RefusedConnections& refused) {
  EBB_CHECK(pages.metrics != nullptr);
  EBB_CHECK(pages.health.alive != nullptr);
  EBB_CHECK(pages.health.ready != nullptr);
  auto server = std::make_unique<Server>(pages);
  EBB_TRY(server->Listen(listen, refused));
  return std::unique_ptr<HttpPort>(new HttpPort(std::move(server)));
}

HttpPort::HttpPort(std::unique_ptr<Server> server) : server_(std::move(server)) {}

HttpPort::~HttpPort() = default;

const Address& HttpPort::address() const { return server_->address(); }

}  // namespace ebb
