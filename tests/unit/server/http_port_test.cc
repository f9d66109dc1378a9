#include "server/http_port.h"

#include <gmock/gmock.h>
#include <httplib.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/counted_refusals.h"
#include "tests/support/raw_connection.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const Address kAnyPort = {.host = "127.0.0.1", .port = 0};

absl::StatusOr<std::unique_ptr<HttpPort>> Started(const Address& listen, const HttpPages& pages) {
  static CountedRefusals refused;
  return HttpPort::Start(listen, pages, refused.all());
}

httplib::Client ClientOf(const HttpPort& port) { return httplib::Client(port.address().host, port.address().port); }

HttpPages Pages() {
  return {.metrics = [] { return std::string("ebb_sessions 3\n"); },
          .health = {.alive = [] { return absl::OkStatus(); }, .ready = [] { return absl::OkStatus(); }}};
}

TEST(HttpPort, ServesItsThreePages) {
  const auto port = Started(kAnyPort, Pages());
  ASSERT_THAT(port, IsOk());
  EXPECT_GT((*port)->address().port, 0);
  httplib::Client client = ClientOf(**port);
  const auto metrics = client.Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->status, 200);
  EXPECT_EQ(metrics->body, "ebb_sessions 3\n");
  EXPECT_THAT(metrics->get_header_value("Content-Type"), StartsWith("text/plain; version=0.0.4"));
  EXPECT_EQ(client.Get("/healthz")->status, 200);
  EXPECT_EQ(client.Get("/readyz")->status, 200);
  EXPECT_THAT(client.Get("/")->body, HasSubstr("/readyz"));
}

TEST(HttpPort, SaysWhyItIsNotReady) {
  std::atomic<bool> draining = false;
  HttpPages pages = Pages();
  pages.health.ready = [&] { return draining ? absl::UnavailableError("draining: 3 streams left") : absl::OkStatus(); };
  const auto port = Started(kAnyPort, pages);
  ASSERT_THAT(port, IsOk());
  httplib::Client client = ClientOf(**port);
  EXPECT_EQ(client.Get("/readyz")->status, 200);
  draining = true;
  const auto answer = client.Get("/readyz");
  EXPECT_EQ(answer->status, 503);
  EXPECT_EQ(answer->body, "draining: 3 streams left\n");
  EXPECT_EQ(client.Get("/healthz")->status, 200);
}

TEST(HttpPort, SaysWhyItIsToBeRestarted) {
  HttpPages pages = Pages();
  pages.health.alive = [] { return absl::UnavailableError("stuck for six minutes"); };
  const auto port = Started(kAnyPort, pages);
  ASSERT_THAT(port, IsOk());
  httplib::Client client = ClientOf(**port);
  const auto answer = client.Get("/healthz");
  EXPECT_EQ(answer->status, 503);
  EXPECT_EQ(answer->body, "stuck for six minutes\n");
  EXPECT_EQ(client.Get("/readyz")->status, 200);
}

TEST(HttpPort, RefusesOtherPathsAndMethods) {
  const auto port = Started(kAnyPort, Pages());
  ASSERT_THAT(port, IsOk());
  httplib::Client client = ClientOf(**port);
  EXPECT_EQ(client.Get("/nothing")->status, 404);
  EXPECT_EQ(client.Get("/metrics/../etc/passwd")->status, 404);
  EXPECT_EQ(client.Post("/metrics", "x", "text/plain")->status, 405);
  EXPECT_EQ(client.Delete("/metrics")->status, 405);
  EXPECT_EQ(client.Head("/metrics")->status, 200);
  const auto long_path = client.Get(("/" + std::string(8000, 'x')).c_str());
  ASSERT_TRUE(long_path);
  EXPECT_EQ(long_path->status, 414);
  EXPECT_EQ(long_path->body, "the path with its query has more than 1024 bytes\n");
}

// The library's limit holds for a body that says its length alone, and a chunk of one may have a negative size.
TEST(HttpPort, NeverReadsABodyInPieces) {
  const auto port = Started(kAnyPort, Pages());
  ASSERT_THAT(port, IsOk());
  for (const char* const method : {"POST", "PUT", "PATCH", "DELETE"}) {
    const RawConnection chunked((*port)->address(),
                                absl::StrCat(method, " /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n"));
    EXPECT_THAT(chunked.Rest(), StartsWith("HTTP/1.1 405")) << method;
  }
}

TEST(HttpPort, NeverSharesAPortAndGivesItBack) {
  auto first = Started(kAnyPort, Pages());
  ASSERT_THAT(first, IsOk());
  const Address taken = (*first)->address();
  const auto second = Started(taken, Pages());
  EXPECT_THAT(second, IsRefusal(absl::StatusCode::kUnavailable, "PORT_UNAVAILABLE", ""));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(FormatAddress(taken)));
  first->reset();
  EXPECT_THAT(Started(taken, Pages()), IsOk());
}

TEST(HttpPort, RefusesAHostThatIsNotHere) {
  EXPECT_THAT(Started({.host = "192.0.2.1", .port = 0}, Pages()),
              IsRefusal(absl::StatusCode::kUnavailable, "PORT_UNAVAILABLE", ""));
}

TEST(HttpPort, AnswersManyClientsAtOnce) {
  const auto port = Started(kAnyPort, Pages());
  ASSERT_THAT(port, IsOk());
  std::atomic<int> answered = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        const auto answer = ClientOf(**port).Get("/metrics");
        answered += answer && answer->status == 200 ? 1 : 0;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(answered, 80);
}

TEST(HttpPort, StopsAtOnceHoweverOftenItStarts) {
  for (int i = 0; i < 50; ++i) {
    const auto port = Started(kAnyPort, Pages());
    ASSERT_THAT(port, IsOk());
  }
}

}  // namespace
}  // namespace ebb
