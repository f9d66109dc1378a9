// What the scheduler takes to close a step and plan the next, by sessions that decode; and what it allocates for that.
//
//   build/release/tests/bench/scheduler_bench

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "server/scheduler.h"
#include "tests/bench/bandwidth.h"

namespace {
std::atomic<int64_t> allocations = 0;
}

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* const memory = std::malloc(bytes)) return memory;
  std::abort();
}
// Not inlined: where g++ 12 inlines it but not operator new, it takes the two for a mismatch.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace ebb {
namespace {

constexpr int kWarm = 1000;
constexpr int kSteps = 20000;

void Bench(int32_t sessions, int32_t tenants, bool deadlines) {
  Scheduler scheduler({.pages_total = 1 << 20, .step_tokens_max = 512, .step_rows_max = 64});
  std::vector<Effect> effects;
  absl::Time now = absl::UnixEpoch();
  const auto deliver = [&](const Event& event) {
    effects.clear();
    scheduler.On(event, now, effects);
  };
  RequestId next = 1;
  for (int32_t session = 0; session < sessions; ++session) {
    deliver(SessionArrived{.id = next++,
                           .session = static_cast<SessionId>(session),
                           .tenant = static_cast<TenantId>(session % tenants),
                           .pages = 1});
    deliver(RequestArrived{.id = next++,
                           .session = static_cast<SessionId>(session),
                           .decode_tokens = 1 << 30,
                           .deadline = deadlines ? now + absl::Hours(1000) : absl::InfiniteFuture()});
  }
  std::vector<double> times;
  times.reserve(kSteps);
  const StepDone done;
  int64_t before = 0;
  for (int step = 0; step < kWarm + kSteps; ++step) {
    if (step == kWarm) before = allocations;
    now += absl::Milliseconds(10);
    const double begin = Seconds();
    deliver(done);
    if (step >= kWarm) times.push_back(Seconds() - begin);
  }
  const double allocated = static_cast<double>(allocations - before) / kSteps;
  std::sort(times.begin(), times.end());
  std::printf("%-10d %-9d %-11s %-11.1f %-8.1f %.1f\n", sessions, tenants, deadlines ? "yes" : "no",
              1e6 * times[times.size() / 2], 1e6 * times[times.size() * 99 / 100], allocated);
}

}  // namespace
}  // namespace ebb

int main() {
  std::printf("%-10s %-9s %-11s %-11s %-8s %s\n", "sessions", "tenants", "deadlines", "median, us", "p99, us",
              "allocations a step");
  for (const int32_t sessions : {1, 8, 64, 256}) {
    ebb::Bench(sessions, 1, false);
    ebb::Bench(sessions, 8, true);
  }
  return 0;
}
