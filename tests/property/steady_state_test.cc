// A server at work allocates nothing: counts every operator new of steps in steady state. A program of its own, since
// it replaces the operators for all of it.

#include <gmock/gmock.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "policies/registry.h"
#include "tests/support/test_engine.h"

namespace {

std::atomic<int64_t> allocations = 0;

void* Allocate(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  if (void* const memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded)) return memory;
  std::abort();
}

// Not inlined: where g++ 12 inlines it but not operator new, it takes the two for a mismatch.
[[gnu::noinline]] void Release(void* memory) { std::free(memory); }

}  // namespace

void* operator new(std::size_t bytes) { return Allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new[](std::size_t bytes) { return Allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(std::size_t bytes, std::align_val_t align) {
  return Allocate(bytes, static_cast<std::size_t>(align));
}
void* operator new[](std::size_t bytes, std::align_val_t align) {
  return Allocate(bytes, static_cast<std::size_t>(align));
}
void operator delete(void* memory) noexcept { Release(memory); }
void operator delete[](void* memory) noexcept { Release(memory); }
void operator delete(void* memory, std::size_t) noexcept { Release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { Release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { Release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { Release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { Release(memory); }

namespace ebb {
namespace {

// For every scorer but those that ask questions of their own when they choose: they choose once, after a prompt.
TEST(SteadyState, DecodingPastTheBudgetAllocatesNothing) {
  const TinyModelFile file({});
  // What the engine keeps for its threads has its size before they run. A scorer that reads K and V has scratch of its
  // own by thread, made when the thread first meets it, and which thread that is, and when, is chance: one thread
  // there.
  const auto engines = {OpenTestEngine(file.path(), {.threads = 1}), OpenTestEngine(file.path(), {.threads = 2})};
  const int32_t token = 5;
  for (const ScorerRow& row : ScorerRegistry()) {
    if (!row.evicts) continue;  // a cache that grows is not a steady state
    SCOPED_TRACE(row.name);
    const bool reads_memory =
        MakeScorer(row, ResolveParameters(row, {}).value(), BlankCalibration()).value()->needs().memory;
    Engine* const engine = (engines.begin() + (reads_memory ? 0 : 1))->get();
    std::vector<std::unique_ptr<Session>> sessions;
    for (const Positions positions : {Positions::kOriginal, Positions::kCompacted}) {
      sessions.push_back(OpenTestSession(
          *engine,
          {.scorer = std::string(row.name), .budget = 64, .positions = positions, .schedule = Schedule::kEveryStep}));
    }
    if (sessions[0]->policy().needs().probes) continue;
    std::vector<BatchRow> rows;
    for (const auto& session : sessions)
      rows.push_back({.session = session.get(), .tokens = {&token, 1}, .want = Want::kLast});
    // Past the budgets, and to where no log doubles for a while: each began with room for its capacity, and 192 slots
    // have doubled to 384 by the 195th token. The next partition of lagkv, which it scores as a whole in memory of its
    // own, ends with the 272nd.
    for (int step = 0; step < 195; ++step) engine->Run(rows);
    const int64_t before = allocations;
    for (int step = 0; step < 75; ++step) engine->Run(rows);
    EXPECT_EQ(allocations - before, 0);
    EXPECT_GT(sessions[0]->evicted(), 0);
  }
}

}  // namespace
}  // namespace ebb
