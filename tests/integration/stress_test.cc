// Many clients that do anything to the same few sessions at once. Every call gets an answer that the API allows, and
// when all sessions are deleted the server holds nothing, says so, and answers as if nothing had happened.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "policies/hash_random.h"
#include "tests/support/eventually.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using ::testing::ElementsAreArray;
using ::testing::SizeIs;

constexpr int kThreads = 6;
constexpr int kActions = 300;  // of each thread
constexpr int kNames = 5;      // sessions of a tenant, for three threads
constexpr char kTillTheLampWentOut[] =
    "The frog jumped into the pond, and the old man sat by the fire until the lamp went out.";

// What a caller may be told who races with others for a session, or for memory.
const std::set<std::string> kReasons = {"UNKNOWN_SESSION", "NAME_TAKEN",      "NO_PAGES",       "SESSION_BUSY",
                                        "LENGTH_LIMIT",    "SESSION_DELETED", "CALL_CANCELLED", "EMPTY_SESSION"};

// One client with its own chances.
class Guest {
 public:
  Guest(const std::string& address, uint64_t seed) : client_(address, seed % 2 == 0 ? "even" : "odd"), random_(seed) {}

  void Act() {
    switch (random_.Uniform(0, 7)) {
      case 0:
      case 1:
        return Create();
      case 2:
        return Prefill();
      case 3:
        return Decode();
      case 4:
        return Generate();
      case 5:
        return Evict();
      case 6:
        return Look();
      default:
        return Note(client_.Delete(Name()), "SessionService/DeleteSession");
    }
  }

  void DeleteAll() {
    for (int i = 0; i < kNames; ++i) {
      ++calls_;
      const grpc::Status status = client_.Delete(absl::StrFormat("sessions/s%d", i));
      EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::NOT_FOUND) << client::Describe(status);
    }
  }

  int calls() const { return calls_; }
  int unheard() const { return unheard_; }  // of these calls, cancelled at once: the server may not have seen them
  int streams_that_ended_well() const { return streams_; }
  int without_session() const { return without_session_; }  // of these calls, answers

 private:
  std::string Name() { return absl::StrFormat("sessions/s%d", random_.Uniform(0, kNames - 1)); }
  std::string Text() { return std::string(kTillTheLampWentOut).substr(0, static_cast<size_t>(random_.Uniform(1, 80))); }

  void Note(const grpc::Status& status, const char* method) {
    ++calls_;
    if (status.ok()) return;
    // A call that this client cancelled itself ends on its side, where no reason is known.
    if (status.error_code() == grpc::StatusCode::CANCELLED && ReadDetails(status).reason.empty()) return;
    EXPECT_TRUE(kReasons.contains(ReadDetails(status).reason)) << method << ": " << client::Describe(status);
  }

  void Create() {
    v1::PolicySpec policy;
    const auto budget = static_cast<uint32_t>(random_.Uniform(16, 120));
    switch (random_.Uniform(0, 2)) {
      case 0:
        policy.mutable_full();
        break;
      case 1:
        policy.mutable_streaming();
        break;
      default:
        policy.mutable_h2o();
    }
    policy.mutable_trigger()->set_budget(budget);
    v1::CreateSessionRequest request = SessionWith(policy, static_cast<uint32_t>(random_.Uniform(1, 32)));
    request.set_session_id(Name().substr(std::string("sessions/").size()));
    v1::Session session;
    Note(client_.Create(request, &session), "SessionService/CreateSession");
  }

  void Prefill() { Note(client_.Prefill(PrefillText(Name(), Text())), "InferenceService/Prefill"); }

  // Reads all of a stream, or some of it and hangs up.
  template <typename Message>
  void Read(grpc::ClientContext& context, grpc::ClientReader<Message>& reader, const char* method) {
    const int patience = random_.Uniform(0, 2) > 0 ? -1 : random_.Uniform(0, 10);
    if (patience == 0) ++unheard_;
    Message message;
    for (int read = 0; read != patience && reader.Read(&message); ++read) continue;
    if (patience >= 0) context.TryCancel();
    while (reader.Read(&message)) continue;
    const grpc::Status status = reader.Finish();
    Note(status, method);
    streams_ += status.ok() ? 1 : 0;
  }

  void Decode() {
    const auto context = client_.Context();
    const auto max_tokens = static_cast<uint32_t>(random_.Uniform(1, 30));
    const auto reader = client_.inference().Decode(context.get(), DecodeTokens(Name(), max_tokens));
    Read(*context, *reader, "InferenceService/Decode");
  }

  void Generate() {
    const auto max_tokens = static_cast<uint32_t>(random_.Uniform(1, 30));
    v1::GenerateRequest request = GenerateText(Name(), Text(), max_tokens);
    if (random_.Uniform(0, 2) == 0) {  // without a session of its own
      ++without_session_;
      request.clear_session();
      *request.mutable_policy() = StreamingPolicy(24);
    }
    const auto context = client_.Context();
    const auto reader = client_.inference().Generate(context.get(), request);
    Read(*context, *reader, "InferenceService/Generate");
  }

  void Evict() {
    v1::EvictRequest request;
    request.set_session(Name());
    if (random_.Uniform(0, 1) == 0) {
      request.set_older_than(static_cast<uint64_t>(random_.Uniform(10, 60)));
    } else {
      request.mutable_keep()->set_count(static_cast<uint32_t>(random_.Uniform(8, 30)));
      request.mutable_keep()->set_scorer("streaming");
    }
    v1::EvictResponse response;
    Note(client_.eviction().Evict(client_.Context().get(), request, &response), "EvictionService/Evict");
  }

  void Look() {
    v1::DescribeCacheRequest request;
    request.set_session(Name());
    v1::DescribeCacheResponse response;
    Note(client_.eviction().DescribeCache(client_.Context().get(), request, &response),
         "EvictionService/DescribeCache");
  }

  TestClient client_;
  HashRandom random_;
  int calls_ = 0;
  int unheard_ = 0;
  int streams_ = 0;
  int without_session_ = 0;
};

