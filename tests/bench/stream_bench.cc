// What streaming over gRPC costs: the same calls handed to a worker in this process, and to a server on loopback.
//
//   /usr/bin/python3 tests/support/make_models.py --preset perf-0.5b --type q8_0 -o /tmp/perf.gguf
//   build/release/tests/bench/stream_bench /tmp/perf.gguf [sessions]
//   build/release/tests/bench/stream_bench /tmp/perf.gguf watched [watchers]
//   build/release/tests/bench/stream_bench /tmp/perf.gguf journaled FOLDER [sessions]
//
// Rounds alternate; ratios are taken within a round, since shared machines vary by the minute. The clients, one thread
// each, run in this process on the same cores as the server, so what they cost counts as the server's.
// Watched: one session that evicts from every lane at every step, with watchers of all victims and without any.
// Journaled: the same sessions on three servers, with store.durability off, step and sync, in a folder of a real disk
// that is new to them; each has its budget full before. The p99 is that of all gaps of all rounds together, since a
// round has too few beyond it.

#include <grpcpp/grpcpp.h>
#include <sys/resource.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ebb/v1/eviction.grpc.pb.h"
#include "ebb/v1/inference.grpc.pb.h"
#include "ebb/v1/session.grpc.pb.h"
#include "policies/status.h"
#include "server/log.h"
#include "server/server.h"
#include "server/worker.h"
#include "tests/bench/bandwidth.h"
#include "tests/bench/rounds.h"

namespace ebb {
namespace {

const int kRounds = Rounds(5);
constexpr int32_t kTokens = 32;
const int kJournaledRounds = Rounds(40);
constexpr int32_t kPrompt = 64;
constexpr int32_t kBudget = 512;
constexpr int kFirsts = 10;  // calls of one token, for the time to the first

std::vector<int32_t> SomeTokens(int32_t count, int32_t vocab) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(int64_t{i + 1} * 7919 % vocab));
  return tokens;
}

// A call that waits for its end.
class Waiting final : public CallOutput {
 public:
  double Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
    return first_;
  }

 private:
  Reader OnBlock(const BlockDone& /*block*/) override { return Reader::kReady; }
  Reader OnTokens(const TokensDone& /*tokens*/) override {
    if (first_ == 0) first_ = Seconds();
    return Reader::kReady;
  }
  void OnScores(std::span<const TokenLogprob> /*scores*/) override {}
  void End(const CallEnd& end, bool /*discard*/) override {
    const std::lock_guard lock(mutex_);
    if (!end.status.ok()) std::fprintf(stderr, "%s\n", end.status.ToString().c_str());
    ended_ = true;
    changed_.notify_all();  // while locked: who waits may destroy this
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  double first_ = 0;
};

// Calls in this process.
class Direct {
 public:
  Direct(Worker& worker, int32_t sessions, const ValidSpec& policy) : worker_(worker) {
    for (int32_t i = 0; i < sessions; ++i) {
      std::promise<absl::Status> opened;
      worker.Ask<SessionInfo>(
          [&](Dispatcher& dispatcher) {
            return dispatcher.Create({.tenant = "default", .id = Name(i), .policy = policy, .block_size = kPrompt});
          },
          [&](absl::StatusOr<SessionInfo> info) { opened.set_value(info.status()); });
      if (const absl::Status status = opened.get_future().get(); !status.ok()) std::abort();
      Call(i, SomeTokens(kPrompt, worker.model().vocab), 0);
    }
  }

  // Seconds until the first token; returns at the end.
  double Call(int32_t session, const std::vector<int32_t>& prompt, int32_t tokens) {
    Waiting waiting;
    const double begin = Seconds();
    worker_.Start(worker_.NewCallId(),
                  {.method = "Decode",
                   .tenant = "default",
                   .session = Name(session),
                   .prompt = prompt,
                   .decodes = tokens > 0,
                   .sampling = {.temperature = 0},
                   .stopping = {.max_tokens = tokens, .ignore_eos = true}},
                  waiting);
    return waiting.Wait() - begin;
  }

 private:
  static std::string Name(int32_t session) { return absl::StrFormat("s%d", session); }

  Worker& worker_;
};

