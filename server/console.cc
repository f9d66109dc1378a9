#include "server/console.h"

#include <arpa/inet.h>
#include <httplib.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/console_files.h"
#include "server/grpc_status.h"
#include "server/log.h"

namespace ebb {
namespace {

constexpr char kJson[] = "application/json";
constexpr char kLines[] = "application/x-ndjson";  // httplib compresses what it is told is JSON, and then holds it back
constexpr absl::Duration kUnaryPatience = absl::Seconds(60);
constexpr absl::Duration kLook = absl::Seconds(1);  // between two looks at whether the browser is still there
constexpr int kSilentLooksMax = 15;                 // until it is sent an empty line
constexpr absl::Duration kRetry = absl::Seconds(1);

// What the page may call. Nothing else is there for a browser, whoever asks.
constexpr std::array<std::string_view, 15> kMethods = {
    "SessionService/CreateSession",  "SessionService/GetSession",      "SessionService/ListSessions",
    "SessionService/DeleteSession",  "InferenceService/Generate",      "EvictionService/SetPolicy",
    "EvictionService/DescribeCache", "EvictionService/WatchEvictions", "AdminService/GetStatus",
    "AdminService/ListPolicies",     "AdminService/ListExperiments",   "AdminService/StartExperiment",
    "AdminService/RampExperiment",   "AdminService/StopExperiment",    "AdminService/ListModels",
};

// Passed on to the call, each as often as it was sent.
constexpr std::array<const char*, 3> kPassedOn = {"authorization", "x-ebb-tenant", "traceparent"};

// No script, style or picture but the page's own; nothing of it in anybody's frame.
constexpr char kContentPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

int HttpCode(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK:
      return 200;
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::OUT_OF_RANGE:
      return 400;
    case grpc::StatusCode::UNAUTHENTICATED:
      return 401;
    case grpc::StatusCode::PERMISSION_DENIED:
      return 403;
    case grpc::StatusCode::NOT_FOUND:
      return 404;
    case grpc::StatusCode::ALREADY_EXISTS:
    case grpc::StatusCode::ABORTED:
      return 409;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return 429;
    case grpc::StatusCode::UNIMPLEMENTED:
      return 501;
    case grpc::StatusCode::UNAVAILABLE:
      return 503;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return 504;
    default:
      return 500;
  }
}

void AnswerError(const grpc::Status& status, httplib::Response& response) {
  response.status = HttpCode(status.error_code());
  response.set_content(absl::StrCat("{\"error\":", ErrorToJson(status), "}\n"), kJson);
}

// "localhost" of "localhost:7701", "::1" of "[::1]:7701".
std::string_view NameOf(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') == host.npos ? 0 : host.find(']') - 1);
  return host.substr(0, host.rfind(':'));
}

bool IsIpAddress(const std::string& name) {
  in6_addr address;
  return inet_pton(AF_INET, name.c_str(), &address) == 1 || inet_pton(AF_INET6, name.c_str(), &address) == 1;
}

absl::Status Foreign(const std::string& what) {
  return Refuse(absl::StatusCode::kPermissionDenied, what, {.reason = "FOREIGN_PAGE"});
}

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
}

BrowserHeaders HeadersOf(const httplib::Request& request, std::array<std::string, 4>& kept) {
  kept = {request.get_header_value("Host"), request.get_header_value("Origin"),
          request.get_header_value("Sec-Fetch-Site"), request.get_header_value(Console::kMarker)};
  return {.host = kept[0], .origin = kept[1], .fetch_site = kept[2], .marker = kept[3]};
}

absl::Status CheckRequest(const ConsoleOptions& options, const httplib::Request& request, bool is_call) {
  std::array<std::string, 4> kept;
  return CheckBrowser(options, HeadersOf(request, kept), is_call);
}

void SetHeaders(const char* cache, httplib::Response& response) {
  response.set_header("Cache-Control", cache);
  response.set_header("Content-Security-Policy", kContentPolicy);
  response.set_header("Cross-Origin-Opener-Policy", "same-origin");
  response.set_header("Cross-Origin-Resource-Policy", "same-origin");
  response.set_header("Referrer-Policy", "no-referrer");
  response.set_header("X-Content-Type-Options", "nosniff");
}

}  // namespace

