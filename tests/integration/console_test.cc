// The console's calls over HTTP: the same answers as over gRPC, the same doors, and what a browser's own rules need.

#include "server/console.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "server/console_files.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_connection.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

// What sha256sum makes of the tokens acme-1 and ops-1.
constexpr char kTokenFile[] =
    "acme sha256:7974d1de1641df0234e124a5d0f4acfacfc40c99ea69f0295f943074816d1091\n"
    "ops sha256:81df83b16fd9c8888b6f555bf83d48575bda41d58115f2e4276bc57b01a892a3 admin\n";
const httplib::Headers kOfConsole = {{"X-Ebb-Console", "1"}};

void WithConsole(ServerOptions& options) {
  options.http_listen = Address{.host = "127.0.0.1", .port = 0};
  options.console = ConsoleOptions{.hosts = {"ebb.example.org"}};
}

class ConsoleTest : public testing::Test {
 protected:
  void Start(const std::function<void(ServerOptions&)>& change = {}) {
    server_ = std::make_unique<TestServer>([&](ServerOptions& options) {
      WithConsole(options);
      if (change) change(options);
    });
  }

  int port() const { return server_->server().http_address()->port; }
  httplib::Client Browser() const {
    httplib::Client client("127.0.0.1", port());
    client.set_read_timeout(60);
    return client;
  }
  httplib::Result Post(const std::string& method, const std::string& body,
                       httplib::Headers headers = kOfConsole) const {
    return Browser().Post(absl::StrCat("/console/api/", method), headers, body, "application/json");
  }
  // The reason of an answer that must be an error; also checks the HTTP code.
  static std::string ReasonOf(const httplib::Result& answer, int code) {
    if (!answer) return "no answer";
    EXPECT_EQ(answer->status, code) << answer->body;
    const Json error = Json::parse(answer->body).at("error");
    return error.at("details").at(0).at("reason");
  }
  static std::vector<Json> LinesOf(const std::string& body) {
    std::vector<Json> lines;
    for (const auto line : absl::StrSplit(body, '\n', absl::SkipEmpty()))
      lines.push_back(Json::parse(std::string(line)));
    return lines;
  }
  void EventuallyIs(const std::string& series, double value) const {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (server_->Metric(series) != value && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_EQ(server_->Metric(series), value) << series;
  }

  std::unique_ptr<TestServer> server_;
};

TEST_F(ConsoleTest, APageAndItsFilesThatABrowserMayKeep) {
  Start();
  httplib::Client browser = Browser();
  const auto page = browser.Get("/console");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->status, 200);
  EXPECT_EQ(page->get_header_value("Cache-Control"), "no-cache");
  EXPECT_THAT(page->get_header_value("Content-Security-Policy"), HasSubstr("default-src 'none'; script-src 'self'"));
  EXPECT_THAT(page->get_header_value("Content-Security-Policy"), Not(HasSubstr("unsafe")));
  const std::string tag = page->get_header_value("ETag");
  EXPECT_EQ(browser.Get("/console", {{"If-None-Match", tag}})->status, 304);
  for (const ConsoleFile& file : ConsoleFiles()) {
    const auto answer =
        browser.Get(absl::StrCat("/console/", std::string(ConsoleVersion()), "/", std::string(file.name)));
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 200) << file.name;
    EXPECT_EQ(answer->body, file.content) << file.name;
    EXPECT_THAT(answer->get_header_value("Cache-Control"), HasSubstr("immutable"));
    EXPECT_THAT(file.content, Not(HasSubstr("@VERSION@"))) << file.name;
  }
  EXPECT_EQ(browser.Get("/console/0123456789abcdef/main.js")->status, 404);  // of another build
  EXPECT_EQ(browser.Get(absl::StrCat("/console/", std::string(ConsoleVersion()), "/none.js"))->status, 404);
  EXPECT_THAT(browser.Get("/")->body, HasSubstr("/console"));
}

