// Every field of every request, tried at the ends of its type and past them, and random requests beside: each is taken
// or refused in an orderly way, and the server is as it was. What is tried follows from the protobuf descriptors.

#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "policies/hash_random.h"
#include "tests/support/good_requests.h"
#include "tests/support/request_mutations.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using ::testing::ElementsAreArray;
using ::testing::SizeIs;
using Code = grpc::StatusCode;

// Why good requests of these are not taken: no draft waits, this server has no file, and the experiment has stopped by
// then.
const std::map<std::string, std::string> kRefused = {{"InferenceService/Accept", "NO_DRAFT"},
                                                     {"AdminService/ReloadConfig", "NO_CONFIG_FILE"},
                                                     {"AdminService/RampExperiment", "EXPERIMENT_STOPPED"}};

// What is wrong with an answer, or nothing. `request` in bytes.
std::string Complaint(const Method& method, const std::string& request, const grpc::Status& status) {
  static const std::set<Code> kOrderly = {Code::INVALID_ARGUMENT,    Code::NOT_FOUND, Code::ALREADY_EXISTS,
                                          Code::FAILED_PRECONDITION, Code::ABORTED,   Code::RESOURCE_EXHAUSTED,
                                          Code::UNAVAILABLE};
  if (status.ok()) return "";
  const client::ErrorDetails details = ReadDetails(status);
  if (status.error_code() == Code::CANCELLED && details.reason.empty()) return "";  // by this side
  if (details.reason == "SESSION_DELETED" || details.reason == "CALL_CANCELLED") return "";
  if (status.error_code() == Code::UNIMPLEMENTED) {  // gRPC's answer to what is no request
    return NewRequest(*method.descriptor)->ParseFromString(request) ? "a request that parses is UNIMPLEMENTED" : "";
  }
  if (!kOrderly.contains(status.error_code())) return client::Describe(status);
  if (details.reason.empty()) return "no reason: " + client::Describe(status);
  if (status.error_code() != Code::INVALID_ARGUMENT) return "";
  if (details.field.empty()) return "no field: " + client::Describe(status);
  if (details.field == "x-ebb-tenant" || HasField(*method.descriptor->input_type(), details.field)) return "";
  return absl::StrFormat("%s is no field: %s", details.field, client::Describe(status));
}

class FieldLimits : public testing::Test {
 protected:
  std::vector<uint32_t> FreshAnswer() {
    v1::GenerateRequest request = GenerateText("", kTale, 40);
    *request.mutable_policy() = StreamingPolicy(24);
    request.set_block_size(8);
    request.mutable_sampling()->set_seed(11);
    return client_.Generate(request).tokens;
  }

  // Every session gone, nothing held, no fault counted.
  void ExpectNothingLeft(const std::vector<uint32_t>& before) {
    const absl::Time end = absl::Now() + absl::Minutes(1);
    const auto is_idle = [this] {
      const v1::GetStatusResponse status = client_.Status();
      return status.work().sessions() + status.work().requests_running() + status.work().requests_queued() == 0 &&
             status.cache().pages_reserved() == 0;
    };
    while (!is_idle() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(10));
    EXPECT_TRUE(is_idle()) << client_.Status().DebugString();
    for (const char* reason : {"UNKNOWN", "INTERNAL", "DATA_LOSS"}) {
      EXPECT_EQ(server_.Metric(absl::StrFormat("ebb_errors_total{reason=\"%s\"}", reason)), 0);
    }
    EXPECT_THAT(FreshAnswer(), ElementsAreArray(before));
  }

  const google::protobuf::LogSilencer quiet_;  // about texts that are no UTF-8
  const TemporaryFolder store_;
  TestServer server_{[this](ServerOptions& options) {
    options.http_listen = {.host = "127.0.0.1", .port = 0};
    options.store_dir = store_.path();
    options.engine.arena_bytes = 16 << 20;
    options.plan_bytes_max = 36 << 20;  // so that it is Ebb, not gRPC, that sees and refuses what is too large
    options.stream_buffer = 4;
  }};
  TestClient client_{server_.address()};
};