class Stress : public testing::Test {
 protected:
  // The sum of a family's series whose labels contain `label`.
  double Sum(const std::string& family, const std::string& label = "") {
    const auto page = http_.Get("/metrics");
    EXPECT_TRUE(page);
    std::istringstream lines(page->body);
    double sum = 0;
    for (std::string line; std::getline(lines, line);) {
      const size_t end = line.find_first_of("{ ");
      if (line.substr(0, end) != family || !absl::StrContains(line, label)) continue;
      sum += std::strtod(line.c_str() + line.rfind(' ') + 1, nullptr);
    }
    return sum;
  }

  // The answer of a session of its own.
  std::vector<uint32_t> FreshAnswer() {
    v1::GenerateRequest request = GenerateText("", kTillTheLampWentOut, 40);
    *request.mutable_policy() = StreamingPolicy(24);
    request.mutable_sampling()->set_seed(11);
    return client_.Generate(request).tokens;
  }

  TestServer server_{[](ServerOptions& options) {
    options.http_listen = {.host = "127.0.0.1", .port = 0};
    options.engine.arena_bytes = 256 << 10;  // for some of the sessions, never for all
    options.stream_buffer = 4;
  }};
  TestClient client_{server_.address(), "even"};
  httplib::Client http_{"127.0.0.1", server_.server().http_address()->port};
};

TEST_F(Stress, LeavesNothingBehindAndNothingUnanswered) {
  const std::vector<uint32_t> before = FreshAnswer();
  ASSERT_THAT(before, SizeIs(40));
  std::vector<std::unique_ptr<Guest>> guests;
  for (int i = 0; i < kThreads; ++i) guests.push_back(std::make_unique<Guest>(server_.address(), i));
  std::vector<std::thread> threads;
  for (const auto& guest : guests) {
    threads.emplace_back([&guest] {
      for (int i = 0; i < kActions; ++i) guest->Act();
    });
  }
  for (std::thread& thread : threads) thread.join();
  guests[0]->DeleteAll();
  guests[1]->DeleteAll();

  EXPECT_TRUE(Eventually([this] { return client_.Status().work().sessions() == 0; }));
  const v1::GetStatusResponse status = client_.Status();
  EXPECT_EQ(status.cache().pages_reserved(), 0U);
  EXPECT_EQ(status.cache().used_bytes(), 0U);
  EXPECT_EQ(status.work().requests_running() + status.work().requests_queued(), 0U);
  int calls = 0, unheard = 0, streams = 0, without_session = 0;
  for (const auto& guest : guests) {
    calls += guest->calls();
    unheard += guest->unheard();
    streams += guest->streams_that_ended_well();
    without_session += guest->without_session();
  }
  EXPECT_GT(streams, 0);

  // The metrics page tells the same story.
  EXPECT_EQ(Sum("ebb_sessions"), 0);
  EXPECT_EQ(Sum("ebb_queue_depth"), 0);
  EXPECT_EQ(Sum("ebb_requests_running"), 0);
  for (const char* family : {"ebb_cache_bytes", "ebb_cache_slots"}) {
    EXPECT_EQ(Sum(family, "state=\"used\""), 0);
    EXPECT_EQ(Sum(family, "state=\"reserved\""), 0);
  }
  EXPECT_EQ(Sum("ebb_cache_bytes", "state=\"free\""),
            static_cast<double>(status.cache().pages_total() * status.cache().page_bytes()));
  EXPECT_EQ(Sum("ebb_prompt_tokens_total"), static_cast<double>(status.work().prompt_tokens()));
  EXPECT_EQ(Sum("ebb_completion_tokens_total"), static_cast<double>(status.work().completion_tokens()));
  EXPECT_EQ(Sum("ebb_evicted_tokens_total"), static_cast<double>(status.work().evicted_tokens()));
  const double not_run =
      Sum("ebb_prompt_tokens_total") + Sum("ebb_completion_tokens_total") - Sum("ebb_step_tokens_sum");
  EXPECT_GE(not_run, 0) << "tokens run that are nobody's";
  EXPECT_LE(not_run, without_session) << "more than the last token of each answer without a session";
  EXPECT_EQ(Sum("ebb_step_seconds_count"), static_cast<double>(status.work().steps()));
  EXPECT_EQ(Sum("ebb_errors_total"), 0) << "no fault of the server's own";
  // Every call of the guests was counted, and once.
  const auto handled = [this] {
    return Sum("ebb_rpc_handled_total") - Sum("ebb_rpc_handled_total", "method=\"AdminService/GetStatus\"") - 1;
  };
  EXPECT_TRUE(Eventually([&] { return handled() >= calls - unheard; })) << handled() << " of " << calls;
  EXPECT_LE(handled(), calls);
  EXPECT_THAT(FreshAnswer(), ElementsAreArray(before)) << "in pages that others had before";
}

}  // namespace
}  // namespace ebb
