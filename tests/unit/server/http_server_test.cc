// What clients that are slow, or mean harm, may hold of a port. Nothing waits for times that are an hour; those that
// are short are of what never comes.

#include "server/http_server.h"

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

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr absl::Duration kHour = absl::Hours(1), kSoon = absl::Milliseconds(20);
constexpr HttpLimits kHours = {.head = kHour, .body = kHour, .piece = kHour};
constexpr char kWhole[] = "GET /small HTTP/1.1\r\n\r\n", kLarge[] = "GET /large HTTP/1.1\r\n\r\n";

// One thread, some pages, and a place to post to.
class Port {
 public:
  explicit Port(const HttpLimits& limits) : http_(1, limits) {
    http_.Get("/small", [](const auto&, auto& response) { response.set_content("small", "text/plain"); });
    http_.Get("/large", [this](const auto&, auto& response) {
      ++large_;
      response.set_content(std::string(64 << 20, 'x'), "text/plain");
    });
    http_.Get("/endless", [this](const auto&, auto& response) {
      ++endless_;
      response.set_chunked_content_provider("text/plain", [](size_t /*at*/, httplib::DataSink& sink) {
        const std::string piece(1024, 'x');
        return sink.write(piece.data(), piece.size());
      });
    });
    http_.Get("/provided", [](const auto&, auto& response) {
      response.set_content_provider(5, "text/plain", [](size_t at, size_t size, httplib::DataSink& sink) {
        return sink.write(&"small"[at], size);
      });
    });
    http_.Get(R"(/any(/.*)?)", [](const auto&, auto& response) { response.set_content("any", "text/plain"); });
    http_.Post("/post", [](const auto& request, auto& response) { response.set_content(request.body, "text/plain"); });
    const auto address = http_.Start({.host = "127.0.0.1", .port = 0}, "a.key", {}, refused_.all());
    EXPECT_THAT(address, IsOk());
    address_ = *address;
  }

  const Address& address() const { return address_; }
  HttpServer& http() { return http_; }
  // How often these pages were asked for.
  int large() const { return large_; }
  int endless() const { return endless_; }
  std::string Ask(const std::string& request = kWhole) const { return RawConnection(address_, request).Rest(); }

 private:
  std::atomic<int> large_ = 0, endless_ = 0;
  CountedRefusals refused_ = {};
  HttpServer http_;
  Address address_;
};

TEST(HttpServer, WhoSendsNoWholeHeadHoldsNobodyUp) {
  Port port(kHours);
  std::vector<std::unique_ptr<RawConnection>> slow;
  for (int i = 0; i < 100; ++i) {
    slow.push_back(
        std::make_unique<RawConnection>(port.address(), i % 2 == 0 ? "" : "GET /small HTTP/1.1\r\nHost: a\r\n"));
  }
  EXPECT_THAT(port.Ask(), HasSubstr("small"));
  slow.back()->Say("\r\n");
  EXPECT_THAT(slow.back()->Rest(), HasSubstr("small"));
  slow.pop_back();
  port.http().Stop(kHour);
  for (const auto& each : slow) EXPECT_EQ(each->Rest(), "");
}

TEST(HttpServer, AHeadThatIsTooLongIsNotReadOn) {
  Port port(kHours);
  for (const std::string& line : {std::string("a: b\r\n"), std::string("x")}) {
    std::string head = "GET /small HTTP/1.1\r\n";
    while (head.size() < 20 << 10) head += line;
    EXPECT_THAT(port.Ask(head), Not(HasSubstr("small")));  // and it ends
  }
  EXPECT_THAT(port.Ask(), HasSubstr("small"));
}