TEST_F(FieldLimits, EachIsTakenOrRefusedByItsName) {
  const std::vector<uint32_t> before = FreshAnswer();
  ASSERT_THAT(before, SizeIs(40));
  ASSERT_THAT(AllMethods(), SizeIs(GoodRequests())) << "say what a request of it looks like";
  RequestCaller caller(server_.address(), "ends");
  int tried = 0, refused = 0;
  for (const Method& method : AllMethods()) {
    const std::unique_ptr<Message> good = GoodRequest(method);
    const grpc::Status taken = caller.Call(method, good->SerializeAsString());
    if (const auto refused_for = kRefused.find(ShortName(method)); refused_for != kRefused.end()) {
      EXPECT_EQ(ReadDetails(taken).reason, refused_for->second);
    } else {
      EXPECT_TRUE(taken.ok() || taken.error_code() == Code::CANCELLED) << method.name << client::Describe(taken);
    }
    caller.Restore(method);
    for (const Mutation& mutation : MutationsOf(*method.descriptor->input_type())) {
      SCOPED_TRACE(absl::StrFormat("%s %s: %s", method.name, mutation.path, mutation.value));
      const std::unique_ptr<Message> request(good->New());
      request->CopyFrom(*good);
      mutation.apply(*request);
      const std::string bytes = request->SerializeAsString();
      const grpc::Status status = caller.Call(method, bytes);
      EXPECT_EQ(Complaint(method, bytes, status), "");
      // A watch may be cancelled before it hears that it was no request.
      const bool parses = request->ParseFromString(bytes);
      const bool was_taken = status.ok() || (status.error_code() == Code::CANCELLED && parses);
      EXPECT_FALSE(mutation.never && was_taken);
      if (was_taken) caller.Restore(method);
      ++tried;
      refused += was_taken ? 0 : 1;
    }
  }
  EXPECT_GT(tried, 2000);
  EXPECT_GT(refused, tried / 3);
  caller.Leave();
  ExpectNothingLeft(before);
}

// Calls in all: EBB_RANDOM_CALLS, from EBB_SEED. `make abuse` makes 100,000.
uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  uint64_t value = 0;
  const char* const text = std::getenv(name);
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// What a method's requests may be other in.
struct Variations {
  std::vector<Mutation> mutations = {};
  std::vector<Place> places = {};  // of values, not of messages
};

Variations VariationsOf(const Method& method) {
  Variations variations = {.mutations = MutationsOf(*method.descriptor->input_type()),
                           .places = PlacesIn(*method.descriptor->input_type())};
  std::erase_if(variations.places,
                [](const Place& place) { return place.field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE; });
  return variations;
}

template <typename Entry>
const Entry& AnyOf(const std::vector<Entry>& entries, HashRandom& random) {
  return entries[static_cast<size_t>(random.Uniform(0, static_cast<int32_t>(entries.size()) - 1))];
}

// A request that is good, has a value from the edge of its type or a random one in a place or two, or is no longer a
// message.
std::string RandomRequest(const Method& method, const Variations& variations, HashRandom& random) {
  const std::unique_ptr<Message> request = GoodRequest(method);
  const int kind = random.Uniform(0, 9);
  for (int i = kind < 3 || variations.mutations.empty() ? 0 : (kind < 7 ? 1 : 2); i > 0; --i) {
    if (variations.places.empty() || random.Uniform(0, 1) == 0) {
      AnyOf(variations.mutations, random).apply(*request);
    } else {
      SetRandomly(*request, AnyOf(variations.places, random), random);
    }
  }
  std::string bytes = request->SerializeAsString();
  if (kind < 9 || bytes.empty()) return bytes;
  for (int i = random.Uniform(1, 4); i > 0; --i) {
    bytes[static_cast<size_t>(random.Uniform(0, static_cast<int32_t>(bytes.size()) - 1))] ^=
        static_cast<char>(1 << random.Uniform(0, 7));
  }
  if (random.Uniform(0, 3) == 0)
    bytes.resize(static_cast<size_t>(random.Uniform(0, static_cast<int32_t>(bytes.size()))));
  return bytes;
}

// Somebody else's answer, which goes on all the while.
class Witness {
 public:
  explicit Witness(const std::string& address) : client_(address, "witness") {
    session_ = client_.Create(SessionWith(StreamingPolicy(24))).name();
    EXPECT_TRUE(client_.Prefill(PrefillText(session_, kTale)).ok());
    context_ = client_.Context();
    reader_ = client_.inference().Decode(context_.get(), DecodeTokens(session_, 1 << 24));
    thread_ = std::thread([this] { Read(); });
  }