TEST_F(ConsoleTest, WhereItIsOffThereIsNothing) {
  TestServer server([](ServerOptions& options) { options.http_listen = Address{.host = "127.0.0.1", .port = 0}; });
  httplib::Client browser("127.0.0.1", server.server().http_address()->port);
  EXPECT_EQ(browser.Get("/console")->status, 404);
  EXPECT_EQ(browser.Post("/console/api/AdminService/GetStatus", kOfConsole, "{}", "application/json")->status, 405);
  EXPECT_THAT(browser.Get("/")->body, Not(HasSubstr("/console")));
}

TEST_F(ConsoleTest, AnswersWhatGrpcAnswers) {
  Start();
  TestClient client(server_->address(), "acme");
  v1::GenerateRequest request = GenerateText("", "abc", 8);
  *request.mutable_policy() = StreamingPolicy(6);
  request.mutable_sampling()->set_seed(7);
  request.mutable_sampling()->set_temperature(0.8F);
  const Answer right = client.Generate(request);
  httplib::Headers acme = kOfConsole;
  acme.emplace("X-Ebb-Tenant", "acme");

  const auto created = Post("SessionService/CreateSession",
                            R"({"sessionId": "one", "policy": {"streaming": {}, "trigger": {"budget": 6},
                                "protect": {"sinks": 1, "recent": 4}}, "blockSize": 16})",
                            acme);
  ASSERT_TRUE(created);
  ASSERT_EQ(created->status, 200) << created->body;
  EXPECT_EQ(Json::parse(created->body).at("name"), "sessions/one");
  EXPECT_EQ(client.Get("sessions/one").tenant(), "acme");

  const std::string body =
      absl::StrCat(R"({"prompt": {"text": "abc"}, "stopping": {"maxTokens": 8, "ignoreEos": true}, "policy": )",
                   ToJson(request.policy()), R"(, "sampling": )", ToJson(request.sampling()), "}");
  const auto stream = Post("InferenceService/Generate", body, acme);
  ASSERT_TRUE(stream);
  std::vector<uint32_t> tokens;
  for (const Json& line : LinesOf(stream->body)) {
    for (const auto& token : line.at("result").value("/decode/tokens"_json_pointer, Json::array()))
      tokens.push_back(token);
  }
  EXPECT_EQ(tokens, right.tokens);
  EXPECT_EQ(tokens.size(), 8);
}

TEST_F(ConsoleTest, SaysWhyACallWasRefused) {
  Start();
  EXPECT_EQ(ReasonOf(Post("SessionService/GetSession", R"({"name": "sessions/none"})"), 404), "UNKNOWN_SESSION");
  EXPECT_EQ(ReasonOf(Post("SessionService/GetSession", R"({"nom": "sessions/none"})"), 400), "BAD_JSON");
  EXPECT_EQ(ReasonOf(Post("SessionService/GetSession", "{"), 400), "BAD_JSON");
  EXPECT_EQ(ReasonOf(Post("SessionService/GetSession", std::string(300, '[')), 400), "BAD_JSON");
  EXPECT_EQ(ReasonOf(Post("SessionService/SaveSession", "{}"), 404), "NOT_FOR_CONSOLE");
  EXPECT_EQ(ReasonOf(Post("Nothing/Whatever", "{}"), 404), "NOT_FOR_CONSOLE");
  EXPECT_EQ(Post("SessionService/GetSession", std::string(Console::kBodyBytesMax + 1, ' '))->status, 413);
  EXPECT_EQ(Browser().Get("/console/api/SessionService/GetSession")->status, 404);
  EXPECT_EQ(Browser().Options("/console/api/SessionService/GetSession")->status, 405);  // no page of elsewhere may ask
  EXPECT_EQ(Browser().Post("/metrics", kOfConsole, "{}", "application/json")->status, 405);
  const auto stream = Post("InferenceService/Generate", R"({"session": "sessions/none", "prompt": {"text": "a"}})");
  ASSERT_TRUE(stream);
  EXPECT_EQ(stream->status, 200);  // a stream says in its last line how it ended
  EXPECT_EQ(LinesOf(stream->body).back().at("error").at("code"), 5);
  httplib::Headers odd = kOfConsole;
  odd.emplace("X-Ebb-Tenant", "ac\xC3\xA9");
  EXPECT_EQ(ReasonOf(Post("SessionService/ListSessions", "{}", odd), 400), "BAD_HEADER");
  const auto refusals = [&](const std::string& tenant, const std::string& reason) {
    return server_->Metric("ebb_refusals_total{tenant=\"" + tenant + "\",reason=\"" + reason + "\"}");
  };
  EXPECT_EQ(refusals("", "BAD_JSON"), 3);
  EXPECT_EQ(refusals("", "NOT_FOR_CONSOLE"), 2);
  EXPECT_EQ(refusals("default", "UNKNOWN_SESSION"), 2);
}

