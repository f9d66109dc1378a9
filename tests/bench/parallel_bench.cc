// What a meeting of threads costs, and what decoding keeps when another process takes one of the cores.
//
//   build/release/tests/bench/parallel_bench sync [threads]
//   /usr/bin/python3 tests/support/make_models.py --preset perf-0.5b --type q8_0 -o /tmp/perf.gguf
//   build/release/tests/bench/parallel_bench shared /tmp/perf.gguf [threads]
//
// sync: a For of one item per thread, after the caller has worked alone for a while, so that threads are caught
// looking, or asleep. Trivial items may all be done by one thread; those that meet end when every thread has begun one.
// shared: rounds of decoding alone and beside a process that spins on the last usable core alternate; ratios are taken
// within a round, since shared machines vary by the minute.

#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "engine/engine.h"
#include "engine/machine.h"
#include "policies/status.h"
#include "tests/bench/bandwidth.h"
#include "tests/bench/rounds.h"

namespace ebb {
namespace {

const int kRounds = Rounds(7);
constexpr int kAlone = 25;
constexpr int kShared = 50;
constexpr int32_t kBudget = 512;

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())))];
}

// How often this process's threads have gone to sleep so far.
int64_t Sleeps() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nvcsw;
}

void Sync(int32_t threads) {
  Parallel parallel(threads);
  std::printf("%d threads, a For of %d items; us\n", parallel.threads(), parallel.threads());
  std::printf("%-14s %-22s %-22s %s\n", "caller alone", "trivial: median, p99", "meeting: median, p99",
              "sleeps per For");
  for (const double alone : {0.0, 5.0, 20.0, 50.0, 200.0, 2000.0}) {
    const int count = IsShort() ? 50 : alone > 1000 ? 500 : 5000;
    std::vector<double> trivial, meeting;
    std::vector<int64_t> written(static_cast<size_t>(parallel.threads()) * 8);
    const auto measure = [&](std::vector<double>& times, const auto& work) {
      const double start = Seconds();
      double begin = start;
      while (begin - start < alone * 1e-6) begin = Seconds();
      parallel.For(parallel.threads(), work);
      times.push_back(Seconds() - begin);
    };
    const int64_t slept = Sleeps();
    for (int i = 0; i < count; ++i) {
      measure(trivial, [&](int64_t item, int32_t) { ++written[static_cast<size_t>(item) * 8]; });
      std::atomic<int32_t> here = 0;
      measure(meeting, [&](int64_t, int32_t) {
        ++here;
        while (here.load() < parallel.threads()) {
        }
      });
    }
    std::printf("%-14.0f %-10.2f %-11.2f %-10.2f %-11.2f %.2f\n", alone, 1e6 * Median(trivial),
                1e6 * Percentile(trivial, 0.99), 1e6 * Median(meeting), 1e6 * Percentile(meeting, 0.99),
                static_cast<double>(Sleeps() - slept) / (2 * count));
  }
}

// A process that spins on the last core that this one may use, while it is let.
class Neighbour {
 public:
  Neighbour() : child_(fork()) {
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      cpu_set_t set;
      CPU_ZERO(&set);
      sched_getaffinity(0, sizeof(set), &set);
      int last = CPU_SETSIZE - 1;
      while (last > 0 && !CPU_ISSET(last, &set)) --last;
      CPU_ZERO(&set);
      CPU_SET(last, &set);
      sched_setaffinity(0, sizeof(set), &set);
      for (volatile uint64_t spun = 0;;) spun = spun + 1;
    }
    Stop();
  }
  ~Neighbour() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

  void Run() const { kill(child_, SIGCONT); }
  void Stop() const { kill(child_, SIGSTOP); }

 private:
  const pid_t child_;
};

absl::Status Shared(const std::string& path, int32_t threads) {
  const Neighbour neighbour;  // before any thread is made
  EBB_ASSIGN(const std::unique_ptr<Engine> engine,
             Engine::Open({.model_path = path, .threads = threads, .arena_bytes = int64_t{1} << 30}));
  EBB_ASSIGN(const ValidSpec policy,
             Resolve({.scorer = "streaming", .budget = kBudget}, {.trained_context = engine->config().context}));
  EBB_ASSIGN(const std::unique_ptr<Session> session, engine->OpenSession({.policy = policy}));
  int32_t next = 0;
  const auto step = [&](int32_t count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = (next += 7919) % engine->config().vocab;
    BatchRow row{.session = session.get(), .tokens = tokens, .want = Want::kLast};
    const double begin = Seconds();
    engine->Run({&row, 1});
    return Seconds() - begin;
  };
  const auto steps = [&](int count, std::vector<double>& times) {
    const double begin = Seconds();
    for (int i = 0; i < count; ++i) times.push_back(step(1));
    return count / (Seconds() - begin);
  };
  while (session->cache_length() < kBudget) step(64);
  std::printf("%s, %d threads on %d cores\n", engine->fingerprint().c_str(), engine->threads(), UsableThreads());
  std::vector<double> ratios, alone, shared;
  int64_t sleeps_alone = 0, sleeps_shared = 0;
  for (int round = 0; round < kRounds; ++round) {
    step(1);
    const int64_t first = Sleeps();
    const double free_rate = steps(kAlone, alone);
    const int64_t second = Sleeps();
    neighbour.Run();
    step(1);
    const double shared_rate = steps(kShared, shared);
    neighbour.Stop();
    sleeps_shared += Sleeps() - second;
    sleeps_alone += second - first;
    ratios.push_back(shared_rate / free_rate);
    std::printf("round %d: alone %.1f tokens/s, beside the other process %.1f, ratio %.2f\n", round, free_rate,
                shared_rate, ratios.back());
  }
  std::printf("ratio: median %.2f, least %.2f, most %.2f of %d rounds\n", Median(ratios), Percentile(ratios, 0),
              Percentile(ratios, 1), kRounds);
  for (const auto& [name, times, sleeps] :
       {std::tuple("alone", &alone, sleeps_alone), std::tuple("shared", &shared, sleeps_shared)}) {
    std::printf("%s: step median %.2f ms, p99 / median %.2f, most / median %.2f, sleeps per step %.1f\n", name,
                1e3 * Median(*times), Percentile(*times, 0.99) / Median(*times), Percentile(*times, 1) / Median(*times),
                static_cast<double>(sleeps) / static_cast<double>(times->size()));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const int model = what == "shared" ? 1 : 0;
  if ((what != "sync" && what != "shared") || argc < 2 + model || argc > 3 + model) {
    std::fprintf(stderr,
                 "usage: parallel_bench sync [threads]\n"
                 "       parallel_bench shared MODEL.gguf [threads]\n");
    return 2;
  }
  const int32_t threads = argc == 3 + model ? std::atoi(argv[2 + model]) : 0;
  if (what == "sync") {
    ebb::Sync(threads > 0 ? threads : ebb::UsableThreads());
    return 0;
  }
  const absl::Status status = ebb::Shared(argv[2], threads);
  if (!status.ok()) std::fprintf(stderr, "parallel_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