  void GoesOn(size_t messages) {
    const size_t wanted = heard() + messages;
    const absl::Time end = absl::Now() + absl::Minutes(1);
    while (heard() < wanted && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_GE(heard(), wanted) << "the witness is told no more";
  }

  // p99 of the time between two messages since the last call.
  absl::Duration EndPhase() {
    const std::lock_guard lock(mutex_);
    std::vector<absl::Duration> gaps(gaps_.begin() + static_cast<ptrdiff_t>(begin_), gaps_.end());
    begin_ = gaps_.size();
    EXPECT_FALSE(gaps.empty()) << "the witness was told nothing";
    if (gaps.empty()) return absl::InfiniteDuration();
    std::ranges::sort(gaps);
    return gaps[gaps.size() * 99 / 100];
  }

  void End() {
    ends_ = true;
    context_->TryCancel();
    thread_.join();
    EXPECT_TRUE(client_.Delete(session_).ok());
  }

 private:
  size_t heard() {
    const std::lock_guard lock(mutex_);
    return gaps_.size();
  }

  void Read() {
    v1::DecodeResponse message;
    for (absl::Time last = absl::Now(); reader_->Read(&message);) {
      const absl::Time now = absl::Now();
      const std::lock_guard lock(mutex_);
      gaps_.push_back(now - std::exchange(last, now));
    }
    const grpc::Status status = reader_->Finish();
    EXPECT_TRUE(ends_ && status.error_code() == Code::CANCELLED) << client::Describe(status);
  }

  TestClient client_;
  std::string session_ = {};
  std::unique_ptr<grpc::ClientContext> context_ = {};
  std::unique_ptr<grpc::ClientReader<v1::DecodeResponse>> reader_ = {};
  std::atomic<bool> ends_ = false;
  std::mutex mutex_;
  std::vector<absl::Duration> gaps_ = {};
  size_t begin_ = 0;  // of the phase, in gaps_
  std::thread thread_ = {};
};

TEST_F(FieldLimits, RandomCallsLeaveTheServerAsItWas) {
#if defined(EBB_SANITIZED)
  constexpr uint64_t kCalls = 1500;
#else
  constexpr uint64_t kCalls = 3000;
#endif
  constexpr uint64_t kCallers = 3;
  const uint64_t calls = FromEnvironment("EBB_RANDOM_CALLS", kCalls), seed = FromEnvironment("EBB_SEED", 1);
  const uint64_t each_makes = (calls + kCallers - 1) / kCallers;
  SCOPED_TRACE(absl::StrFormat("EBB_SEED=%d", seed));
  const std::vector<uint32_t> before = FreshAnswer();
  const std::vector<Method> methods = AllMethods();
  std::map<std::string, Variations> variations;
  for (const Method& method : methods) variations[method.name] = VariationsOf(method);

  Witness witness(server_.address());
  witness.GoesOn(300);
  const absl::Duration alone = witness.EndPhase();
  const auto make_calls = [&](const char* whose, uint64_t each, const auto& request) {
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < kCallers; ++i) {
      threads.emplace_back([&, i] {
        HashRandom random(seed, i);
        RequestCaller caller(server_.address(), absl::StrFormat("%s-%d", whose, i));
        for (uint64_t done = 0; done < each; ++done) {
          const Method& method = AnyOf(methods, random);
          const std::string bytes = request(method, random);
          const grpc::Status status = caller.Call(method, bytes);
          EXPECT_EQ(Complaint(method, bytes, status), "")
              << method.name << ' ' << whose << ' ' << i << " call " << done << " of EBB_SEED=" << seed;
          if (random.Uniform(0, 3) == 0) caller.Restore(method);
        }
        caller.Leave();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return witness.EndPhase();
  };
  const absl::Duration beside_orderly = make_calls("orderly", each_makes / 10, [](const Method& method, HashRandom&) {
    return GoodRequest(method)->SerializeAsString();
  });
  const absl::Duration beside_random = make_calls("random", each_makes, [&](const Method& method, HashRandom& random) {
    return RandomRequest(method, variations.at(method.name), random);
  });
  witness.GoesOn(20);
  witness.End();
  std::cout << absl::StrFormat(
      "%d random calls; the witness's time between messages, p99: %s alone, %s beside %d orderly callers, %s beside "
      "%d random ones\n",
      each_makes * kCallers, absl::FormatDuration(alone), absl::FormatDuration(beside_orderly), kCallers,
      absl::FormatDuration(beside_random), kCallers);
  ExpectNothingLeft(before);
}

}  // namespace
}  // namespace ebb