// Calls over a port.
class Remote {
 public:
  Remote(const std::string& address, int32_t sessions, int32_t vocab, const v1::PolicySpec& policy,
         int32_t prompt = kPrompt)
      : channel_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())),
        sessions_(v1::SessionService::NewStub(channel_)),
        inference_(v1::InferenceService::NewStub(channel_)) {
    for (int32_t i = 0; i < sessions; ++i) {
      v1::CreateSessionRequest request;
      request.set_session_id(Name(i));
      *request.mutable_policy() = policy;
      request.set_block_size(kPrompt);
      request.mutable_sampling()->set_temperature(0);
      grpc::ClientContext context;
      v1::Session session;
      if (const grpc::Status made = sessions_->CreateSession(&context, request, &session); !made.ok()) {
        std::fprintf(stderr, "%s\n", made.error_message().c_str());  // a folder that was used before has it already
        std::exit(1);
      }
      v1::PrefillRequest prefill;
      prefill.set_session(session.name());
      for (const int32_t token : SomeTokens(prompt, vocab)) prefill.mutable_prompt()->mutable_tokens()->add_ids(token);
      grpc::ClientContext prefilling;
      const auto reader = inference_->Prefill(&prefilling, prefill);
      v1::PrefillResponse block;
      while (reader->Read(&block)) continue;
      if (!reader->Finish().ok()) std::abort();
    }
  }

  // Seconds until the first message; those between the others are added to `gaps`.
  double Call(int32_t session, int32_t tokens, std::vector<double>* gaps = nullptr) {
    v1::DecodeRequest request;
    request.set_session("sessions/" + Name(session));
    request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(tokens));
    request.mutable_stopping()->set_ignore_eos(true);
    grpc::ClientContext context;
    const double begin = Seconds();
    double first = 0, last = 0;
    const auto reader = inference_->Decode(&context, request);
    v1::DecodeResponse message;
    while (reader->Read(&message)) {
      const double now = Seconds();
      if (first == 0) first = now;
      if (gaps != nullptr && last > 0) gaps->push_back(now - last);
      last = now;
    }
    if (const grpc::Status status = reader->Finish(); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.error_message().c_str());
    }
    return first - begin;
  }

 private:
  static std::string Name(int32_t session) { return absl::StrFormat("s%d", session); }

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::SessionService::Stub> sessions_;
  std::unique_ptr<v1::InferenceService::Stub> inference_;
};

// Reads all victims of all sessions while it lives.
class Watcher {
 public:
  explicit Watcher(const std::string& address)
      : stub_(v1::EvictionService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {
    v1::WatchEvictionsRequest request;
    request.set_list_victims(true);
    reader_ = stub_->WatchEvictions(&context_, request);
    reader_->WaitForInitialMetadata();  // in force
    thread_ = std::thread([this] {
      v1::WatchEvictionsResponse message;
      while (reader_->Read(&message)) {
        events_ += message.has_eviction() ? 1 : 0;
        lost_ += message.events_lost();
      }
      reader_->Finish();
    });
  }
  // Ends it; events that it got, and that it lost.
  std::pair<uint64_t, uint64_t> End() {
    context_.TryCancel();
    thread_.join();
    return {events_, lost_};
  }

 private:
  std::unique_ptr<v1::EvictionService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::WatchEvictionsResponse>> reader_;
  std::thread thread_;
  uint64_t events_ = 0;
  uint64_t lost_ = 0;
};

// Seconds of CPU that this process has used.
double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Speed {
  double rate = 0;  // tokens per second, of all sessions together
  double cpu = 0;   // seconds per token
};

template <typename Call>
Speed Measure(int32_t sessions, const Call& call) {
  const double begin = Seconds();
  const double cpu = CpuSeconds();
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < sessions; ++i) threads.emplace_back([&call, i] { call(i, kTokens); });
  for (std::thread& thread : threads) thread.join();
  const double tokens = sessions * kTokens;
  return {.rate = tokens / (Seconds() - begin), .cpu = (CpuSeconds() - cpu) / tokens};
}

