// Many tenants' streams at once, each beginning its next answer when it has the last one: what soak_test.py runs beside
// a server. Prints one line of JSON: tokens by tenant, failures by what they say, gaps between messages by tenant,
// since a tenant of a larger weight is to have shorter ones.
//
//   soak_load ADDRESS TENANTS STREAMS_EACH SECONDS

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/error.h"
#include "ebb/v1/inference.grpc.pb.h"
#include "policies/check.h"
#include "policies/hash_random.h"

namespace ebb {
namespace {

using Clock = std::chrono::steady_clock;

struct Tally {
  std::map<std::string, int64_t> failures = {};
  std::vector<double> gaps = {};  // seconds, between two messages of an answer
  int64_t answers = 0;
};

v1::GenerateRequest NextRequest(HashRandom& random) {
  v1::GenerateRequest request;
  for (int i = random.Uniform(8, 48); i > 0; --i) {
    request.mutable_prompt()->mutable_tokens()->add_ids(static_cast<uint32_t>(random.Uniform(1, 200)));
  }
  request.mutable_policy()->mutable_streaming();
  request.mutable_policy()->mutable_trigger()->set_budget(64);
  request.set_block_size(64);
  request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(random.Uniform(32, 256)));
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

class Load {
 public:
  Load(const std::string& address, int tenants)
      : tokens_(static_cast<size_t>(tenants)), gaps_(static_cast<size_t>(tenants)) {
    for (int i = 0; i < tenants; ++i) {
      grpc::ChannelArguments own;  // connection for each tenant
      own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      const auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), own);
      // gRPC 1.51 may lose errno behind connect() (grpc/grpc#35064, mended later), and then takes a connection that is
      // under way for one that failed; until it tries again, a second on, each call fails. None begins before.
      EBB_CHECK(channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::minutes(1)));
      stubs_.push_back(v1::InferenceService::NewStub(channel));
    }
  }

  // One stream of a tenant, until the load ends.
  void Run(size_t tenant, uint64_t seed) {
    HashRandom random(seed);
    Tally tally;
    while (!over_) {
      grpc::ClientContext context;
      context.AddMetadata("x-ebb-tenant", absl::StrFormat("t%02d", tenant));
      const auto reader = stubs_[tenant]->Generate(&context, NextRequest(random));
      v1::GenerateResponse message;
      auto last = Clock::time_point::min();
      while (reader->Read(&message)) {
        if (over_) context.TryCancel();
        if (!counts_ || over_ || message.decode().tokens_size() == 0) continue;
        const auto now = Clock::now();
        if (last != Clock::time_point::min()) tally.gaps.push_back(std::chrono::duration<double>(now - last).count());
        last = now;
        tokens_[tenant] += message.decode().tokens_size();
      }
      const grpc::Status status = reader->Finish();
      ++tally.answers;
      if (!status.ok() && !over_) ++tally.failures[client::Describe(status)];
    }
    const std::lock_guard lock(mutex_);
    for (const auto& [failure, count] : tally.failures) all_.failures[failure] += count;
    gaps_[tenant].insert(gaps_[tenant].end(), tally.gaps.begin(), tally.gaps.end());
    all_.answers += tally.answers;
  }

  void BeginToCount() { counts_ = true; }
  void End() { over_ = true; }

  void Print() {
    const auto quantile = [](const std::vector<double>& gaps, double share) {
      return gaps.empty() ? 0.0 : 1e3 * gaps[static_cast<size_t>(share * static_cast<double>(gaps.size() - 1))];
    };
    std::vector<std::string> gaps;
    for (std::vector<double>& of_tenant : gaps_) {
      std::sort(of_tenant.begin(), of_tenant.end());
      gaps.push_back(absl::StrFormat("[%.3f, %.3f]", quantile(of_tenant, 0.5), quantile(of_tenant, 0.99)));
    }
    std::vector<std::string> failures;
    for (const auto& [failure, count] : all_.failures) {
      std::string words = failure;
      std::erase_if(words, [](char c) { return c == '"' || c == '\\' || c < ' '; });
      failures.push_back(absl::StrFormat("\"%s\": %d", words, count));
    }
    std::printf(
        "{\"tokens\": [%s], \"answers\": %d, \"failures\": {%s}, \"gaps_ms\": [%s]}\n",
        absl::StrJoin(tokens_, ", ",
                      [](std::string* out, const std::atomic<int64_t>& count) { *out += std::to_string(count); })
            .c_str(),
        static_cast<int>(all_.answers), absl::StrJoin(failures, ", ").c_str(), absl::StrJoin(gaps, ", ").c_str());
  }

 private:
  std::vector<std::unique_ptr<v1::InferenceService::Stub>> stubs_;
  std::vector<std::atomic<int64_t>> tokens_;  // by tenant, while it counts
  std::vector<std::vector<double>> gaps_;     // likewise, once its streams are over
  std::atomic<bool> counts_ = false, over_ = false;
  std::mutex mutex_;
  Tally all_;
};

int Main(const std::vector<std::string>& arguments) {
  if (arguments.size() != 4) {
    std::fputs("usage: soak_load ADDRESS TENANTS STREAMS_EACH SECONDS\n", stderr);
    return 2;
  }
  const int tenants = std::atoi(arguments[1].c_str()), each = std::atoi(arguments[2].c_str());
  const double seconds = std::atof(arguments[3].c_str());
  Load load(arguments[0], tenants);
  std::vector<std::thread> threads;
  for (int i = 0; i < tenants * each; ++i) {
    threads.emplace_back([&load, i, tenants] { load.Run(static_cast<size_t>(i % tenants), static_cast<uint64_t>(i)); });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds / 10));  // all have begun
  load.BeginToCount();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds * 9 / 10));
  load.End();
  for (std::thread& thread : threads) thread.join();
  load.Print();
  return 0;
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) { return ebb::Main({argv + 1, argv + argc}); }