absl::Status CheckBrowser(const ConsoleOptions& options, const BrowserHeaders& headers, bool is_call) {
  const std::string name(NameOf(headers.host));
  const bool known = std::any_of(options.hosts.begin(), options.hosts.end(),
                                 [&](const std::string& host) { return absl::EqualsIgnoreCase(host, name); });
  if (!known && !absl::EqualsIgnoreCase(name, "localhost") && !IsIpAddress(name)) {
    return Foreign(absl::StrFormat(
        "Host: '%s' is none of this server's; use an IP address or localhost, or add the name to server.console_hosts",
        name));
  }
  if (!is_call) return absl::OkStatus();
  if (headers.marker.empty()) return Foreign("a call needs the header X-Ebb-Console: 1");
  const bool same_origin =
      headers.origin == absl::StrCat("http://", absl::string_view(headers.host.data(), headers.host.size())) ||
      headers.origin == absl::StrCat("https://", absl::string_view(headers.host.data(), headers.host.size()));
  if (!headers.origin.empty() && !same_origin) return Foreign("Origin: the page that calls came from elsewhere");
  if (!headers.fetch_site.empty() && headers.fetch_site != "same-origin") {
    return Foreign("Sec-Fetch-Site: the page that calls came from elsewhere");
  }
  return absl::OkStatus();
}