absl::Status Bench(const std::string& path, int32_t sessions) {
  EBB_ASSIGN(const std::unique_ptr<Log> log, StartLog({.level = LogLevel::kError}));
  const EngineOptions options = {.model_path = path, .arena_bytes = int64_t{1} << 30};
  EBB_ASSIGN(std::unique_ptr<Engine> engine, Engine::Open(options));
  EBB_ASSIGN(const ValidSpec policy, Resolve({.scorer = "streaming", .budget = kBudget}, LimitsOf(engine->config())));
  Metrics metrics({});
  Worker worker(std::move(engine), {}, metrics);
  EBB_ASSIGN(const std::unique_ptr<Server> server,
             Server::Start({.listen = {.host = "127.0.0.1", .port = 0}, .engine = options}));
  Direct direct(worker, sessions, policy);
  v1::PolicySpec same;
  same.mutable_streaming();
  same.mutable_trigger()->set_budget(kBudget);
  Remote remote(FormatAddress(server->address()), sessions, worker.model().vocab, same);
  const auto here = [&](int32_t session, int32_t tokens) { return direct.Call(session, {}, tokens); };
  const auto there = [&](int32_t session, int32_t tokens) { return remote.Call(session, tokens); };
  std::printf("%s, %d threads, %d sessions, %d tokens each\n", worker.fingerprint().c_str(), worker.threads(), sessions,
              kTokens);
  std::vector<double> ratios, cpu, added;
  Measure(sessions, here);
  Measure(sessions, there);
  for (int round = 0; round < kRounds; ++round) {
    const bool remote_first = round % 2 == 1;
    Speed far = remote_first ? Measure(sessions, there) : Speed();
    const Speed near = Measure(sessions, here);
    if (!remote_first) far = Measure(sessions, there);
    ratios.push_back(far.rate / near.rate);
    cpu.push_back(1e6 * (far.cpu - near.cpu));
    std::vector<double> first_near, first_far;
    for (int i = 0; i < kFirsts; ++i) {
      first_near.push_back(here(0, 1));
      first_far.push_back(there(0, 1));
    }
    added.push_back(1e3 * (Median(first_far) - Median(first_near)));
    std::printf(
        "round %d: in process %.1f tokens/s, over gRPC %.1f, ratio %.3f; CPU %.0f us a token more, of %.0f; "
        "first token %.2f ms, %+.2f ms\n",
        round, near.rate, far.rate, ratios.back(), cpu.back(), 1e6 * near.cpu, 1e3 * Median(first_near), added.back());
  }
  for (std::vector<double>* const values : {&ratios, &cpu, &added}) std::sort(values->begin(), values->end());
  std::printf("over gRPC / in process: median %.3f (%.3f .. %.3f)\n", ratios[kRounds / 2], ratios.front(),
              ratios.back());
  std::printf("CPU of a token, client and server: %.0f us more (%.0f .. %.0f)\n", cpu[kRounds / 2], cpu.front(),
              cpu.back());
  std::printf("first token: %+.2f ms (%+.2f .. %+.2f)\n", added[kRounds / 2], added.front(), added.back());
  return absl::OkStatus();
}

absl::Status BenchWatched(const std::string& path, int32_t watchers) {
  EBB_ASSIGN(const std::unique_ptr<Log> log, StartLog({.level = LogLevel::kError}));
  const EngineOptions options = {.model_path = path, .arena_bytes = int64_t{1} << 30};
  EBB_ASSIGN(const std::unique_ptr<Server> server,
             Server::Start({.listen = {.host = "127.0.0.1", .port = 0}, .engine = options}));
  v1::PolicySpec policy;
  policy.mutable_h2o();
  policy.mutable_trigger()->set_budget(kPrompt);  // full from the first token on
  Remote remote(FormatAddress(server->address()), 1, 256, policy);
  const auto call = [&](int32_t session, int32_t tokens) { return remote.Call(session, tokens); };
  std::printf("%d tokens of one session, h2o, budget %d, %d watchers of its victims\n", kTokens, kPrompt, watchers);
  Measure(1, call);
  std::vector<double> ratios, micros;
  for (int round = 0; round < 2 * kRounds; ++round) {
    const Speed alone = Measure(1, call);
    std::vector<std::unique_ptr<Watcher>> all;
    for (int32_t i = 0; i < watchers; ++i) all.push_back(std::make_unique<Watcher>(FormatAddress(server->address())));
    const Speed watched = Measure(1, call);
    uint64_t events = 0, lost = 0;
    for (const auto& watcher : all) {
      const auto [got, missed] = watcher->End();
      events += got;
      lost += missed;
    }
    ratios.push_back(alone.rate / watched.rate);
    micros.push_back(1e6 / watched.rate - 1e6 / alone.rate);
    std::printf("round %d: %.0f us a token, watched %.0f, ratio %.3f; %d events read, %d lost\n", round,
                1e6 / alone.rate, 1e6 / watched.rate, ratios.back(), static_cast<int>(events), static_cast<int>(lost));
  }
  for (std::vector<double>* const values : {&ratios, &micros}) std::sort(values->begin(), values->end());
  std::printf("a token, watched / not: median %.3f (%.3f .. %.3f), %+.0f us (%+.0f .. %+.0f)\n", ratios[kRounds],
              ratios.front(), ratios.back(), micros[kRounds], micros.front(), micros.back());
  return absl::OkStatus();
}

