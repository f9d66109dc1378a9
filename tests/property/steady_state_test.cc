// A server at work allocates nothing, and a session keeps little beside K and V: counts every operator new. A program
// of its own, since it replaces the operators for all of it.

#include <gmock/gmock.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <variant>
#include <vector>

#include "engine/sampler.h"
#include "policies/hash_random.h"
#include "policies/registry.h"
#include "server/scheduler.h"
#include "tests/support/test_engine.h"

namespace {

std::atomic<int64_t> allocations = 0;
std::atomic<int64_t> bytes_held = 0;

void* Allocate(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) std::abort();
  bytes_held += static_cast<int64_t>(malloc_usable_size(memory));
  return memory;
}

// Not inlined: where g++ 12 inlines it but not operator new, it takes the two for a mismatch.
[[gnu::noinline]] void Release(void* memory) {
  if (memory != nullptr) bytes_held -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

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

// What a session holds for a slot of a lane more, in bytes, under a policy of this budget and of twice as many slots.
struct SlotBytes {
  double kept = 0;    // beside K and V
  double cached = 0;  // K and V
};
SlotBytes SlotBytesUnder(Engine& engine, PolicySpec spec) {
  constexpr int32_t kSlots = 1024;
  const auto open = [&](int32_t budget) {
    spec.budget = budget;
    const int64_t held = bytes_held;
    const int64_t pages = engine.memory().pages_reserved;
    const auto session = OpenTestSession(engine, spec);
    return SlotBytes{
        .kept = static_cast<double>(bytes_held - held),
        .cached = static_cast<double>((engine.memory().pages_reserved - pages) * engine.memory().page_bytes)};
  };
  open(2 * kSlots);  // what the engine keeps for its threads grows with the largest session
  const SlotBytes one = open(kSlots);
  const SlotBytes two = open(2 * kSlots);
  const double slots = double{kSlots} * engine.config().layers * engine.config().kv_heads;
  return {.kept = (two.kept - one.kept) / slots, .cached = (two.cached - one.cached) / slots};
}

// With heads of 128 in BF16: a token's index and what the scorer says it remembers, beside them the log that all lanes
// share and the list of pages. Positions and one score together are 2 % of K and V at most; compacted positions have a
// number of their own and one to count them with, and are above that.
TEST(SessionBytes, AreATokensIndexAndWhatThePolicyRemembers) {
  const TinyModelFile file({.layers = 8, .dim = 32, .heads = 8, .kv_heads = 4, .head_dim = 128});
  const auto engine = OpenTestEngine(file.path());
  for (const ScorerRow& row : ScorerRegistry()) {
    if (!row.evicts || row.make == nullptr) continue;
    SCOPED_TRACE(row.name);
    PolicySpec spec = {.scorer = std::string(row.name), .schedule = Schedule::kEveryStep};
    const ValidSpec policy = TestPolicy(spec);
    const int32_t tracks = policy.heads_apart() ? 2 : 1;
    const double remembered = 4.0 * tracks * policy.scorer->needs().state_floats;
    for (const bool compacted : {false, true}) {
      spec.positions = compacted ? Positions::kCompacted : Positions::kOriginal;
      const SlotBytes bytes = SlotBytesUnder(*engine, spec);
      EXPECT_EQ(bytes.cached, 512);
      const double expected = row.lockstep ? 0 : remembered + (compacted ? 12 : 4);
      EXPECT_GE(bytes.kept, expected);
      EXPECT_LE(bytes.kept, expected + 1);
      if (!compacted && remembered <= 4) {
        EXPECT_LE(bytes.kept, 0.02 * bytes.cached);
      }
    }
  }
}

TEST(SteadyState, DrawingATokenAllocatesNothing) {
  constexpr int32_t kVocab = 5000;
  std::vector<float> logits;
  HashRandom random(1);
  for (int32_t i = 0; i < kVocab; ++i) logits.push_back(20 * random.UniformFloat());
  const std::vector<int32_t> log = {1, 2, 3, 4, 4};
  const std::vector<SamplingOptions> ways = {{.temperature = 0},
                                             {},
                                             {.top_k = 40},
                                             {.top_p = 0.95F},
                                             {.min_p = 0.05F},
                                             {.top_p = 0.9F, .typical_p = 0.9F},
                                             {.top_p = 0.999F, .repetition_penalty = 1.1F},
                                             {.temperature = 50, .top_p = 0.95F, .logit_bias = {{7, 2.0F}}}};
  Sampler sampler(kVocab);
  const int64_t before = allocations;
  for (const SamplingOptions& options : ways) EXPECT_GE(sampler.DrawToken(options, logits, log), 0);
  EXPECT_EQ(allocations - before, 0);
}

// However many tenants ask, each once: while a busy one waits for its turns all the time, so that the queues never
// start anew, they keep memory for as many as there were at once.
TEST(SteadyState, TenantsThatAskOnceLeaveNothingInTheScheduler) {
  constexpr TenantId kBusy = 0;
  constexpr uint64_t kAtOnce = 8;
  Scheduler scheduler({.pages_total = 0, .step_tokens_max = 16, .step_rows_max = 4});
  std::vector<Effect> effects;
  absl::Time now = absl::UnixEpoch();
  const auto give = [&](const Event& event) {
    effects.clear();
    scheduler.On(event, now, effects);
  };
  for (SessionId session = 1; session <= kAtOnce; ++session) {
    give(SessionArrived{.id = session, .session = session, .tenant = kBusy});
    give(RequestArrived{.id = session, .session = session, .decode_tokens = 1 << 30});
  }
  uint64_t ids = kAtOnce;
  const auto ask = [&](int tenants) {
    for (int i = 0; i < tenants; ++i) {
      const uint64_t id = ++ids;  // of a tenant, its session and its request
      give(SessionArrived{.id = id, .session = id, .tenant = static_cast<TenantId>(id)});
      give(RequestArrived{.id = id, .session = id, .prompt_tokens = 8, .block_size = 8, .decode_tokens = 2});
      for (bool ended = false; !ended;) {
        now += absl::Milliseconds(1);
        give(StepDone{});
        for (const Effect& effect : effects) {
          const End* const end = std::get_if<End>(&effect);
          ended |= end != nullptr && end->id == id;
        }
      }
      give(SessionClosed{.session = id});
    }
  };
  ask(1000);
  const int64_t held = bytes_held;
  ask(20000);
  EXPECT_LE(bytes_held - held, 1024);
}

}  // namespace
}  // namespace ebb