// A call, and the place among kCallsMax that it holds.
struct Console::Running {
  explicit Running(std::atomic<int>& of_console) : calls(of_console) {}
  ~Running() {
    call.reset();
    --calls;
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  // Writes what comes next; false once the browser is gone.
  bool Feed(httplib::DataSink& sink) {
    const auto write = [&](const std::string& line) { return sink.write(line.data(), line.size()); };
    switch (call->Wait(kLook)) {
      case ConsoleCall::Event::kNothing:
        if (!sink.is_writable()) return false;
        if (++silent_looks < kSilentLooksMax) return true;
        break;
      case ConsoleCall::Event::kTaken:
        break;
      case ConsoleCall::Event::kMessage:
        silent_looks = 0;
        return write(absl::StrCat("{\"result\":", call->message(), "}\n"));
      case ConsoleCall::Event::kEnded:
        if (!call->status().ok()) write(absl::StrCat("{\"error\":", ErrorToJson(call->status()), "}\n"));
        sink.done();
        return true;
    }
    silent_looks = 0;
    return write("\n");
  }

  std::atomic<int>& calls;
  std::unique_ptr<ConsoleCall> call = {};
  int silent_looks = 0;
};

void Console::AddTo(HttpServer& http) {
  http.Get("/console/", [](const auto&, auto& response) { response.set_redirect("../console"); });
  http.Get("/console", [this](const auto& request, auto& response) {
    SetHeaders("no-cache", response);  // it names the others, so it is asked for each time
    AnswerFile("index.html", request, response);
  });
  http.Get(absl::StrCat("/console/", std::string(ConsoleVersion()), R"(/([a-z_]+\.[a-z]+))"),
           [this](const auto& request, auto& response) {
             SetHeaders("public, max-age=31536000, immutable", response);
             AnswerFile(request.matches[1].str(), request, response);
           });
  // All that may be posted: for another path the library would read the body itself, whoever sends it.
  http.Post(absl::StrCat(kApi, R"([\s\S]*)"),
            [this](const httplib::Request& request, httplib::Response& response, const httplib::ContentReader& read) {
              AnswerCall(request, read, response);
            });
}

// The services count and log what they refuse; this is for what never reached them.
void Console::Count(const absl::Status& refused) const {
  refused_(refused);
  const Refusal refusal = GetRefusal(refused);
  WriteLog(LevelOfCall(refused), "console_refused", {{"tenant", TenantOf(refusal)}, {"reason", refusal.reason}}, {});
}

void Console::Refused(const absl::Status& why, httplib::Response& response) const {
  Count(why);
  AnswerError(ToGrpc(why), response);
}

void Console::AnswerFile(std::string_view name, const httplib::Request& request, httplib::Response& response) const {
  const absl::Status known = CheckRequest(options_, request, false);
  if (!known.ok()) return Refused(known, response);
  const auto files = ConsoleFiles();
  const auto file = std::find_if(files.begin(), files.end(), [&](const ConsoleFile& f) { return f.name == name; });
  if (file == files.end()) {
    response.status = 404;
    return;
  }
  const std::string tag = absl::StrFormat("\"%s\"", std::string(ConsoleVersion()));
  response.set_header("ETag", tag);
  if (request.get_header_value("If-None-Match") == tag) {
    response.status = 304;
    return;
  }
  response.set_content(file->content.data(), file->content.size(), std::string(file->type));
}

absl::Status Console::CheckCaller(const httplib::Request& request) const {
  for (const char* key : kPassedOn) {
    for (size_t i = 0; i < request.get_header_value_count(key); ++i) {
      if (IsPrintable(request.get_header_value(key, i))) continue;
      return Refuse(absl::StatusCode::kInvalidArgument, absl::StrFormat("%s: only printable ASCII may be sent", key),
                    {.reason = "BAD_HEADER"});
    }
  }
  if (!identity_.on()) return absl::OkStatus();
  if (!request.has_header("authorization")) {
    return Refuse(absl::StatusCode::kUnauthenticated, "this server wants a token: authorization: Bearer TOKEN",
                  {.reason = "NO_CREDENTIAL"});
  }
  EBB_ASSIGN(const Caller caller, identity_.CallerOfToken(request.get_header_value("authorization")));
  if (caller.admin) return absl::OkStatus();
  return Refuse(absl::StatusCode::kPermissionDenied, "the console needs an admin's token",
                {.reason = "ADMIN_ONLY", .metadata = {{"tenant", caller.tenant}}});
}

absl::StatusOr<const google::protobuf::MethodDescriptor*> Console::Admit(const httplib::Request& request) const {
  EBB_TRY(CheckRequest(options_, request, true));
  EBB_TRY(CheckCaller(request));
  std::string method = request.path.substr(sizeof(kApi) - 1);
  if (std::find(kMethods.begin(), kMethods.end(), method) == kMethods.end()) {
    return Refuse(absl::StatusCode::kNotFound, absl::StrFormat("%s is no method of the console", method),
                  {.reason = "NOT_FOR_CONSOLE"});
  }
  method[method.find('/')] = '.';
  const auto* const descriptor =
      google::protobuf::DescriptorPool::generated_pool()->FindMethodByName("ebb.v1." + method);
  EBB_CHECK(descriptor != nullptr);
  return descriptor;
}

absl::StatusOr<std::shared_ptr<Console::Running>> Console::TakePlace() {
  if (++calls_ > kCallsMax) {
    --calls_;
    return Refuse(absl::StatusCode::kUnavailable, absl::StrFormat("the console has %d calls under way", kCallsMax),
                  {.reason = "CONSOLE_BUSY", .retry = kRetry});
  }
  return std::make_shared<Running>(calls_);
}

absl::Status Console::Begin(const google::protobuf::MethodDescriptor& method, const httplib::Request& request,
                            const std::string& body, Running& running) const {
  ConsoleCall::Metadata metadata;
  for (const char* key : kPassedOn) {
    for (size_t i = 0; i < request.get_header_value_count(key); ++i) {
      metadata.emplace_back(key, request.get_header_value(key, i));
    }
  }
  EBB_ASSIGN(running.call, ConsoleCall::Start(channel_, method, body, metadata,
                                              method.server_streaming() ? absl::InfiniteDuration() : kUnaryPatience));
  return absl::OkStatus();
}

// Who may not call, or finds no place, is told so without waiting for a body, but for kRefusedRead.
void Console::AnswerCall(const httplib::Request& request, const httplib::ContentReader& read,
                         httplib::Response& response) {
  SetHeaders("no-store", response);
  const auto method = Admit(request);
  const auto place = method.ok() ? TakePlace() : method.status();
  if (!place.ok()) {
    Count(place.status());
    refused_bodies_.Read(read);
    return AnswerError(ToGrpc(place.status()), response);
  }
  std::string body;
  if (!ReadBody(read, body)) return;
  const std::shared_ptr<Running> running = *place;
  const absl::Status begun = Begin(**method, request, body, *running);
  if (!begun.ok()) return Refused(begun, response);
  if ((*method)->server_streaming()) {
    response.set_chunked_content_provider(
        kLines, [running](size_t /*offset*/, httplib::DataSink& sink) { return running->Feed(sink); });
    return;
  }
  std::string message;
  for (ConsoleCall::Event event = {}; event != ConsoleCall::Event::kEnded;) {
    event = running->call->Wait(absl::InfiniteDuration());
    if (event == ConsoleCall::Event::kMessage) message = running->call->message();
  }
  if (!running->call->status().ok()) return AnswerError(running->call->status(), response);
  response.set_content(message, kJson);
}

}  // namespace ebb