TEST_F(ConsoleTest, IsForPagesThatCameFromHere) {
  Start();
  const auto with = [](const char* key, const std::string& value) {
    httplib::Headers headers = kOfConsole;
    headers.emplace(key, value);
    return headers;
  };
  const std::string here = FormatAddress(*server_->server().http_address());
  const auto list = [&](const httplib::Headers& headers) { return Post("SessionService/ListSessions", "{}", headers); };
  EXPECT_EQ(ReasonOf(list({}), 403), "FOREIGN_PAGE");
  EXPECT_EQ(ReasonOf(list(with("Origin", "http://evil.example")), 403), "FOREIGN_PAGE");
  EXPECT_EQ(ReasonOf(list(with("Origin", "http://127.0.0.1:1")), 403), "FOREIGN_PAGE");
  EXPECT_EQ(ReasonOf(list(with("Origin", "null")), 403), "FOREIGN_PAGE");
  EXPECT_EQ(ReasonOf(list(with("Sec-Fetch-Site", "same-site")), 403), "FOREIGN_PAGE");
  EXPECT_EQ(ReasonOf(list(with("Host", "evil.example")), 403), "FOREIGN_PAGE");
  EXPECT_EQ(ReasonOf(Browser().Get("/console", {{"Host", "evil.example"}}), 403), "FOREIGN_PAGE");
  EXPECT_EQ(list(with("Origin", "http://" + here))->status, 200);
  EXPECT_EQ(list(with("Host", "ebb.example.org:8080"))->status, 200);
  EXPECT_EQ(Browser().Get("/metrics", {{"Host", "evil.example"}})->status, 200);  // scraped under any name
}

TEST(CheckBrowser, KnowsItsHosts) {
  const ConsoleOptions options = {.hosts = {"ebb.example.org"}};
  for (const char* host : {"localhost", "localhost:7701", "LOCALHOST:1", "127.0.0.1:7701", "10.1.2.3", "[::1]:7701",
                           "[fe80::1]", "ebb.example.org", "EBB.example.org:443"}) {
    EXPECT_THAT(CheckBrowser(options, {.host = host}, false), IsOk()) << host;
  }
  for (const char* host : {"", ":7701", "evil.example", "localhost.evil.example:7701", "127.0.0.1.evil.example", "[::1",
                           "[]", "[evil]:1", "x.ebb.example.org", "127.0.0.1:7701:1"}) {
    EXPECT_THAT(CheckBrowser(options, {.host = host}, false),
                IsRefusal(absl::StatusCode::kPermissionDenied, "FOREIGN_PAGE", ""))
        << host;
  }
}