// A header of 8 KiB names some 2,700 ranges. The library would look for them by a recursion for each byte, and make as
// many copies of the page.
TEST(HttpServer, HoweverManyRangesAreAskedForThePageIsSentOnce) {
  Port port(kHours);
  std::string many = "Range: bytes=0-";
  while (many.size() < 8000) many += ",0-";
  for (const std::string& range : {many, std::string("rAnGe:bytes=1-2"), std::string("Range: bytes=4-1"),
                                   std::string("Range: none"), "Range: bytes=" + std::string(8000, '9') + "-"}) {
    for (const char* const page : {"/small", "/provided"}) {
      const std::string answer =
          port.Ask(absl::StrCat("GET ", page, " HTTP/1.1\r\nHost: a\r\n", range, "\r\nX: y\r\n\r\n"));
      EXPECT_THAT(answer, StartsWith("HTTP/1.1 200")) << range.substr(0, 40);
      EXPECT_THAT(answer, EndsWith("\r\n\r\nsmall")) << range.substr(0, 40);
    }
  }
  const std::string body = "a\nRange: bytes=0-";
  EXPECT_THAT(port.Ask(absl::StrCat("POST /post HTTP/1.1\r\nContent-Length: ", body.size(), "\r\n\r\n", body)),
              EndsWith("\r\n\r\n" + body));
}

TEST(HttpServer, ATargetThatIsTooLongComesToNoRoute) {
  Port port(kHours);
  const auto ask = [&](size_t bytes) {
    const std::string target = "/any/" + std::string(bytes - 5, 'x');
    return port.Ask(absl::StrCat("GET ", target, " HTTP/1.1\r\n\r\n"));
  };
  EXPECT_THAT(ask(HttpServer::kTargetBytesMax), StartsWith("HTTP/1.1 200"));
  for (const size_t bytes : {HttpServer::kTargetBytesMax + 1, size_t{8000}, size_t{9000}}) {
    EXPECT_THAT(ask(bytes), StartsWith("HTTP/1.1 414")) << bytes;
  }
}

TEST(HttpServer, WhoSaysNoMoreInTheMiddleOfAHeadIsNotWaitedFor) {
  Port port(kHours);
  const RawConnection half(port.address(), "GET /small HTTP/1.1\r\n");
  half.SayNoMore();
  EXPECT_THAT(half.Rest(), Not(HasSubstr("small")));
}

TEST(HttpServer, MoreThanMayWaitTakeTheOldestsPlaces) {
  HttpLimits few = kHours;
  few.waiting_max = 4;
  Port port(few);
  const RawConnection oldest(port.address(), "GET");
  std::vector<std::unique_ptr<RawConnection>> slow;
  for (int i = 0; i < 4; ++i) slow.push_back(std::make_unique<RawConnection>(port.address(), ""));
  EXPECT_EQ(oldest.Rest(), "");
  EXPECT_THAT(port.Ask(), HasSubstr("small"));
}

TEST(HttpServer, AHeadABodyAndAPieceHaveTheirTime) {
  HttpLimits head = kHours, body = kHours, piece = kHours;
  head.head = body.body = piece.piece = kSoon;
  EXPECT_EQ(Port(head).Ask("GET /small HTTP/1.1\r\n"), "");
  EXPECT_THAT(Port(body).Ask("POST /post HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf"), Not(HasSubstr("half")));
  Port port(piece);
  const RawConnection reads_nothing(port.address(), "GET /endless HTTP/1.1\r\n\r\n");
  while (port.endless() == 0) std::this_thread::yield();
  EXPECT_THAT(port.Ask(), HasSubstr("small")) << "the one thread is free again";
}

TEST(HttpServer, MoreThanMayBeServedAreTurnedAway) {
  HttpLimits few = kHours;
  few.queue_max = 1;
  Port port(few);
  const RawConnection reads_nothing(port.address(), kLarge);
  while (port.large() == 0) std::this_thread::yield();
  const RawConnection in_line(port.address(), kWhole), one_too_many(port.address(), kWhole);
  EXPECT_EQ(one_too_many.Rest(), "");
}

TEST(HttpServer, WhatIsBeingAnsweredIsAnsweredToItsEnd) {
  Port port(kHours);
  const RawConnection reads(port.address(), kLarge);
  while (port.large() == 0) std::this_thread::yield();
  std::string answer;
  std::thread reading([&] { answer = reads.Rest(); });
  port.http().Stop(kHour);
  reading.join();
  EXPECT_GT(answer.size(), size_t{64} << 20);
}

TEST(HttpServer, WhoTakesNothingDoesNotKeepItOpen) {
  Port port(kHours);
  const RawConnection reads_nothing(port.address(), kLarge);
  while (port.large() == 0) std::this_thread::yield();
  const RawConnection slow_body(port.address(), "POST /post HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf");
  port.http().Stop(kSoon);
}

}  // namespace
}  // namespace ebb
