// The console on the HTTP port: a page in a browser, and the RPCs that it calls as JSON.
//
//   GET  /console                           the page; its files are below /console/VERSION/
//   POST /console/api/SERVICE/METHOD        the request in proto3 JSON, for example SessionService/ListSessions
//
// A unary call is answered with its response. A stream is answered with a line for each message, {"result": MESSAGE};
// one that fails ends with {"error": STATUS}. An empty line comes when the server has taken the call, and then now and
// again, so that a browser that is gone is found. STATUS is google.rpc.Status; a unary call that fails, or one that is
// refused here, is answered {"error": STATUS} and what HTTP has for its code.
//
// Where callers have to say who they are, only an admin's token is let in, in `authorization`; what the call may do is
// then decided where it is for every client's (identity.h). Since a browser shows its user's pages to each other's
// scripts but for the rules that servers keep, a call must come from a page that came from here: see CheckBrowser.

#ifndef EBB_SERVER_CONSOLE_H_
#define EBB_SERVER_CONSOLE_H_

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>
#include <httplib.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/console_call.h"
#include "server/http_body.h"
#include "server/http_server.h"
#include "server/identity.h"

namespace ebb {

struct ConsoleOptions {
  std::vector<std::string> hosts = {};  // names by which browsers reach it, beside localhost and any IP address
};

// What a browser says of where a request comes from; empty: the header was not sent.
struct BrowserHeaders {
  std::string_view host = {};
  std::string_view origin = {};
  std::string_view fetch_site = {};  // Sec-Fetch-Site
  std::string_view marker = {};      // X-Ebb-Console
};

// PERMISSION_DENIED FOREIGN_PAGE unless the host is one of ours, so that no name that somebody points at this address
// makes a page of theirs one of ours (DNS rebinding). Of a call (`is_call`), the marker must be there, which no page of
// another origin can send without asking, and an origin must be the host's.
absl::Status CheckBrowser(const ConsoleOptions& options, const BrowserHeaders& headers, bool is_call);

class Console {
 public:
  static constexpr int kCallsMax = 32;    // at once; each holds a thread of the port
  static constexpr int kRefusedRead = 2;  // requests that are refused, and whose bodies are read, at once; likewise
  static constexpr int kThreads = kCallsMax + kRefusedRead;
  static constexpr size_t kBodyBytesMax = 1 << 20;    // of a request
  static constexpr char kApi[] = "/console/api/";     // what is posted
  static constexpr char kMarker[] = "X-Ebb-Console";  // any value

  // `channel` leads to the server's own services. `identity` outlives the console. `refused` is told of what the
  // console itself refuses; any thread.
  Console(std::shared_ptr<grpc::Channel> channel, const Identity& identity, const ConsoleOptions& options,
          std::function<void(const absl::Status&)> refused)
      : channel_(std::move(channel)), identity_(identity), options_(options), refused_(std::move(refused)) {}

  // The console outlives `http`.
  void AddTo(HttpServer& http);

 private:
  struct Running;

  void AnswerFile(std::string_view name, const httplib::Request& request, httplib::Response& response) const;
  void AnswerCall(const httplib::Request& request, const httplib::ContentReader& read, httplib::Response& response);
  // Of the path, once the caller may make it.
  absl::StatusOr<const google::protobuf::MethodDescriptor*> Admit(const httplib::Request& request) const;
  absl::StatusOr<std::shared_ptr<Running>> TakePlace();
  absl::Status Begin(const google::protobuf::MethodDescriptor& method, const httplib::Request& request,
                     const std::string& body, Running& running) const;
  absl::Status CheckCaller(const httplib::Request& request) const;
  void Count(const absl::Status& refused) const;
  void Refused(const absl::Status& why, httplib::Response& response) const;

  const std::shared_ptr<grpc::Channel> channel_;
  const Identity& identity_;
  const ConsoleOptions options_;
  const std::function<void(const absl::Status&)> refused_;
  std::atomic<int> calls_ = 0;
  RefusedBodies refused_bodies_{kRefusedRead};
};

}  // namespace ebb

#endif  // EBB_SERVER_CONSOLE_H_