TEST_F(ConsoleTest, LetsInAnAdminAlone) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/tokens";
  std::ofstream(path) << kTokenFile;
  Start([&](ServerOptions& options) { options.auth = {.token = true, .token_file = path}; });
  const auto as = [](const std::string& authorization) {
    httplib::Headers headers = kOfConsole;
    headers.emplace("Authorization", authorization);
    return headers;
  };
  for (const char* method : {"SessionService/ListSessions", "InferenceService/Generate",
                             "EvictionService/WatchEvictions", "AdminService/ListPolicies", "Nothing/Whatever"}) {
    EXPECT_EQ(ReasonOf(Post(method, "{}"), 401), "NO_CREDENTIAL") << method;
    EXPECT_EQ(ReasonOf(Post(method, "{}", as("Bearer wrong")), 401), "BAD_CREDENTIAL") << method;
    EXPECT_EQ(ReasonOf(Post(method, "{}", as("Bearer acme-1")), 403), "ADMIN_ONLY") << method;
  }
  EXPECT_EQ(Post("AdminService/GetStatus", "{}", as("Bearer ops-1"))->status, 200);
  httplib::Headers other = as("Bearer ops-1");  // what the services say of it holds
  other.emplace("X-Ebb-Tenant", "acme");
  EXPECT_EQ(ReasonOf(Post("SessionService/ListSessions", "{}", other), 403), "OTHER_TENANT");
  httplib::Headers twice = as("Bearer ops-1");
  twice.emplace("Authorization", "Bearer ops-1");
  EXPECT_EQ(ReasonOf(Post("SessionService/ListSessions", "{}", twice), 401), "BAD_CREDENTIAL");
  EXPECT_EQ(Browser().Get("/console")->status, 200);  // it asks for the token
  EXPECT_EQ(ReasonOf(Browser().Get("/console", {{"Host", "evil.example"}}), 403), "FOREIGN_PAGE");
  // Each of them is counted, and once, whether the console refused it or the services did.
  const auto failures = [&](const std::string& reason) {
    return server_->Metric("ebb_auth_failures_total{reason=\"" + reason + "\"}");
  };
  EXPECT_EQ(failures("NO_CREDENTIAL"), 5);
  EXPECT_EQ(failures("BAD_CREDENTIAL"), 6);
  EXPECT_EQ(failures("ADMIN_ONLY"), 5);
  EXPECT_EQ(failures("OTHER_TENANT"), 1);
  EXPECT_EQ(failures("FOREIGN_PAGE"), 1);
}

// Watches, from when it is made, until it goes.
class Watcher {
 public:
  Watcher(int port, const std::string& tenant) : client_("127.0.0.1", port) {
    client_.set_read_timeout(60);
    request_.method = "POST";
    request_.path = "/console/api/EvictionService/WatchEvictions";
    request_.headers = kOfConsole;
    request_.headers.emplace("X-Ebb-Tenant", tenant);
    request_.body = "{}";
    request_.content_receiver = [this](const char* data, size_t size, uint64_t /*offset*/, uint64_t /*total*/) {
      if (!begun_) first_.assign(data, size);
      Begin();
      return true;
    };
    thread_ = std::thread([this] {
      client_.send(request_);
      Begin();
    });
    in_force_.get_future().wait();
    EXPECT_EQ(first_, "\n");  // nothing was missed from here on
  }
  ~Watcher() {
    client_.stop();
    thread_.join();
  }

 private:
  void Begin() {
    if (!begun_) in_force_.set_value();
    begun_ = true;
  }

  httplib::Client client_;
  httplib::Request request_ = {};
  std::promise<void> in_force_ = {};
  std::string first_ = {};
  bool begun_ = false;
  std::thread thread_;
};

TEST_F(ConsoleTest, ManyPagesLeaveRoomForMetricsAndGoWhenTheirBrowsersGo) {
  Start();
  {
    std::vector<std::unique_ptr<Watcher>> watchers;
    for (int i = 0; i < Console::kCallsMax; ++i) {  // one tenant may watch 16 times
      watchers.push_back(std::make_unique<Watcher>(port(), absl::StrCat("t", i % 4)));
    }
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(server_->Metric(absl::StrCat("ebb_watchers{tenant=\"t", i, "\"}")), Console::kCallsMax / 4);
    }
    const auto refused = Post("SessionService/ListSessions", "{}");
    EXPECT_EQ(ReasonOf(refused, 503), "CONSOLE_BUSY");
    EXPECT_EQ(Browser().Get("/healthz")->status, 200);
    EXPECT_EQ(Browser().Get("/console")->status, 200);
  }
  for (int i = 0; i < 4; ++i) EventuallyIs(absl::StrCat("ebb_watchers{tenant=\"t", i, "\"}"), 0);
  EXPECT_EQ(Post("SessionService/ListSessions", "{}")->status, 200);
}

// The head of a call, and a body that does not come.
std::string SlowCall(const std::string& method) {
  return absl::StrCat("POST /console/api/", method,
                      " HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Ebb-Console: 1\r\nContent-Length: 2\r\n\r\n");
}