// One server with its sessions.
struct Journaled {
  const char* name = "";
  std::unique_ptr<Server> server = {};
  std::unique_ptr<Remote> remote = {};
  std::vector<double> rates = {};  // of each round over that of the first server
  std::vector<double> gaps = {};   // seconds between tokens
};

absl::Status BenchJournaled(const std::string& path, const std::string& folder, int32_t sessions) {
  EBB_ASSIGN(const std::unique_ptr<Log> log, StartLog({.level = LogLevel::kError}));
  v1::PolicySpec policy;
  policy.mutable_streaming();
  policy.mutable_trigger()->set_budget(kBudget);
  std::vector<Journaled> all(3);
  const Durability durabilities[] = {Durability::kOff, Durability::kStep, Durability::kSync};
  const char* const names[] = {"off", "step", "sync"};
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].name = names[i];
    EBB_ASSIGN(all[i].server, Server::Start({.listen = {.host = "127.0.0.1", .port = 0},
                                             .store_dir = absl::StrFormat("%s/%s", folder, names[i]),
                                             .durability = durabilities[i],
                                             .engine = {.model_path = path, .arena_bytes = int64_t{1} << 30}}));
    all[i].remote = std::make_unique<Remote>(FormatAddress(all[i].server->address()), sessions, 256, policy, kBudget);
  }
  std::printf("%d sessions, %d tokens each, %d rounds\n", sessions, kTokens, kJournaledRounds);
  for (int round = -1; round < kJournaledRounds; ++round) {  // the first warms up
    for (size_t i = 0; i < all.size(); ++i) {
      Journaled& one = all[(i + static_cast<size_t>(round + 1)) % all.size()];
      std::vector<std::vector<double>> gaps(static_cast<size_t>(sessions));
      const Speed speed = Measure(sessions, [&](int32_t session, int32_t tokens) {
        one.remote->Call(session, tokens, &gaps[static_cast<size_t>(session)]);
      });
      if (round < 0) continue;
      one.rates.push_back(speed.rate);
      for (const std::vector<double>& of_one : gaps) one.gaps.insert(one.gaps.end(), of_one.begin(), of_one.end());
    }
  }
  const std::vector<double> off = all[0].rates;
  for (Journaled& one : all) {
    for (size_t round = 0; round < off.size(); ++round) one.rates[round] /= off[round];
    std::sort(one.rates.begin(), one.rates.end());
    std::sort(one.gaps.begin(), one.gaps.end());
    const auto at = [&](size_t percent) { return 1e3 * one.gaps[one.gaps.size() * percent / 100]; };
    std::printf("%s: %.3f of off's tokens/s (quartiles %.3f, %.3f); between tokens p50 %.2f, p90 %.2f, p99 %.2f ms\n",
                one.name, Median(one.rates), one.rates[one.rates.size() / 4], one.rates[one.rates.size() * 3 / 4],
                at(50), at(90), at(99));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[2] : "";
  const bool watched = mode == "watched";
  const bool journaled = mode == "journaled";
  if (argc < (journaled ? 4 : 2) || argc > (journaled ? 5 : watched ? 4 : 3)) {
    std::fprintf(stderr,
                 "usage: stream_bench MODEL.gguf [sessions]\n"
                 "       stream_bench MODEL.gguf watched [watchers]\n"
                 "       stream_bench MODEL.gguf journaled FOLDER [sessions]\n");
    return 2;
  }
  const absl::Status status = journaled ? ebb::BenchJournaled(argv[1], argv[3], argc > 4 ? std::atoi(argv[4]) : 8)
                              : watched ? ebb::BenchWatched(argv[1], argc > 3 ? std::atoi(argv[3]) : 8)
                                        : ebb::Bench(argv[1], argc > 2 ? std::atoi(argv[2]) : 8);
  if (!status.ok()) std::fprintf(stderr, "stream_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
