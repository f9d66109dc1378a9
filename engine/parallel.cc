#include "engine/parallel.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "policies/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ebb {
namespace {

// How long a thread looks before it sleeps: longer than the serial work between two ops, and than a sleeping thread
// takes to wake; short beside the milliseconds for which another process keeps a core.
constexpr std::chrono::microseconds kPatience(50);
constexpr int kLooksPerYield = 128;  // a few microseconds
constexpr int kYieldsMin = 4;        // however long others kept the core

void Relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Looks until `ready` or out of patience; whether it was ready. Between looks the core is offered to others: where the
// thread that is waited for stands in line for this very core, it runs at once, and this one need not be woken after.
template <typename Ready>
bool Look(const Ready& ready) {
  using Clock = std::chrono::steady_clock;
  if (ready()) return true;
  const Clock::time_point end = Clock::now() + kPatience;
  for (int yields = 0; yields < kYieldsMin || Clock::now() < end; ++yields, std::this_thread::yield()) {
    for (int look = 0; look < kLooksPerYield; ++look, Relax()) {
      if (ready()) return true;
    }
  }
  return ready();
}

using Word = std::atomic<uint32_t>;
static_assert(sizeof(Word) == 4 && Word::is_always_lock_free);  // what the system calls take

// Returns when woken, or at once when `word` is not `value`; also for nothing.
void Sleep(Word& word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void Wake(Word& word, int32_t sleepers) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, sleepers, nullptr, nullptr, 0);
}

// Items first..end-1 that nobody has claimed, in one word: the owner claims the first, others the last.
class alignas(64) Range {
 public:
  void Set(uint32_t first, uint32_t end) { word_.store(uint64_t{end} << 32 | first, std::memory_order_release); }

  // The item, -1 when none is left.
  int64_t ClaimFirst() {
    uint64_t word = word_.load(std::memory_order_acquire);
    while (First(word) < End(word)) {
      if (Claimed(word, word + 1)) return First(word);
    }
    return -1;
  }
  int64_t ClaimLast() {
    uint64_t word = word_.load(std::memory_order_acquire);
    while (First(word) < End(word)) {
      if (Claimed(word, word - (uint64_t{1} << 32))) return End(word) - 1;
    }
    return -1;
  }

 private:
  static uint32_t First(uint64_t word) { return static_cast<uint32_t>(word); }
  static uint32_t End(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
  bool Claimed(uint64_t& word, uint64_t next) {
    return word_.compare_exchange_weak(word, next, std::memory_order_acquire, std::memory_order_acquire);
  }

  std::atomic<uint64_t> word_ = 0;
};

}  // namespace

// Who claims an item may read `call` and `context`, which are written only between runs: a run lasts until `unfinished`
// is zero, and an item counts as unfinished until its thread has looked through all ranges. A thread that comes too
// late finds nothing to claim, or items of the run after, and looks at nothing else.
//
// Who goes to sleep says so first and then compares the word it sleeps on; who changes that word changes it first and
// then asks whether anybody sleeps. So a wake-up is never missed, and costs a system call only when one is due.
struct Parallel::State {
  alignas(64) Word runs = 0;        // counts them: threads sleep on it
  alignas(64) Word unfinished = 0;  // items; the caller sleeps on it
  alignas(64) std::atomic<int32_t> sleepers = 0;
  std::atomic<bool> caller_sleeps = false;
  std::atomic<bool> ending = false;
  Call call = nullptr;
  const void* context = nullptr;
  std::vector<Range> ranges = {};  // [threads]
  std::vector<std::thread> threads = {};

  // Does items until none is left to claim: its own, then what others have left.
  void Work(int32_t thread) {
    uint32_t done = 0;
    for (Range& own = ranges[thread]; true; ++done) {
      const int64_t item = own.ClaimFirst();
      if (item < 0) break;
      call(context, item, thread);
    }
    const auto count = static_cast<int32_t>(ranges.size());
    for (int32_t i = 1; i < count; ++i) {
      for (Range& other = ranges[(thread + i) % count]; true; ++done) {
        const int64_t item = other.ClaimLast();
        if (item < 0) break;
        call(context, item, thread);
      }
    }
    if (done == 0 || unfinished.fetch_sub(done) != done) return;
    if (caller_sleeps) Wake(unfinished, 1);
  }

  void Serve(int32_t thread) {
    uint32_t seen = 0;
    while (!ending) {
      if (!Look([&] { return runs.load(std::memory_order_relaxed) != seen; })) {
        ++sleepers;
        Sleep(runs, seen);
        --sleepers;
      }
      seen = runs;
      Work(thread);
    }
  }

  void Begin(int32_t wanted) {
    ++runs;
    if (sleepers > 0) Wake(runs, wanted);
  }

  void Await() {
    if (Look([&] { return unfinished.load(std::memory_order_acquire) == 0; })) return;
    caller_sleeps = true;
    for (uint32_t left = unfinished; left > 0; left = unfinished) Sleep(unfinished, left);
    caller_sleeps = false;
  }
};

Parallel::Parallel(int32_t threads) : state_(std::make_unique<State>()) {
  EBB_CHECK(threads >= 1 && threads <= kThreadsMax);
  state_->ranges = std::vector<Range>(static_cast<size_t>(threads));
  for (int32_t thread = 1; thread < threads; ++thread) {
    state_->threads.emplace_back([state = state_.get(), thread] { state->Serve(thread); });
  }
}

Parallel::~Parallel() {
  state_->ending = true;
  state_->Begin(kThreadsMax);
  for (std::thread& thread : state_->threads) thread.join();
}

int32_t Parallel::threads() const { return static_cast<int32_t>(state_->threads.size()) + 1; }

void Parallel::Run(int64_t items, Call call, const void* context) {
  EBB_CHECK(items >= 0 && items <= INT32_MAX);
  if (items <= 1 || state_->threads.empty()) {
    for (int64_t item = 0; item < items; ++item) call(context, item, 0);
    return;
  }
  State& state = *state_;
  state.call = call;
  state.context = context;
  state.unfinished.store(static_cast<uint32_t>(items), std::memory_order_relaxed);
  const int64_t share = items / threads(), more = items % threads();
  int64_t first = 0;
  for (int32_t thread = 0; thread < threads(); ++thread) {
    const int64_t end = first + share + (thread < more ? 1 : 0);
    state.ranges[thread].Set(static_cast<uint32_t>(first), static_cast<uint32_t>(end));
    first = end;
  }
  state.Begin(static_cast<int32_t>(std::min<int64_t>(items, threads()) - 1));
  state.Work(0);
  state.Await();
}

}  // namespace ebb