TEST_F(ConsoleTest, WhoMayNotCallIsToldSoBeforeTheBody) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/tokens";
  std::ofstream(path) << kTokenFile;
  Start([&](ServerOptions& options) { options.auth = {.token = true, .token_file = path}; });
  std::vector<std::unique_ptr<RawConnection>> slow;
  for (int i = 0; i < 2 * Console::kCallsMax; ++i) {
    const std::string head = SlowCall(i % 2 == 0 ? "SessionService/ListSessions" : "nothing%0A");
    slow.push_back(std::make_unique<RawConnection>(*server_->server().http_address(), head));
  }
  const auto answered = [&] {
    return std::ranges::count_if(slow, [](const auto& each) { return each->IsAnswered(); });
  };
  EXPECT_TRUE(Eventually([&] { return answered() >= 2 * Console::kCallsMax - Console::kRefusedRead; }));
  for (const auto& each : slow) {
    if (!each->IsAnswered()) continue;
    EXPECT_THAT(each->Rest(), StartsWith("HTTP/1.1 401"));
  }
}

// The library would take a form apart, and fail at it.
TEST_F(ConsoleTest, AFormIsNoCall) {
  Start();
  const auto answer = Browser().Post("/console/api/SessionService/ListSessions", kOfConsole,
                                     "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n--x--\r\n",
                                     "multipart/form-data; boundary=x");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 415);
}

// Without its length the library would read a body however long it is.
TEST_F(ConsoleTest, ABodyWithoutItsLengthIsNotRead) {
  Start();
  for (const char* const header : {"Transfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 2",
                                   "Content-Encoding: gzip\r\nContent-Length: 2", "X: y"}) {
    const RawConnection call(
        *server_->server().http_address(),
        absl::StrCat(
            "POST /console/api/SessionService/ListSessions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Ebb-Console: 1\r\n", header,
            "\r\n\r\n-2\r\n"));
    EXPECT_THAT(call.Rest(), StartsWith("HTTP/1.1 411")) << header;
  }
}

TEST_F(ConsoleTest, APathThatIsTooLongIsNoMethod) {
  Start();
  const auto answer = Post(std::string(8000, 'x'), "{}");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 414);
  EXPECT_EQ(answer->body, "the path with its query has more than 1024 bytes\n");
}

TEST_F(ConsoleTest, WhoSendsABodySlowlyHoldsAPlaceAndNoThreadOfOthers) {
  Start();
  std::vector<std::unique_ptr<RawConnection>> slow;
  const auto all_places_are_held = [&] {  // one more each time, as the call that asks may have been in a place itself
    slow.push_back(
        std::make_unique<RawConnection>(*server_->server().http_address(), SlowCall("SessionService/ListSessions")));
    return Post("SessionService/ListSessions", "{}")->status == 503;
  };
  EXPECT_TRUE(Eventually(all_places_are_held));
  EXPECT_EQ(Browser().Get("/healthz")->status, 200);
}

TEST_F(ConsoleTest, AReaderThatLeavesStopsItsGeneration) {
  Start();
  size_t received = 0;
  httplib::Request request;
  request.method = "POST";
  request.path = "/console/api/InferenceService/Generate";
  request.headers = kOfConsole;
  request.body = R"({"prompt": {"text": "abc"}, "stopping": {"maxTokens": 16777216, "ignoreEos": true}})";
  request.content_receiver = [&](const char*, size_t size, uint64_t, uint64_t) { return (received += size) < 1000; };
  EXPECT_FALSE(Browser().send(request));
  EXPECT_GE(received, 1000);
  EventuallyIs("ebb_requests_running", 0);
  EventuallyIs("ebb_rpc_handled_total{method=\"InferenceService/Generate\",code=\"CANCELLED\"}", 1);
}

TEST_F(ConsoleTest, ADrainEndsItsStreams) {
  Start();
  const Watcher watcher(port(), "acme");
  server_->server().Drain(absl::Seconds(30));  // returns
}

}  // namespace
}  // namespace ebb
